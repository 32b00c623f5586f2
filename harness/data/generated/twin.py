"""Twins: generated graphs in the likeness of published sets, for machines that do not have those."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from harness.data import generated
from harness.data.catalog import BOUNDARIES, DatasetInfo, published
from harness.data.generated.sbm import PlantedGraph
from harness.data.graph import Array, GraphData
from harness.data.partition.view import Floats, Ints
from harness.deferred import numpy as np
from harness.errors import UserError, nearest

CELL = 1.1  # nodes of a community in a block to a node's neighbours, at least
FEWEST = 32  # nodes of a community in a block
MOST_FLIPPED, CAPPED = 0.9, 20  # chance of a node's label to be flipped, and rounds until the others make up for it
YIELDS = 0.06  # of homophily, for boundaries
PROBED = 20_000  # degrees that shares of edges are worked out from
SPARSE = 10.0  # no twin has a mean degree capped below this
LABEL_RATE, LABEL_STRAYS = 0.4, 0.002  # a user's chance to be in a label group of its community, in another


def _published(name: str) -> tuple[float, ...]:
    return tuple(BOUNDARIES[name].by_parts[parts] for parts in (2, 4, 8, 16))


@dataclass(frozen=True)
class Shape:
    """Properties that a twin imitates besides the published counts.

    `degrees`, `parameter`: degree distribution, see `generated.degree_weights`; `homophily`: share of edges
    whose ends have one label (multi-label: come from one community); `split`: train, val, test shares, the
    rest is in no mask; `flipped`: share of labels that nothing explains, so that the best score is near
    the published one (multi-label: see `generated.label_sets`); `noise`: see `generated.noisy_features`; `boundary`:
    what METIS leaves in 2, 4, 8 and 16 parts: the boundary nodes of all parts, in multiples of the graph's nodes;
    `uneven`: deviation of the logarithm of what degrees in a block are multiplied by, so that some parts have more
    boundary than others; `groups`: labels and features are memberships in groups, which only the nodes of the split
    have any of; `lonely`: the chance of a flip falls with this power of the degree, because flips of hubs cost
    homophily that the real graph has at its score.
    """

    degrees: str
    parameter: float
    homophily: float
    split: tuple[float, float, float]
    flipped: float
    noise: float
    boundary: tuple[float, ...]
    uneven: float = 0.0
    groups: bool = False
    lonely: float = 0.0


# Split shares are the published ones (youtube: 94,238 users are in a group, konect.cc/networks/
# youtube-groupmemberships). Degree shapes of ogbn-arxiv, flickr, cora and citeseer were fitted to the upper
# percentiles of the real graphs; their homophily was measured on them. Every other degree parameter and homophily is
# an ESTIMATE, from summary statistics at best. `flipped`, `lonely` and `noise` were fitted to the published scores of
# full-graph training (docs/design/twins.md). Boundaries are published (`catalog.BOUNDARIES`; yelp's in 2 and 16 parts
# are ESTIMATES) or were measured on the real graph (flickr, cora, citeseer: METIS, edge cut; citeseer's are set 12 to
# 30 % higher, since METIS finds less than what was planted where edges are this few); those of amazon, ppi and
# youtube are ESTIMATES.
SHAPES: dict[str, Shape] = {
    "reddit": Shape("lognormal", 1.15, 0.76, (0.66, 0.10, 0.24), 0.03, 0.4, _published("reddit"), 0.45),
    "ogbn-products": Shape(
        "lognormal", 1.15, 0.81, (0.0803, 0.0161, 0.9036), 0.19, 0.4, _published("ogbn-products"), 0.25, lonely=2
    ),
    "ogbn-arxiv": Shape(
        "powerlaw", 2.4, 0.655, (0.537, 0.176, 0.287), 0.25, 0.4, _published("ogbn-arxiv"), 0.25, lonely=2
    ),
    "ogbn-papers100m": Shape(
        "powerlaw", 2.4, 0.57, (0.01087, 0.00113, 0.00193), 0.25, 0.28, _published("ogbn-papers100m"), 0.3, lonely=2
    ),
    "yelp": Shape("powerlaw", 2.6, 0.60, (0.75, 0.10, 0.15), 0.07, 0.15, (0.3, 0.673, 1.289, 2.1)),
    "amazon": Shape("lognormal", 1.4, 0.60, (0.85, 0.05, 0.10), 0.016, 0.15, (0.70, 1.68, 2.89, 4.29)),
    "flickr": Shape("powerlaw", 2.55, 0.32, (0.50, 0.25, 0.25), 0.37, 0.70, (0.639, 1.369, 2.110, 2.892), 0.2),
    "ppi": Shape("lognormal", 1.1, 0.60, (0.66, 0.12, 0.22), 0.0016, 0.14, (0.58, 1.21, 1.86, 2.57)),
    "youtube": Shape("powerlaw", 2.3, 0.50, (0.0745, 0.0041, 0.0042), 0.0, 1.0, (0.15, 0.26, 0.34, 0.55), groups=True),
    "cora": Shape(
        "powerlaw", 3.1, 0.81, (140 / 2708, 500 / 2708, 1000 / 2708), 0.05, 0.44, (0.106, 0.172, 0.280, 0.420), 0.4
    ),
    "citeseer": Shape(
        "powerlaw", 2.9, 0.735, (120 / 3327, 500 / 3327, 1000 / 3327), 0.10, 0.31, (0.022, 0.043, 0.083, 0.15), 0.3
    ),
    "pubmed": Shape(
        "powerlaw", 2.9, 0.80, (60 / 19717, 500 / 19717, 1000 / 19717), 0.085, 0.70, _published("pubmed"), 0.2
    ),
}


class TwinSettings(generated.Settings):
    """Options of `twin`."""

    of: str = Field("reddit", description="the published set to imitate: " + ", ".join(SHAPES))
    scale: float = Field(0.02, ge=1e-9, le=1, description="share of its nodes, above 0 and at most 1")
    noise: float = Field(1.0, ge=0, description="factor on the feature noise")
    seed: int = Field(0, ge=0, description="seed")


def make(*, work: Path | None = None, **options: Any) -> GraphData:
    """Return a generated graph with the published set's shape; origin and note say that it is a twin.

    Equal to the published set: feature width, class count, multi-label or not, inductive default, split
    shares (a random split), and at scale 1 the node count and mean degree. Alike: degree distribution,
    homophily and the boundary that METIS leaves in up to 16 parts (`SHAPES`). Invented: everything else, above all
    the features (noisy class centres) and so the scores.

    Communities lie one after another on a line, which is halved again and again into up to 16 blocks; the share of
    edges between two halves follows from the boundary at that number of parts. Homophily is met within a block.

    At scale s < 1 the mean degree d becomes min(d, max(d * sqrt(s), 10), nodes / (1.5 classes)), so that the graph
    stays sparse and communities do not become cliques; `note` says so. Class sizes fall as 1 / sqrt(rank), in random
    order. Boundaries are the same multiples of the nodes at every scale; where both do not fit, homophily gives way
    by up to 6 points (not where the third bound holds), then boundaries, and where communities in a block would have
    few nodes there are fewer blocks.
    Multi-label sets have half as many communities as labels. A node that would be isolated gets one edge.

    YouTube's twin has users in groups, rather those of many links than of few; each group is at home in one
    community. A user is in about 0.8 of the label groups of its community and, at random, in 0.13 of the
    others; for the features see `group_features`. So few memberships show a user's community badly, and its
    neighbours' show it better. Groups are labels or features, never both.
    """
    s, real, shape = _settings(options)
    nodes, degree = _size(s, real)
    rng = np.random.default_rng([s.seed, 0])
    count = max(2, real.classes // 2) if real.multilabel else real.classes
    community = generated.communities(rng, nodes, count, skew=0.5)
    # a hub reaches half the graph at most
    weight = generated.degree_weights(rng, nodes, shape.degrees, shape.parameter, nodes / (2 * degree))
    chance = weight**-shape.lonely
    for _ in range(CAPPED if shape.flipped else 0):
        chance = np.minimum(shape.flipped * chance / chance.mean(), MOST_FLIPPED)
    seen = float((weight * chance).sum() / weight.sum())  # share of edges' ends that are flipped
    homophily = shape.homophily if real.multilabel else _community_homophily(shape.homophily, seen, count)
    planted = _planted(weight, community, degree, homophily, shape, s.seed)
    csr, noise = planted.csr(), s.noise * shape.noise
    if shape.groups:
        users = np.sort(rng.choice(nodes, round(sum(shape.split) * nodes), replace=False, p=weight / weight.sum()))
        labels: Array = np.zeros((nodes, real.classes), np.uint8)
        labels[users] = generated.group_members(rng, community[users], real.classes, LABEL_RATE, LABEL_STRAYS)
        features = generated.group_features(community, users, real.features, noise, s.seed, work)
        drawn = generated.split_masks(rng, users.size, [share / sum(shape.split) for share in shape.split])
        split = [np.isin(np.arange(nodes), users[own]) for own in drawn]
    else:
        if real.multilabel:
            labels = generated.label_sets(rng, community, real.classes, shape.flipped)
        else:
            labels = generated.class_labels(rng, community, count, chance)
        split = generated.split_masks(rng, nodes, shape.split)
        features = generated.noisy_features(community, real.features, noise, s.seed, work)
    known, about = (labels, real.classes, real.multilabel), {"origin": "twin", "note": _note(s, real, degree)}
    return GraphData.of("twin", csr=csr, features=features, labels=known, split=split, **about)


def _planted(weight: Floats, community: Ints, degree: float, homophily: float, shape: Shape, seed: int) -> PlantedGraph:
    """Return the graph of `make`: blocks within blocks, and communities within the smallest ones."""
    nodes, count = community.size, int(community.max()) + 1
    least = max(CELL * degree, FEWEST)
    fitting = [level for level in range(1, len(shape.boundary) + 1) if nodes / (count + (1 << level)) > least]
    levels = max(fitting, default=0)
    line, place = np.argsort(community, kind="stable"), np.empty(nodes, np.int64)
    place[line] = np.arange(nodes)
    block = (place << levels) // nodes
    rng = np.random.default_rng([seed, 3])
    weight = weight * np.exp(shape.uneven * rng.standard_normal(1 << levels))[block]
    weight = np.minimum(weight / weight.mean(), nodes / (2 * degree))
    keys, cell = np.unique(block * count + community, return_inverse=True)
    blocks, classes = keys // count, keys % count
    own = np.bincount(cell, weight).astype(np.float64)
    groups = np.stack([*(blocks >> (levels - level) for level in range(levels + 1)), np.arange(keys.size)])
    crossing = _crossing(weight * degree, shape.boundary[:levels])
    alike = 0.0  # share of edges that cross and join nodes of one community
    for share, outer, inner in zip(crossing, groups[:-2], groups[1:-1], strict=True):
        others, same = (
            _total(own, of) - _total(own, finer)
            for of, finer in ((outer, inner), (outer * count + classes, inner * count + classes))
        )
        alike += share * float((own * same / np.maximum(others, 1e-300)).sum() / own.sum())
    mixed = float((own * own / _total(own, blocks)).sum() / own.sum())  # of edges that join any two nodes of a block
    # What is drawn for the last level lands as often in a node's own block.
    stray = (1 - mixed) * sum(crossing[-1:])
    # Where both do not fit, homophily gives way, a little, and then boundaries; the latter alone in graphs so small
    # that the size of communities bounds the degree.
    yields = YIELDS if degree < 0.99 * nodes / (1.5 * count) else 0.0
    if (most := (1 - homophily + yields) / max(sum(crossing) + stray - alike, 1e-300)) < 1:
        crossing, alike, stray = [share * most for share in crossing], alike * most, stray * most
    within = 1 - sum(crossing)
    inside = min(max(homophily - alike, within * mixed), within - stray)
    shares = [*crossing, within - inside, inside]
    return PlantedGraph(weight, cell, groups=groups, shares=shares, edges=nodes * degree / 2, seed=seed)


def _total(weight: Floats, group: Ints) -> Floats:
    """Return the summed weight of each cell's group."""
    _, number = np.unique(group, return_inverse=True)
    return np.bincount(number, weight).astype(np.float64)[number]


