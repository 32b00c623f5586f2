"""Neighbour sampling by torch's operations: what `harness.sampling.neighbours` draws, from a graph on a device.

Random numbers are of the same streams, sources have the same order: with the same seed a sample is that of the
compiled kernels, entry for entry. The host waits for sizes alone, which docstrings say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.deferred import torch
from harness.graph.csr import Ints, pointers, row_of_entries
from harness.graph.devices import upload
from harness.graph.kernels import batch_seed, below_on_device, stream_bits
from harness.sampling.graph_on_device import GraphOnDevice, LayerOnDevice
from harness.sampling.sample import Sample

if TYPE_CHECKING:
    from torch import Tensor


def sample_on_device(graph: GraphOnDevice, targets: Ints, fanouts: Sequence[int], seed: int) -> Sample:
    """Return the sample that `FanoutSampler` draws without weights of nodes; the host waits twice a layer."""
    layers, nodes = list[LayerOnDevice](), upload(targets, graph.indptr.device)
    for depth, fanout in enumerate(reversed(fanouts)):
        layers.append(draw_on_device(graph, nodes, fanout, batch_seed(seed, 0, 0, depth)))
        nodes = layers[-1].sources
    return Sample(layers[::-1], targets.size)


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
        picks = _floyd(degrees, fanout, stream_bits(seed, targets, fanout))[place, row]
        place = torch.where(degrees[row] > fanout, picks, place)
    return out, starts[row] + place


def _floyd(degrees: Tensor, fanout: int, bits: Tensor) -> Tensor:
    """Return a uniform subset of each 0, ..., degree - 1 above `fanout`, by Robert Floyd: [fanout, n], of as much."""
    last = degrees - fanout + torch.arange(fanout, device=degrees.device).unsqueeze(1)
    picks = below_on_device(bits, last + 1)
    for k in range(1, fanout):
        picks[k] = torch.where((picks[:k] == picks[k]).any(0), last[k], picks[k])
    return picks


def number_nodes(targets: Tensor, columns: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    """Return the distinct nodes (int64), the targets first, then others as they are first seen; and numbers of columns.

    `columns` are int32 nodes, as their numbers are. The host waits for the number of nodes.
    """
    count, device = targets.numel(), columns.device
    places = torch.arange(count, count + columns.numel(), dtype=torch.int32, device=device)
    first = torch.full((num_nodes,), count + columns.numel(), dtype=torch.int32, device=device)
    first[targets] = torch.arange(count, dtype=torch.int32, device=device)
    first.scatter_reduce_(0, columns.long(), places, "amin")
    seen = first[columns]
    is_first = seen == places
    others = columns[is_first.nonzero().squeeze(1)]
    number = torch.cat([torch.arange(count, device=device), count - 1 + is_first.cumsum(0)]).int()
    return torch.cat([targets, others.long()]), number[seen]
