"""The nodes that a layer-wise batch has met, from its targets down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from harness.graph import layer_kernels as kernels
from harness.graph.block import Norm
from harness.graph.layer_sample import LayerSample, propagation_scales
from harness.graph.poisson import solve
from harness.graph.topology import Topology

Estimator = Literal["poisson", "ladies"]


@dataclass(frozen=True, eq=False)
class Scaled:
    """A graph with its propagation weights, as the kernels read it.

    A pair is an array and the step to read it at: 0 where one value stands for all. `keep` says by node
    whether it may be drawn.
    """

    topology: Topology
    weights: tuple[NDArray[np.float32], int]
    left: NDArray[np.float64]
    right: tuple[NDArray[np.float64], int]
    keep: tuple[NDArray[np.bool_], int]

    @classmethod
    def of(cls, topology: Topology, norm: Norm, keep: NDArray[np.bool_] | None) -> Scaled:
        """Return the graph; `keep` None: all."""
        left, right = propagation_scales(topology, norm)
        return cls(
            topology,
            (np.ones(1, np.float32), 0) if topology.weights is None else (topology.weights, 1),
            left,
            (np.ones(1), 0) if right is None else (right, 1),
            (np.ones(1, np.bool_), 0) if keep is None else (keep, 1),
        )


class Front:
    """The nodes that a batch has met, by number (see `layer_kernels`), and the rows of its destinations.

    Its arrays stay from batch to batch: fresh memory would cost more than the work in it.
    """

    def __init__(self, graph: Scaled) -> None:
        self._graph, self._known, self._rows = graph, 0, 0
        self._number, self._node, self._row = (np.empty(0, np.int32) for _ in range(3))
        self._factor, self._norm, self._weight, self._inverse = (np.empty(0) for _ in range(4))
        self._drawn, self._bits = np.empty(0, np.bool_), np.empty(0, np.uint64)
        self._edges, self._columns, self._values = np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0)
        self._starts, self._sums = np.zeros(1, np.int64), np.empty(0)

    def begin(self, number: NDArray[np.int32]) -> None:
        """Start a batch; `number` is -1 for every node."""
        self._number, self._known, self._rows = number, 0, 0

    def end(self) -> None:
        """Leave `number` as it was."""
        kernels.forget(self._number, self._node[: self._known])

    def extend(self, fresh: NDArray[np.int64], sums: bool) -> None:
        """Add destinations, and if wanted the sums of their rows."""
        graph, indptr = self._graph, self._graph.topology.indptr
        entries = int((indptr[fresh + 1] - indptr[fresh]).sum())
        self._reserve(min(indptr.size - 1, self._known + fresh.size + entries), fresh.size, entries)
        met = self._known
        self._known = kernels.meet(
            indptr, graph.topology.indices, fresh, self._rows, self._number, met,
            self._node, self._starts, self._edges,
        )  # fmt: skip
        kernels.describe(
            self._node[: self._known], *graph.right, *graph.keep, met, self._row, self._factor, self._norm
        )  # fmt: skip
        kernels.add_rows(
            indptr, *graph.weights, graph.left, fresh, self._rows, self._number, self._starts, self._edges,
            self._row, self._norm,
        )  # fmt: skip
        if sums:
            self._add_sums(fresh)
        self._rows += fresh.size

    def _add_sums(self, fresh: NDArray[np.int64]) -> None:
        """Write sum_j w_ij right_j over all candidates, for the destinations that are being added."""
        graph = self._graph
        self._sums = _grown(self._sums, self._rows + fresh.size)
        if graph.right[1] == graph.keep[1] == 0:
            self._sums[self._rows : self._rows + fresh.size] = graph.topology.degree(fresh)
            return
        kernels.row_sums(
            graph.topology.indptr, *graph.weights, fresh, self._rows, self._starts, self._edges,
            self._factor, self._sums,
        )  # fmt: skip

    def _reserve(self, known: int, rows: int, entries: int) -> None:
        self._starts = _grown(self._starts, self._rows + rows + 1)
        total = int(self._starts[self._rows]) + entries
        self._edges, self._columns = _grown(self._edges, total), _grown(self._columns, total)
        self._values, self._bits = _grown(self._values, total), _grown(self._bits, known // 64 + 1)
        self._node, self._row = _grown(self._node, known + 1), _grown(self._row, known)
        self._factor, self._norm = _grown(self._factor, known), _grown(self._norm, known)
        self._weight, self._inverse = _grown(self._weight, known), _grown(self._inverse, known)
        self._drawn = _grown(self._drawn, known + 7)

    def tally(self, local: NDArray[np.bool_]) -> tuple[int, int, float, float]:
        """Return n_L, n_R, Q_L and Q_R."""
        met = slice(self._known)
        sums: tuple[int, int, float, float] = kernels.tally(
            self._node[met], self._factor[met], self._norm[met], local
        )
        return sums

    def weigh(self, local: NDArray[np.bool_] | None, alpha: float) -> int:
        """Set the weights of the draw, and return how many are positive."""
        met, by_node = slice(self._known), np.zeros(0, np.bool_) if local is None else local
        positive: int = kernels.weigh(
            self._node[met], self._factor[met], self._norm[met], by_node, alpha, self._weight[met]
        )
        return positive

    def draw(self, size: int, estimator: Estimator, seed: int, depth: int) -> NDArray[np.int64]:
        """Draw a layer's nodes, all candidates if `size` is -1; returns those that are no sources yet.

        They become sources, in this order.
        """
        node, weight = self._node[: self._known], self._weight[: self._known]
        drawn = self._drawn[: -(-self._known // 8) * 8]
        c = np.inf if size < 0 else np.prod(solve(weight, size))
        if estimator == "poisson" or not 0 < c < np.inf:
            chosen = kernels.choose(node, weight, c, seed, depth, drawn)
            inverse = 1 / np.minimum(1, c * weight[chosen])
        else:
            # -log(1 - u) >= u: whom `choose` leaves out waits for at least `least`.
            least, few = 2 * c, True
            while few:
                chosen = kernels.choose(node, weight, least, seed, depth, drawn)
                waits = kernels.waits(node[chosen], weight[chosen], seed, depth)
                few = chosen.size < size or np.partition(waits, size - 1)[size - 1] > least
                least *= 2
            chosen = np.sort(chosen[np.argpartition(waits, size - 1)[:size]])
            inverse = weight.sum() / (size * weight[chosen])
        fresh: NDArray[np.int64] = kernels.mark(
            chosen, inverse, node, self._row, self._rows, self._bits, self._inverse
        )
        return fresh

    def layer(self, sources: NDArray[np.int64], whole: bool, normalise: bool) -> LayerSample:
        """Return the edges from the drawn nodes to the destinations; `whole`: p = 1 for all."""
        graph, scale = self._graph, None
        pointers = kernels.gather(
            graph.topology.indptr, *graph.weights, sources[: self._rows], self._starts, self._edges,
            self._bits, self._row, self._inverse, self._columns, self._values,
        )  # fmt: skip
        drawn = slice(pointers[-1])
        columns, values = self._columns[drawn].copy(), self._values[drawn].copy()
        if normalise:
            scale = kernels.row_scales(pointers, columns, values, sources, *graph.right, self._sums)
        plain = whole and graph.topology.weights is None
        return LayerSample(sources, pointers, columns, None if plain else values, scale)


def _grown(array: Any, size: int) -> Any:
    """Return the array, or a larger copy, of `size` or more."""
    if array.size >= size:
        return array
    larger = np.empty(max(size, 2 * array.size), array.dtype)
    larger[: array.size] = array
    return larger
