"""Neighbour sampling: so many in-neighbours of each node.

On a device torch's operations draw. Random numbers are of the same streams, sources have the same order: with the same
seed a sample is that of the compiled kernels, entry for entry. The host waits for sizes alone, which docstrings say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from harness.deferred import numba, torch
from harness.deferred import numpy as np
from harness.graph.csr import Floats, Ints, Topology, pointers, row_of_entries
from harness.graph.devices import upload
from harness.graph.kernels import batch_seed, below, below_on_device, next_u64, stream, stream_bits, uniform
from harness.sampling.layer_kernels import write_inclusion
from harness.sampling.sample import GraphOnDevice, LayerOnDevice, LayerSample, Sample, Source, Tables, number_nodes

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor


def draw_neighbours(
    topology: Topology,
    targets: Ints,
    fanout: int,
    seed: int,
    tables: Tables,
    *,
    own: bool = False,
    node_weights: Floats | None = None,
) -> LayerSample:
    """Draw at most `fanout` neighbours of every target, without replacement and without bias.

    Uniform: of deg neighbours k = min(fanout, deg) are drawn, every subset with the same chance, and their
    sum counts deg/k (Hamilton et al., NeurIPS 2017, sampled as by Robert Floyd). Weighted: of the neighbours
    of positive weight k = min(fanout, their number) are drawn, neighbour j of target i with a chance of
    exactly p_ij = min(1, c_i |w_ij| node_weights_j), sum_j p_ij = k, and counts w_ij / p_ij; c_i follows from
    the sum. This is systematic sampling with a random start (Madow, Ann. Math. Stat. 1949): sums over single
    neighbours are unbiased, pairs need not be independent. Neighbours of weight 0 are never drawn.

    Time grows with the edges drawn where the choice is uniform, else with the targets' degrees. What is drawn for a
    target depends on `seed`, `fanout` and its own neighbours alone: layers of a batch need different seeds, or a node
    would be given the same neighbours again.

    The sample's sources are the targets, then the other drawn nodes in the order of first sight.

    Args:
        topology, tables: the graph, and tables of its nodes.
        targets: int64 [n], distinct nodes.
        fanout: neighbours of a target at most; -1 for all.
        seed: in [0, 2^63).
        own: see `Topology.rows`.
        node_weights: float64 [N], finite and not negative; None for a uniform choice.

    Raises:
        ValueError: a weight of a neighbour is negative or not finite.
    """
    values = scale = None
    if node_weights is None:
        found, rows = topology.rows(targets, own=own, fanout=fanout, seed=seed)
        starts, entries = draw_uniform(found.indptr, rows, targets, fanout, seed)
        scale = _scale(topology.indptr, targets, starts)
        if found.weights is not None:
            values = take_entries(found.weights, entries, np.empty(entries.size))
    else:
        found, rows = topology.rows(targets, own=own)
        graph = found.indptr, found.indices, found.weights
        starts, entries, values = _weighted(*graph, node_weights, rows, targets, fanout, seed)
    sources, columns = number_sources(found, targets, entries, tables)
    return LayerSample(sources, starts, columns, values, scale)


def number_sources(found: Topology, targets: Ints, entries: Ints, tables: Tables) -> tuple[Ints, NDArray[np.int32]]:
    """Return the distinct nodes of a draw, the targets first, and the numbers among them of the drawn `entries`.

    `found` is what `Topology.rows` returned for the targets.
    """
    columns = take_entries(found.indices, entries, np.empty(entries.size, np.int32))
    return number_columns(targets, columns, tables), columns


def number_columns(targets: Ints, columns: NDArray[np.int32], tables: Tables) -> Ints:
    """Return the distinct nodes, the distinct targets first, and put their numbers into `columns`, which are nodes."""
    with tables.borrow() as table:
        return _number(targets, columns, table)  # type: ignore[no-any-return]


@numba.njit(cache=True, nogil=True)
def target_rows(indptr, rows, fanout):  # type: ignore[no-untyped-def]
    """Return starts of rows' entries, degrees, pointers to min(fanout, degree), and the largest degree."""
    starts, degrees = np.empty(rows.size, np.int64), np.empty(rows.size, np.int64)
    for i in range(rows.size):  # by itself, so that loads from all over the graph do not wait
        row = np.uint64(rows[i])  # unsigned: no check for a negative index
        starts[i] = indptr[row]
        degrees[i] = indptr[row + np.uint64(1)] - starts[i]
    pointers, largest = np.zeros(rows.size + 1, np.int64), 0
    for i in range(rows.size):
        pointers[i + 1] = pointers[i] + (degrees[i] if fanout < 0 else min(degrees[i], fanout))
        largest = max(largest, degrees[i])
    return starts, degrees, pointers, largest


