"""Random walks that pick the nodes of subgraphs: edge weights do not count, all neighbours are alike."""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from harness.graph.picking import Marks, ascending, mark, mark_unseen
from harness.graph.random import below, next_u64, stream
from harness.graph.topology import Topology

STEPS_A_NODE = 32  # of all walkers, before what is missing is filled with any nodes
PATIENCE = 32  # a walker's steps over nodes picked before, until it starts anew


class WalkPicker:
    """Picks all nodes of short random walks (GraphSAINT, Zeng et al., ICLR 2020, Algorithm 2: "RW").

    size // (length + 1) roots, at least one, are uniform over all nodes, with replacement. Each walks
    `length` steps to uniform neighbours, or stays where there are none. Distinct nodes are `size` at most.

    Args:
        topology: the graph, symmetric in structure.
        size: nodes of all walks together, at least 1.
        length: steps of a walk, at least 0.

    Raises:
        ValueError: `size` or `length` is out of range.
    """

    def __init__(self, topology: Topology, size: int, *, length: int = 3) -> None:
        if size < 1 or length < 0:
            raise ValueError(f"walks have a size >= 1 and a length >= 0, not {size} and {length}")
        self._topology, self._length = topology, length
        self._roots = max(size // (length + 1), 1) if topology.num_nodes else 0
        self._marks = Marks(topology.num_nodes)

    def pick(self, seed: int) -> NDArray[np.int64]:
        """Return distinct nodes, int64, ascending, by a seed in [0, 2^63). Threads may call at once."""
        graph = self._topology.indptr, self._topology.indices
        with self._marks.borrow() as marks:
            nodes: NDArray[np.int64] = _walk(*graph, self._roots, self._length, seed, *marks)
        return nodes


class MultiWalkPicker:
    """Picks the nodes of long random walks, all together (Ribeiro and Towsley, IMC 2010, "multiple RW").

    Walkers start at uniform nodes, with replacement, and step in turn to uniform neighbours. Every node that
    a walker leaves is picked, until there are min(size, N) distinct ones. Unlike the frontier's, a walker's
    turn does not depend on its degree: walkers are stationary in proportion to degrees.

    So that it ends: a walker starts anew at a uniform node where it has no neighbour, or when the last 32
    nodes that it left had been picked before (a component that has been seen). After 32 steps for each node
    of the size, those missing are uniform among the nodes not picked.

    Args:
        topology: the graph, symmetric in structure.
        size: distinct nodes to pick, at least 1.
        walkers: their number, at least 1.

    Raises:
        ValueError: `size` or `walkers` is out of range.
    """

    def __init__(self, topology: Topology, size: int, *, walkers: int = 1000) -> None:
        if size < 1 or walkers < 1:
            raise ValueError(f"size and walkers are at least 1, not {size} and {walkers}")
        self._topology, self._walkers = topology, walkers
        self._size = min(size, topology.num_nodes)
        self._marks = Marks(topology.num_nodes)

    def pick(self, seed: int) -> NDArray[np.int64]:
        """Return distinct nodes, int64, ascending, by a seed in [0, 2^63). Threads may call at once."""
        graph = self._topology.indptr, self._topology.indices
        with self._marks.borrow() as marks:
            nodes: NDArray[np.int64] = _walk_on(*graph, self._size, self._walkers, seed, *marks)
        return nodes


@numba.njit(cache=True, nogil=True)
def _walk(indptr, indices, roots, length, seed, bits, words):  # type: ignore[no-untyped-def]
    state = stream(seed, 0)
    at, entries = np.empty(roots, np.int32), np.empty(roots, np.int64)
    count = 0
    for i in range(roots):
        state, value = next_u64(state)
        at[i] = below(value, indptr.size - 1)
        count += mark(bits, words, at[i])
    for _ in range(length):
        state = _step(indptr, indices, at, entries, state)
        for i in range(roots):
            count += mark(bits, words, at[i])
    return ascending(bits, words, count)


@numba.njit(cache=True, nogil=True)
def _walk_on(indptr, indices, size, walkers, seed, bits, words):  # type: ignore[no-untyped-def]
    state = stream(seed, 0)
    at, entries = np.empty(walkers, np.int32), np.full(walkers, -1, np.int64)
    idle = np.zeros(walkers, np.int64)
    count = 0
    for _ in range(-(-STEPS_A_NODE * size // walkers)):
        for i in range(walkers):
            if entries[i] < 0 or idle[i] == PATIENCE:
                state, value = next_u64(state)
                at[i] = below(value, indptr.size - 1)
                idle[i] = 0
        for i in range(walkers):
            new = mark(bits, words, at[i])
            idle[i] = (idle[i] + 1) * (1 - new)
            count += new
            if count == size:
                return ascending(bits, words, size)
        state = _step(indptr, indices, at, entries, state)
    mark_unseen(bits, words, indptr.size - 1, size - count, state)
    return ascending(bits, words, size)


@numba.njit(cache=True, nogil=True)
def _step(indptr, indices, at, entries, state):  # type: ignore[no-untyped-def]
    """Move every walker to a uniform neighbour of `at`; in place, with its `entries` or -1 where it stays.

    All walkers' loads, from all over the graph, are under way at once: none waits for another.
    """
    for i in range(at.size):
        node = np.uint64(at[i])  # unsigned: numba asks of a signed index whether it counts from the end
        start = indptr[node]
        degree = indptr[node + np.uint64(1)] - start
        state, value = next_u64(state)
        entries[i] = start + below(value, degree) if degree > 0 else -1
    for i in range(at.size):
        if entries[i] >= 0:
            at[i] = indices[np.uint64(entries[i])]
    return state
