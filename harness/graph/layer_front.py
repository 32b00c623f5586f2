"""The nodes that a layer-wise batch has met, from its targets down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from harness.graph import layer_kernels as kernels
from harness.graph.block import Norm
from harness.graph.layer_sample import LayerSample, propagation_scales
from harness.graph.poisson import write_inclusion
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
        self._number = np.empty(0, np.int32)
        self._node, self._row = np.empty(0, np.int32), np.empty(0, np.int32)
        self._factor, self._norm, self._weight, self._chance = (np.empty(0) for _ in range(4))
        self._drawn, self._bits = np.empty(0, np.bool_), np.empty(0, np.uint64)
        self._edges, self._columns = np.empty(0, np.int32), np.empty(0, np.int32)
        self._values, self._starts, self._sums = np.empty(0), np.zeros(1, np.int64), np.empty(0)

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
        before = self._known
        self._known = kernels.meet(
            indptr, graph.topology.indices, fresh, self._rows, self._number, before,
            self._node, self._starts, self._edges,
        )  # fmt: skip
        kernels.describe(
            self._node[: self._known], *graph.right, *graph.keep, before, self._row, self._factor, self._norm
        )
        kernels.add_rows(
            indptr, *graph.weights, graph.left, fresh, self._rows, self._number, self._starts, self._edges,
            self._row, self._norm,
        )  # fmt: skip
        if sums:
            self._sums = _grown(self._sums, self._rows + fresh.size)
            kernels.row_sums(
                indptr, *graph.weights, fresh, self._rows, self._starts, self._edges, self._factor, self._sums
            )
        self._rows += fresh.size

    def _reserve(self, known: int, rows: int, entries: int) -> None:
        self._starts = _grown(self._starts, self._rows + rows + 1)
        total = int(self._starts[self._rows]) + entries
        self._edges, self._columns = _grown(self._edges, total), _grown(self._columns, total)
        self._values = _grown(self._values, total)
        self._node, self._row = _grown(self._node, known + 1), _grown(self._row, known)
        self._factor, self._norm = _grown(self._factor, known), _grown(self._norm, known)
        self._weight, self._chance = _grown(self._weight, known), _grown(self._chance, known)
        self._drawn, self._bits = _grown(self._drawn, known), _grown(self._bits, known // 64 + 1)

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

    def draw(self, size: int, how: Estimator | Literal["all"], stream: tuple[int, int]) -> NDArray[np.int64]:
        """Draw a layer's nodes; returns those that are new among the sources, which follow the others."""
        met = slice(self._known)
        weight, node, chance, drawn = self._weight[met], self._node[met], self._chance[met], self._drawn[met]
        if how == "all":
            np.greater(weight, 0, out=drawn)
            chance[:] = 1
        elif how == "poisson" or size == 0:
            write_inclusion(weight, size, chance)
            kernels.choose(node, chance, 1.0, *stream, drawn)
        else:
            _draw_successive(weight, size, node, stream, chance, drawn)
        fresh: NDArray[np.int64] = kernels.mark(drawn, chance, node, self._row[met], self._rows, self._bits)
        return fresh

    def layer(self, sources: NDArray[np.int64], whole: bool, normalise: bool) -> LayerSample:
        """Return the edges from the drawn nodes to the destinations; `whole`: p = 1 for all."""
        graph, destinations = self._graph, sources[: self._rows]
        pointers = kernels.gather(
            graph.topology.indptr, *graph.weights, destinations, self._starts, self._edges, self._bits,
            self._row, self._chance, self._columns, self._values,
        )  # fmt: skip
        drawn = int(pointers[-1])
        columns, values, scale = self._columns[:drawn].copy(), None, None
        if not whole or graph.topology.weights is not None:
            values = self._values[:drawn].copy()
        if normalise:
            scale = kernels.row_scales(pointers, columns, values, sources, *graph.right, self._sums)
        return LayerSample(sources, pointers, columns, values, scale)


def _draw_successive(
    weight: NDArray[np.float64],
    size: int,
    node: NDArray[np.int32],
    stream: tuple[int, int],
    chance: NDArray[np.float64],
    drawn: NDArray[np.bool_],
) -> None:
    """Draw `size` nodes, fewer than have weights, one after another, each in proportion to the weights left.

    They are those of the shortest exponential waits of rate w_j (Efraimidis and Spirakis, 2006). Writes
    size * pi_j into `chance`.
    """
    # -log(1 - u) >= u: whom `choose` leaves out waits for at least times * c.
    c, times = write_inclusion(weight, size, chance), 2.0
    while True:
        kernels.choose(node, chance, times, *stream, drawn)
        chosen = np.flatnonzero(drawn)
        waits = kernels.waits(node[chosen], weight[chosen], *stream)
        if chosen.size >= size and np.partition(waits, size - 1)[size - 1] <= times * c:
            break
        times *= 2
    drawn[:] = False
    drawn[chosen[np.argpartition(waits, size - 1)[:size]]] = True
    np.multiply(weight, size / weight.sum(), out=chance)


def _grown(array: Any, size: int) -> Any:
    """Return the array, or a larger copy, of `size` or more."""
    if array.size >= size:
        return array
    larger = np.empty(max(size, 2 * array.size), array.dtype)
    larger[: array.size] = array
    return larger