def _crossing(degrees: Floats, boundary: Sequence[float]) -> list[float]:
    """Return which shares of edges join the two halves of the graph, of a half, of a quarter and so on.

    Such that blocks have the `boundary` in 2, 4, 8, ... parts. A node of degree d is in the boundary of a part that a
    share s of its edges lead to with probability 1 - exp(-d s); from 2^l parts it sees one at level l, and 2^(l - k)
    that share what crosses at level k.
    """
    from scipy.optimize import brentq

    sample = np.sort(degrees)[:: max(1, degrees.size // PROBED)]

    def reached(share: float) -> float:
        return float(-np.expm1(-sample * share).mean())

    shares: list[float] = []
    for level, wanted in enumerate(boundary):
        others = (1 << (level - coarser) for coarser in range(level))
        left = wanted - sum(count * reached(share / count) for count, share in zip(others, shares, strict=True))
        most = max(0.9 - sum(shares), 0.0)
        shares.append(brentq(lambda share, left=left: reached(share) - left, 0, most) if 0 < left < reached(most) else
                      most * (left > 0))  # fmt: skip
    return shares


def info(options: Mapping[str, Any]) -> DatasetInfo:
    """What `make` would return; `edges` is what it aims at."""
    s, real, shape = _settings(options)
    nodes, degree = _size(s, real)
    sizes, summary = (nodes, round(nodes * degree), real.features, real.classes), _note(s, real, degree)
    modes = {"multilabel": real.multilabel, "inductive": real.inductive, "trained": shape.split[0]}
    return generated.made("twin", sizes, TwinSettings, summary, origin="twin", like=real.name, **modes)


def _settings(options: Mapping[str, Any]) -> tuple[TwinSettings, DatasetInfo, Shape]:
    s = generated.resolve(TwinSettings, "twin", options)
    if s.of not in SHAPES:
        raise UserError(f"no twin of '{s.of}'", key="dataset twin: of", fix=nearest(s.of, SHAPES))
    real = published()[s.of].info
    fewest = 8 * real.classes
    if round(real.nodes * s.scale) < fewest:
        least = f"at least {fewest / real.nodes:.2g}"
        message = f"{s.scale:g} leaves too few nodes for {real.classes} classes"
        raise UserError(message, key="dataset twin: scale", fix=least)
    return s, real, SHAPES[s.of]


def _size(s: TwinSettings, real: DatasetInfo) -> tuple[int, float]:
    nodes, degree = round(real.nodes * s.scale), real.edges / real.nodes
    if s.scale < 1:
        degree = min(degree, max(degree * math.sqrt(s.scale), SPARSE), nodes / (1.5 * real.classes))
    return nodes, degree


def _note(s: TwinSettings, real: DatasetInfo, degree: float) -> str:
    capped = degree < 0.999 * real.edges / real.nodes
    return f"twin of {s.of}, scale {s.scale:g} (generated{f', mean degree {degree:.3g}' if capped else ''})"


def _community_homophily(homophily: float, flipped: float, classes: int) -> float:
    """Share of intra-community edges that gives the labels, some of them flipped, their homophily."""
    keep, other = 1 - flipped, flipped / (classes - 1)
    same = keep**2 + (classes - 1) * other**2
    different = 2 * keep * other + (classes - 2) * other**2
    return min(max((homophily - different) / (same - different), 0.0), 0.99)
