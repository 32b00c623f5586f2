"""Method: what a training method has to say, and the options it takes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from pydantic import Field
from torch import Tensor

from harness.data.spec import Spec
from harness.runtime.bytes_model import Bytes, BytesCase
from harness.runtime.memory_model import Components, MemoryCase, case_of, full_graph_memory, mini_batch_memory
from harness.runtime.step import Step

if TYPE_CHECKING:
    from harness.runtime.worker import Worker

Family = Literal["full-graph", "mini-batch"]


class MethodOptions(Spec):
    """Options of a method: fields with defaults and descriptions, checked when a suite is read."""


class FullGraphOptions(MethodOptions):
    """Options of every full-graph method."""

    precompute: bool = Field(
        False, description="exchange and aggregate the input features once, before the first epoch"
    )
    narrow: bool = Field(False, description="exchange H W instead of H where that is fewer bytes")


OptionsT = TypeVar("OptionsT", bound=MethodOptions)
FullGraphOptionsT = TypeVar("FullGraphOptionsT", bound=FullGraphOptions)


class Method(ABC, Generic[OptionsT]):
    """A training method: a generator of steps.

    A subclass sets `name`, `family` and `Options`, and says in `steps` which blocks each layer runs on, where
    rows come from and which rows the loss reads. One object lives as long as a trial, on each rank.

    What it claims besides, `harness check` holds it to:

    Attributes:
        exact: options at which it equals full-graph training, losses and gradients; {} if the defaults do.
            None: no claim.
        unbiased: options at which the expectation of what a layer aggregates is the full aggregation, and
            which sample on a graph of 60 nodes. None: no claim.
    """

    name: ClassVar[str]
    family: ClassVar[Family]
    Options: ClassVar[type[MethodOptions]] = MethodOptions
    exact: ClassVar[dict[str, Any] | None] = None
    unbiased: ClassVar[dict[str, Any] | None] = None

    def __init__(self, worker: Worker, options: OptionsT) -> None:
        self.worker, self.options = worker, options

    @abstractmethod
    def steps(self, epoch: int) -> Iterator[Step]:
        """Yield the steps of `epoch` (0-based); every rank must yield equally many."""

    @property
    def remarks(self) -> list[str]:
        """What a reader of this trial's figures must know, read at its end; in the record and in a report."""
        return []

    def setup_figures(self) -> dict[str, float | None]:
        """Return figures of the method's set-up by name, for the record; None where this trial has none."""
        return {}

    def sampled_scores(self) -> dict[str, float | None]:
        """Score validation and test nodes by the method's own sampler; every rank must call.

        Returns the scores by split ("val", "test"); {} of a method that does not sample for given nodes.
        """
        return {}

    def observe(self, loss: Tensor) -> None:
        """Be told the loss of a step, a scalar of all ranks, before the weights that it is of are updated."""

    def settle(self) -> None:
        """Wait for what goes on beside the trainer; nothing of it may be lost."""

    def close(self) -> None:
        """End what goes on beside the trainer; no more steps will be asked for."""

    @classmethod
    def memory(cls, options: Any, case: MemoryCase) -> Components:
        """Return the bytes that a rank of this `case` needs under `options` (an `Options`), by component.

        The default is that of the family: a full-graph method on all boundary nodes, or mini-batches of which
        nothing is known. A method that keeps more, or less, says so here.
        """
        return full_graph_memory(case) if cls.family == "full-graph" else mini_batch_memory(case)

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
    def summary(cls) -> str:
        """First line of the class's docstring."""
        return (cls.__doc__ or "").strip().split("\n")[0]


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
        return full_graph_memory(case, precompute=options.precompute, narrow=options.narrow)
