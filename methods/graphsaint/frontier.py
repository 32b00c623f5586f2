"""Frontier sampling with the Dashboard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from harness import numba
from harness import numpy as np
from harness.plugin import Pool, Topology, below, next_u64, prefetch, stream

from .node_samplers import KernelSampler, ascending, mark, mark_unseen

if TYPE_CHECKING:
    from numpy.typing import NDArray

POPS_A_NODE = 16  # of the size, before what is missing is filled with any nodes
TILES_A_NODE = 4  # of the frontier: room for three historical ones next to each
AHEAD = 16  # pops, after which a successor that was asked for has come


class FrontierSampler(KernelSampler):
    """Draws nodes by frontier sampling (Ribeiro and Towsley, IMC 2010; JPDC Algorithms 2 to 4).

    The frontier holds nodes, at first uniform ones, drawn with replacement. One of them is popped with a
    chance in proportion to its degree, or to 1 where that is 0, and replaced by a uniform neighbour, or by a
    uniform node where it has none. Drawn are the first nodes of the frontier, its `roots` (JPDC section 3.3), and
    then those that are popped, until there are min(size, N) distinct ones; others still in the frontier are not.
    Without `roots` those that are popped alone. With `entered` all that come into the frontier, its roots among
    them, as they come, popped or not: so do the authors' codes.

    So that it ends: after 16 pops for each node of the size, those missing are uniform among the nodes not
    drawn. A size of N or more draws all nodes at once; roots that are `size` or more are all that is drawn.

    The chances are those of a Dashboard: a node in the frontier has as many pins as its degree. To pop is to
    probe random pins until one is of a node still in the frontier; a new node's pins are appended. When pins
    would be more than `enlargement` times those of the frontier's nodes, the pins of popped nodes are cleaned
    away. So a pop takes fewer than `enlargement` probes, and every pin is moved 1 / (enlargement - 1) times,
    both on average. In the paper there is room for enlargement * frontier * (mean degree) pins, and a node
    may find less than it needs; here it grows, and the chances are exact.

    The frontier may be more nodes than the graph has. `cap`: None, or the pins that a node has at most: hubs are then
    popped less often. A ValueError unless size, frontier and cap are at least 1 and enlargement is above 1.
    """

    def __init__(
        self, topology: Topology, size: int, *, frontier: int = 1000, enlargement: float = 3.0, roots: bool = True,
        entered: bool = False, cap: int | None = None,
    ) -> None:  # fmt: skip
        if size < 1 or frontier < 1 or not enlargement > 1 or (cap is not None and cap < 1):
            raise ValueError(
                "a frontier sampler has a size, a frontier and a cap >= 1 and an enlargement > 1, not "
                f"{size}, {frontier}, {cap} and {enlargement}"
            )
        self._nodes, self._size = topology.num_nodes, min(size, topology.num_nodes)
        enlargement, edges = float(enlargement), topology.indices.size
        cap = edges + 1 if cap is None else cap
        super().__init__(topology, _pick, self._size, frontier, enlargement, roots, entered, cap)

        def board() -> _Board:
            pins, tiles = enlargement * frontier * (1 + edges / self._nodes), TILES_A_NODE * frontier
            nodes, successors, live = np.empty(tiles, np.int32), np.empty(tiles, np.int64), np.empty(tiles, np.bool_)
            return _Board(np.empty(int(pins), np.int32), _Tiles(nodes, successors, np.zeros(tiles + 1, np.int64), live))

        self._boards = Pool(board)

    def sample(self, seed: int) -> NDArray[np.int64]:
        """See `KernelSampler`."""
        if self._size == self._nodes:
            return np.arange(self._size)
        nodes: NDArray[np.int64]
        with self._boards.borrow() as board, self._marks.borrow() as marks:
            nodes, board.pins = self._kernel(seed, board.pins, board.tiles, *marks)
        return nodes


class _Tiles(NamedTuple):
    """Nodes that are, or were, in the frontier since the last clean-up."""

    nodes: NDArray[np.int32]  # [T]
    successors: NDArray[np.int64]  # [T], where in the graph's `indices` is what replaces the node; -1: a uniform node
    starts: NDArray[np.int64]  # [T + 1], the first pin of each; the tile's pins end where the next one's start
    live: NDArray[np.bool_]  # [T], whether the node is in the frontier


@dataclass(eq=False)
class _Board:
    """A Dashboard; `pins` are numbers of tiles, so that what a clean-up moves is no more than 4 bytes a pin.

    On a graph of 233,000 nodes and degree 51 they take 0.6 MB of a 1 MB cache; as 2 bytes each, picking took
    a twentieth less time, but could have 65,536 tiles at most.
    """

    pins: NDArray[np.int32]
    tiles: _Tiles


@numba.njit(cache=True, nogil=True)
def _pick(  # type: ignore[no-untyped-def]
    indptr, indices, size, frontier, enlargement, roots, entered, cap, seed, pins, tiles, bits, words
):
    """Return the nodes, and the pins' array, which may have grown."""
    num_nodes = indptr.size - 1
    state = stream(seed, 0)
    asked = np.zeros(AHEAD, np.int64)
    end = alive = count = 0  # tiles in use, pins of nodes in the frontier, nodes drawn
    for step in range(frontier + POPS_A_NODE * size):
        if step < frontier:
            state, value = next_u64(state)
            node = below(value, num_nodes)
        else:
            state, tile = _pop(pins, tiles, end, state)
            alive -= tiles.starts[tile + np.uint64(1)] - tiles.starts[tile]
            if not entered:
                count += mark(bits, words, tiles.nodes[tile])
                if count == size:
                    break
            state, node = _successor(indices, tiles.successors[tile], num_nodes, state)
        if entered or (roots and step < frontier):
            count += mark(bits, words, node)
            if count == size:
                break
        state, entry, degree = _choose(indptr, indices, node, state)
        _ask(indptr, indices, entry, asked, step)
        need = min(max(degree, 1), cap)
        alive += need
        if end == tiles.live.size or tiles.starts[np.uint64(end)] + need > enlargement * alive:
            end = _clean_up(pins, tiles, end)
        if tiles.starts[np.uint64(end)] + need > pins.size:
            grown = np.empty(2 * (tiles.starts[end] + need), pins.dtype)
            grown[: pins.size] = pins
            pins = grown
        end = _append(pins, tiles, end, node, entry, need)
    mark_unseen(bits, words, num_nodes, size - count, state)
    return ascending(bits, words, size), pins


