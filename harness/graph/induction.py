"""Induction: all edges between given nodes of a graph."""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

from harness.graph.layer_sample import Tables
from harness.graph.prefetch import prefetch
from harness.graph.topology import Topology

AHEAD = 4  # rows asked for before their turn; from 2 to 12 they are equally fast
FILTER_BITS = 2**18  # 32 KiB, what most processors' nearest cache holds
FILTER_BELOW = 8  # a filter pays where the nodes are at most 1 in so many of the graph's; measured


@dataclass(frozen=True, eq=False)
class Induced:
    """A subgraph's square matrix: row and column k are the k-th of the nodes that it was induced on.

    Attributes:
        indptr: int64 [n + 1].
        columns: int32 [nnz], in each row in the order that the graph's row has them in.
        places: int64 [nnz], where in the graph's `indices` the entries are; None where not asked for.
    """

    indptr: NDArray[np.int64]
    columns: NDArray[np.int32]
    places: NDArray[np.int64] | None


def induced(topology: Topology, nodes: NDArray[np.int64], tables: Tables, *, places: bool = False) -> Induced:
    """Return all edges between `nodes`, each of which is both a row and a column, in their order.

    Takes time linear in the sum of the nodes' degrees.

    Args:
        topology: the graph.
        nodes: int64 [n], distinct. Where they ascend, and the graph's columns do, the columns ascend.
        tables: of the graph's nodes.
        places: whether to say where in the graph the entries are.

    Raises:
        ValueError: a node is given twice.
    """
    with tables.borrow() as table:
        indptr, columns, found = _induce(topology.indptr, topology.indices, nodes, table, places)
    return Induced(indptr, columns, found if places else None)


@numba.njit(cache=True, nogil=True)
def _induce(indptr, indices, nodes, table, with_places):  # type: ignore[no-untyped-def]
    """Return the subgraph's `indptr`, columns, and with `with_places` where in `indices` they are.

    Of a small part of a graph most entries lead out. A filter that the nearest cache holds stops nearly all
    of those; only what passes is looked up in the table, which is too large for it.
    """
    entries = _number(indptr, nodes, table)
    small = nodes.size * FILTER_BELOW <= table.size
    bits, mask = _filter(nodes if small else nodes[:0])
    pointers = np.empty(nodes.size + 1, np.int64)
    columns = np.empty(entries + 1, np.int32)  # one more: what is not kept is written too, and overwritten
    places = np.empty(entries + 1 if with_places else 0, np.int64)
    for k in range(min(AHEAD, nodes.size)):
        _fetch(indptr, indices, nodes[k])
    at = np.uint64(0)  # unsigned: numba asks of a signed index whether it counts from the end
    pointers[0] = 0
    for k in range(nodes.size):
        _fetch(indptr, indices, nodes[min(k + AHEAD, nodes.size - 1)])
        row = np.uint64(indptr[nodes[k]]), np.uint64(indptr[nodes[k] + 1])
        if small:
            end = _pass(indices, row, bits, mask, columns, places, at)
            at = _number_passed(table, columns, places, at, end)
        else:
            at = _number_row(indices, row, table, columns, places, at)
        pointers[k + 1] = at
    for k in range(nodes.size):
        table[nodes[k]] = -1
    return pointers, columns[:at].copy(), places[: at if with_places else 0].copy()


# The next three write every entry, and keep it by moving on: a branch would be guessed wrong for those kept.


@numba.njit(cache=True, nogil=True)
def _pass(indices, row, bits, mask, columns, places, at):  # type: ignore[no-untyped-def]
    """Write, from `at` on, the neighbours that pass the filter, and their places; return the end."""
    for e in range(row[0], row[1]):
        columns[at] = indices[e]
        if places.size > 0:
            places[at] = e
        digits = np.uint64(np.uint32(indices[e])) & mask
        at += (bits[digits >> np.uint64(6)] >> (digits & np.uint64(63))) & np.uint64(1)
    return at


@numba.njit(cache=True, nogil=True)
def _number_passed(table, columns, places, at, end):  # type: ignore[no-untyped-def]
    """Move together, from `at` on, what of `columns[at:end]` the table knows, numbered; return the end."""
    for e in range(at, end):
        column = table[np.uint32(columns[e])]
        columns[at] = column
        if places.size > 0:
            places[at] = places[e]
        at += np.uint64(column >= 0)
    return at


@numba.njit(cache=True, nogil=True)
def _number_row(indices, row, table, columns, places, at):  # type: ignore[no-untyped-def]
    """Write, from `at` on, a row's neighbours that the table knows, numbered, and places; return the end."""
    for e in range(row[0], row[1]):
        column = table[np.uint32(indices[e])]
        columns[at] = column
        if places.size > 0:
            places[at] = e
        at += np.uint64(column >= 0)
    return at


@numba.njit(cache=True, nogil=True)
def _number(indptr, nodes, table):  # type: ignore[no-untyped-def]
    """Write each node's position into `table` int32 [N] of -1; return the sum of their degrees."""
    entries = 0
    for k in range(nodes.size):
        if table[nodes[k]] >= 0:
            raise ValueError("a node of a subgraph is given twice")
        table[nodes[k]] = k
        entries += indptr[nodes[k] + 1] - indptr[nodes[k]]
    return entries


@numba.njit(cache=True, nogil=True)
def _filter(nodes):  # type: ignore[no-untyped-def]
    """Return bits, uint64, of which those are 1 that nodes' last digits point to, and the mask of the digits.

    A node that is not given finds a 1 with a chance of 1/16 at most; in a graph of as many nodes as there
    are bits, never.
    """
    size = FILTER_BITS
    while size < 16 * nodes.size:
        size *= 2
    bits, mask = np.zeros(size >> 6, np.uint64), np.uint64(size - 1)
    for k in range(nodes.size):
        digits = np.uint64(nodes[k]) & mask
        bits[digits >> np.uint64(6)] |= np.uint64(1) << (digits & np.uint64(63))
    return bits, mask


@numba.njit(cache=True, nogil=True)
def _fetch(indptr, indices, row):  # type: ignore[no-untyped-def]
    """Ask for every cache line of a row ahead of its use; to wait for them took half of the time."""
    for e in range(np.uint64(indptr[row]), np.uint64(indptr[row + 1]), np.uint64(16)):
        prefetch(indices, e)
