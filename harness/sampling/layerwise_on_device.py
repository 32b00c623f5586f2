"""Layer-wise sampling by torch's operations: what `harness.sampling.layerwise` draws, from a graph on a device.

A node's random number is that of the compiled kernels, and nodes have the same order. So the same are drawn with the
same seed, unless a number is within rounding of its chance: sums are added up in other orders. The host waits for
sizes alone, which docstrings say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.deferred import numpy as np
from harness.deferred import torch
from harness.graph.block import OwnRows
from harness.graph.csr import Ints, pointers, sums_by_group, sums_of_rows
from harness.graph.devices import upload
from harness.graph.kernels import node_uniforms
from harness.sampling.graph_on_device import GraphOnDevice, LayerOnDevice
from harness.sampling.neighbours_on_device import number_nodes

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from harness.sampling.layerwise import AlphaRule, Estimator, Layers, Scaled


def inclusion_on_device(weights: Tensor, size: int) -> Tensor:
    """Return what `layerwise.inclusion` does of `weights` float64 [n], more than `size` of which are positive."""
    ordered, count = weights.sort().values, weights.numel()
    # The k smallest share what of the size the others leave, which have p = 1. For k up to the one wanted no p is
    # above 1, beyond it one is. Small ones are added up first: large ones do not drown them.
    ranks = torch.arange(1, count + 1, device=weights.device)
    sums, shares = ordered.cumsum(0), ranks + (size - count)
    last = torch.where(ordered * shares <= sums, ranks, 1).amax().view(1) - 1  # a tensor: the host does not wait
    return (weights / sums[last] * shares[last]).clamp(max=1)


@dataclass(frozen=True, eq=False)
class ScaledOnDevice:
    """A `Scaled` graph on a device; what one value stands for is a view of it."""

    graph: GraphOnDevice
    left: Tensor  # float64 [N]
    right: Tensor  # float64 [N]
    keep: Tensor  # bool [N]
    own: Tensor  # float64 [N]
    draws_loop: bool
    plain: bool  # right and keep are 1 for all

    @classmethod
    def of(cls, scaled: Scaled, device: torch.device) -> ScaledOnDevice:
        """Copy a graph to the device; the host waits."""

        def by_node(array: NDArray[Any]) -> Tensor:
            return torch.from_numpy(np.array(array)).to(device).expand(scaled.topology.num_nodes)

        right, keep = scaled.right, scaled.keep
        return cls(
            GraphOnDevice.of(scaled.topology, device), by_node(scaled.left), by_node(right[0]), by_node(keep[0]),
            by_node(scaled.own[0]), scaled.draws_loop, right[1] == keep[1] == 0,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class SightsOnDevice:
    """The rows of destinations, and all nodes as a loop over them meets them: each destination before its neighbours.

    Attributes:
        pointers: int64 [num_dst + 1], to the edges of each destination.
        entries, row: int64 [edges], an edge's place in the graph, and its destination's number.
        nodes: int32 [num_dst + edges], the nodes.
        own_at, edge_at: int64, where the destinations are among them, and the edges' neighbours.
    """

    pointers: Tensor
    entries: Tensor
    row: Tensor
    nodes: Tensor
    own_at: Tensor
    edge_at: Tensor

    @classmethod
    def of(cls, graph: GraphOnDevice, destinations: Tensor) -> SightsOnDevice:
        """Read the rows of the destinations (int64); the host waits for the number of edges."""
        starts, entries, row = graph.rows(destinations)
        own_at = starts[:-1] + torch.arange(destinations.numel(), device=row.device)
        edge_at = torch.arange(row.numel(), device=row.device) + row + 1
        nodes = graph.indices.new_empty(own_at.numel() + edge_at.numel())
        nodes[own_at], nodes[edge_at] = destinations.int(), graph.indices[entries]
        return cls(starts, entries, row, nodes, own_at, edge_at)


class LayerFrontierOnDevice:
    """The nodes that a layer meets, numbered in the order of first sight, and the edges into its destinations.

    `keep` destinations, the first, are sources in any case. The host waits for the numbers of edges and of nodes.
    """

    def __init__(self, scaled: ScaledOnDevice, destinations: Tensor, keep: int) -> None:
        graph, self._scaled, self._destinations, self._kept = scaled.graph, scaled, destinations, keep
        self._seen = seen = SightsOnDevice.of(graph, destinations)
        self._node, number = number_nodes(destinations[:0], seen.nodes, len(graph.indptr) - 1)
        self._own, self._edges = number[seen.own_at], number[seen.edge_at]
        self._weights = None if graph.weights is None else graph.weights[seen.entries].double()
        self._factor = torch.where(scaled.keep[self._node], scaled.right[self._node], 0.0)
        scale = scaled.left[destinations].square()[seen.row]
        squares = scale.new_empty(seen.nodes.numel())
        squares[seen.own_at] = scaled.own[destinations]
        squares[seen.edge_at] = scale if self._weights is None else scale * self._weights.square()
        sums = sums_by_group(squares, number, self._node.numel())
        self._weight = sums * self._factor.square()

    def weigh(self, local: Tensor | None, skew: AlphaRule | None, size: int) -> tuple[float, int]:
        """See `LayerFrontier.weigh`; `local` is bool [N]. The host waits for what the rule is told, or the number."""
        candidates = self._weight > 0
        if skew is None or local is None:
            return 1.0, int(candidates.sum())
        here = local[self._node]
        near, far = (torch.where(side, self._weight, 0).sum() for side in (here, ~here))
        near_count, count = (candidates & here).sum().double(), candidates.sum().double()
        n_local, n_remote, q_local, q_remote = torch.stack([near_count, count - near_count, near, far]).tolist()
        alpha = skew.alpha_of(int(n_local), int(n_remote), q_local, q_remote, size)
        self._weight = torch.where(here, alpha * self._weight, self._weight)
        return alpha, int(n_local + n_remote)

    def draw(self, size: int, estimator: Estimator, seed: int, depth: int) -> tuple[Tensor, Tensor]:
        """Return which nodes are drawn [met], fewer than there are candidates or all (-1), and what edges count."""
        weight = self._weight
        if size < 0:
            return weight > 0, torch.ones_like(weight)
        numbers = node_uniforms(seed, depth, self._node)
        if estimator == "poisson":
            chance = inclusion_on_device(weight, size)
            return numbers < chance, 1 / chance
        waits = torch.where(weight > 0, -torch.log1p(-numbers) / weight, torch.inf)
        first = waits.topk(size, largest=False, sorted=False).indices
        return torch.zeros_like(weight, dtype=torch.bool).index_fill(0, first, True), weight.sum() / (size * weight)

    def join(self, drawn: Tensor, inverse: Tensor, size: int | None) -> tuple[Tensor, Tensor]:
        """Add the destinations that are kept to those drawn; see `LayerFrontier.join`."""
        added = self._own[: self._kept].long()
        counts = torch.ones_like(inverse[added])
        if size is not None:
            share = size * self._weight[added]
            counts = torch.where(share > 0, self._weight.sum() / share, share)
        return drawn.index_fill(0, added, True), inverse.index_copy(0, added, counts)

    def layer(self, drawn: Tensor, inverse: Tensor, whole: bool, normalise: bool, nested: bool) -> LayerOnDevice:
        """See `LayerFrontier.layer`; the host waits for the numbers of sources and edges, and of own rows."""
        graph, kept = self._scaled.graph, self._kept
        row = torch.full_like(self._node, -1, dtype=torch.int32)
        row[self._own[:kept]] = torch.arange(kept, dtype=torch.int32, device=row.device)
        fresh = (drawn & (row < 0)).nonzero().squeeze(1)
        row[fresh] = torch.arange(kept, kept + fresh.numel(), dtype=torch.int32, device=row.device)
        sources = torch.cat([self._destinations[:kept], self._node[fresh]])
        is_drawn = drawn[self._edges]
        places = is_drawn.nonzero().squeeze(1)
        numbers, starts = self._edges[places], pointers(is_drawn)[self._seen.pointers]
        values = inverse[numbers] if self._weights is None else self._weights[places] * inverse[numbers]
        scale = self._row_scales(starts, values, numbers, drawn, inverse) if normalise else None
        counted = None if whole and graph.weights is None else values
        own = None if nested else self._own_rows(drawn, inverse, row, scale)
        return LayerOnDevice(sources, starts, row[numbers], graph.degree(sources), counted, scale, own=own)

    def _own_rows(self, drawn: Tensor, inverse: Tensor, row: Tensor, scale: Tensor | None) -> tuple[Tensor, OwnRows]:
        """Return the destinations, and the own rows of those that are sources."""
        at = drawn[self._own].nonzero().squeeze(1)
        numbers = self._own[at]
        own = loop = inverse[numbers]
        if scale is not None:
            own, loop = torch.ones_like(own), own * scale[at]
        degree = self._scaled.graph.degree(self._destinations)
        return self._destinations, OwnRows(degree, at, row[numbers].long(), own, loop)

    def _row_scales(self, starts: Tensor, values: Tensor, numbers: Tensor, drawn: Tensor, inverse: Tensor) -> Tensor:
        """Return what makes rows of drawn edges sum to those of all candidates; 1 where nothing does."""
        scaled, loops = self._scaled, self._factor[self._own]
        if scaled.plain:
            wanted = scaled.graph.degree(self._destinations)
        else:
            every = self._factor[self._edges]
            every = every if self._weights is None else every * self._weights
            wanted = sums_of_rows(self._seen.pointers, every)
        found = sums_of_rows(starts, values * scaled.right[self._node[numbers]])
        if scaled.draws_loop:
            wanted = wanted + loops
            found = found + torch.where(drawn[self._own], inverse[self._own] * loops, 0)
        return torch.where(found != 0, wanted / found, 1.0)


@dataclass(frozen=True, eq=False)
class LayersOnDevice:
    """Draws what a `LayerSampler` of the same arguments does."""

    scaled: ScaledOnDevice
    local: Tensor | None  # bool [N]
    skew: AlphaRule | None
    estimator: Estimator
    layers: Layers

    def sample(
        self, targets: Ints, sizes: Sequence[int], seed: int
    ) -> tuple[list[LayerOnDevice], list[float], list[int]]:
        """Return the layers, alphas and candidates, input layer first; the host waits for sizes, a few a layer."""
        nodes = upload(targets, self.scaled.left.device)
        found = list[tuple[LayerOnDevice, float, int]]()
        for depth, size in enumerate(reversed(sizes)):
            keep = {"nested": nodes.numel(), "public": targets.size, "paper": 0}[self.layers]
            found.append(self._layer(LayerFrontierOnDevice(self.scaled, nodes, keep), size, seed, depth))
            nodes = found[-1][0].sources
        layers, alphas, candidates = zip(*reversed(found), strict=True)
        return list(layers), list(alphas), list(candidates)

    def _layer(
        self, frontier: LayerFrontierOnDevice, size: int, seed: int, depth: int
    ) -> tuple[LayerOnDevice, float, int]:
        alpha, count = frontier.weigh(self.local, self.skew, size)
        whole = size < 0 or size >= count
        corrects = self.estimator == "ladies" and not whole
        drawn, inverse = frontier.draw(-1 if whole else size, self.estimator, seed, depth)
        if self.layers == "public":
            drawn, inverse = frontier.join(drawn, inverse, size if corrects else None)
        return frontier.layer(drawn, inverse, whole, corrects, self.layers == "nested"), alpha, count
