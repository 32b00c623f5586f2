"""Planted partitions: the generator, and the data set made by it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from harness.data.catalog import DatasetInfo
from harness.data.generated import (
    GENERATED,
    Settings,
    communities,
    label_sets,
    made,
    noisy_features,
    resolve,
    split_masks,
)
from harness.data.graph import GraphData, compiled, csr_from_edges
from harness.data.partition.view import Floats, Ints
from harness.deferred import numpy as np
from harness.errors import UserError

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHUNK = 1 << 20  # edges drawn at a time
PROBES = 1 << 18  # node pairs that estimate how many drawn edges coincide


class PlantedGraph:
    """Draws undirected edges between nodes with weights, in cells that form groups within groups.

    An edge joins u, v with probability 1 - exp(-w_u w_v r), r the sum over the levels at which u and v share a group:
    the edges of a Poisson multigraph, each counted once. The rates are solved for such that, in expectation, `edges`
    distinct undirected edges come out, the share `shares[l]` of them between nodes whose finest common group is of
    level l.

    weight: float64 [N] > 0, proportional to the expected degree (hubs get fewer: their edges coincide); cell: int64
    [N], none empty; groups: int64 [levels, cells], each row ascending, the first all 0 (the whole graph), the last
    the cells.
    Raises UserError when that many edges do not fit.
    """

    def __init__(
        self, weight: Floats, cell: Ints, *, groups: Ints, shares: Sequence[float], edges: float, seed: int
    ) -> None:
        self.seed, self.groups = seed, groups
        self.order = np.argsort(cell, kind="stable")
        self.weight, self.cell = weight[self.order], cell[self.order]
        self.bounds: Floats = np.concatenate([[0.0], np.cumsum(self.weight)])
        self.total = float(self.bounds[-1])
        cells = np.arange(weight.size) * (self.total / weight.size)
        self.guide = np.searchsorted(self.bounds, cells, side="right") - 1
        self.low, self.high = self._spans()
        rates: list[float] = []
        for share in shares:
            rates.append(self._solve(edges * share, rates, edges))
        self.draws = round(sum(rates))
        self.until = np.cumsum(rates) / max(sum(rates), 1e-300)

    def _spans(self) -> tuple[Floats, Floats]:
        """[levels, cells]: where in `bounds` the group that holds a cell starts and ends."""
        first: Ints = np.searchsorted(self.cell, np.arange(self.groups.shape[1] + 1))
        edge = self.bounds[first]
        left = [np.searchsorted(groups, groups) for groups in self.groups]
        right = [np.searchsorted(groups, groups, side="right") for groups in self.groups]
        return edge[np.stack(left)], edge[np.stack(right)]

    def csr(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return (indptr int64 [N+1], indices int32 [E]): symmetric, ascending, no loop, no edge twice.

        A node that drew no edge gets one, drawn as the others are but from its end.
        """
        lone = np.ones(self.order.size, np.bool_)
        for source, destination in self._edges():
            proper = source != destination
            lone[source[proper]] = lone[destination[proper]] = False
        stream = partial(self._edges, np.flatnonzero(lone))
        return csr_from_edges(stream, self.order.size, symmetrise=True)

    def _edges(self, lone: Ints | None = None) -> Iterator[tuple[Ints, Ints]]:
        """The same stream of (source, destination) arrays at every call, and one more for `lone` nodes."""
        for chunk, start in enumerate(range(0, self.draws, CHUNK)):
            rng = np.random.default_rng([self.seed, 0, chunk])
            random = rng.random((3, min(CHUNK, self.draws - start)))
            u = pick(self.bounds, self.guide, random[0] * self.total)
            yield self.order[u], self.order[self._partner(u, self._level(random[1]), random[2])]
        if lone is not None:
            rng = np.random.default_rng([self.seed, 1])
            place = np.empty_like(self.order)
            place[self.order] = np.arange(place.size)
            u = place[lone]
            v = self._partner(u, self._level(rng.random(u.size)), rng.random(u.size))
            v = np.where(v == u, (u + 1) % place.size, v)
            yield lone, self.order[v]

    def _level(self, random: Floats) -> Ints:
        return np.searchsorted(self.until, random, side="right").clip(max=self.until.size - 1)

    def _partner(self, u: Ints, level: Ints, random: Floats) -> Ints:
        own: Ints = self.cell[u]
        low, high = self.low[level, own], self.high[level, own]
        return pick(self.bounds, self.guide, low + random * (high - low))

    def _solve(self, target: float, coarser: list[float], edges: float) -> float:
        """Number of draws at the next level after which `target` distinct edges, of all `edges`, are expected of it.

        An edge is of the finest level at which its ends share a group; draws at the
        `coarser` levels make some too. Sums over pairs of 1 - exp(-rate) are estimated on pairs drawn with a
        density proportional to the rate, which leaves the bounded integrand (1 - exp(-rate)) / density.
        """
        level = len(coarser)
        if target <= 0:
            return 0.0
        rng = np.random.default_rng([self.seed, 2, level])
        u = pick(self.bounds, self.guide, rng.random(PROBES) * self.total)
        v = self._partner(u, np.full(PROBES, level), rng.random(PROBES))
        own: Ints = self.cell[u]
        product = self.weight[u] * self.weight[v] / self.total
        density = [product / (self.high[k, own] - self.low[k, own]) for k in range(level + 1)]
        background = sum((draws * at for draws, at in zip(coarser, density, strict=False)), np.zeros(PROBES))
        wanted = u != v
        if level + 1 < len(self.groups):
            wanted &= self.groups[level + 1, own] != self.groups[level + 1, self.cell[v]]

        from scipy.optimize import brentq  # a tenth of what a run imports

        def expected(draws: float) -> float:
            distinct = -np.expm1(-2 * (draws * density[level] + background)) / density[level]
            return float(np.mean(np.where(wanted, distinct, 0.0)) / 2)

        if expected(0.0) >= target:
            return 0.0  # the edges drawn without regard to these groups are enough
        limit = 64 * target + 64
        if expected(limit) < target:
            limit = 64 * edges + 64  # most pairs of a level may be of a finer one
        if expected(limit) < target:
            where = "between" if level + 1 < len(self.groups) else "within"
            raise UserError(
                f"{target:.0f} edges {where} communities do not fit the graph",
                key="dataset",
                fix="lower the degree, move the homophily from its extreme, or take more nodes",
            )
        return float(brentq(lambda draws: expected(draws) - target, 0.0, limit, rtol=1e-4))


