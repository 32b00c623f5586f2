"""Method: what a training method has to say, its options, and the steps that it yields."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypeVar, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from pydantic_core import to_jsonable_python
from torch import Tensor
from torch.autograd.function import FunctionCtx

from harness.errors import UserError
from harness.graph.block import Block
from harness.graph.partition import Halo, Partition
from harness.metrics import Metric, as_declared
from harness.models.gnn import Rows
from harness.registry import Registered, Registry
from harness.runtime.comm import Communicator
from harness.runtime.cost_models import Bytes, BytesCase, Components, MemoryCase, case_of
from harness.spec import Spec

if TYPE_CHECKING:
    from harness.runtime.worker import Worker


class Exchange(Protocol):
    """Turns the inner rows [n_in, width] of a layer into its source rows [num_src, width]."""

    def __call__(self, h: Tensor, layer: int) -> Tensor:
        """Return the source rows, inner rows first; gradients flow back to the owners."""


class SyncExchange:
    """Every boundary row of this very layer, waited for (vanilla partition parallelism)."""

    def __init__(self, comm: Communicator, halo: Halo) -> None:
        self.comm, self.halo = comm, halo

    def __call__(self, h: Tensor, layer: int) -> Tensor:
        """See `Exchange`."""
        if self.comm.world == 1:
            return h
        result: Tensor = _SyncExchange.apply(h, self, layer)  # type: ignore[no-untyped-call]
        return result


class _SyncExchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, h: Tensor, exchange: SyncExchange, layer: int) -> Tensor:
        halo, comm = exchange.halo, exchange.comm
        inner = h.shape[0]
        source = h.new_empty((inner + sum(halo.recv_counts), h.shape[1]))
        source[:inner] = h
        comm.exchange_rows(
            h.index_select(0, halo.send_index),
            halo.send_counts,
            halo.recv_counts,
            purpose="feature" if layer == 0 else "embedding",
            layer=layer,
            direction="forward",
            out=source[inner:],
        )
        ctx.exchange, ctx.layer, ctx.inner = exchange, layer, inner  # type: ignore[attr-defined]
        return source

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor, None, None]:
        exchange, layer, inner = ctx.exchange, ctx.layer, ctx.inner  # type: ignore[attr-defined]
        halo: Halo = exchange.halo
        (grad,) = grads
        incoming = exchange.comm.exchange_rows(
            grad[inner:], halo.recv_counts, halo.send_counts, purpose="gradient", layer=layer, direction="backward"
        )
        return grad[:inner].index_add(0, halo.send_index, incoming), None, None


@dataclass(frozen=True)
class Wanted:
    """What a rank asked of its peers' inner rows, and what they asked of its own.

    Attributes:
        recv_counts: rows asked of each rank.
        send_counts: rows that each rank asks for.
        entries: int64 [sum(send_counts)], those rows as positions in `Partition.send_index`, by asker.
    """

    recv_counts: list[int]
    send_counts: list[int]
    entries: NDArray[np.int64]


def ask(comm: Communicator, partition: Partition, kept: NDArray[np.int64]) -> Wanted:
    """Tell the owners which boundary nodes are wanted, and learn which inner rows the peers want.

    Args:
        comm: a communicator of the ranks; every rank must call.
        partition: this rank's part.
        kept: ascending positions in `partition.boundary`.

    Traffic (control): 8 bytes a peer and 4 bytes for each kept node.
    """
    counts = np.diff(np.searchsorted(kept, partition.boundary_ptr)).tolist()
    wanted = comm.exchange_counts(counts)
    owner_start = np.repeat(partition.boundary_ptr[:-1], counts)
    positions = torch.from_numpy((kept - owner_start).astype(np.int32)).to(comm.device)
    asked = comm.exchange_rows(positions, counts, wanted, purpose="control").cpu().numpy()
    return Wanted(counts, wanted, asked + np.repeat(partition.send_ptr[:-1], wanted))


def announce(comm: Communicator, partition: Partition, kept: NDArray[np.int64]) -> Halo:
    """Return the halo of the kept boundary nodes; arguments and traffic are those of `ask`."""
    wanted = ask(comm, partition, kept)
    return partition.halo(wanted.entries, wanted.send_counts, wanted.recv_counts)


@dataclass(frozen=True)
class Loss:
    """Which destination rows the loss reads.

    Attributes:
        rows: int64, rows of the model's output.
        labels: their labels, int64 [len(rows)] or float [len(rows), C].
        total: rows of all ranks in this step: the loss is the sum over the rows divided by it.
        weights: None, or [len(rows)]: factors of the rows' losses.
    """

    rows: Tensor
    labels: Tensor
    total: int
    weights: Tensor | None = None


@dataclass(frozen=True)
class Step:
    """One forward pass, backward pass and update. Every rank yields equally many in an epoch.

    Attributes:
        blocks: one for each graph layer (in mixhop for each of its hops), input layer first.
        loss: what is learnt from.
        inputs: the features that the first layer reads (of a full-graph method those of the inner rows), or
            what gives them when read.
        exchange: turns a layer's inner rows into its source rows; None where the blocks need no other rows.
        transform_first: exchange H W instead of H where that is fewer bytes.
        aggregated: the first layer's aggregated input features, if known already ([num_dst, F]).
        stats: metrics of the method's own, recorded with the epoch (summed over its steps); read behind the
            step.
        around: what forward and backward pass happen in.
        nodes: of a mini-batch, the nodes (int64) that `inputs` are of.
    """

    blocks: list[Block]
    loss: Loss
    inputs: Rows
    exchange: Exchange | None = None
    transform_first: bool = False
    aggregated: Rows | None = None
    stats: dict[str, Any] = field(default_factory=dict)
    around: Callable[[], AbstractContextManager[None]] = nullcontext
    nodes: NDArray[np.int64] | None = None


Family = Literal["full-graph", "mini-batch"]


class MethodOptions(Spec):
    """Options of a method: fields with defaults and descriptions, checked when a suite is read."""


class FullGraphOptions(MethodOptions):
    """Options of every full-graph method."""

    precompute: bool = Field(
        False, description="exchange and aggregate the input features once, before the first epoch"
    )
    transform_before_exchange: bool = Field(False, description="exchange H W instead of H where that is fewer bytes")


OptionsT = TypeVar("OptionsT", bound=MethodOptions)
FullGraphOptionsT = TypeVar("FullGraphOptionsT", bound=FullGraphOptions)


class Method(Registered, ABC, Generic[OptionsT]):
    """A training method: a generator of steps.

    A subclass sets `name`, `family` and `Options`, and says in `steps` which blocks each layer runs on, where
    rows come from and which rows the loss reads. One object lives as long as a trial, on each rank.

    What it claims besides, `harness check` holds it to:

    Attributes:
        exact: options at which it equals full-graph training, losses and gradients; {} if the defaults do.
            None: no claim.
        unbiased: options at which the expectation of what a layer aggregates is the full aggregation, and
            which sample on a graph of 60 nodes. None: no claim.
        baseline: options at which reports compare the methods of its family with it; {} at any. None: never.
        plain: options at which it leaves out what is its own, so that its other variants are compared with
            it; None as an option's value: whatever that is. {}: there are none such.
        colour: `#rrggbb` of its first variant in all reports; "": one that is free.
        metrics: what it tells with its steps and of its set-up, beside what its base classes do; they become
            columns, axes and claims.
    """

    kind = "method"
    group = "harness.methods"
    name: ClassVar[str]
    family: ClassVar[Family]
    Options: ClassVar[type[MethodOptions]] = MethodOptions
    exact: ClassVar[dict[str, Any] | None] = None
    unbiased: ClassVar[dict[str, Any] | None] = None
    baseline: ClassVar[dict[str, Any] | None] = None
    plain: ClassVar[dict[str, Any]] = {}
    colour: ClassVar[str] = ""
    metrics: ClassVar[tuple[Metric, ...]] = ()

    def __init__(self, worker: Worker, options: OptionsT) -> None:
        self.worker, self.options = worker, options

    @abstractmethod
    def steps(self, epoch: int) -> Iterator[Step]:
        """Yield the steps of `epoch` (0-based); every rank must yield equally many."""

    @property
    def remarks(self) -> list[str]:
        """What a reader of this trial's metrics must know, read at its end; in the record and in a report."""
        return []

    def setup_metrics(self) -> dict[str, float | None]:
        """Return metrics of the method's set-up by name, for the record; None where this trial has none."""
        return {}

    def sampled_scores(self) -> dict[str, float | None]:
        """Score validation and test nodes by the method's own sampler; every rank must call.

        Returns the scores by split ("val", "test"); {} of a method that does not sample for given nodes.
        """
        return {}

    def on_step_end(self, loss: Tensor) -> None:
        """Called with each step's loss, a scalar summed over ranks, before the optimizer step."""

    def synchronize(self) -> None:
        """Wait for what goes on beside the trainer; nothing of it may be lost."""

    def close(self) -> None:
        """End what goes on beside the trainer; no more steps will be asked for."""

    @classmethod
    def memory(cls, options: Any, case: MemoryCase) -> Components:
        """Return the bytes that a rank of this `case` needs under `options` (an `Options`), by component.

        The default is that of the family: a full-graph method on all boundary nodes, or mini-batches of which
        nothing is known. A method that keeps more, or less, says so here.
        """
        return case.full_graph() if cls.family == "full-graph" else case.mini_batch()

    def memory_components(self) -> Components:
        """Return `memory` of this rank, from its real sizes and without evaluations."""
        return self.memory(self.options, case_of(self.worker))

    @classmethod
    def bytes_per_epoch(cls, options: Any, case: BytesCase) -> Bytes | None:
        """Return the bytes that all ranks send in an epoch under `options` (an `Options`), by purpose.

        The purpose "model", the sum of the gradients over the ranks, is the trainer's and left out. The
        default is None: no claim, for these options.
        """
        return None

    @classmethod
    def metrics_by_column(cls) -> dict[str, Metric]:
        """Return its metrics and those of its base classes, by the column of `load_results`."""
        of_bases = [vars(base).get("metrics", ()) for base in reversed(cls.__mro__)]
        return {metric.name: metric for metrics in of_bases for metric in metrics}

    @classmethod
    def declared(cls) -> dict[str, Any]:
        """Return what a record keeps of it, so that results are read without its code."""
        fields = {name: field for name, field in cls.Options.model_fields.items() if not field.is_required()}
        defaults = {name: field.get_default(call_default_factory=True) for name, field in fields.items()}
        return {
            "family": cls.family,
            "baseline": cls.baseline,
            "plain": cls.plain,
            "colour": cls.colour,
            "defaults": to_jsonable_python(defaults),
            "numbers": [name for name, field in fields.items() if field.repr and _is_number(defaults[name])],
            "metrics": as_declared(cls.metrics_by_column().values()),
        }

    @classmethod
    def check_class(cls, where: str) -> None:
        """See `Registered`: a method has `steps`, a family and options."""
        super().check_class(where)
        if getattr(cls, "family", None) not in get_args(Family):
            fix = " or ".join(f"`family = '{family}'`" for family in get_args(Family))
            raise UserError(f"'{where}' has no family", fix=f"write {fix}")
        if not (isinstance(cls.Options, type) and issubclass(cls.Options, MethodOptions)):
            raise UserError(f"'{where}' has wrong Options", fix="make them a subclass of harness.MethodOptions")


METHODS: Registry[type[Method[Any]]] = Registry(Method)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | list) and not isinstance(value, bool)


class FullGraphMethod(Method[FullGraphOptionsT]):
    """A method whose layers run on the inner nodes of a partition and some or all of its boundary.

    Attributes:
        aggregated: with `precompute` the exact first-layer aggregation of the input features, which the
            ranks exchange here, before the first epoch; None without.
    """

    family = "full-graph"
    Options = FullGraphOptions

    def __init__(self, worker: Worker, options: FullGraphOptionsT) -> None:
        super().__init__(worker, options)
        self.aggregated = worker.aggregate_features() if options.precompute else None

    @classmethod
    def memory(cls, options: Any, case: MemoryCase) -> Components:
        """See `Method.memory`."""
        return case.full_graph(precompute=options.precompute, transform_first=options.transform_before_exchange)
