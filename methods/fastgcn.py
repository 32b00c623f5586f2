"""FastGCN: layer-wise importance sampling over all nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numba
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from harness import LayerSample, MemoryCase, MiniBatchMethod, NodeBatchOptions, Sampler, Source, inclusion, per_layer
from harness.graph import Propagation, Topology
from harness.sampling import (
    LAYERWISE_METRICS,
    LayerBatch,
    LayerwiseSampler,
    Scaled,
    Tables,
    check_sizes,
    global_weights,
    node_uniform,
)


class GlobalSampler:
    """Draws a layer's nodes among all nodes, whatever the destinations are (FastGCN).

    q_j = sum over all nodes i of A_ij^2 (A_ij = left_i w_ij right_j, see `propagation_scales`), computed once; the
    candidates are the nodes of q > 0. Draws are
    independent, p_j = min(1, c q_j), as many expected as the layer's size; an edge counts w_ij / p_j, which
    is unbiased. Drawn nodes without an edge to a destination are no sources. Otherwise as `LayerSampler`.
    """

    def __init__(self, topology: Topology, propagation: Propagation, tables: Tables) -> None:
        self._graph, self._tables = Scaled.of(topology, propagation, None), tables
        graph = self._graph
        self._weights = global_weights(topology.indptr, topology.indices, *graph.weights, graph.left, *graph.right)
        self._candidates = int(np.count_nonzero(self._weights))
        self._inclusion: dict[int, NDArray[np.float64]] = {}

    def sample(self, targets: NDArray[np.int64], sizes: Sequence[int], seed: int) -> LayerBatch:
        """See `LayerSampler.sample`."""
        check_sizes(sizes)
        topology, layers, sources = self._graph.topology, [], targets
        with self._tables.borrow() as row:
            row[targets] = np.arange(targets.size, dtype=np.int32)
            for depth, size in enumerate(reversed(sizes)):
                fresh, pointers, columns, values = gather_global(
                    topology.indptr, topology.indices, *self._graph.weights,
                    sources, self._chances(size), seed, depth, row,
                )  # fmt: skip
                whole = topology.weights is None and (size < 0 or size >= self._candidates)
                sources = np.concatenate([sources, fresh])
                layers.append(LayerSample(sources, pointers, columns, None if whole else values))
            row[sources] = -1
        return LayerBatch(layers[::-1], [1.0] * len(sizes), [self._candidates] * len(sizes))

    def _chances(self, size: int) -> NDArray[np.float64]:
        """Return p of every node for a layer's size; threads that both miss it compute the same."""
        if size not in self._inclusion:
            self._inclusion[size] = inclusion(self._weights, self._candidates if size < 0 else size)
        return self._inclusion[size]


@numba.njit(cache=True, nogil=True)
def gather_global(  # type: ignore[no-untyped-def]
    indptr, indices, weights, weight_step, destinations, chance, seed, depth, row
):
    """Return the sources that are new, and pointers, columns and values of the drawn edges.

    A node's draw is made again at each of its edges, so that no list of all nodes is needed. `row` is by
    node, -1 for those that are no sources yet; `weights` are read at `edge * weight_step`.
    """
    fresh, columns, values = np.empty(64, np.int64), np.empty(64, np.int32), np.empty(64)
    pointers = np.zeros(destinations.size + 1, np.int64)
    at = count = 0
    for i in range(destinations.size):
        for e in range(indptr[destinations[i]], indptr[destinations[i] + 1]):
            j = indices[e]
            if not node_uniform(seed, depth, j) < chance[j]:
                continue
            if row[j] < 0:
                fresh = _room(fresh, count)
                fresh[count] = j
                row[j] = destinations.size + count
                count += 1
            columns, values = _room(columns, at), _room(values, at)
            columns[at] = row[j]
            values[at] = weights[e * weight_step] / chance[j]
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

    sizes: int | list[int] = Field(
        512, description="nodes drawn for a layer, input layer first, or one number for all; -1: all of them"
    )


class FastGCN(MiniBatchMethod[FastGCNOptions]):
    """Layer-wise importance sampling over all nodes (FastGCN, Chen, Ma and Xiao, ICLR 2018).

    For each layer every node j of the training graph is drawn independently with p_j = min(1, c q_j),
    q_j = sum_i A_ij^2 over all i, c such that `sizes` nodes are expected (the paper draws with replacement);
    edges count A_ij / p_j, which is unbiased. Most of what is drawn has no edge into the layer above, and a
    node may be left without any neighbour. Its self loop, or own row, is always there. Drawn nodes that no
    edge leads from are not fetched. Exact with all nodes and all training nodes in one batch.
    Bytes: see `MiniBatchMethod`.
    """

    name = "fastgcn"
    colour = "#bbbbbb"
    Options = FastGCNOptions
    exact: ClassVar[dict[str, Any]] = {"sizes": -1, "batch_size": 0}
    unbiased: ClassVar[dict[str, Any]] = {"sizes": 25, "batch_size": 8}
    metrics = LAYERWISE_METRICS

    def make_sampler(self, source: Source) -> Sampler:
        """See `MiniBatchMethod`."""
        sizes = per_layer(self.options.sizes, source.depth, "sizes")
        return LayerwiseSampler(GlobalSampler(source.topology, source.propagation, source.tables).sample, sizes)

    @classmethod
    def memory(cls, options: FastGCNOptions, case: MemoryCase) -> dict[str, int]:
        """See `MemoryCase.drawn`."""
        return case.drawn(options, options.sizes, "sizes", each=False)
