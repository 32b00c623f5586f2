"""Guided sampling: remote neighbours are drawn by their importance, on the host or by torch on a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness import Sample, Source, numba, torch
from harness import numpy as np
from harness.plugin import (
    GraphOnDevice,
    LayerOnDevice,
    LayerSample,
    batch_seed,
    number_nodes,
    number_sources,
    pointers,
    running_sums,
    sample_layers,
    stream,
    stream_bits,
    sums_of_rows,
    systematic,
    take_entries,
    target_rows,
    uniform_on_device,
    upload,
    write_inclusion,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class GuidedSampler:
    """Draws at most so many in-neighbours of every node, remote ones by their importance.

    The sampling of DGS (section III-C, "Module Plug-in"). Neighbour j of target i weighs |w_ij| if it is local,
    |w_ij| importance_j if it is remote. k = min(fanout, neighbours of positive weight) are drawn, without
    replacement: p_ij = min(1, c_i weight), sum_j p_ij = k. Of the sum, remote neighbours have r and local ones l. The
    deviation moves min(deviation k, l) of it from the local to the remote ones, never more than makes all remote ones
    certain; then p is proportional to weight, up to 1, among each of the two. How it is drawn: see `draw_neighbours`,
    as for what a draw depends on and for layers' seeds. Time grows with the targets' degrees.

    By default drawn neighbours are averaged: they count w_ij, and their sum is multiplied by the sum of
    |w_ij| over all neighbours over that over the drawn ones (deg/k without edge weights). This is biased
    towards what is drawn often. Unbiased: neighbour j counts w_ij / p_ij; the deviation then leaves local
    neighbours at least half of l, since what is never drawn cannot be counted. Where everything of positive
    weight is drawn, and that is all neighbours, both are the full sum.
    """

    source: Source  # the view, which says what is local
    fanouts: Sequence[int]  # neighbours of a node, input layer first; -1: all
    importance: NDArray[np.float32]  # [N], finite and not negative; that of local nodes is not read. 0: never drawn
    deviation: float = 0.0  # share of k, in [0, 1]
    unbiased: bool = False  # what drawn neighbours count

    def sample(self, targets: NDArray[np.int64], seed: int) -> Sample:
        """See `Sampler`."""
        return sample_layers(self.draw, targets, self.fanouts, seed)

    def draw(self, targets: NDArray[np.int64], fanout: int, seed: int, *, own: bool = False) -> LayerSample:
        """Draw for a layer; the sources are the targets, then the other drawn nodes in the order of first sight.

        `own`: see `Topology.rows`. Other ranks are asked for whole rows: they do not know the importance.

        ValueError if a weight of a neighbour is negative or not finite.
        """
        found, rows = self.source.topology.rows(targets, own=own)
        graph, guide = (found.indptr, found.indices, found.weights), (self.source.local, self.importance)
        most = 0.5 if self.unbiased else 1.0
        pointers, entries, chances, scale = _guided(
            *graph, *guide, rows, targets, fanout, seed, float(self.deviation), most
        )
        values: NDArray[np.float64] | None = None
        if found.weights is not None:
            values = take_entries(found.weights, entries, np.empty(entries.size))
        if self.unbiased:
            values = (1.0 if values is None else values) / chances
        sources, columns = number_sources(found, targets, entries, self.source.tables)
        return LayerSample(sources, pointers, columns, values, None if self.unbiased else scale)


@numba.njit(cache=True, nogil=True)
def _guided(  # type: ignore[no-untyped-def]
    indptr, indices, edge_weights, local, importance, rows, targets, fanout, seed, deviation, most
):
    """Pointers by target, the entries drawn, their chances, and the ratio of |w| by target."""
    starts, degrees, pointers, largest = target_rows(indptr, rows, fanout)
    entries, chances = np.empty(pointers[-1] + 1, np.int64), np.empty(pointers[-1])
    scale = np.ones(targets.size)
    # Of one dimension each: numba knows no row of a matrix as contiguous.
    weight_of, remote_of, chance_of = np.empty(largest), np.empty(largest), np.empty(largest)
    spare_of = np.empty(largest)
    at = 0
    for i in range(targets.size):
        start, degree = starts[i], degrees[i]
        weight, remote = weight_of[:degree], remote_of[:degree]
        chance, spare = chance_of[:degree], spare_of[:degree]
        edges = None if edge_weights is None else edge_weights[start : start + degree]
        _look_up(indices[start : start + degree], local, importance, weight, remote)
        total = _weigh(edges, weight, remote)
        write_inclusion(weight, degree if fanout < 0 else fanout, chance)
        if deviation > 0:
            _move(weight, remote, deviation, most, chance, spare)
        picks = entries[at:]
        count = systematic(chance, stream(seed, targets[i]), spare, picks)
        drawn = 0.0
        for k in range(count):
            place = np.uint64(picks[k])
            drawn += 1.0 if edges is None else abs(np.float64(edges[place]))
            chances[at + k] = chance[place]
            picks[k] += start
        if count > 0:
            scale[i] = total / drawn
        at += count
        pointers[i + 1] = at
    return pointers, entries[:at].copy(), chances[:at].copy(), scale


# By itself: loads from all over the graph, which then wait for nothing.
@numba.njit(cache=True, nogil=True)
def _look_up(nodes, local, importance, weight, remote):  # type: ignore[no-untyped-def]
    """Write neighbours' importance into `weight`, and 1 or 0 into `remote`."""
    for k in range(nodes.size):
        node = np.uint64(nodes[k])
        weight[k] = importance[node]
        remote[k] = not local[node]