@numba.njit(cache=True, nogil=True)
def draw_uniform(indptr, rows, targets, fanout, seed):  # type: ignore[no-untyped-def]
    """Return pointers by target, and the entries drawn for it in its row, one of `rows`; see `draw_neighbours`."""
    starts, degrees, pointers, largest = target_rows(indptr, rows, fanout)
    entries = np.empty(pointers[-1], np.int64)
    # The target that took a place last: nothing has to be cleared between targets.
    taken = np.full(largest if fanout >= 0 else 0, -1, np.int32)
    for i in range(targets.size):
        out = entries[pointers[i] : pointers[i + 1]]
        # All of them: no random numbers, and entries in the row's order.
        if out.size == degrees[i]:
            for k in range(out.size):
                out[k] = starts[i] + k
        elif out.size > 0:
            # A stream of the target's own: what is drawn does not depend on the others of the batch.
            _floyd(starts[i], degrees[i], stream(seed, targets[i]), i, taken, out)
    return pointers, entries


@numba.njit(cache=True, nogil=True)
def _scale(indptr, targets, pointers):  # type: ignore[no-untyped-def]
    """Return deg/k by target, 1 where nothing is drawn."""
    scale = np.ones(targets.size)
    for i in range(targets.size):
        row, drawn = np.uint64(targets[i]), pointers[i + 1] - pointers[i]
        if drawn > 0:
            scale[i] = (indptr[row + np.uint64(1)] - indptr[row]) / drawn
    return scale


@numba.njit(cache=True, nogil=True)
def _floyd(start, size, state, mark, taken, out):  # type: ignore[no-untyped-def]
    """Robert Floyd's algorithm: a uniform subset of start, ..., start + size - 1 in len(out) draws."""
    for k in range(out.size):
        # `last` was no choice before, so that it is free whenever the pick is not.
        last = size - out.size + k
        state, value = next_u64(state)
        pick = np.uint64(below(value, last + 1))
        if taken[pick] == mark:
            pick = np.uint64(last)
        taken[pick] = mark
        out[k] = start + np.int64(pick)


@numba.njit(cache=True, nogil=True)
def _weighted(indptr, indices, edge_weights, node_weights, rows, targets, fanout, seed):  # type: ignore[no-untyped-def]
    """Pointers by target, the entries drawn, and their w/p."""
    starts, degrees, pointers, largest = target_rows(indptr, rows, fanout)
    # One more than is drawn: `systematic` writes each candidate and keeps it by moving on.
    entries, values = np.empty(pointers[-1] + 1, np.int64), np.empty(pointers[-1])
    edge, weight, chance, ends = np.ones(largest), np.empty(largest), np.empty(largest), np.empty(largest)
    at = 0
    for i in range(targets.size):
        start, degree = starts[i], degrees[i]
        valid = True
        for k in range(degree):
            if edge_weights is not None:
                edge[k] = edge_weights[start + k]
            weight[k] = abs(edge[k]) * node_weights[indices[start + k]]
            # Collected, and raised after the loop: an exit from it would keep it from running in vectors.
            valid &= 0 <= weight[k] < np.inf
        if not valid:
            raise ValueError("weights of neighbours are finite and not negative")
        write_inclusion(weight[:degree], degree if fanout < 0 else fanout, chance[:degree])
        picks = entries[at:]
        count = systematic(chance[:degree], stream(seed, targets[i]), ends[:degree], picks)
        # Only now: chances are by place in the row, entries by place in the graph.
        for k in range(count):
            values[at + k] = edge[picks[k]] / chance[picks[k]]
            picks[k] += start
        at += count
        pointers[i + 1] = at
    return pointers, entries[:at].copy(), values[:at].copy()


