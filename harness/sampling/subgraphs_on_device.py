"""Subgraphs by torch's operations: what `harness.sampling.subgraphs` induces and weighs, of a graph on a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from harness.deferred import torch
from harness.graph.csr import Ints, pointers, sums_of_rows
from harness.graph.devices import upload
from harness.sampling.graph_on_device import GraphOnDevice, LayerOnDevice

if TYPE_CHECKING:
    from torch import Tensor

    from harness.sampling.subgraphs import Subgraphs


@dataclass(frozen=True, eq=False)
class InducedOnDevice:
    """An `Induced`, on a device."""

    indptr: Tensor  # int64 [n + 1]
    columns: Tensor  # int32 [nnz]
    places: Tensor  # int64 [nnz]


def induced_on_device(graph: GraphOnDevice, nodes: Tensor) -> InducedOnDevice:
    """Return all edges between distinct `nodes` (int64), as `subgraphs.induced` does.

    The host waits for the sum of their degrees and for the number of edges.
    """
    ends, entries, _ = graph.rows(nodes)
    number = torch.full((len(graph.indptr) - 1,), -1, dtype=torch.int32, device=nodes.device)
    number[nodes] = torch.arange(nodes.numel(), dtype=torch.int32, device=nodes.device)
    columns = number[graph.indices[entries]]
    kept = columns >= 0
    places = kept.nonzero().squeeze(1)
    return InducedOnDevice(pointers(kept)[ends], columns[places], entries[places])


def as_layer_on_device(graph: GraphOnDevice, nodes: Tensor, found: InducedOnDevice) -> LayerOnDevice:
    """Return what was induced on `nodes`, of a graph of symmetric structure, as a layer."""
    values = None if graph.weights is None else graph.weights[found.places]
    # An edge may have another weight than the one back.
    return LayerOnDevice(
        nodes, found.indptr, found.columns, graph.degree(nodes), values, symmetric=values is None
    )  # fmt: skip


def induce_on_device(graph: GraphOnDevice, nodes: Ints | Tensor) -> LayerOnDevice:
    """Return all edges between distinct `nodes` (int64), as `subgraphs.induce` does; waits as `induced_on_device`."""
    nodes = upload(nodes, graph.indptr.device)
    return as_layer_on_device(graph, nodes, induced_on_device(graph, nodes))


def missing_degree_on_device(graph: GraphOnDevice, layer: LayerOnDevice) -> Tensor:
    """Return what `subgraphs.missing_degree` does of a layer that was induced, float64 [n]."""
    values = layer.values
    inside = layer.indptr.diff().double() if values is None else sums_of_rows(layer.indptr, values.double())
    return torch.where(inside > 0, layer.degree / inside, 1.0)


@dataclass(frozen=True, eq=False)
class SubgraphBatchOnDevice:
    """A `SubgraphBatch`, on a device."""

    layer: LayerOnDevice
    weights: Tensor | None  # float64 [n]


WeighOnDevice = Callable[["Tensor", InducedOnDevice], SubgraphBatchOnDevice]
"""What `Normaliser.weigh` does, of nodes (int64, ascending) and what was induced on them."""


@runtime_checkable
class DeviceNodes(Protocol):
    """A `NodeSampler` whose nodes a device can draw itself."""

    def draws_on_device(self, graph: GraphOnDevice) -> Callable[[int], Tensor]:
        """Return what draws distinct nodes, int64, ascending, by a seed; the host waits for their number."""


class SubgraphsOnDevice:
    """Draws what `Subgraphs` does; nodes that the device cannot draw itself are the host's, and uploaded.

    `symmetric`: False: forget that a matrix equals its transpose. `change` is made to their layers, as the `changes` of
    a `Subgraphs`.
    """

    def __init__(
        self, host: Subgraphs, device: torch.device, *, symmetric: bool = True,
        change: Callable[[LayerOnDevice], LayerOnDevice] | None = None,
    ) -> None:  # fmt: skip
        graph = GraphOnDevice.of(host.topology, device)
        self._graph, self._symmetric, self._change, sampler = graph, symmetric, change, host.sampler
        self._weigh = host.normaliser.on_device(graph)
        on_host: Callable[[int], Tensor] = lambda seed: upload(sampler.sample(seed), device)  # noqa: E731
        self._draw = sampler.draws_on_device(graph) if isinstance(sampler, DeviceNodes) else on_host

    def sample(self, seed: int) -> SubgraphBatchOnDevice:
        """See `Subgraphs.sample`."""
        nodes = self._draw(seed)
        batch = self._weigh(nodes, induced_on_device(self._graph, nodes))
        if self._change is not None:
            batch = replace(batch, layer=self._change(batch.layer))
        return batch if self._symmetric else replace(batch, layer=replace(batch.layer, symmetric=False))
