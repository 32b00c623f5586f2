"""Twins: generated graphs in the likeness of published sets, for machines that do not have those."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from harness.data import generated
from harness.data.catalog import DatasetInfo, published
from harness.data.generated.sbm import PlantedGraph
from harness.data.graph import Array, GraphData
from harness.deferred import numpy as np
from harness.errors import UserError, nearest

SPARSE = 10.0  # no twin has a mean degree capped below this
LABEL_RATE, LABEL_STRAYS = 0.4, 0.002  # a user's chance to be in a label group of its community, in another


@dataclass(frozen=True)
class Shape:
    """Properties that a twin imitates besides the published counts.

    `degrees`, `parameter`: degree distribution, see `generated.degree_weights`; `homophily`: share of edges
    whose ends have one label (multi-label: come from one community); `split`: train, val, test shares, the
    rest is in no mask; `flipped`: share of labels that nothing explains, so that the best score is near
    the published one; `noise`: see `generated.noisy_features`;
    `far`: share of edges that cross regions (pairs of communities): what partitioning has to cut; `groups`:
    labels and features are memberships in groups, which only the nodes of the split have any of.
    """

    degrees: str
    parameter: float
    homophily: float
    split: tuple[float, float, float]
    flipped: float
    noise: float
    far: float = 0.1
    groups: bool = False


# Split shares are the published ones (youtube: 94,238 users are in a group, konect.cc/networks/
# youtube-groupmemberships). Degree shapes of ogbn-arxiv, flickr, cora and citeseer were fitted to
# the upper percentiles of the real graphs; their homophily was measured on them. Every other degree
# parameter, homophily and every `flipped` and `noise` are ESTIMATES, from summary statistics at best. `far`
# was chosen such that METIS' boundaries come near those of PSC-GCN's Table I (reddit, ogbn-products, yelp)
# or of the real graph (ogbn-arxiv, flickr, cora, citeseer); elsewhere it is a guess.
SHAPES: dict[str, Shape] = {
    "reddit": Shape("lognormal", 1.15, 0.76, (0.66, 0.10, 0.24), 0.03, 0.4, 0.011),
    "ogbn-products": Shape("lognormal", 1.15, 0.81, (0.0803, 0.0161, 0.9036), 0.06, 0.4, 0.024),
    "ogbn-arxiv": Shape("powerlaw", 2.4, 0.655, (0.537, 0.176, 0.287), 0.15, 0.4),
    "ogbn-papers100m": Shape("powerlaw", 2.4, 0.57, (0.01087, 0.00113, 0.00193), 0.10, 0.4),
    "yelp": Shape("powerlaw", 2.6, 0.60, (0.75, 0.10, 0.15), 0.0, 0.4, 0.09),
    "amazon": Shape("lognormal", 1.4, 0.60, (0.85, 0.05, 0.10), 0.0, 0.4),
    "flickr": Shape("powerlaw", 2.55, 0.32, (0.50, 0.25, 0.25), 0.35, 0.4, 0.18),
    "ppi": Shape("lognormal", 1.1, 0.60, (0.66, 0.12, 0.22), 0.0, 0.4),
    "youtube": Shape("powerlaw", 2.3, 0.50, (0.0745, 0.0041, 0.0042), 0.0, 1.0, groups=True),
    "cora": Shape("powerlaw", 3.1, 0.81, (140 / 2708, 500 / 2708, 1000 / 2708), 0.05, 0.25, 0.06),
    "citeseer": Shape("powerlaw", 2.9, 0.735, (120 / 3327, 500 / 3327, 1000 / 3327), 0.10, 0.2, 0.02),
    "pubmed": Shape("powerlaw", 2.9, 0.80, (60 / 19717, 500 / 19717, 1000 / 19717), 0.05, 0.3),
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
    homophily and how much partitioning has to cut (`SHAPES`). Invented: everything else, above all the
    features (noisy class centres) and so the scores.

    At scale s < 1 the mean degree d becomes min(d, max(d * sqrt(s), 10), nodes / (1.5 classes)), so that
    the graph stays sparse and communities do not become cliques; `note` says so. Class sizes fall as
    1 / sqrt(rank), in random order. A node has as many edges across regions as at scale 1, so that
    boundaries keep their share of the nodes (but at most 90 % of those across communities). Multi-label
    sets have half as many communities as labels. A node that would be isolated gets one edge.

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
    homophily = shape.homophily if real.multilabel else _community_homophily(shape, count)
    far = min(shape.far * real.edges / real.nodes / degree, 0.9 * (1 - homophily))
    planted = PlantedGraph(
        weight, community, edges=nodes * degree / 2, homophily=homophily, seed=s.seed, far=far,
        region=np.arange(count) // 2,
    )  # fmt: skip
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
            labels = generated.label_sets(rng, community, real.classes)
        else:
            labels = generated.class_labels(rng, community, count, shape.flipped)
        split = generated.split_masks(rng, nodes, shape.split)
        features = generated.noisy_features(community, real.features, noise, s.seed, work)
    known, about = (labels, real.classes, real.multilabel), {"origin": "twin", "note": _note(s, real, degree)}
    return GraphData.of("twin", csr=csr, features=features, labels=known, split=split, **about)


def info(options: Mapping[str, Any]) -> DatasetInfo:
    """What `make` would return; `edges` is what it aims at."""
    s, real, _ = _settings(options)
    nodes, degree = _size(s, real)
    sizes, summary = (nodes, round(nodes * degree), real.features, real.classes), _note(s, real, degree)
    modes = {"multilabel": real.multilabel, "inductive": real.inductive}
    return generated.made("twin", sizes, TwinSettings, summary, origin="twin", **modes)


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


def _community_homophily(shape: Shape, classes: int) -> float:
    """Share of intra-community edges that gives the labels, some of them flipped, their homophily."""
    keep, other = 1 - shape.flipped, shape.flipped / (classes - 1)
    same = keep**2 + (classes - 1) * other**2
    different = 2 * keep * other + (classes - 2) * other**2
    return min(max((shape.homophily - different) / (same - different), 0.0), 0.99)
