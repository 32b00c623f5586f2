"""Samples: the view that samplers read, and the layers of a batch that they draw from it, on the host or a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Annotated, Generic, Literal, Protocol, TypeAlias, TypeVar

from pydantic import AfterValidator

from harness.deferred import numpy as np
from harness.deferred import torch
from harness.errors import UserError
from harness.graph.block import Block, OwnRows, Propagation
from harness.graph.csr import CSR, Floats, Ints, Places, Topology, pointers, row_of_entries
from harness.graph.devices import upload
from harness.graph.partition import Halo, View

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


@dataclass(frozen=True, eq=False)
class LayerSample:
    """The sampled in-edges of a layer's destinations.

    `values` say what an edge counts in addition to the model's propagation weight: its own weight if the graph has any,
    times the inverse of its chance to be drawn. `symmetric` says whether the matrix is square and equals its
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


DrawnLayer: TypeAlias = LayerSample | LayerOnDevice


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

    A borrower gives one back as it was: -1 everywhere.
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
    loss reads all training nodes among the output rows, also those of other ranks. With `halos`, one a layer, the last
    sources of a layer are other ranks' nodes, whose rows come by an exchange.
    """

    layers: Sequence[DrawnLayer]
    targets: int | None
    weights: Floats | Tensor | None = None  # [output rows], factors of the rows' losses
    stats: dict[str, float] = field(default_factory=dict)  # the sampler's own metrics, summed over an epoch's steps
    halos: Sequence[Halo] = ()

    def held(self, layer: int) -> Places:
        """Return the sources of a layer whose rows no exchange brings, int64."""
        sources = self.layers[layer].sources
        return sources[: len(sources) - sum(self.halos[layer].recv_counts)] if self.halos else sources


class Sampler(Protocol):
    """Draws blocks. Threads may call it at the same time; what is drawn depends on the arguments alone."""

    def sample(self, targets: Ints, seed: int) -> Sample:
        """Draw for the distinct nodes `targets` (int64, perhaps none) by a non-negative int64 `seed`."""


def _draws_something(value: T) -> T:
    for number in value if isinstance(value, list) else [value]:
        if isinstance(number, int) and number < 1 and number != -1:
            raise ValueError(f"{number} draws nothing; give 1 or more, or -1 for all")
    return value


DrawCount: TypeAlias = Annotated[int, AfterValidator(_draws_something)]
"""An option: how many are drawn, 1 or more, or -1 for all."""

DrawCounts: TypeAlias = Annotated[int | list[int], AfterValidator(_draws_something)]
"""The same for each graph layer, or one number for all; see `per_layer`."""


def per_layer(value: int | list[int], depth: int, key: str) -> list[int]:
    """Return an option's number for each graph layer, input layer first; in mixhop for each of its hops.

    A list of another length is a UserError.
    """
    if isinstance(value, int):
        return [value] * depth
    if len(value) != depth:
        raise UserError(
            f"bad value {value}: {len(value)} numbers for {depth} graph layers",
            key=key,
            fix=f"give {depth}, or one number for all; a layer of mixhop counts `order` times",
        )
    return value
