"""GraphData: a graph with features, labels and splits, and its CSR."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

from harness.deferred import numba
from harness.deferred import numpy as np
from harness.errors import DataError

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
EdgeChunks = Callable[[], Iterator[tuple[Array, Array]]]
"""A re-readable stream of (source, destination) pairs of equally long integer arrays."""


F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile with numba on first call; the machine code is kept next to the source."""
    return cast(F, numba.njit(cache=True, nogil=True)(function))


def csr_from_edges(edges: EdgeChunks, nodes: int, *, symmetrise: bool) -> tuple[Array, Array]:
    """Build (indptr int64 [N+1], indices int32 [E]); row = destination, ascending and unique, loop-free.

    The stream is read twice (count, place); besides the result only one chunk is in memory, so that a graph larger
    than half the memory can still be built. `symmetrise` adds the reverse of every edge. ValueError if an edge names
    a node outside 0..nodes-1.
    """
    counts = np.zeros(nodes + 1, dtype=np.int64)
    for source, destination in edges():
        if _count(source, destination, counts, symmetrise):
            raise ValueError(f"an edge names a node outside 0..{nodes - 1}")
    indptr = np.cumsum(counts)
    indices = np.empty(int(indptr[-1]), dtype=index_dtype(nodes))
    cursor = indptr[:-1].copy()
    for source, destination in edges():
        _place(source, destination, cursor, indices, symmetrise)
    kept = _sort_unique(indptr, indices)
    return indptr, indices[:kept]


def check_csr(indptr: Array, indices: Array) -> str | None:
    """Return what is wrong with a CSR that should have ascending, unique, loop-free rows; None if nothing is."""
    nodes = len(indptr) - 1
    if indptr[0] != 0 or indptr[-1] != len(indices):
        return f"indptr spans {indptr[0]}..{indptr[-1]}, expected 0..{len(indices)}"
    if np.any(indptr[1:] < indptr[:-1]):
        return "indptr is not monotone"
    row, fault = _first_fault(indptr, indices, nodes)
    faults = (f"a neighbour outside 0..{nodes - 1}", "a self-loop", "neighbours unsorted or twice")
    return None if fault < 0 else f"row {row} has {faults[fault]}"


@compiled
def _count(source: Array, destination: Array, counts: Array, symmetrise: bool) -> bool:
    # Faults are returned: an exception from a kernel could name neither the file nor the edge.
    nodes = len(counts) - 1
    for k in range(len(source)):
        i, j = np.int64(destination[k]), np.int64(source[k])
        if i < 0 or j < 0 or i >= nodes or j >= nodes:
            return True
        # One place on: the running sum of the counts is then the row pointers.
        if i != j:
            counts[i + 1] += 1
            if symmetrise:
                counts[j + 1] += 1
    return False


@compiled
def _place(source: Array, destination: Array, cursor: Array, indices: Array, symmetrise: bool) -> None:
    for k in range(len(source)):
        i, j = np.int64(destination[k]), np.int64(source[k])
        if i != j:
            # The same order as in `_count`, so that no row runs over its end.
            indices[cursor[i]] = j
            cursor[i] += 1
            if symmetrise:
                indices[cursor[j]] = i
                cursor[j] += 1


@compiled
def _sort_unique(indptr: Array, indices: Array) -> np.int64:
    # In place, since edges are what memory is short for: what is written never overtakes what is read.
    write = np.int64(0)
    start = np.int64(0)
    for row in range(len(indptr) - 1):
        stop = indptr[row + 1]
        neighbours = indices[start:stop]
        neighbours.sort()
        indptr[row] = write
        last = np.int64(-1)
        for k in range(len(neighbours)):
            if neighbours[k] != last:
                last = np.int64(neighbours[k])
                indices[write] = neighbours[k]
                write += 1
        start = stop
    indptr[-1] = write
    return write


