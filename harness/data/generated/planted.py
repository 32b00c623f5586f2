"""Graphs with planted communities and given expected degrees (degree-corrected stochastic block model)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from harness.data.csr import csr_from_edges
from harness.data.partition_kernels import compiled
from harness.errors import UserError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
CHUNK = 1 << 20  # edges drawn at a time
PROBES = 1 << 18  # node pairs that estimate how many drawn edges coincide


class PlantedGraph:
    """Draws undirected edges between nodes with weights and communities.

    An edge joins u, v with probability 1 - exp(-w_u w_v (a [same community] + b)): the edges of a Poisson
    multigraph, each counted once. The intra- and inter-community rates a, b are solved for such that, in
    expectation, `edges` distinct undirected edges come out and the share `homophily` of them joins
    nodes of one community.

    weight: float64 [N] > 0, proportional to the expected degree (hubs get fewer: their edges coincide);
    community: int64 [N]. Raises UserError when that many edges do not fit.
    """

    def __init__(self, weight: Floats, community: Ints, *, edges: float, homophily: float, seed: int) -> None:
        self.seed = seed
        self.order = np.argsort(community, kind="stable")
        self.weight, self.community = weight[self.order], community[self.order]
        self.bounds: Floats = np.concatenate([[0.0], np.cumsum(self.weight)])
        self.total = float(self.bounds[-1])
        first: Ints = np.searchsorted(self.community, np.arange(int(community.max()) + 2))
        self.low, self.high = self.bounds[first[:-1]], self.bounds[first[1:]]
        cells = np.arange(weight.size) * (self.total / weight.size)
        self.guide = np.searchsorted(self.bounds, cells, side="right") - 1
        across = self._solve(edges * (1 - homophily), same=False, background=0.0)
        within = self._solve(edges * homophily, same=True, background=across)
        self.draws = round(across + within)
        self.intra = within / (across + within) if self.draws else 0.0

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
            u = self._pick(random[0] * self.total)
            yield self.order[u], self.order[self._partner(u, random[1] < self.intra, random[2])]
        if lone is not None:
            rng = np.random.default_rng([self.seed, 1])
            place = np.empty_like(self.order)
            place[self.order] = np.arange(place.size)
            u = place[lone]
            v = self._partner(u, rng.random(u.size) < self.intra, rng.random(u.size))
            v = np.where(v == u, (u + 1) % place.size, v)
            yield lone, self.order[v]

    def _partner(self, u: Ints, intra: NDArray[np.bool_], random: Floats) -> Ints:
        own = self.community[u]
        low = np.where(intra, self.low[own], 0.0)
        high = np.where(intra, self.high[own], self.total)
        return self._pick(low + random * (high - low))

    def _pick(self, key: Floats) -> Ints:
        return pick(self.bounds, self.guide, key)

    def _solve(self, target: float, *, same: bool, background: float) -> float:
        """Number of draws, intra (`same`) or across, after which `target` distinct such edges are expected.

        Sums over pairs of 1 - exp(-rate) are estimated on pairs drawn with a density known to be
        proportional to the rate, which leaves the bounded integrand (1 - exp(-rate)) / density.
        """
        if target <= 0:
            return 0.0
        rng = np.random.default_rng([self.seed, 2, same])
        u = self._pick(rng.random(PROBES) * self.total)
        v = self._partner(u, np.full(PROBES, same), rng.random(PROBES))
        product = self.weight[u] * self.weight[v] / self.total
        everywhere = product / self.total
        own: Ints = self.community[u]
        span = self.high[own] - self.low[own]
        density = product / span if same else everywhere
        wanted = (u != v) & ((own == self.community[v]) == same)

        def expected(draws: float) -> float:
            rate = 2 * draws * density + (2 * background * everywhere if same else 0.0)
            return float(np.mean(np.where(wanted, -np.expm1(-rate) / density, 0.0)) / 2)

        if expected(0.0) >= target:
            return 0.0  # the edges drawn without regard to communities are enough
        limit = 64 * target + 64
        if expected(limit) < target:
            raise UserError(
                f"{target:.0f} {'intra' if same else 'inter'}-community edges do not fit the graph",
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
