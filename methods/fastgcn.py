"""FastGCN: layer-wise importance sampling over all nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from harness import MiniBatchMethod, NodeBatchOptions, Sampler, Source, numba, torch
from harness import numpy as np
from harness.plugin import (
    LAYERS,
    LAYERWISE_METRICS,
    DrawCounts,
    GraphOnDevice,
    LayerBatch,
    LayerOnDevice,
    Layers,
    LayerSample,
    LayerwiseSampler,
    MemoryCase,
    OwnRows,
    OwnSample,
    Propagation,
    Scaled,
    SightsOnDevice,
    Tables,
    Topology,
    inclusion,
    node_uniform,
    node_uniforms,
    number_nodes,
    per_layer,
    pointers,
    upload,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor


class GlobalSampler:
    """Draws a layer's nodes among all nodes, whatever the destinations are (FastGCN).

    q_j = sum over all nodes i of A_ij^2 (A_ij = left_i w_ij right_j, see `propagation_scales`), computed once; the
    candidates are the nodes of q > 0. Draws are
    independent, p_j = min(1, c q_j), as many expected as the layer's size; an edge counts w_ij / p_j, which
    is unbiased. Drawn nodes without an edge to a destination are no sources. Otherwise as `LayerSampler`.
    """

    def __init__(
        self, topology: Topology, propagation: Propagation, tables: Tables, *, reads_own: bool, layers: Layers
    ) -> None:
        self._graph = Scaled.of(topology, propagation, reads_own=None if layers == "nested" else reads_own)
        self._tables, self._layers = tables, layers
        self._weights = self._graph.global_weights()
        self.candidates = int(np.count_nonzero(self._weights))
        self._inclusion: dict[int, NDArray[np.float64]] = {}

    def sample(self, targets: NDArray[np.int64], sizes: Sequence[int], seed: int) -> LayerBatch:
        """See `LayerSampler.sample`."""
        layers = list[LayerSample]()
        destinations = targets
        with self._tables.borrow() as row:
            for depth, size in enumerate(reversed(sizes)):
                layers.append(self._layer(destinations, targets, row, size, seed, depth))
                destinations = layers[-1].sources
        return LayerBatch(layers[::-1], [1.0] * len(sizes), [self.candidates] * len(sizes))

    def _layer(
        self, destinations: NDArray[np.int64], targets: NDArray[np.int64], row: NDArray[np.int32], size: int,
        seed: int, depth: int,
    ) -> LayerSample:  # fmt: skip
        """Return a layer; `row` is left as it was."""
        topology, chances, nested = self._graph.topology, self.chances(size), self._layers == "nested"
        kept = destinations if nested else targets[: targets.size * (self._layers == "public")]
        row[kept] = np.arange(kept.size, dtype=np.int32)
        fresh, pointers, columns, values = gather_global(
            topology.indptr, topology.indices, *self._graph.weights,
            destinations, chances, seed, depth, row, kept.size, nested,
        )  # fmt: skip
        sources = np.concatenate([kept, fresh])
        whole = topology.weights is None and (size < 0 or size >= self.candidates)
        own = None
        if not nested:
            at = np.flatnonzero(row[destinations] >= 0)
            rows = row[destinations[at]].astype(np.int64)
            inverse = 1 / np.where(rows < kept.size, 1, chances[destinations[at]])
            own = OwnSample(destinations, at, rows, inverse, inverse)
        row[sources] = -1
        return LayerSample(sources, pointers, columns, None if whole else values, own=own)

    def chances(self, size: int) -> NDArray[np.float64]:
        """Return p of every node for a layer's size; threads that both miss it compute the same."""
        if size not in self._inclusion:
            self._inclusion[size] = inclusion(self._weights, self.candidates if size < 0 else size)
        return self._inclusion[size]


