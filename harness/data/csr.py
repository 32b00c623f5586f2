"""Edge lists to CSR by counting sort, and the checks of a CSR; all linear, none needs the edges twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numba import njit

Array = np.ndarray[Any, np.dtype[Any]]
EdgeChunks = Callable[[], Iterator[tuple[Array, Array]]]
"""A re-readable stream of (source, destination) pairs of equally long integer arrays."""


def csr_from_edges(edges: EdgeChunks, nodes: int, *, symmetrise: bool) -> tuple[Array, Array]:
    """Build (indptr int64 [N+1], indices int32 [E]); row = destination, ascending and unique, loop-free.

    The stream is read twice (count, place); besides the result only one chunk is in memory, so that
    a graph larger than half the memory can still be built. `symmetrise` adds the reverse of every edge.

    Raises:
        ValueError: an edge names a node outside 0..nodes-1.
    """
    counts = np.zeros(nodes + 1, dtype=np.int64)
    for source, destination in edges():
        if _count(source, destination, counts, symmetrise):
            raise ValueError(f"an edge names a node outside 0..{nodes - 1}")
    indptr = np.cumsum(counts)
    indices = np.empty(int(indptr[-1]), dtype=np.int32 if nodes < 2**31 else np.int64)
    cursor = indptr[:-1].copy()
    for source, destination in edges():
        _place(source, destination, cursor, indices, symmetrise)
    kept = _sort_unique(indptr, indices)
    return indptr, indices[:kept]


def check_csr(indptr: Array, indices: Array) -> str | None:
    """Say what is wrong with a CSR of ascending, unique, loop-free rows, or None when nothing is."""
    nodes = len(indptr) - 1
    if indptr[0] != 0 or indptr[-1] != len(indices):
        return f"indptr spans {indptr[0]}..{indptr[-1]}, expected 0..{len(indices)}"
    if np.any(indptr[1:] < indptr[:-1]):
        return "indptr is not monotone"
    row, fault = _first_fault(indptr, indices, nodes)
    faults = (f"a neighbour outside 0..{nodes - 1}", "a self-loop", "neighbours unsorted or twice")
    return None if fault < 0 else f"row {row} has {faults[fault]}"


def is_symmetric(indptr: Array, indices: Array) -> bool:
    """Tell whether a CSR that `check_csr` accepts holds the reverse of each of its edges."""
    return bool(_is_symmetric(indptr, indices))


@njit(cache=True, nogil=True)
def _count(source, destination, counts, symmetrise):  # type: ignore[no-untyped-def]
    nodes = len(counts) - 1
    for k in range(len(source)):
        i, j = np.int64(destination[k]), np.int64(source[k])
        if i < 0 or j < 0 or i >= nodes or j >= nodes:
            return True
        if i != j:
            counts[i + 1] += 1
            if symmetrise:
                counts[j + 1] += 1
    return False


@njit(cache=True, nogil=True)
def _place(source, destination, cursor, indices, symmetrise):  # type: ignore[no-untyped-def]
    for k in range(len(source)):
        i, j = np.int64(destination[k]), np.int64(source[k])
        if i != j:
            indices[cursor[i]] = j
            cursor[i] += 1
            if symmetrise:
                indices[cursor[j]] = i
                cursor[j] += 1


@njit(cache=True, nogil=True)
def _sort_unique(indptr, indices):  # type: ignore[no-untyped-def]
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


@njit(cache=True, nogil=True)
def _first_fault(indptr, indices, nodes):  # type: ignore[no-untyped-def]
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


@njit(cache=True, nogil=True)
def _is_symmetric(indptr, indices):  # type: ignore[no-untyped-def]
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