@numba.njit(cache=True, nogil=True)
def _pop(pins, tiles, end, state):  # type: ignore[no-untyped-def]
    """Take a node out of the frontier; return the stream's next state, and its tile."""
    used = tiles.starts[np.uint64(end)]
    while True:
        state, value = next_u64(state)
        tile = np.uint64(pins[np.uint64(below(value, used))])
        if tiles.live[tile]:
            tiles.live[tile] = False
            return state, tile


@numba.njit(cache=True, nogil=True)
def _successor(indices, entry, num_nodes, state):  # type: ignore[no-untyped-def]
    """Return the stream's next state, and the node at `entry`, or where that is -1 a uniform one."""
    if entry >= 0:
        return state, np.int64(indices[np.uint64(entry)])
    state, value = next_u64(state)
    return state, below(value, num_nodes)


@numba.njit(cache=True, nogil=True)
def _choose(indptr, indices, node, state):  # type: ignore[no-untyped-def]
    """Return the stream's next state, where a uniform neighbour is, or -1, and the degree.

    What will replace a node is chosen when it comes: there is time to ask for it until the node is popped.
    """
    start = indptr[np.uint64(node)]
    degree = indptr[np.uint64(node) + np.uint64(1)] - start
    if degree == 0:
        return state, np.int64(-1), degree
    state, value = next_u64(state)
    entry = start + below(value, degree)
    prefetch(indices, np.uint64(entry))
    return state, entry, degree


@numba.njit(cache=True, nogil=True)
def _ask(indptr, indices, entry, asked, step):  # type: ignore[no-untyped-def]
    """Ask for the row of a successor chosen some steps ago, which has come; `entry` takes its place."""
    place = np.uint64(step) % np.uint64(AHEAD)
    if indices.size > 0:
        prefetch(indptr, np.uint64(indices[np.uint64(asked[place])]))
    asked[place] = max(entry, 0)


@numba.njit(cache=True, nogil=True)
def _append(pins, tiles, end, node, entry, need):  # type: ignore[no-untyped-def]
    """Write tile `end` and its pins; return the next one."""
    tile = np.uint64(end)
    start = tiles.starts[tile]
    tiles.nodes[tile], tiles.successors[tile], tiles.live[tile] = node, entry, True
    tiles.starts[tile + np.uint64(1)] = start + need
    _pin(pins, start, need, tile)
    return end + 1


@numba.njit(cache=True, nogil=True)
def _clean_up(pins, tiles, end):  # type: ignore[no-untyped-def]
    """Move the live tiles of the first `end` together, and their pins; return how many there are."""
    at, kept = 0, np.uint64(0)
    for tile in range(np.uint64(end)):
        need = tiles.starts[tile + np.uint64(1)] - tiles.starts[tile]
        if tiles.live[tile]:
            tiles.nodes[kept], tiles.successors[kept] = tiles.nodes[tile], tiles.successors[tile]
            tiles.live[kept], tiles.starts[kept] = True, at
            _pin(pins, at, need, kept)
            at += need
            kept += np.uint64(1)
    tiles.starts[kept] = at
    return np.int64(kept)


@numba.njit(cache=True, nogil=True)
def _pin(pins, start, need, tile):  # type: ignore[no-untyped-def]
    for k in range(np.uint64(start), np.uint64(start + need)):
        pins[k] = tile
