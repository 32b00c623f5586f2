"""A graph on a device, and the layers that are drawn from it there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.deferred import numpy as np
from harness.deferred import torch
from harness.graph.block import Block, OwnRows
from harness.graph.csr import CSR, Topology, pointers, row_of_entries

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

    def rows(self, nodes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return pointers to the entries of the nodes' rows [n + 1], and of each entry its place and which row's it is.

        All are int64. The host waits for the number of entries.
        """
        starts = self.indptr[nodes]
        ends = pointers(self.indptr[nodes + 1] - starts)
        total = int(ends[-1])
        row = row_of_entries(ends, total)
        return ends, torch.arange(total, device=nodes.device) + (starts - ends[:-1])[row], row


@dataclass(frozen=True, eq=False)
class LayerOnDevice:
    """The sampled in-edges of a layer's destinations, on a device; see `LayerSample`."""

    sources: Tensor  # int64 [num_src]; without `own` the destinations are the first
    indptr: Tensor  # int64 [num_dst + 1]
    indices: Tensor  # int32 [nnz]
    degree: Tensor  # float64 [num_src], in the graph
    values: Tensor | None  # float32 or float64 [nnz]
    dst_scale: Tensor | None = None  # float64 [num_dst]; None: 1
    src_scale: Tensor | None = None  # float64 [num_src]; None: 1
    symmetric: bool = False  # the matrix equals its transpose, values too
    own: tuple[Tensor, OwnRows] | None = None  # as `OwnSample`: the destinations, int64 [num_dst], and their own rows

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
        return self.sources[: self.num_dst] if self.own is None else self.own[0]

    def block(self, topology: Topology, *, device: torch.device, dtype: torch.dtype, engine: str = "auto") -> Block:
        """See `LayerSample.block`; degrees are known, and all is on the device."""
        values = None if self.values is None else self.values.to(dtype)
        adjacency = CSR(self.indptr, self.indices, len(self.sources), values)
        scales = [None if scale is None else scale.to(dtype) for scale in (self.dst_scale, self.src_scale)]
        transposed, own = adjacency if self.symmetric else None, None
        if self.own is not None:
            rows = self.own[1]
            own = OwnRows(rows.degree.to(dtype), rows.at, rows.rows, rows.scale.to(dtype), rows.loop.to(dtype))
        return Block(
            adjacency, self.degree.to(dtype), dst_scale=scales[0], src_scale=scales[1], engine=engine,
            transposed=transposed, own=own,
        )  # fmt: skip
