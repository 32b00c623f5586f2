"""Sets of nodes that pickers collect, one bit a node, and read back in ascending order.

Kernels take the two arrays of a set as `bits, words`.
"""

from __future__ import annotations

import numba
import numpy as np
from numba.cpython.unsafe.numbers import trailing_zeros
from numpy.typing import NDArray

from harness.graph.layer_sample import Pool
from harness.graph.random import below, next_u64

_1, _6, _63 = (np.uint64(number) for number in (1, 6, 63))


class Marks(Pool[tuple[NDArray[np.uint64], NDArray[np.uint64]]]):
    """Lends empty sets of nodes: a bit for each, uint64 [ceil(N/64)], and one for each word, [ceil(N/4096)].

    Who borrows one gives it back empty, as `ascending` leaves it. A set of 233,000 nodes fits into a cache of
    the first level: to put 8000 in and read them back takes about the time of numpy's fastest sort.
    """

    def __init__(self, num_nodes: int) -> None:
        words = -(-num_nodes // 64)
        super().__init__(lambda: (np.zeros(words, np.uint64), np.zeros(-(-words // 64), np.uint64)))


@numba.njit(cache=True, nogil=True)
def mark(bits, words, node):  # type: ignore[no-untyped-def]
    """Put `node` into the set; return 1 where it was not there, or 0."""
    place = np.uint64(node)
    word = place >> _6
    before = bits[word]
    bits[word] = before | (_1 << (place & _63))
    words[word >> _6] |= _1 << (word & _63)
    return np.int64(~(before >> (place & _63)) & _1)


@numba.njit(cache=True, nogil=True)
def marked(bits, node):  # type: ignore[no-untyped-def]
    """Return whether `node` is in the set."""
    place = np.uint64(node)
    return (bits[place >> _6] >> (place & _63)) & _1 == _1


@numba.njit(cache=True, nogil=True)
def ascending(bits, words, count):  # type: ignore[no-untyped-def]
    """Return the `count` nodes of the set, int64 [count], and empty it; in O(count + N / 4096) time."""
    nodes = np.empty(count, np.int64)
    at = np.uint64(0)
    for k in range(np.uint64(words.size)):
        upper = words[k]
        words[k] = 0
        while upper:
            word = (np.uint64(k) << _6) | _lowest(upper)
            upper &= upper - _1
            lower = bits[word]
            bits[word] = 0
            while lower:
                nodes[at] = (word << _6) | _lowest(lower)
                lower &= lower - _1
                at += _1
    return nodes


@numba.njit(cache=True, nogil=True)
def _lowest(word):  # type: ignore[no-untyped-def]
    """Return the place of the lowest bit of a `word` that is not 0."""
    return np.uint64(trailing_zeros(word))  # type: ignore[call-arg]


@numba.njit(cache=True, nogil=True)
def mark_unseen(bits, words, num_nodes, missing, state):  # type: ignore[no-untyped-def]
    """Put `missing` nodes into the set that are not in it, uniformly; return the stream's next state.

    There must be as many. Tries O(N / (nodes not in it)) nodes for each.
    """
    while missing > 0:
        state, value = next_u64(state)
        missing -= mark(bits, words, below(value, num_nodes))
    return state