@compiled
def _first_fault(indptr: Array, indices: Array, nodes: int) -> tuple[int, int]:
    # All faults in one pass: the file may be larger than memory, and is read only once.
    for row in range(nodes):
        last = np.int64(-1)
        for k in range(indptr[row], indptr[row + 1]):
            column = np.int64(indices[k])
            if column < 0 or column >= nodes:
                return row, 0
            if column == row:
                return row, 1
            if column <= last:
                return row, 2
            last = column
    return 0, -1


@compiled
def is_symmetric(indptr: Array, indices: Array) -> bool:
    """Return whether a CSR that `check_csr` accepts holds the reverse of each of its edges."""
    # Rows are visited in ascending order, so row i must be the next unread entry of each of its neighbours.
    cursor = indptr[:-1].copy()
    for row in range(len(indptr) - 1):
        for k in range(indptr[row], indptr[row + 1]):
            column = indices[k]
            at = cursor[column]
            if at >= indptr[column + 1] or indices[at] != row:
                return False
            cursor[column] = at + 1
    return True


@dataclass(frozen=True)
class GraphData:
    """A graph with features, labels and a split; N nodes, E directed edges, F features, C classes.

    Edges are stored in both directions. Arrays may be memory-mapped and must not be written to.
    """

    name: str
    indptr: Array  # int64 [N+1], CSR; row i lists the in-neighbours of node i: ascending, no duplicates, no self-loop
    indices: Array  # int32 [E] (int64 only when N >= 2**31)
    features: Array  # float32 [N, F]
    labels: Array  # int64 [N], -1 = unlabelled, or uint8 [N, C] of 0/1 when `multilabel`
    train_mask: Array  # bool [N]; the three masks are disjoint
    val_mask: Array  # bool [N]
    test_mask: Array  # bool [N]
    num_classes: int
    multilabel: bool
    origin: str = "real"  # "real", "generated" or "twin" (generated in the likeness of a published set)
    note: str = ""  # what a table adds to the name, e.g. "twin of reddit at scale 0.02"
    weights: Array | None = None  # float32 [E] edge weights, positive and finite; None: every edge counts one

    @classmethod
    def of(
        cls, name: str, *, csr: tuple[Array, Array], features: Array, labels: tuple[Array, int, bool],
        split: Iterable[Array], **others: Any,
    ) -> GraphData:  # fmt: skip
        """Return a graph; `labels` come with `num_classes` and `multilabel`, `split` are the three masks in order."""
        (indptr, indices), (values, classes, multilabel), (train, val, test) = csr, labels, split
        return cls(
            name=name, indptr=indptr, indices=indices, features=features, labels=values, train_mask=train,
            val_mask=val, test_mask=test, num_classes=classes, multilabel=multilabel, **others,
        )  # fmt: skip

    @property
    def nodes(self) -> int:
        """N."""
        return len(self.indptr) - 1

    @property
    def edges(self) -> int:
        """E, directed: an undirected edge counts twice."""
        return len(self.indices)


def index_dtype(nodes: int) -> np.dtype[Any]:
    """Dtype of `indices` for a graph of `nodes` nodes: int32, int64 from 2**31 nodes on."""
    return np.dtype(np.int32 if nodes < 2**31 else np.int64)


def train_on_all_others(graph: GraphData) -> GraphData:
    """Return a single-label graph in which every labelled node that is neither validation nor test trains.

    Of Planetoid's sets this is the split of FastGCN and LADIES: all but 500 and 1,000 nodes.
    """
    train = (graph.labels >= 0) & ~(graph.val_mask | graph.test_mask)
    return replace(graph, train_mask=train)


def check_graph(graph: GraphData, source: Path | str, *, symmetric: bool = False) -> None:
    """Refuse a graph that breaks a promise of `GraphData` (features are not read, only their shape).

    Linear in nodes and edges; takes O(nodes) of memory. The DataError names `source` and the first broken promise.
    """
    problem = (
        _shape_problem(graph)
        or check_csr(graph.indptr, graph.indices)
        or _value_problem(graph)
        or (_asymmetry(graph) if symmetric else None)
    )
    if problem:
        raise DataError(problem, file=source)


