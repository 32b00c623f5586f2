"""A graph on a device, and the layers that are drawn from it there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.deferred import numpy as np
from harness.deferred import torch
from harness.graph.block import Block
from harness.graph.csr import CSR, Topology

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class GraphOnDevice:
    """A topology on a device: int64 [N + 1], int32 [E], float32 [E] or None.

    `sums` are float64 [N], of each node's weights, None without weights; `largest` is the largest degree.
    """

    indptr: Tensor
    indices: Tensor
    weights: Tensor | None
    sums: Tensor | None
    largest: int

    @classmethod
    def of(cls, topology: Topology, device: torch.device) -> GraphOnDevice:
        """Copy a topology to the device; the host waits."""
        sums = None if topology.weights is None else topology.degree(np.arange(topology.num_nodes))
        arrays = topology.indptr, topology.indices, topology.weights, sums
        # Not `upload`: as much pinned memory would stay with the process.
        moved = [None if array is None else torch.from_numpy(np.array(array)).to(device) for array in arrays]
        indptr, indices, weights, of_nodes = moved
        assert indptr is not None
        assert indices is not None
        return cls(indptr, indices, weights, of_nodes, int(np.diff(topology.indptr).max(initial=0)))

    def degree(self, nodes: Tensor) -> Tensor:
        """Return what `Topology.degree` does, float64 [n]."""
        if self.sums is not None:
            return self.sums[nodes]
        return (self.indptr[nodes + 1] - self.indptr[nodes]).double()


@dataclass(frozen=True, eq=False)
class LayerOnDevice:
    """The sampled in-edges of a layer's destinations, on a device; see `LayerSample`."""

    sources: Tensor  # int64 [num_src]; the destinations are the first
    indptr: Tensor  # int64 [num_dst + 1]
    indices: Tensor  # int32 [nnz]
    degree: Tensor  # float64 [num_src], in the graph
    values: Tensor | None  # float32 [nnz]
    dst_scale: Tensor | None = None  # float64 [num_dst]; None: 1
    symmetric: bool = False  # the matrix equals its transpose, values too

    @property
    def num_dst(self) -> int:
        """Number of destinations."""
        return self.indptr.numel() - 1

    @property
    def edges(self) -> int:
        """Number of edges."""
        return self.indices.numel()

    @property
    def destinations(self) -> Tensor:
        """The destinations, int64 [num_dst]."""
        return self.sources[: self.num_dst]

    def block(self, topology: Topology, *, device: torch.device, dtype: torch.dtype, engine: str = "auto") -> Block:
        """See `LayerSample.block`; degrees are known, and all is on the device."""
        values = None if self.values is None else self.values.to(dtype)
        adjacency = CSR(self.indptr, self.indices, len(self.sources), values)
        scale = None if self.dst_scale is None else self.dst_scale.to(dtype)
        transposed = adjacency if self.symmetric else None
        return Block(adjacency, self.degree.to(dtype), dst_scale=scale, engine=engine, transposed=transposed)
