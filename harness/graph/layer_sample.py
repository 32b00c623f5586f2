"""What a sampler draws: the edges of a layer on the host, before they become a Block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Generic, Literal, TypeVar

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
        src_scale: float64 [num_src] or None: multiplies what a source counts for its neighbours.
        symmetric: whether the matrix is square and equals its transpose, in `structure` or in its values too;
            columns then ascend in each row.
    """

    sources: NDArray[np.int64]
    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    values: NDArray[np.float64] | None = None
    dst_scale: NDArray[np.float64] | None = None
    src_scale: NDArray[np.float64] | None = None
    symmetric: Literal["no", "structure", "values"] = "no"

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
        values, to_dst, from_src = (
            None if array is None else torch.from_numpy(array).to(dtype)
            for array in (self.values, self.dst_scale, self.src_scale)
        )
        adjacency = CSR(
            torch.from_numpy(self.indptr), torch.from_numpy(self.indices), self.sources.size, values
        )
        transposed = adjacency.transpose_symmetric().to(device) if self.symmetric == "structure" else None
        adjacency = adjacency.to(device)
        return Block(
            adjacency,
            torch.from_numpy(topology.degree(self.sources)).to(device, dtype),
            dst_scale=None if to_dst is None else to_dst.to(device),
            src_scale=None if from_src is None else from_src.to(device),
            engine=engine,
            transposed=adjacency if self.symmetric == "values" else transposed,
        )


T = TypeVar("T")


class Pool(Generic[T]):
    """Lends things that take longer to `make` than to use; as many as threads use at a time."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._free: SimpleQueue[T] = SimpleQueue()

    @contextmanager
    def borrow(self) -> Iterator[T]:
        """Lend one; where its use fails it is not taken back."""
        try:
            lent = self._free.get_nowait()
        except Empty:
            lent = self._make()
        yield lent
        self._free.put(lent)


class Tables(Pool[NDArray[np.int32]]):
    """Tables by node, int32 [num_nodes] of -1, that samplers number nodes by.

    Who borrows one gives it back as it was: -1 everywhere.
    """

    def __init__(self, num_nodes: int) -> None:
        super().__init__(lambda: np.full(num_nodes, -1, np.int32))


def propagation_scales(
    topology: Topology, norm: Norm
) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
    """Return (left [N], right [N] or None) of A_ij = left_i w_ij right_j, self loops apart."""
    degree = topology.degree(np.arange(topology.num_nodes))
    if norm == "mean":
        return 1 / np.where(degree > 0, degree, 1), None
    root = 1 / np.sqrt(degree + 1)
    return root, root
