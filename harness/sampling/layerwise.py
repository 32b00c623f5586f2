"""Layer-wise sampling: a layer's nodes are drawn together, by importance.

On a device torch's operations draw. A node's random number is that of the compiled kernels, and nodes have the same
order: the same are drawn with the same seed, unless a number is within rounding of its chance (sums are added up in
other orders). The host waits for sizes alone, which docstrings say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from harness.deferred import numpy as np
from harness.deferred import torch
from harness.graph.block import OwnRows, Propagation
from harness.graph.csr import Floats, Ints, Topology, pointers, sums_by_group, sums_of_rows
from harness.graph.devices import upload
from harness.graph.kernels import node_uniforms
from harness.metrics import Metric
from harness.sampling import layer_kernels as kernels
from harness.sampling.layer_kernels import solve
from harness.sampling.sample import (
    DrawnLayer,
    GraphOnDevice,
    LayerOnDevice,
    LayerSample,
    OwnSample,
    Pool,
    Sample,
    Tables,
    number_nodes,
    propagation_scales,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

Estimator = Literal["poisson", "ladies"]
Layers = Literal["paper", "public", "nested"]
LAYERS = "sources of a layer: what was drawn; that and the batch; or that and the layer's destinations"
"""Describes the option `layers`."""
LAYERWISE_SPACE: Mapping[str, list[str]] = {"estimator": ["ladies", "poisson"], "layers": ["paper", "public", "nested"]}
"""What `harness tune` searches of how layers are drawn."""


class AlphaRule(Protocol):
    """How much more often local candidates are drawn than remote ones of the same weight."""

    def alpha_of(self, n_local: int, n_remote: int, q_local: float, q_remote: float, size: int) -> float:
        """Return alpha >= 1; n: numbers of candidates, q: sums of their q, size: how many are drawn or -1."""


@dataclass(frozen=True, eq=False)
class Scaled:
    """A graph with its propagation weights, as the kernels read it.

    A pair is an array and the step to read it at: 0 where one value stands for all.
    """

    topology: Topology
    weights: tuple[NDArray[np.float32], int]
    left: Floats
    right: tuple[Floats, int]
    keep: tuple[NDArray[np.bool_], int]  # by node, whether it may be drawn
    own: tuple[Floats, int]  # where they are drawn, squares of what own row and self loop count, over right_i^2
    draws_loop: bool  # a self loop is drawn like any edge

    @classmethod
    def of(
        cls,
        topology: Topology,
        propagation: Propagation,
        *,
        reads_own: bool | None = None,
        keep: NDArray[np.bool_] | None = None,
    ) -> Scaled:
        """Return the graph; `reads_own`: as of a `GNN`, or None: own rows are not drawn; `keep` None: all nodes."""
        left, right = propagation_scales(topology, propagation)
        own = np.zeros(1)
        if reads_own is not None:
            own = left**2 * propagation.self_loop
            if reads_own:
                own = own + (1 if right is None else 1 / right**2)
        return cls(
            topology,
            (np.ones(1, np.float32), 0) if topology.weights is None else (topology.weights, 1),
            left,
            (np.ones(1), 0) if right is None else (right, 1),
            (np.ones(1, np.bool_), 0) if keep is None else (keep, 1),
            (own, int(own.size > 1)),
            reads_own is not None and propagation.self_loop,
        )

    def global_weights(self) -> Floats:
        """Return q_j = sum over all i of A_ij^2, with own rows if they are drawn, float64 [N]."""
        found: Floats = kernels.global_weights(
            self.topology.indptr, self.topology.indices, *self.weights, self.left, *self.right, *self.own
        )  # fmt: skip
        return found


Drawn = tuple[Ints, Floats]
"""Numbers of drawn nodes, ascending, and the inverses of their chances."""


class LayerFrontier:
    """The nodes that a layer has met, by number (see `layer_kernels`), and the rows of its destinations.

    Its arrays stay from batch to batch: fresh memory would cost more than the work in it.
    """

    def __init__(self, graph: Scaled) -> None:
        self._graph, self._known, self._rows = graph, 0, 0
        self._destinations = self._kept = np.empty(0, np.int64)
        self._number, self._node, self._row = (np.empty(0, np.int32) for _ in range(3))
        self._factor, self._norm, self._weight, self._inverse = (np.empty(0) for _ in range(4))
        self._drawn, self._bits = np.empty(0, np.bool_), np.empty(0, np.uint64)
        self._edges, self._columns, self._values = np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0)
        self._starts, self._sums = np.zeros(1, np.int64), np.empty(0)
        self._weights = np.ones(1, np.float32), 0  # of the edges, and the step

    def begin(self, number: NDArray[np.int32]) -> None:
        """Forget all nodes; `number` is -1 for every node, or as this left it."""
        self._number = number
        kernels.forget(number, self._node[: self._known])
        self._known = self._rows = 0
        self._destinations = self._kept = np.empty(0, np.int64)

    def extend(self, fresh: Ints, sums: bool, own: bool) -> None:
        """Add destinations, and if wanted the sums of their rows; `own`: see `Topology.rows`."""
        graph = self._graph
        found, rows = graph.topology.rows(fresh, own=own)
        entries = int((found.indptr[rows + 1] - found.indptr[rows]).sum())
        self._reserve(min(graph.topology.num_nodes, self._known + fresh.size + entries), fresh.size, entries)
        met = self._known
        self._known = kernels.meet(
            found.indptr, found.indices, rows, fresh, self._rows, self._number, met,
            self._node, self._starts, self._edges,
        )  # fmt: skip
        if found.weights is not None:
            self._weights = _grown(self._weights[0], self._edges.size), 1
            kernels.copy_weights(found.indptr, found.weights, rows, self._starts[self._rows], self._weights[0])
        kernels.describe(
            self._node[: self._known], *graph.right, *graph.keep, met, self._row, self._factor, self._norm
        )  # fmt: skip
        kernels.add_rows(
            *self._weights, graph.left, *graph.own, fresh, self._rows, self._number, self._starts, self._edges,
            self._norm,
        )  # fmt: skip
        if sums:
            self._add_sums(fresh)
        self._destinations = np.concatenate([self._destinations, fresh])
        self._rows += fresh.size

    def keep(self, nodes: Ints) -> None:
        """Make nodes that were met sources in any case, the next ones in this order."""
        first = self._kept.size
        self._row[self._number[nodes]] = np.arange(first, first + nodes.size)
        self._kept = np.concatenate([self._kept, nodes])

    def _add_sums(self, fresh: Ints) -> None:
        """Write sum_j w_ij right_j over all candidates, for the destinations that are being added."""
        graph = self._graph
        self._sums = _grown(self._sums, self._rows + fresh.size)
        added = self._sums[self._rows : self._rows + fresh.size]
        if graph.right[1] == graph.keep[1] == 0:
            added[:] = graph.topology.degree(fresh)
        else:
            last = self._rows + fresh.size
            kernels.row_sums(
                *self._weights, self._rows, last, self._starts, self._edges, self._factor, self._sums
            )  # fmt: skip
        if graph.draws_loop:
            added += self._factor[self._number[fresh]]

    def _reserve(self, known: int, rows: int, entries: int) -> None:
        self._starts = _grown(self._starts, self._rows + rows + 1)
        total = int(self._starts[self._rows]) + entries
        self._edges, self._columns = _grown(self._edges, total), _grown(self._columns, total)
        self._values, self._bits = _grown(self._values, total), _grown(self._bits, known // 64 + 1)
        self._node, self._row = _grown(self._node, known + 1), _grown(self._row, known)
        self._factor, self._norm = _grown(self._factor, known), _grown(self._norm, known)
        self._weight, self._inverse = _grown(self._weight, known), _grown(self._inverse, known)
        self._drawn = _grown(self._drawn, known + 7)

    def weigh(self, local: NDArray[np.bool_] | None, skew: AlphaRule | None, size: int) -> tuple[float, int]:
        """Set the weights of the draw, and return alpha and how many of them are positive."""
        met, alpha = slice(self._known), 1.0
        found = self._node[met], self._factor[met], self._norm[met]
        if skew is not None and local is not None:
            candidates: tuple[int, int, float, float] = kernels.tally(*found, local)
            alpha = skew.alpha_of(*candidates, size)
        by_node = np.zeros(0, np.bool_) if local is None else local
        return alpha, kernels.weigh(*found, by_node, alpha, self._weight[met])

    def draw(self, size: int, estimator: Estimator, seed: int, depth: int) -> Drawn:
        """Draw a layer's nodes, all candidates if `size` is -1."""
        node, weight = self._node[: self._known], self._weight[: self._known]
        drawn = self._drawn[: -(-self._known // 8) * 8]
        c = np.inf if size < 0 else np.prod(solve(weight, size))
        if estimator == "poisson" or not 0 < c < np.inf:
            chosen = kernels.choose(node, weight, c, seed, depth, drawn)
            return chosen, 1 / np.minimum(1, c * weight[chosen])
        # -log(1 - u) >= u: whom `choose` leaves out waits for at least `least`.
        least, few = 2 * c, True
        while few:
            chosen = kernels.choose(node, weight, least, seed, depth, drawn)
            waits = kernels.waits(node[chosen], weight[chosen], seed, depth)
            few = chosen.size < size or np.partition(waits, size - 1)[size - 1] > least
            least *= 2
        chosen = np.sort(chosen[np.argpartition(waits, size - 1)[:size]])
        return chosen, weight.sum() / (size * weight[chosen])

    def join(self, nodes: Ints, drawn: Drawn, size: int | None) -> Drawn:
        """Add nodes to those drawn: each counts 1, or, with a `size`, as if LADIES' estimator had drawn it."""
        chosen, inverse = drawn
        added = self._number[nodes].astype(np.int64)
        self._inverse[chosen] = inverse
        self._inverse[added] = 1
        if size is not None:
            share = size * self._weight[added]
            self._inverse[added] = np.divide(self._weight[: self._known].sum(), share, out=share, where=share > 0)
        every = np.union1d(chosen, added)
        return every, self._inverse[every]

    def layer(self, drawn: Drawn, whole: bool, normalise: bool, nested: bool) -> LayerSample:
        """Return the edges from the drawn nodes; `whole`: p = 1 for all; `nested`: destinations are kept sources."""
        graph, scale, own = self._graph, None, np.zeros(self._rows)
        fresh = kernels.mark(
            *drawn, self._node[: self._known], self._row, self._kept.size, self._bits, self._inverse
        )  # fmt: skip
        sources = np.concatenate([self._kept, fresh])
        starts = kernels.gather(
            *self._weights, self._rows, self._starts, self._edges,
            self._bits, self._row, self._inverse, self._columns, self._values,
        )  # fmt: skip
        edges = slice(starts[-1])
        columns, values = self._columns[edges].copy(), self._values[edges].copy()
        numbers = self._number[self._destinations]
        at = np.empty(0, np.int64) if nested else np.flatnonzero(self._row[numbers] >= 0)
        inverse = self._inverse[numbers[at]]
        if normalise:
            if graph.draws_loop:
                own[at] = inverse * self._factor[numbers[at]]
            scale = kernels.row_scales(starts, columns, values, sources, *graph.right, own, self._sums)
        values_or_ones = None if whole and graph.topology.weights is None else values
        if nested:
            return LayerSample(sources, starts, columns, values_or_ones, scale)
        counts = (inverse, inverse) if scale is None else (np.ones(at.size), inverse * scale[at])
        rows = self._row[numbers[at]].astype(np.int64)
        return LayerSample(
            sources, starts, columns, values_or_ones, scale, own=OwnSample(self._destinations, at, rows, *counts)
        )  # fmt: skip


def _grown(array: Any, size: int) -> Any:
    """Return the array, or a larger copy, of `size` or more."""
    if array.size >= size:
        return array
    larger = np.empty(max(size, 2 * array.size), array.dtype)
    larger[: array.size] = array
    return larger


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
        """See `LayerFrontier.weigh`; `local` is bool [N]. The host waits for the rule's arguments, or the number."""
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
        layers, alphas, candidates = list[LayerOnDevice](), list[float](), list[int]()
        for depth, size in enumerate(reversed(sizes)):
            keep = {"nested": nodes.numel(), "public": targets.size, "paper": 0}[self.layers]
            frontier = LayerFrontierOnDevice(self.scaled, nodes, keep)
            alpha, count = frontier.weigh(self.local, self.skew, size)
            whole = size < 0 or size >= count
            corrects = self.estimator == "ladies" and not whole
            drawn, inverse = frontier.draw(-1 if whole else size, self.estimator, seed, depth)
            if self.layers == "public":
                drawn, inverse = frontier.join(drawn, inverse, size if corrects else None)
            layers.append(frontier.layer(drawn, inverse, whole, corrects, self.layers == "nested"))
            nodes = layers[-1].sources
            alphas.append(alpha)
            candidates.append(count)
        return layers[::-1], alphas[::-1], candidates[::-1]


@dataclass(frozen=True, eq=False)
class LayerBatch:
    """The layers of a batch, input layer first."""

    layers: Sequence[DrawnLayer]
    alphas: list[float]  # the factor that local candidates' weights had, 1 where there was no skew
    candidates: list[int]  # the number of nodes that could be drawn


class LayerSampler:
    """Draws a layer's nodes among the neighbours of its destinations.

    Candidates are the nodes with an edge, of a weight that is not 0, to a destination. `layers: paper`: a destination's
    own row and self loop are edges like others, and the next layer's destinations are the drawn nodes alone (LADIES,
    Algorithm 1). `public`: the targets are sources in any case, as in LADIES' code: they count 1 to the `poisson`
    estimator, to `ladies` as if drawn. `nested`: destinations are sources in any case, own rows and self loops exact.
    Degrees are the whole graph's.

    Whether a node is drawn depends on seed, layer, node and its chance alone. Takes time linear in the edges into the
    destinations. Threads may sample at the same time.

    Args:
        topology, tables: the graph, and tables of its nodes.
        propagation, reads_own: the model's.
        layers: see above.
        local: bool [N], which nodes are local; without it `skew` and `local_only` are a ValueError.
        skew: None, or the rule for alpha: local candidates are drawn in proportion to alpha q_j.
        estimator: `poisson`: independent draws, p_j = min(1, c q_j), size expected; an edge counts w_ij / p_j, which is
            unbiased. `ladies`: `size` draws without replacement, pi_j = q_j / sum q; an edge counts w_ij / (s pi_j),
            then rows are scaled to the A-weights of all their candidates (biased), and a drawn own row counts 1.
        local_only: leave out remote candidates, and their edges.
        device: where to draw; a device other than the CPU, the default, keeps the graph.
    """

    def __init__(
        self,
        topology: Topology,
        propagation: Propagation,
        tables: Tables,
        *,
        reads_own: bool = True,
        layers: Layers = "paper",
        local: NDArray[np.bool_] | None = None,
        skew: AlphaRule | None = None,
        estimator: Estimator = "poisson",
        local_only: bool = False,
        device: torch.device | None = None,
    ) -> None:
        if local is None and (skew is not None or local_only):
            raise ValueError("to favour local nodes a sampler must know them")
        drawn = None if layers == "nested" else reads_own
        graph = Scaled.of(topology, propagation, reads_own=drawn, keep=local if local_only else None)
        self._tables, self._local, self._skew = tables, local, skew
        self._estimator, self._layers = estimator, layers
        self._frontiers = Pool(lambda: LayerFrontier(graph))
        self._on_device: LayersOnDevice | None = None
        if device is not None and device.type != "cpu":
            here = None if local is None or skew is None else torch.from_numpy(local).to(device)
            self._on_device = LayersOnDevice(ScaledOnDevice.of(graph, device), here, skew, estimator, layers)

    def sample(self, targets: Ints, sizes: Sequence[int], seed: int) -> LayerBatch:
        """Draw the layers of a batch by its `seed`, >= 0; the last one's destinations are the distinct `targets`.

        `sizes` are nodes drawn for each layer, input layer first. -1, or as many as there are candidates: all of
        them, each with p = 1, for both estimators.
        """
        if self._on_device is not None:
            return LayerBatch(*self._on_device.sample(targets, sizes, seed))
        layers, alphas, candidates = list[LayerSample](), list[float](), list[int]()
        nested, by_ladies = self._layers == "nested", self._estimator == "ladies"
        with self._frontiers.borrow() as frontier, self._tables.borrow() as number:
            fresh = targets
            for depth, size in enumerate(reversed(sizes)):
                if not (nested and layers):
                    frontier.begin(number)
                frontier.extend(fresh, sums=by_ladies, own=depth == 0)
                frontier.keep(fresh if nested else targets[: targets.size * (self._layers == "public")])
                alpha, count = frontier.weigh(self._local, self._skew, size)
                whole = size < 0 or size >= count
                drawn = frontier.draw(-1 if whole else size, self._estimator, seed, depth)
                if self._layers == "public":
                    drawn = frontier.join(targets, drawn, size if by_ladies and not whole else None)
                layers.append(frontier.layer(drawn, whole, by_ladies and not whole, nested))
                fresh = layers[-1].sources[layers[-1].num_dst if nested else 0 :]
                alphas.append(alpha)
                candidates.append(count)
            frontier.begin(number)
        return LayerBatch(layers[::-1], alphas[::-1], candidates[::-1])


LAYERWISE_METRICS = (
    Metric.of_method("candidates", "nodes that could be drawn, of all layers"),
    Metric.of_method("alpha", "sum of the factors of local nodes"),
    Metric.of_method("alphas", "number of these factors: `stat_alpha` / `stat_alphas` is their mean"),
)
"""Metrics of a method that draws by `LayerwiseSampler`, or skews otherwise."""


class LayerwiseSampler:
    """Draws `sizes` nodes a layer, input layer first, for all of its destinations together; -1: all candidates.

    `draw` is what draws the layers of a batch: `LayerSampler.sample`, or that of a method's own.
    Metrics: `LAYERWISE_METRICS`, summed over an epoch's steps and layers.
    """

    def __init__(self, draw: Callable[[Ints, Sequence[int], int], LayerBatch], sizes: Sequence[int]) -> None:
        self._draw, self._sizes = draw, sizes

    def sample(self, targets: Ints, seed: int) -> Sample:
        """See `Sampler`."""
        drawn = self._draw(targets, self._sizes, seed)
        stats = {"candidates": sum(drawn.candidates), "alpha": sum(drawn.alphas), "alphas": len(drawn.alphas)}
        return Sample(drawn.layers, targets.size, stats=stats)
