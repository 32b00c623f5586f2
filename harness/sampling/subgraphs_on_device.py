"""Subgraphs by torch's operations: what `harness.sampling.subgraphs` induces, of a graph on a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.deferred import torch
from harness.graph.csr import Ints
from harness.graph.devices import upload
from harness.graph.on_device import pointers, row_of_entries
from harness.sampling.graph_on_device import GraphOnDevice, LayerOnDevice

if TYPE_CHECKING:
    from torch import Tensor


def induce_on_device(graph: GraphOnDevice, nodes: Ints | Tensor) -> LayerOnDevice:
    """Return all edges between distinct `nodes` (int64), as `subgraphs.induce` does of a symmetric graph.

    The host waits for the sum of their degrees and for the number of edges.
    """
    nodes = upload(nodes, graph.indptr.device)
    starts = graph.indptr[nodes]
    degrees = graph.indptr[nodes + 1] - starts
    ends = pointers(degrees)
    total = int(ends[-1])
    entries = torch.arange(total, device=nodes.device) + (starts - ends[:-1])[row_of_entries(ends, total)]
    number = torch.full((len(graph.indptr) - 1,), -1, dtype=torch.int32, device=nodes.device)
    number[nodes] = torch.arange(nodes.numel(), dtype=torch.int32, device=nodes.device)
    columns = number[graph.indices[entries]]
    kept = columns >= 0
    places = kept.nonzero().squeeze(1)
    values = None if graph.weights is None else graph.weights[entries[places]]
    # An edge may have another weight than the one back.
    return LayerOnDevice(
        nodes, pointers(kept)[ends], columns[places], graph.degree(nodes), values, symmetric=values is None
    )