def _asymmetry(graph: GraphData) -> str | None:
    if not is_symmetric(graph.indptr, graph.indices):
        return "edges are not symmetric"
    if graph.weights is None:
        return None
    row, column = _first_one_way(graph.indptr, graph.indices, graph.weights)
    return (
        None if row < 0 else f"edge weights are not symmetric: that of {row}, {column} is not that of {column}, {row}"
    )


@compiled
def _first_one_way(indptr: Array, indices: Array, weights: Array) -> tuple[Any, Any]:
    # As in `is_symmetric`; both directions may have been computed, each with a rounding of its own.
    cursor = indptr[:-1].copy()
    for row in range(len(indptr) - 1):
        for k in range(indptr[row], indptr[row + 1]):
            column = np.int64(indices[k])
            back = weights[cursor[column]]
            if abs(weights[k] - back) > 1e-6 * back:
                return row, column
            cursor[column] += 1
    return -1, -1


Shape = tuple[int | None, ...]  # None: any


def fits(found: tuple[int, ...], shape: Shape) -> bool:
    """Return whether an array has the shape it should have."""
    return len(found) == len(shape) and all(want in (None, have) for want, have in zip(shape, found, strict=True))


def shape_text(shape: Shape) -> str:
    """Write a shape for a message, e.g. "[20, any]"."""
    return f"[{', '.join('any' if size is None else str(size) for size in shape)}]"


def _shape_problem(graph: GraphData) -> str | None:
    n = graph.nodes
    expected: dict[str, tuple[Any, Shape]] = {
        "indptr": (np.int64, (n + 1,)),
        "indices": (index_dtype(n), (None,)),
        "features": (np.float32, (n, None)),
        "labels": (np.uint8, (n, graph.num_classes)) if graph.multilabel else (np.int64, (n,)),
        "train_mask": (np.bool_, (n,)),
        "val_mask": (np.bool_, (n,)),
        "test_mask": (np.bool_, (n,)),
        "weights": (np.float32, (graph.indices.size,)),
    }
    if n < 1:
        return "the graph has no nodes"
    for name, (dtype, shape) in expected.items():
        array = getattr(graph, name)
        if array is None:
            continue
        if array.dtype != dtype or not fits(array.shape, shape):
            want = f"{np.dtype(dtype).name} {shape_text(shape)}"
            return f"{name} is {array.dtype} {list(array.shape)}, expected {want}"
    return None


def _value_problem(graph: GraphData) -> str | None:
    low, high = (int(graph.labels.min()), int(graph.labels.max())) if graph.labels.size else (0, 0)
    if graph.multilabel and high > 1:
        return f"multi-label labels hold {high}, expected 0 or 1"
    if not graph.multilabel and not -1 <= low <= high < graph.num_classes:
        return f"labels span {low}..{high}, expected -1..{graph.num_classes - 1}"
    if np.any(graph.train_mask & graph.val_mask) or np.any((graph.train_mask | graph.val_mask) & graph.test_mask):
        return "train_mask, val_mask and test_mask overlap"
    if not graph.multilabel:
        split = graph.train_mask | graph.val_mask | graph.test_mask
        if np.any(graph.labels[split] < 0):
            return "a node of the split has no label"
    weights = graph.weights
    if weights is not None and weights.size and not 0 < weights.min() <= weights.max() < np.inf:
        return "edge weights must be positive and finite"
    return None if weights is None else _overflow(graph.indptr, weights)


def _overflow(indptr: Array, weights: Array) -> str | None:
    """Return the row whose weights add up to more than float32 holds, in a sentence; None if there is none."""
    most, rows = float(np.finfo(np.float32).max), np.flatnonzero(np.diff(indptr))
    if not rows.size or float(weights.max()) * float(np.diff(indptr).max()) <= most:
        return None
    sums = np.add.reduceat(weights, indptr[:-1][rows], dtype=np.float64)
    return f"edge weights of row {rows[sums.argmax()]} add up to more than float32 holds" if sums.max() > most else None