@numba.njit(cache=True, nogil=True)
def systematic(chance, state, ends, out):  # type: ignore[no-untyped-def]
    """Write the places drawn into `out`, ascending, and return their number, the sum of the chances.

    Laid end to end, those neither 0 nor 1 have a whole length; what lies on the points u, u + 1, ... is
    drawn. The points are stretched as the sum was rounded, so that the last one lies on something.

    Args:
        chance: float64 [n].
        state: of a stream.
        ends: float64 [n], to work in.
        out: int64, longer by one than what is drawn.
    """
    length = 0.0
    for k in range(chance.size):
        length += chance[k] if chance[k] < 1 else 0.0
        ends[k] = length
    start = uniform(next_u64(state)[1])
    if length > 0:
        _count_points(ends, length, start)
    passed, count = 0.0, 0
    for k in range(chance.size):  # without a branch, since nobody can predict what is drawn
        out[count] = k
        count += (ends[k] > passed) | (chance[k] == 1)
        passed = ends[k]
    return count


@numba.njit(cache=True, nogil=True, error_model="numpy")  # no check for 0, so that it runs in vectors
def _count_points(ends, length, start):  # type: ignore[no-untyped-def]
    """Replace `ends`, in (0, length], by the number of points up to there."""
    points = np.round(length)
    for k in range(ends.size):
        ends[k] = np.ceil(ends[k] / length * points - start)


@numba.njit(cache=True, nogil=True)
def reached(indptr, indices, chance, fanout):  # type: ignore[no-untyped-def]
    """Return each node's chance to be in a layer or to be drawn for one of its nodes, float64 [N].

    `chance` float64 [N] is that to be in the layer, independently of others; every edge is there in both directions.
    """
    missed = 1 - chance
    for i in range(missed.size):
        for e in range(indptr[i], indptr[i + 1]):
            node = np.uint64(indices[e])
            if chance[node] > 0:
                degree = indptr[node + np.uint64(1)] - indptr[node]
                missed[i] *= 1 - chance[node] * (min(1.0, fanout / degree) if fanout >= 0 else 1.0)
    return 1 - missed


@numba.njit(cache=True, nogil=True)
def take_entries(array, entries, out):  # type: ignore[no-untyped-def]
    """Write `array[entries]` into `out` and return it.

    A pass of its own: its loads, from all over the graph, wait for nothing and run in vectors.
    """
    for e in range(entries.size):
        out[e] = array[np.uint64(entries[e])]
    return out


@numba.njit(cache=True, nogil=True)
def _number(targets, columns, table):  # type: ignore[no-untyped-def]
    """Return the distinct nodes, the targets first, and put their numbers into `columns`, int32 nodes."""
    sources = np.empty(min(table.size, targets.size + columns.size) + 1, np.int32)
    for i in range(targets.size):
        table[targets[i]] = i
        sources[i] = targets[i]
    count = targets.size
    for e in range(columns.size):  # without a branch, since nobody can predict whether a node is new
        node = np.uint64(columns[e])
        number = table[node]
        is_new = number < 0
        number = count if is_new else number
        table[node] = number
        sources[count] = node
        columns[e] = number
        count += is_new
    # The table is as long as the graph, and is lent again: only what was written is cleared.
    for i in range(count):
        table[sources[i]] = -1
    return sources[:count].astype(np.int64)


def draw_on_device(graph: GraphOnDevice, targets: Tensor, fanout: int, seed: int) -> LayerOnDevice:
    """Draw at most `fanout` (-1: all) neighbours of every target (int64 [n], distinct), uniformly.

    As `draw_neighbours`, without weights of nodes; the host waits for the number of edges and of sources.
    """
    starts, entries = draw_uniform_on_device(graph, targets, fanout, seed)
    sources, columns = number_nodes(targets, graph.indices[entries], len(graph.indptr) - 1)
    drawn, degrees = starts.diff(), graph.indptr[targets + 1] - graph.indptr[targets]
    scale = torch.where(drawn > 0, degrees.double() / drawn.clamp(min=1), 1.0)
    values = None if graph.weights is None else graph.weights[entries]
    return LayerOnDevice(sources, starts, columns, graph.degree(sources), values, scale)


