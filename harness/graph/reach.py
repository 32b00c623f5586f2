"""Nodes within some hops of others."""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from harness.graph.topology import Topology


def within_hops(topology: Topology, nodes: NDArray[np.int64], hops: int) -> NDArray[np.int64]:
    """Return `nodes` and all from which they are reached over at most `hops` edges, int64, ascending.

    These are the nodes whose features as many layers' outputs at `nodes` depend on. Takes time linear in the
    graph's nodes and the in-edges of those returned.

    Args:
        topology: the graph, by in-edges.
        nodes: int64, in any order, which may repeat.
        hops: at least 0.
    """
    found: NDArray[np.int64] = _within_hops(topology.indptr, topology.indices, nodes, hops)
    return found


@numba.njit(cache=True, nogil=True)
def _within_hops(indptr, indices, nodes, hops):  # type: ignore[no-untyped-def]
    """Breadth first: `queue` holds the nodes met in the order of their distance."""
    met = np.zeros(indptr.size - 1, np.bool_)
    queue = np.empty(met.size + 1, np.int64)  # one more: a node met before is written too, and overwritten
    end = 0
    for node in nodes:
        queue[end] = node
        end += not met[node]
        met[node] = True
    first = 0
    for _ in range(hops):
        last = end
        for k in range(first, last):
            for e in range(indptr[queue[k]], indptr[queue[k] + 1]):
                node = indices[e]
                queue[end] = node
                end += not met[node]
                met[node] = True
        first = last
    return np.flatnonzero(met)
