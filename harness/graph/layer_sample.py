"""What a sampler draws: the edges of a layer on the host, before they become a Block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty, SimpleQueue

import numpy as np
import torch
from numpy.typing import NDArray

from harness.graph.block import Block, Norm
from harness.graph.csr import CSR
from harness.graph.topology import Topology


@dataclass(frozen=True, eq=False)
class LayerSample:
    """The sampled in-edges of a layer's destinations.

    Attributes:
        sources: int64 [num_src], distinct nodes of the view; the destinations are the first.
        indptr: int64 [num_dst + 1].
        indices: int32 [nnz], rows of `sources`.
        values: float64 [nnz] or None: what an edge counts beside the model's propagation weight, that is, its
            own weight if the graph has any, times the inverse of its chance to be drawn. None: 1.
        dst_scale: float64 [num_dst] or None: multiplies the sum over a destination's neighbours.
    """

    sources: NDArray[np.int64]
    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    values: NDArray[np.float64] | None = None
    dst_scale: NDArray[np.float64] | None = None

    @property
    def num_dst(self) -> int:
        """Number of destinations."""
        return self.indptr.size - 1

    @property
    def destinations(self) -> NDArray[np.int64]:
        """The destinations, int64 [num_dst]."""
        return self.sources[: self.num_dst]

    def block(
        self, topology: Topology, *, device: torch.device, dtype: torch.dtype, engine: str = "auto"
    ) -> Block:
        """Return the Block, with the degrees that `topology`, which it was drawn from, has."""
        values, scale = (
            None if array is None else torch.from_numpy(array).to(dtype)
            for array in (self.values, self.dst_scale)
        )
        adjacency = CSR(
            torch.from_numpy(self.indptr), torch.from_numpy(self.indices), self.sources.size, values
        )
        return Block(
            adjacency.to(device),
            torch.from_numpy(topology.degree(self.sources)).to(device, dtype),
            dst_scale=None if scale is None else scale.to(device),
            engine=engine,
        )


class Tables:
    """Tables by node, int32 [num_nodes] of -1, that samplers number nodes by; one for each thread that asks.

    Allocating and clearing one takes longer than a small sample does. Who borrows one gives it back as it
    was: -1 everywhere.
    """

    def __init__(self, num_nodes: int) -> None:
        self._num_nodes = num_nodes
        self._free: SimpleQueue[NDArray[np.int32]] = SimpleQueue()

    @contextmanager
    def borrow(self) -> Iterator[NDArray[np.int32]]:
        """Lend a table; where its use fails it is not taken back."""
        try:
            table = self._free.get_nowait()
        except Empty:
            table = np.full(self._num_nodes, -1, np.int32)
        yield table
        self._free.put(table)


def propagation_scales(
    topology: Topology, norm: Norm
) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
    """Return (left [N], right [N] or None) of A_ij = left_i w_ij right_j, self loops apart."""
    degree = topology.degree(np.arange(topology.num_nodes))
    if norm == "mean":
        return 1 / np.where(degree > 0, degree, 1), None
    root = 1 / np.sqrt(degree + 1)
    return root, root
