"""Forest fires: nodes that burn a random few of their neighbours, which burn theirs."""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from harness.graph.picking import Marks, ascending, mark, marked
from harness.graph.random import below, next_u64, stream, uniform
from harness.graph.topology import Topology


class ForestFirePicker:
    """Picks the nodes that fires burn (Leskovec and Faloutsos, KDD 2006, "forest fire").

    A fire starts at a uniform node. A burning node sets fire to x of its neighbours that have not burnt,
    uniform and distinct, or to all where they are fewer; x is geometric with mean burn / (1 - burn). Nodes
    burn in the order they caught fire. Where a fire dies, another starts at a uniform node of those left,
    until there are min(size, N) nodes. Edge weights do not count.

    Args:
        topology: the graph, symmetric in structure.
        size: distinct nodes to pick, at least 1.
        burn: 0 <= burn < 1.

    Raises:
        ValueError: `size` or `burn` is out of range.
    """

    def __init__(self, topology: Topology, size: int, *, burn: float = 0.7) -> None:
        if size < 1 or not 0 <= burn < 1:
            raise ValueError(f"a fire has a size >= 1 and 0 <= burn < 1, not {size} and {burn}")
        self._topology, self._burn = topology, burn
        self._size = min(size, topology.num_nodes)
        self._marks = Marks(topology.num_nodes)

    def pick(self, seed: int) -> NDArray[np.int64]:
        """Return distinct nodes, int64, ascending, by a seed in [0, 2^63). Threads may call at once."""
        graph = self._topology.indptr, self._topology.indices
        with self._marks.borrow() as marks:
            nodes: NDArray[np.int64] = _burn(*graph, self._size, float(self._burn), seed, *marks)
        return nodes


@numba.njit(cache=True, nogil=True, error_model="numpy")  # log(0) = -inf: with burn 0, no node burns another
def _burn(indptr, indices, size, burn, seed, bits, words):  # type: ignore[no-untyped-def]
    state = stream(seed, 0)
    queue = np.empty(size + 1, np.int32)  # one more: a node that burns is written too, and overwritten
    end = 0
    for k in range(size):
        while end == k:  # the fire is dead
            state, value = next_u64(state)
            queue[end] = below(value, indptr.size - 1)
            end += mark(bits, words, queue[end])
        node = np.uint64(queue[k])  # unsigned: numba asks of a signed index whether it counts from the end
        row = indices[indptr[node] : indptr[node + np.uint64(1)]]
        state, value = next_u64(state)
        wanted = np.log(1 - uniform(value)) / np.log(burn)  # its floor is geometric
        room = np.int64(min(wanted, row.size, size - end))
        state, end = _spread(row, room, queue, end, state, bits, words)
        if end == size:
            break
    return ascending(bits, words, size)


@numba.njit(cache=True, nogil=True)
def _spread(row, wanted, queue, end, state, bits, words):  # type: ignore[no-untyped-def]
    """Append up to `wanted` unmarked nodes of `row`, uniform and distinct, to the queue, and mark them.

    Most are found by trying any of the row; what as many tries as it is long have missed, by going along it.
    Both draw the next node uniformly from those left. Returns the stream's state and the queue's end.
    """
    last = end + wanted
    for _ in range(row.size):
        if end == last:
            return state, end
        state, value = next_u64(state)
        queue[end] = row[np.uint64(below(value, row.size))]
        end += mark(bits, words, queue[end])
    return _select(row, last, queue, end, state, bits, words)


@numba.njit(cache=True, nogil=True)
def _select(row, last, queue, end, state, bits, words):  # type: ignore[no-untyped-def]
    """`_spread` by selection sampling (Knuth, The Art of Computer Programming, 3.4.2, Algorithm S)."""
    left = 0
    for node in row:
        left += not marked(bits, node)
    for node in row:
        if not marked(bits, node):
            state, value = next_u64(state)
            if below(value, left) < last - end:
                queue[end] = node
                end += mark(bits, words, node)
            left -= 1
    return state, end
