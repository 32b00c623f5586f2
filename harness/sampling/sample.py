"""What samplers read, a view, and what they draw from it, the blocks of a batch on the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Generic, Literal, Protocol, TypeVar

from harness.deferred import numpy as np
from harness.deferred import torch
from harness.errors import UserError
from harness.graph.block import Block, OwnRows, Propagation
from harness.graph.csr import CSR, Floats, Ints, Places, Topology
from harness.graph.devices import upload
from harness.graph.partition import View

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class OwnSample:
    """Destinations that need not be sources, and where the own rows are of those that were drawn (see `OwnRows`)."""

    nodes: Ints  # [num_dst], the destinations, distinct nodes of the view
    at: Ints  # [k], destinations whose own row was drawn, ascending
    rows: Ints  # [k], which source it is
    scale: Floats  # [k], what the own row counts, the inverse of its chance to be drawn
    loop: Floats  # [k], multiplies the self loop, as `LayerSample.values` and `dst_scale` multiply edges


class DrawnLayer(Protocol):
    """The sampled in-edges of a layer's destinations, on the host (`LayerSample`) or on a device."""

    @property
    def sources(self) -> Places:
        """Distinct nodes of the view, int64 [num_src]."""

    @property
    def destinations(self) -> Places:
        """The destinations, int64 [num_dst]."""

    @property
    def num_dst(self) -> int:
        """Number of destinations."""

    @property
    def edges(self) -> int:
        """Number of edges."""

    def block(self, topology: Topology, *, device: torch.device, dtype: torch.dtype, engine: str = "auto") -> Block:
        """Return the Block, with the degrees that `topology`, which it was drawn from, has."""


@dataclass(frozen=True, eq=False)
class LayerSample:
    """The sampled in-edges of a layer's destinations.

    `values` say what an edge counts beside the model's propagation weight, that is, its own weight if the graph has
    any, times the inverse of its chance to be drawn. `symmetric` says whether the matrix is square and equals its
    transpose, in `structure` or in its values too; columns then ascend in each row.
    """

    sources: Ints  # [num_src], distinct nodes of the view; without `own` the destinations are the first
    indptr: Ints  # [num_dst + 1]
    indices: NDArray[np.int32]  # [nnz], rows of `sources`
    values: Floats | None = None  # [nnz]; None: 1
    dst_scale: Floats | None = None  # [num_dst]: multiplies the sum over a destination's neighbours
    src_scale: Floats | None = None  # [num_src]: multiplies what a source counts for its neighbours
    symmetric: Literal["no", "structure", "values"] = "no"
    own: OwnSample | None = None

    @property
    def num_dst(self) -> int:
        """Number of destinations."""
        return self.indptr.size - 1

    @property
    def edges(self) -> int:
        """Number of edges."""
        return self.indices.size

    @property
    def destinations(self) -> Ints:
        """The destinations, int64 [num_dst]."""
        return self.sources[: self.num_dst] if self.own is None else self.own.nodes

    def block(self, topology: Topology, *, device: torch.device, dtype: torch.dtype, engine: str = "auto") -> Block:
        """Return the Block, with the degrees that `topology`, which it was drawn from, has."""

        def given(array: Floats) -> Tensor:
            return upload(array, device, dtype)

        def tensor(array: Floats | None) -> Tensor | None:
            return None if array is None else given(array)

        def degree_of(nodes: Ints) -> Tensor:
            return given(topology.degree(nodes))

        # On the host, where a symmetric structure is transposed.
        values = None if self.values is None else torch.from_numpy(self.values).to(dtype)
        adjacency = CSR(torch.from_numpy(self.indptr), torch.from_numpy(self.indices), self.sources.size, values)
        transposed = adjacency.transpose_symmetric().to(device) if self.symmetric == "structure" else None
        adjacency, own = adjacency.to(device), None
        if self.own is not None:
            at, rows = (upload(array, device) for array in (self.own.at, self.own.rows))
            own = OwnRows(degree_of(self.own.nodes), at, rows, given(self.own.scale), given(self.own.loop))
        return Block(
            adjacency, degree_of(self.sources), dst_scale=tensor(self.dst_scale), src_scale=tensor(self.src_scale),
            engine=engine, transposed=adjacency if self.symmetric == "values" else transposed, own=own,
        )  # fmt: skip


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


class Tables(Pool["NDArray[np.int32]"]):
    """Tables by node, int32 [num_nodes] of -1, that samplers number nodes by.

    Who borrows one gives it back as it was: -1 everywhere.
    """

    def __init__(self, num_nodes: int) -> None:
        super().__init__(lambda: np.full(num_nodes, -1, np.int32))


def propagation_scales(topology: Topology, propagation: Propagation) -> tuple[Floats, Floats | None]:
    """Return (left [N], right [N] or None) of A_ij = left_i w_ij right_j, self loops apart."""
    degree = topology.degree(np.arange(topology.num_nodes))
    left = propagation.factors(degree, propagation.left)
    right = propagation.factors(degree, propagation.right)
    return np.ones(degree.size) if left is None else left, right


class Source:
    """A view's graph, and which of its nodes are this rank's.

    `topology` is the whole graph, memory-mapped, or what asks other ranks for its rows. `propagation` is the model's
    weighting of edges, `reads_own` and `depth` are as of a `GNN`, `tables` are for kernels that number nodes. Batches
    are drawn on `device`.
    """

    def __init__(
        self, view: View, topology: Topology, *, propagation: Propagation, reads_own: bool, depth: int, tables: Tables,
        device: torch.device | None = None,
    ) -> None:  # fmt: skip
        self.view, self.topology, self.tables = view, topology, tables
        self.propagation, self.reads_own, self.depth = propagation, reads_own, depth
        self.device = torch.device("cpu") if device is None else device

    @cached_property
    def local(self) -> NDArray[np.bool_]:
        """Which nodes [N] are this rank's."""
        return np.asarray(self.view.owner == self.view.partition.rank)


@dataclass(frozen=True, eq=False)
class Sample:
    """What is drawn for a batch.

    `layers` has one for each graph layer, input layer first; the first one's sources are the nodes whose features
    are read. The first `targets` output rows are training nodes of this rank, and the loss reads them. None: the
    loss reads all training nodes among the output rows, whoever owns them.
    """

    layers: Sequence[DrawnLayer]
    targets: int | None
    weights: Floats | Tensor | None = None  # [output rows], factors of the rows' losses
    stats: dict[str, float] = field(default_factory=dict)  # the sampler's own metrics, summed over an epoch's steps


class Sampler(Protocol):
    """Draws blocks. Threads may call it at the same time; what is drawn depends on the arguments alone."""

    def sample(self, targets: Ints, seed: int) -> Sample:
        """Draw for the distinct nodes `targets` (int64, perhaps none) by a non-negative int64 `seed`."""


def per_layer(value: int | list[int], depth: int, key: str) -> list[int]:
    """Return an option's number for each graph layer, input layer first; in mixhop for each of its hops.

    A list of another length is a UserError.
    """
    if isinstance(value, int):
        return [value] * depth
    if len(value) != depth:
        raise UserError(
            f"{len(value)} numbers for {depth} graph layers",
            key=key,
            fix="give one a layer; a layer of mixhop counts `order` times",
        )
    return value
