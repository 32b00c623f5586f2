"""Induction: all edges between given nodes of a graph."""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

from harness.graph.layer_sample import Tables
from harness.graph.topology import Topology


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
        indptr, columns, found, _ = _induce(topology.indptr, topology.indices, nodes, table, places)
    return Induced(indptr, columns, found if places else None)


@numba.njit(cache=True, nogil=True)
def _induce(indptr, indices, nodes, table, with_places):  # type: ignore[no-untyped-def]
    """Return the subgraph's `indptr`, columns, with `with_places` where in `indices` they are, and a number.

    What takes time is to wait for rows that no cache has: each is touched while the one before is looked up.
    """
    entries = 0
    for k in range(nodes.size):
        if table[nodes[k]] >= 0:
            raise ValueError("a node of a subgraph is given twice")
        table[nodes[k]] = k
        entries += indptr[nodes[k] + 1] - indptr[nodes[k]]
    pointers = np.empty(nodes.size + 1, np.int64)
    columns = np.empty(entries + 1, np.int32)  # one more: what is not kept is written too, and overwritten
    places = np.empty(entries + 1 if with_places else 0, np.int64)
    at = np.uint64(0)  # unsigned: numba asks of a signed index whether it counts from the end
    touched = 0
    pointers[0] = 0
    for k in range(nodes.size):
        touched += _touch(indptr, indices, nodes[min(k + 1, nodes.size - 1)])
        for e in range(np.uint64(indptr[nodes[k]]), np.uint64(indptr[nodes[k] + 1])):
            column = table[np.uint32(indices[e])]
            columns[at] = column
            if with_places:
                places[at] = e
            at += np.uint64(column >= 0)
        pointers[k + 1] = at
    for k in range(nodes.size):
        table[nodes[k]] = -1
    return pointers, columns[:at].copy(), places[: at if with_places else 0].copy(), touched


@numba.njit(cache=True, nogil=True)
def _touch(indptr, indices, row):  # type: ignore[no-untyped-def]
    """Read an entry of every cache line of a row; their sum, or the compiler would leave the reads out."""
    touched = 0
    for e in range(np.uint64(indptr[row]), np.uint64(indptr[row + 1]), np.uint64(16)):
        touched += indices[e]
    return touched