@numba.njit(cache=True, nogil=True)
def _weigh(edges, weight, remote):  # type: ignore[no-untyped-def]
    """Make `weight` the weights of neighbours, `remote` 0 where that is 0, and return the sum of |w|."""
    valid, total = True, 0.0
    for k in range(weight.size):
        edge = 1.0 if edges is None else abs(np.float64(edges[k]))
        w, is_remote = weight[k], remote[k]
        w = edge * (w if is_remote > 0 else 1.0)
        weight[k] = w
        remote[k] = is_remote if w > 0 else 0.0
        valid &= (w >= 0) & (w < np.inf)
        if edges is not None:
            total += edge
    if not valid:
        raise ValueError("weights of neighbours are finite and not negative")
    return np.float64(weight.size) if edges is None else total


@numba.njit(cache=True, nogil=True)
def _move(weight, remote, deviation, most, chance, spare):  # type: ignore[no-untyped-def]
    """Move `deviation` of the sum of `chance`, at most `most` of the local ones' sum, to the remote ones.

    `weight` and `spare` are overwritten.
    """
    near, far, number = _sums(chance, remote)
    raised = min(far + min(deviation * (near + far), most * near), number)
    if raised <= far:
        return
    for k in range(weight.size):
        spare[k] = weight[k] * remote[k]
        weight[k] -= spare[k]
    write_inclusion(spare, raised, remote)
    write_inclusion(weight, max(near - (raised - far), 0.0), chance)
    for k in range(chance.size):
        chance[k] += remote[k]


# Sums in any order, so that the loop runs in vectors.
@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "nsz"})
def _sums(chance, remote):  # type: ignore[no-untyped-def]
    """Sums of local and of remote chances, and the number of these."""
    near, far, number = 0.0, 0.0, 0.0
    for k in range(chance.size):
        near += chance[k] * (1 - remote[k])
        far += chance[k] * remote[k]
        number += remote[k]
    return near, far, number


@dataclass(frozen=True, eq=False)
class RowsOnDevice:
    """The entries of rows: pointers int64 [rows + 1], each entry's row, its place in there, and the most of a row."""

    ends: Tensor
    row: Tensor
    place: Tensor
    most: int

    @classmethod
    def of(cls, ends: Tensor, row: Tensor, most: int) -> RowsOnDevice:
        """Find the places; `most` entries has a row at most."""
        return cls(ends, row, torch.arange(row.numel(), device=row.device) - ends[row], most)

    def sums(self, values: Tensor) -> Tensor:
        """Return each row's sum."""
        return sums_of_rows(self.ends, values)

    def running(self, values: Tensor) -> Tensor:
        """Return of each entry the sum of its row up to it."""
        return running_sums(values, self.place, self.most)

    def inclusion(self, weights: Tensor, sizes: Tensor) -> Tensor:
        """Return what `write_inclusion` does of each row: p float64 of `weights` [entries] for `sizes` [rows]."""
        order = weights.argsort()
        order = order[self.row[order].sort(stable=True).indices]  # by weight in each row
        ordered, degree = weights[order], self.ends.diff()
        share = self.place + 1 + (sizes - degree)[self.row]
        sums = self.running(ordered)
        # The k smallest of a row share what the others leave, which have p = 1, up to the largest k of no p above 1.
        fits = torch.where((ordered * share <= sums) & (ordered > 0), self.place + 1, 0)
        last = torch.zeros_like(degree).scatter_reduce(0, self.row, fits, "amax") - 1
        at = (self.ends[:-1] + last).clamp(min=0)
        padded = torch.cat([sums, sums.new_ones(1)]), torch.cat([share, share.new_zeros(1)])  # of rows without entries
        total, left = (each[at] for each in padded)
        p = (weights / total[self.row] * left[self.row]).clamp(0, 1)
        certain = (weights > 0).double()
        everything = sizes >= self.sums(certain)
        return torch.where(everything[self.row], certain, p)

    def systematic(self, chance: Tensor, start: Tensor) -> Tensor:
        """Return which entries `systematic` draws by these chances, and a number in [0, 1) of each row."""
        ends = self.running(torch.where(chance < 1, chance, 0))
        padded = torch.cat([ends, ends.new_zeros(1)])
        degree = self.ends.diff()
        length = torch.where(degree > 0, padded[(self.ends[1:] - 1).clamp(min=0)], 0)[self.row]
        points = torch.where(length > 0, (ends / length * length.round() - start[self.row]).ceil(), 0)
        passed = torch.where(self.place > 0, torch.cat([points[:1], points[:-1]]), 0)
        return (points > passed) | (chance == 1)


