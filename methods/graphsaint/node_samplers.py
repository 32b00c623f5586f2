"""How the nodes of a subgraph are drawn: by edges, walks and fires; frontier sampling is in `frontier`.

Kernels take the two arrays of a set as `bits, words`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from harness import UserError, numba, torch
from harness import numpy as np
from harness.plugin import (
    GraphOnDevice,
    Pool,
    Topology,
    below,
    below_on_device,
    bits_at,
    next_u64,
    stream,
    stream_bits,
    streams,
    uniform,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor


class Marks(Pool["tuple[NDArray[np.uint64], NDArray[np.uint64]]"]):
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
    word = place >> np.uint64(6)
    before = bits[word]
    bits[word] = before | (np.uint64(1) << (place & np.uint64(63)))
    words[word >> np.uint64(6)] |= np.uint64(1) << (word & np.uint64(63))
    return np.int64(~(before >> (place & np.uint64(63))) & np.uint64(1))


@numba.njit(cache=True, nogil=True)
def marked(bits, node):  # type: ignore[no-untyped-def]
    """Return whether `node` is in the set."""
    place = np.uint64(node)
    return (bits[place >> np.uint64(6)] >> (place & np.uint64(63))) & np.uint64(1) == np.uint64(1)


@numba.njit(cache=True, nogil=True)
def ascending(bits, words, count):  # type: ignore[no-untyped-def]
    """Return the `count` nodes of the set, int64 [count], and empty it; in O(count + N / 4096) time."""
    nodes = np.empty(count, np.int64)
    at = np.uint64(0)
    for k in range(np.uint64(words.size)):
        upper = words[k]
        words[k] = 0
        while upper:
            word = (np.uint64(k) << np.uint64(6)) | _lowest(upper)
            upper &= upper - np.uint64(1)
            lower = bits[word]
            bits[word] = 0
            while lower:
                nodes[at] = (word << np.uint64(6)) | _lowest(lower)
                lower &= lower - np.uint64(1)
                at += np.uint64(1)
    return nodes


@numba.njit(cache=True, nogil=True)
def _lowest(word):  # type: ignore[no-untyped-def]
    """Return the place of the lowest bit of a `word` that is not 0."""
    return np.uint64(numba.cpython.unsafe.numbers.trailing_zeros(word))  # type: ignore[attr-defined]


@numba.njit(cache=True, nogil=True)
def mark_unseen(bits, words, num_nodes, missing, state):  # type: ignore[no-untyped-def]
    """Put `missing` nodes into the set that are not in it, uniformly; return the stream's next state.

    There must be as many. Tries O(N / (nodes not in it)) nodes for each.
    """
    while missing > 0:
        state, value = next_u64(state)
        missing -= mark(bits, words, below(value, num_nodes))
    return state


class KernelSampler:
    """Draws the nodes of a subgraph by a kernel; see `NodeSampler`. Edge weights do not count.

    The kernel takes `indptr` and `indices` of the graph, which is symmetric in structure, the `numbers`, a seed, and
    the arrays of an empty set.
    """

    def __init__(self, topology: Topology, kernel: Callable[..., Any], *numbers: float) -> None:
        self._kernel = partial(kernel, topology.indptr, topology.indices, *numbers)
        self._marks = Marks(topology.num_nodes)

    def sample(self, seed: int) -> NDArray[np.int64]:
        """Return distinct nodes, int64, ascending, by a seed in [0, 2^63). Threads may call at once."""
        with self._marks.borrow() as marks:
            nodes: NDArray[np.int64] = self._kernel(seed, *marks)
        return nodes


class EdgeEndsSampler(KernelSampler):
    """Draws the ends of random edges (GraphSAINT, Zeng et al., ICLR 2020, Algorithm 2: "Edge").

    size // 2 edges, at least one, are drawn with replacement, the edge between u and v with p_uv ~ 1/deg_u + 1/deg_v,
    deg counting neighbours. That is what a uniform node among those with neighbours, and a uniform neighbour of it,
    come to: p_uv = (1/deg_u + 1/deg_v) / (their number). So no alias table of the graph's edges is needed. Distinct
    nodes are `size` at most, at least 1 or a ValueError; a node without neighbours is never picked. The graph has no
    self loops; one that has no edges is a UserError.
    """

    def __init__(self, topology: Topology, size: int) -> None:
        if size < 1:
            raise ValueError(f"a size is at least 1, not {size}")
        if topology.indices.size == 0:
            raise UserError("the graph has no edges that 'edge' could draw", key="sampler", fix="use node or frontier")
        self._edges = max(size // 2, 1)
        super().__init__(topology, _ends, self._edges)

    def draws_on_device(self, graph: GraphOnDevice) -> Callable[[int], Tensor]:
        """See `DeviceNodes`: the same nodes as on the host, where every node has neighbours.

        Else the host draws nodes until they have some, the device among those that have.
        """
        starts, degrees = graph.indptr[:-1], graph.indptr.diff()
        some = degrees.nonzero().squeeze(1)

        def draw(seed: int) -> Tensor:
            bits = stream_bits(seed, starts.new_zeros(1), 2 * self._edges).view(self._edges, 2)
            ends = some[below_on_device(bits[:, 0], some.numel())]
            others = graph.indices[starts[ends] + below_on_device(bits[:, 1], degrees[ends])]
            return _distinct([ends, others], degrees.numel())

        return draw


def _distinct(parts: Sequence[Tensor], num_nodes: int) -> Tensor:
    """Return the distinct nodes of the parts, int64, ascending; the host waits for their number."""
    met = torch.zeros(num_nodes, dtype=torch.bool, device=parts[0].device)
    for nodes in parts:
        met.index_fill_(0, nodes.long(), True)
    return met.nonzero().squeeze(1)


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


class ForestFireSampler(KernelSampler):
    """Draws the nodes that fires burn (Leskovec and Faloutsos, KDD 2006, "forest fire").

    A fire starts at a uniform node. A burning node sets fire to x of its neighbours that have not burnt,
    uniform and distinct, or to all where they are fewer; x is geometric with mean burn / (1 - burn). Nodes
    burn in the order they caught fire. Where a fire dies, another starts at a uniform node of those left,
    until there are min(size, N) nodes. A ValueError unless size >= 1 and 0 <= burn < 1.
    """

    def __init__(self, topology: Topology, size: int, *, burn: float = 0.7) -> None:
        if size < 1 or not 0 <= burn < 1:
            raise ValueError(f"a fire has a size >= 1 and 0 <= burn < 1, not {size} and {burn}")
        super().__init__(topology, _burn, min(size, topology.num_nodes), float(burn))


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


STEPS_A_NODE = 32  # of all walkers, before what is missing is filled with any nodes
UNSEEN = 1024  # nodes that a device tries at once for those that are missing
PATIENCE = 32  # a walker's steps over nodes drawn before, until it starts anew


class WalkSampler(KernelSampler):
    """Picks all nodes of short random walks (GraphSAINT, Zeng et al., ICLR 2020, Algorithm 2: "RW").

    size // (length + 1) roots, at least one, are uniform over all nodes, with replacement. Each walks
    `length` steps to uniform neighbours, or stays where there are none. Distinct nodes are `size` at most.
    A ValueError unless size >= 1 and length >= 0.
    """

    def __init__(self, topology: Topology, size: int, *, length: int = 3) -> None:
        if size < 1 or length < 0:
            raise ValueError(f"walks have a size >= 1 and a length >= 0, not {size} and {length}")
        self._roots, self._length = max(size // (length + 1), 1) if topology.num_nodes else 0, length
        super().__init__(topology, _walk, self._roots, length)

    def draws_on_device(self, graph: GraphOnDevice) -> Callable[[int], Tensor]:
        """See `DeviceNodes`: the same nodes as on the host."""
        roots, starts, degrees = self._roots, graph.indptr[:-1], graph.indptr.diff()

        def draw(seed: int) -> Tensor:
            bits = stream_bits(seed, starts.new_zeros(1), roots * (1 + self._length)).view(1 + self._length, roots)
            met = [below_on_device(bits[0], degrees.numel())]
            for step in bits[1:]:
                at = met[-1]
                # A node without neighbours may be the last of a graph: there is no entry where it starts.
                entries = (starts[at] + below_on_device(step, degrees[at])).clamp(max=max(graph.indices.numel() - 1, 0))
                met.append(torch.where(degrees[at] > 0, graph.indices[entries].long(), at))
            return _distinct(met, degrees.numel())

        return draw


class MultiWalkSampler(KernelSampler):
    """Draws the nodes of long random walks, all together (Ribeiro and Towsley, IMC 2010, "multiple RW").

    Walkers start at uniform nodes, with replacement, and step in turn to uniform neighbours. Every node that
    a walker leaves is picked, until there are min(size, N) distinct ones. Unlike the frontier's, a walker's
    turn does not depend on its degree: walkers are stationary in proportion to degrees.

    So that it ends: a walker starts anew at a uniform node where it has no neighbour, or when the last 32
    nodes that it left had been picked before (a component that has been seen). After 32 steps for each node
    of the size, those missing are uniform among the nodes not picked. A ValueError unless size and walkers are at
    least 1.
    """

    def __init__(self, topology: Topology, size: int, *, walkers: int = 1000) -> None:
        if size < 1 or walkers < 1:
            raise ValueError(f"size and walkers are at least 1, not {size} and {walkers}")
        self._size, self._walkers = min(size, topology.num_nodes), walkers
        super().__init__(topology, _walk_on, self._size, walkers)

    def draws_on_device(self, graph: GraphOnDevice) -> Callable[[int], Tensor]:
        """See `DeviceNodes`: the same nodes as on the host, which waits for their number after each turn of all.

        In the first turns there cannot be enough: it does not ask.
        """
        return partial(_walk_on_device, graph, self._size, self._walkers)


def _walk_on_device(graph: GraphOnDevice, size: int, walkers: int, seed: int) -> Tensor:
    """Return what `_walk_on` does: a turn of all walkers is a few operations, numbers are found by their places."""
    starts, degrees, device = graph.indptr[:-1], graph.indptr.diff(), graph.indptr.device
    picked = _Picked(degrees.numel(), size, device)
    numbers, turn = _Numbers(seed, device), torch.arange(walkers, device=device)
    at, idle = torch.zeros_like(turn), torch.zeros_like(turn)
    anew = torch.ones_like(turn, dtype=torch.bool)
    for number in range(-(-STEPS_A_NODE * size // walkers)):
        roots = below_on_device(numbers.next(anew.cumsum(0)), degrees.numel())
        at, idle = torch.where(anew, roots, at), torch.where(anew, 0, idle)
        idle = (idle + 1) * ~picked.pick(at)
        if (number + 1) * walkers >= size and picked.full():
            return picked.nodes()
        degree = degrees[at]
        entries = starts[at] + below_on_device(numbers.next(turn + 1), degree)
        moved = graph.indices[entries.clamp(max=max(graph.indices.numel() - 1, 0))].long()
        at, anew = torch.where(degree > 0, moved, at), (degree == 0) | (idle == PATIENCE)
    while not picked.full():
        picked.pick(below_on_device(numbers.next(torch.arange(1, UNSEEN + 1, device=device)), degrees.numel()))
    return picked.nodes()


class _Numbers:
    """The numbers of a seed's first stream, in their order."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._start = streams(seed, torch.zeros(1, dtype=torch.int64, device=device))
        self._used = torch.zeros(1, dtype=torch.int64, device=device)

    def next(self, places: Tensor) -> Tensor:
        """Return the numbers at `places` from here on (from 1, not descending), which are used up to the last one."""
        found = bits_at(self._start, self._used + places)
        self._used = self._used + places[-1]
        return found


class _Picked:
    """Up to `size` distinct nodes of a graph, as they come."""

    def __init__(self, num_nodes: int, size: int, device: torch.device) -> None:
        self._met = torch.zeros(num_nodes, dtype=torch.uint8, device=device)
        self._size, self._count = size, torch.zeros((), dtype=torch.int64, device=device)

    def pick(self, nodes: Tensor) -> Tensor:
        """Take nodes (int64 [n]) in their order, as far as there is room; return which were new, bool [n]."""
        ordered, order = nodes.sort(stable=True)
        first = torch.ones_like(ordered, dtype=torch.bool)
        first[1:] = ordered[1:] != ordered[:-1]
        new = torch.empty_like(first).scatter_(0, order, first) & (self._met[nodes] == 0)
        taken = new & (self._count + new.cumsum(0) <= self._size)
        self._met.scatter_reduce_(0, nodes, taken.byte(), "amax")
        self._count = self._count + taken.sum()
        return new

    def full(self) -> bool:
        """Return whether there are `size`; the host waits."""
        return int(self._count) == self._size

    def nodes(self) -> Tensor:
        """Return them, int64, ascending; the host waits for their number."""
        return self._met.nonzero().squeeze(1)


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