@compiled
def pick(bounds: Floats, guide: Ints, key: Floats) -> Ints:
    """Index i with bounds[i] <= key < bounds[i+1] for each key; `guide` has the i of evenly spaced keys."""
    n = bounds.size - 1
    out = np.empty(key.size, np.int64)
    scale = n / bounds[n]
    for k in range(key.size):
        i: int = guide[min(n - 1, int(key[k] * scale))]
        while i > 0 and key[k] < bounds[i]:
            i -= 1
        while i < n - 1 and key[k] >= bounds[i + 1]:
            i += 1
        out[k] = i
    return out


SPLIT = (0.6, 0.2, 0.2)


class SBMSettings(Settings):
    """Options of `sbm`."""

    nodes: int = Field(2000, ge=2, description="number of nodes")
    degree: float = Field(10.0, ge=0, description="mean degree")
    classes: int = Field(5, ge=2, description="number of classes")
    features: int = Field(32, ge=1, description="feature width")
    homophily: float = Field(0.6, ge=0, le=1, description="share of edges inside a community")
    noise: float = Field(0.6, ge=0, description="feature noise; classes are sqrt(2)/noise deviations apart")
    multilabel: bool = Field(False, description="label sets that depend on the community instead of one label")
    seed: int = Field(0, ge=0, description="seed")


def make(*, work: Path | None = None, **options: Any) -> GraphData:
    """Return the graph: communities of equal size, Poisson degrees, a random 60/20/20 split.

    Single-label: the label is the community. Multi-label: as many communities as classes; see `label_sets`.
    A node that would be isolated gets one edge.
    """
    s = resolve(SBMSettings, "sbm", options)
    if s.classes > s.nodes:
        raise UserError(f"{s.classes} classes of {s.nodes} nodes", key="dataset sbm: classes", fix="fewer")
    rng = np.random.default_rng([s.seed, 0])
    community = communities(rng, s.nodes, s.classes)
    own = np.arange(s.classes)
    planted = PlantedGraph(
        np.ones(s.nodes), community, groups=np.stack([0 * own, own]), shares=[1 - s.homophily, s.homophily],
        edges=s.nodes * s.degree / 2, seed=s.seed,
    )  # fmt: skip
    csr, split = planted.csr(), split_masks(rng, s.nodes, SPLIT)
    features = noisy_features(community, s.features, s.noise, s.seed, work)
    labels = label_sets(rng, community, s.classes) if s.multilabel else community, s.classes, s.multilabel
    return GraphData.of("sbm", csr=csr, features=features, labels=labels, split=split, **GENERATED)


def info(options: Mapping[str, Any]) -> DatasetInfo:
    """What `make` would return; `edges` is what it aims at."""
    s = resolve(SBMSettings, "sbm", options)
    sizes = s.nodes, round(s.nodes * s.degree), s.features, s.classes
    summary = "planted partition, class-dependent noisy features"
    return made("sbm", sizes, SBMSettings, summary, multilabel=s.multilabel)
