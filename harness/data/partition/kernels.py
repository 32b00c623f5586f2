"""Compiled loops of partitioning.

Arrays: `indptr` int64 [N+1], `indices` int32 or int64 [E], rows ascending. They may be read-only memory maps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

F = TypeVar("F", bound=Callable[..., Any])
Ints = NDArray[np.integer[Any]]
Bools = NDArray[np.bool_]
Floats = NDArray[np.floating[Any]]


def compiled(function: F) -> F:
    """Compile with numba on first call; the machine code is kept beside the source."""
    return cast(F, numba.njit(cache=True, nogil=True)(function))


@compiled
def count_selected(indptr: Ints, indices: Ints, rows: Ints, selected: Bools) -> Ints:
    """int64 [len(rows)]: how many entries of each of `rows` are `selected` (bool [N]) columns."""
    out = np.zeros(rows.size, np.int64)
    for k in range(rows.size):
        for e in range(indptr[rows[k]], indptr[rows[k] + 1]):
            out[k] += selected[indices[e]]
    return out


@compiled
def induced_rows(indptr: Ints, indices: Ints, rows: Ints, position: Ints, out: Ints) -> None:
    """Fill `out` with the entries of `rows` that have a `position` (int32 [N], -1 = left out), renumbered."""
    w = 0
    for i in rows:
        for e in range(indptr[i], indptr[i + 1]):
            p = position[indices[e]]
            if p >= 0:
                out[w] = p
                w += 1


@compiled
def mark_columns(indptr: Ints, indices: Ints, rows: Ints, seen: Bools) -> None:
    """Set `seen` (bool [N]) for every column of `rows`."""
    for i in rows:
        for e in range(indptr[i], indptr[i + 1]):
            seen[indices[e]] = True


@compiled
def local_rows(indptr: Ints, indices: Ints, inner: Ints, position: Ints, out: Ints) -> None:
    """Fill `out` with the rows of `inner`, columns renumbered by `position` (int32 [N]), each ascending.

    `position` sends inner nodes to 0..len(inner)-1 in ascending order, so only the boundary columns of a
    row, which are ordered by owner first, can need sorting.
    """
    w = 0
    for i in inner:
        for e in range(indptr[i], indptr[i + 1]):
            p = position[indices[e]]
            if p < inner.size:
                out[w] = p
                w += 1
        start, ascending = w, True
        for e in range(indptr[i], indptr[i + 1]):
            p = position[indices[e]]
            if p >= inner.size:
                ascending = ascending and (w == start or out[w - 1] < p)
                out[w] = p
                w += 1
        if not ascending:
            out[start:w].sort()


@compiled
def local_weights(indptr: Ints, indices: Ints, inner: Ints, position: Ints, weights: Floats, out: Floats) -> None:
    """Fill `out` with the weights of the entries that `local_rows` writes, in the same order."""
    w = 0
    for i in inner:
        start, end = indptr[i], indptr[i + 1]
        order = np.argsort(position[indices[start:end]])
        for k in order:
            out[w] = weights[start + k]
            w += 1


@compiled
def induced_weights(indptr: Ints, indices: Ints, nodes: Ints, kept: Bools, weights: Floats, out: Floats) -> None:
    """Fill `out` with the weights of the entries in the rows of `nodes` whose column is `kept` [N]."""
    w = 0
    for i in nodes:
        for e in range(indptr[i], indptr[i + 1]):
            if kept[indices[e]]:
                out[w] = weights[e]
                w += 1


@compiled
def row_sums(indptr: Ints, weights: Floats, out: Floats) -> None:
    """Fill `out` float64 [N] with the sum of each row's weights."""
    for i in range(out.size):
        total = 0.0
        for e in range(indptr[i], indptr[i + 1]):
            total += weights[e]
        out[i] = total


@compiled
def join_neighbours(indptr: Ints, indices: Ints, parts: Ints, weight: Ints, load: Ints) -> None:
    """Give every node with `parts[i] < 0` the part most of its placed in-neighbours are in.

    Nodes are taken in ascending order and count as placed from then on. Ties and nodes without placed
    neighbours go to the part with the smallest `load` (int64 [P], updated by `weight` int64 [N]), then to
    the lowest-numbered one.
    """
    votes = np.zeros(load.size, np.int64)
    for i in range(parts.size):
        if parts[i] >= 0:
            continue
        votes[:] = 0
        for e in range(indptr[i], indptr[i + 1]):
            if parts[indices[e]] >= 0:
                votes[parts[indices[e]]] += 1
        best = 0
        for p in range(1, load.size):
            if votes[p] > votes[best] or (votes[p] == votes[best] and load[p] < load[best]):
                best = p
        parts[i] = best
        load[best] += weight[i]