class GlobalSamplerOnDevice:
    """Draws on a device, which then keeps the graph, what a `GlobalSampler` draws of these sizes."""

    def __init__(
        self, host: GlobalSampler, topology: Topology, layers: Layers, sizes: Sequence[int], device: torch.device
    ) -> None:
        self._graph, self._layers, self._candidates = GraphOnDevice.of(topology, device), layers, host.candidates
        self._chances = {size: torch.from_numpy(host.chances(size)).to(device) for size in sizes}

    def sample(self, targets: NDArray[np.int64], sizes: Sequence[int], seed: int) -> LayerBatch:
        """See `LayerSampler.sample`; the host waits for the numbers of edges, drawn ones and sources in each layer."""
        nodes, layers = upload(targets, self._graph.indptr.device), list[LayerOnDevice]()
        for depth, size in enumerate(reversed(sizes)):
            keep = {"nested": nodes.numel(), "public": targets.size, "paper": 0}[self._layers]
            layers.append(self._layer(nodes, keep, size, seed, depth))
            nodes = layers[-1].sources
        return LayerBatch(layers[::-1], [1.0] * len(sizes), [self._candidates] * len(sizes))

    def _layer(self, destinations: Tensor, keep: int, size: int, seed: int, depth: int) -> LayerOnDevice:
        """Return a layer; the first `keep` destinations are sources in any case."""
        graph, nested, seen = self._graph, self._layers == "nested", SightsOnDevice.of(self._graph, destinations)
        nodes, chance, by_node = seen.nodes, self._chances[size][seen.nodes], len(graph.indptr) - 1
        drawn = node_uniforms(seed, depth, nodes.long()) < chance
        if nested:
            drawn = drawn.index_fill(0, seen.own_at, False)
        else:
            certain = torch.zeros(by_node, dtype=torch.bool, device=nodes.device)
            certain = certain.index_fill(0, destinations[:keep], True)[nodes]
            drawn, chance = drawn | certain, torch.where(certain, 1, chance)
        places = drawn.nonzero().squeeze(1)
        sources, numbers = number_nodes(destinations[:keep], nodes[places], by_node)
        number = torch.empty_like(nodes).index_copy(0, places, numbers)
        is_drawn = drawn[seen.edge_at]
        edges = is_drawn.nonzero().squeeze(1)
        at = seen.edge_at[edges]
        values = 1 / chance[at] if graph.weights is None else graph.weights[seen.entries[edges]] / chance[at]
        whole = graph.weights is None and (size < 0 or size >= self._candidates)
        own = None if nested else self._own_rows(destinations, seen.own_at, drawn, number, chance)
        starts, degree = pointers(is_drawn)[seen.pointers], graph.degree(sources)
        return LayerOnDevice(sources, starts, number[at], degree, None if whole else values, own=own)

    def _own_rows(
        self, destinations: Tensor, own_at: Tensor, drawn: Tensor, number: Tensor, chance: Tensor
    ) -> tuple[Tensor, OwnRows]:
        """Return the destinations, and the own rows of those that were drawn."""
        at = drawn[own_at].nonzero().squeeze(1)
        inverse = 1 / chance[own_at[at]]
        rows = number[own_at[at]].long()
        return destinations, OwnRows(self._graph.degree(destinations), at, rows, inverse, inverse)


