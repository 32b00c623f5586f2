"""Guided sampling by torch's operations: what `guided_sampling` draws, from a graph on a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness import Sample, batch_seed, torch
from harness import numpy as np
from harness.graph import pointers, running_sums, stream_bits, sums_of_rows, uniform_on_device, upload
from harness.sampling import GraphOnDevice, LayerOnDevice, number_nodes

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor


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
