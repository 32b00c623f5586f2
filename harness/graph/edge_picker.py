"""Random edges, whose ends are the nodes of a subgraph."""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from harness.errors import UserError
from harness.graph.picking import Marks, ascending, mark
from harness.graph.random import below, next_u64, stream
from harness.graph.topology import Topology


class EdgePicker:
    """Picks the ends of random edges (GraphSAINT, Zeng et al., ICLR 2020, Algorithm 2: "Edge").

    size // 2 edges, at least one, are drawn with replacement, the edge between u and v with
    p_uv ~ 1/deg_u + 1/deg_v, deg counting neighbours. That is what a uniform node among those with
    neighbours, and a uniform neighbour of it, come to: p_uv = (1/deg_u + 1/deg_v) / (their number). So no
    alias table of the graph's edges is needed. Distinct nodes are `size` at most; edge weights do not count,
    and a node without neighbours is never picked.

    Args:
        topology: the graph, symmetric in structure, without self loops.
        size: ends of all edges together, at least 1.

    Raises:
        ValueError: `size` is out of range.
        UserError: the graph has no edges.
    """

    def __init__(self, topology: Topology, size: int) -> None:
        if size < 1:
            raise ValueError(f"a size is at least 1, not {size}")
        if topology.indices.size == 0:
            raise UserError(
                "the graph has no edges that 'edge' could draw", key="sampler", fix="use node or frontier"
            )
        self._topology = topology
        self._edges = max(size // 2, 1)
        self._marks = Marks(topology.num_nodes)

    def pick(self, seed: int) -> NDArray[np.int64]:
        """Return distinct nodes, int64, ascending, by a seed in [0, 2^63). Threads may call at once."""
        with self._marks.borrow() as marks:
            nodes: NDArray[np.int64] = _ends(
                self._topology.indptr, self._topology.indices, self._edges, seed, *marks
            )
        return nodes


@numba.njit(cache=True, nogil=True)
def _ends(indptr, indices, edges, seed, bits, words):  # type: ignore[no-untyped-def]
    """The loads of all edges, from all over the graph, are under way at once: none waits for another."""
    state = stream(seed, 0)
    entries = np.empty(edges, np.int64)
    at = np.uint64(0)
    count = 0
    while at < edges:
        state, value = next_u64(state)
        node = np.uint64(below(value, indptr.size - 1))  # unsigned: no check for a negative index
        start = indptr[node]
        degree = indptr[node + np.uint64(1)] - start
        if degree > 0:
            state, value = next_u64(state)
            entries[at] = start + below(value, degree)
            count += mark(bits, words, node)
            at += np.uint64(1)
    for k in range(edges):
        count += mark(bits, words, indices[np.uint64(entries[k])])
    return ascending(bits, words, count)