@dataclass(frozen=True, eq=False)
class GuidedSamplerOnDevice:
    """Draws on a device what a `GuidedSampler` does, but for numbers within rounding of a chance.

    Weights of edges and importance are finite, which nobody checks here.
    """

    graph: GraphOnDevice
    local: Tensor  # bool [N]
    fanouts: Sequence[int]
    importance: Tensor  # float32 [N]
    deviation: float = 0.0
    unbiased: bool = False

    def sample(self, targets: NDArray[np.int64], seed: int) -> Sample:
        """See `Sampler`; the host waits as `draw` says, in each layer."""
        layers, nodes = list[LayerOnDevice](), upload(targets, self.graph.indptr.device)
        for depth, fanout in enumerate(reversed(self.fanouts)):
            layers.append(self.draw(nodes, fanout, batch_seed(seed, 0, 0, depth)))
            nodes = layers[-1].sources
        return Sample(layers[::-1], targets.size)

    def draw(self, targets: Tensor, fanout: int, seed: int) -> LayerOnDevice:
        """See `GuidedSampler.draw`; the host waits for the numbers of edges, drawn ones and sources."""
        graph = self.graph
        ends, entries, row = graph.rows(targets)
        rows, nodes = RowsOnDevice.of(ends, row, graph.largest), graph.indices[entries]
        edges = None if graph.weights is None else graph.weights[entries].double()
        size = torch.ones_like(row, dtype=torch.float64) if edges is None else edges.abs()
        chance = self._chances(rows, nodes, size, fanout)
        is_drawn = rows.systematic(chance, uniform_on_device(stream_bits(seed, targets, 1)[0]))
        at = is_drawn.nonzero().squeeze(1)
        starts = pointers(is_drawn)[ends]
        sources, columns = number_nodes(targets, nodes[at], len(graph.indptr) - 1)
        values, scale = None if edges is None else edges[at], None
        if self.unbiased:
            values = (1.0 if values is None else values) / chance[at]
        else:
            scale = torch.where(starts.diff() > 0, rows.sums(size) / sums_of_rows(starts, size[at]), 1.0)
        return LayerOnDevice(sources, starts, columns, graph.degree(sources), values, scale)

    def _chances(self, rows: RowsOnDevice, nodes: Tensor, size: Tensor, fanout: int) -> Tensor:
        """Return the chance of each entry; `size` are the edges' weights without their sign."""
        near = self.local[nodes]
        weight = size * torch.where(near, 1, self.importance[nodes]).double()
        degree = rows.ends.diff().double()
        chance = rows.inclusion(weight, degree if fanout < 0 else torch.full_like(degree, fanout))
        if self.deviation == 0:
            return chance
        is_far = ~near & (weight > 0)
        local, remote = (rows.sums(torch.where(side, chance, 0)) for side in (~is_far, is_far))
        most, number = 0.5 if self.unbiased else 1.0, rows.sums(is_far.double())
        raised = remote + torch.minimum(self.deviation * (local + remote), most * local)
        raised = torch.minimum(raised, number)
        far = rows.inclusion(torch.where(is_far, weight, 0), raised)
        rest = rows.inclusion(torch.where(is_far, 0, weight), (local - (raised - remote)).clamp(min=0))
        return torch.where((raised > remote)[rows.row], far + rest, chance)