def draw_uniform_on_device(graph: GraphOnDevice, targets: Tensor, fanout: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return pointers by target, and the entries drawn for it; the host waits for their number."""
    starts = graph.indptr[targets]
    degrees = graph.indptr[targets + 1] - starts
    out = pointers(degrees if fanout < 0 else degrees.clamp(max=fanout))
    total = int(out[-1])
    row = row_of_entries(out, total)
    place = torch.arange(total, device=row.device) - out[row]
    if 0 < fanout < graph.largest:
        # Rows that are taken whole have no use for theirs.
        picks = _floyd_on_device(degrees, fanout, stream_bits(seed, targets, fanout))[place, row]
        place = torch.where(degrees[row] > fanout, picks, place)
    return out, starts[row] + place


def _floyd_on_device(degrees: Tensor, fanout: int, bits: Tensor) -> Tensor:
    """Return a uniform subset of each 0, ..., degree - 1 above `fanout`, by Robert Floyd: [fanout, n], of as much."""
    last = degrees - fanout + torch.arange(fanout, device=degrees.device).unsqueeze(1)
    picks = below_on_device(bits, last + 1)
    for k in range(1, fanout):
        picks[k] = torch.where((picks[:k] == picks[k]).any(0), last[k], picks[k])
    return picks


def sample_on_device(
    graph: GraphOnDevice, targets: Ints, fanouts: Sequence[int], seed: int,
    draw: Callable[..., LayerOnDevice] = draw_on_device,
) -> Sample:  # fmt: skip
    """Return the sample of layers that `draw(graph, nodes, fanout, seed)` draws, as `draw_on_device` does."""
    layers, nodes = list[LayerOnDevice](), upload(targets, graph.indptr.device)
    for depth, fanout in enumerate(reversed(fanouts)):
        layers.append(draw(graph, nodes, fanout, batch_seed(seed, 0, 0, depth)))
        nodes = layers[-1].sources
    return Sample(layers[::-1], targets.size)


class FanoutSampler:
    """Draws at most so many in-neighbours of every node, layer by layer (GraphSAGE, Algorithm 2).

    `fanouts` are by layer, input layer first; -1: all. For `node_weights` see `draw_neighbours`. Without them a source
    may have its draws on a device, which then keeps the `graph`; what is drawn is the same.
    """

    _draw_on_device = staticmethod(draw_on_device)

    def __init__(self, source: Source, fanouts: Sequence[int], node_weights: Floats | None = None) -> None:
        self._fanouts = fanouts
        on_host = source.device.type == "cpu"
        if not on_host and node_weights is not None:
            raise ValueError("draws by weights of nodes are the host's")
        self.graph = None if on_host else GraphOnDevice.of(source.topology, source.device)
        self._draw: Callable[..., LayerSample]
        self._draw = partial(draw_neighbours, source.topology, tables=source.tables, node_weights=node_weights)

    def sample(self, targets: Ints, seed: int) -> Sample:
        """See `Sampler`."""
        if self.graph is not None:
            return sample_on_device(self.graph, targets, self._fanouts, seed, self._draw_on_device)
        return sample_layers(self._draw, targets, self._fanouts, seed)


def sample_layers(draw: Callable[..., LayerSample], targets: Ints, fanouts: Sequence[int], seed: int) -> Sample:
    """Draw neighbours of the targets, which are this rank's own nodes, then of every node drawn so far.

    `draw(nodes, fanout, seed, own=...)` draws for a layer, as `draw_neighbours` does.
    """
    layers, nodes = list[LayerSample](), targets
    for depth, fanout in enumerate(reversed(fanouts)):
        layers.append(draw(nodes, fanout, batch_seed(seed, 0, 0, depth), own=depth == 0))
        nodes = layers[-1].sources
    return Sample(layers[::-1], targets.size)