@numba.njit(cache=True, nogil=True)
def gather_global(  # type: ignore[no-untyped-def]
    indptr, indices, weights, weight_step, destinations, chance, seed, depth, row, kept, nested
):
    """Return the sources that are new, and pointers, columns and values of the drawn edges.

    A node's draw is made again at each of its edges, so that no list of all nodes is needed. `row` is by
    node, -1 for those that are no sources yet; the first `kept` are sources in any case. If `nested` they are drawn
    for their edges like others; else these count 1, and own rows of other destinations are drawn, too. `weights`
    are read at `edge * weight_step`.
    """
    fresh, columns, values = np.empty(64, np.int64), np.empty(64, np.int32), np.empty(64)
    pointers = np.zeros(destinations.size + 1, np.int64)
    at = count = 0
    for i in range(destinations.size):
        first, last = indptr[destinations[i]], indptr[destinations[i] + 1]
        for e in range(first - (not nested), last):
            j = indices[e] if e >= first else destinations[i]  # before its edges its own row
            certain = not nested and 0 <= row[j] < kept
            if not certain and not node_uniform(seed, depth, j) < chance[j]:
                continue
            if row[j] < 0:
                fresh = _room(fresh, count)
                fresh[count] = j
                row[j] = kept + count
                count += 1
            if e < first:
                continue
            columns, values = _room(columns, at), _room(values, at)
            columns[at] = row[j]
            values[at] = weights[e * weight_step] / (1.0 if certain else chance[j])
            at += 1
        pointers[i + 1] = at
    return fresh[:count].copy(), pointers, columns[:at].copy(), values[:at].copy()


@numba.njit(cache=True, nogil=True)
def _room(array, at):  # type: ignore[no-untyped-def]
    """Return the array, or a copy twice as long, with a place `at`."""
    if at < array.size:
        return array
    larger = np.empty(2 * array.size, array.dtype)
    larger[: array.size] = array
    return larger


class FastGCNOptions(NodeBatchOptions):
    """Options of layer-wise sampling."""

    sizes: DrawCounts = Field(
        512, description="nodes drawn for a layer, input layer first, or one number for all; -1: all of them"
    )
    layers: Layers = Field("nested", description=LAYERS)


class FastGCN(MiniBatchMethod[FastGCNOptions]):
    """Layer-wise importance sampling over all nodes (FastGCN, Chen, Ma and Xiao, ICLR 2018).

    For each layer every node j of the training graph is drawn independently with p_j = min(1, c q_j),
    q_j = sum_i A_ij^2 over all i, c such that `sizes` nodes are expected (the paper draws with replacement);
    edges count A_ij / p_j, which is unbiased. Most of what is drawn has no edge into the layer above, and a
    node may be left without any neighbour. Its self loop, or own row, is always there, or with `layers: paper` drawn
    like an edge (see `ladies`): as in the paper, and nearly all rows are then empty. Drawn nodes that no edge leads
    from are not fetched. On a GPU the same is drawn there, from a copy of the graph. Exact with all nodes and all
    training nodes in one batch.
    Bytes: see `MiniBatchMethod`.
    """

    name = "fastgcn"
    colour = "#bbbbbb"
    on_device = True
    Options = FastGCNOptions
    space: ClassVar[dict[str, Any]] = {"batch_size": [256, 512, 1024], "sizes": [256, 512, 1024]}
    exact: ClassVar[dict[str, Any]] = {"sizes": -1, "batch_size": 0}
    unbiased: ClassVar[dict[str, Any]] = {"sizes": 25, "batch_size": 8}
    metrics = LAYERWISE_METRICS

    def make_sampler(self, source: Source) -> Sampler:
        """See `MiniBatchMethod`."""
        sizes = per_layer(self.options.sizes, source.depth, "sizes")
        layers, topology = self.options.layers, source.topology
        sampler = GlobalSampler(topology, source.propagation, source.tables, reads_own=source.reads_own, layers=layers)
        if source.device.type == "cpu":
            return LayerwiseSampler(sampler.sample, sizes)
        on_device = GlobalSamplerOnDevice(sampler, topology, layers, sizes, source.device)
        return LayerwiseSampler(on_device.sample, sizes)

    @classmethod
    def memory(cls, options: FastGCNOptions, case: MemoryCase) -> dict[str, int]:
        """See `MemoryCase.drawn`; a GPU has the graph, too (`MemoryCase.read_on_device`)."""
        drawn = case.drawn(options, options.sizes, "sizes", each=False, layers=options.layers)
        return drawn | case.read_on_device(options)
