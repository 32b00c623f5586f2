"""PipelinedMethod: what methods share that move boundary values beside the training."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import Field
from torch import Tensor

from harness.runtime.bytes_model import Bytes, BytesCase, boundary_bytes
from harness.runtime.method import FullGraphMethod, FullGraphOptions
from harness.runtime.stale import Pipeline, StaleExchange, TrainGraph, Warmup
from harness.runtime.step import Step

if TYPE_CHECKING:
    from harness.runtime.worker import Worker


class PipelinedOptions(FullGraphOptions):
    """Options of every pipelined method."""

    staleness: int = Field(1, ge=0, description="tau: iterations that boundary values are late")
    warmup: Warmup = Field(
        "absent", description="what the first iterations read of the boundary: nothing, or values waited for"
    )


PipelinedOptionsT = TypeVar("PipelinedOptionsT", bound=PipelinedOptions)


class PipelinedMethod(FullGraphMethod[PipelinedOptionsT]):
    """A full-graph method whose boundary values are `staleness` iterations late.

    Attributes:
        pipeline: the transfers under way.
        sends_features: whether the first layer exchanges the input features themselves.
    """

    Options = PipelinedOptions

    def __init__(self, worker: Worker, options: PipelinedOptionsT, decay: float | None = None) -> None:
        super().__init__(worker, options)
        self.pipeline = Pipeline(worker.comm, options.staleness, options.warmup, decay)
        self.sends_features = not options.precompute and not (options.narrow and worker.model.narrows(0))

    def step(
        self,
        *,
        sent: TrainGraph,
        read: TrainGraph,
        stats: dict[str, Any] | None = None,
        observe: Callable[[Tensor, int], None] | None = None,
    ) -> Step:
        """Return the step that trains on `read` and sends what `sent` will read; see `StaleExchange`."""
        worker = self.worker
        exchange = StaleExchange(
            self.pipeline,
            sent,
            read,
            features=worker.features.inner if self.sends_features else None,
            rate=worker.model.spec.dropout,
            observe=observe,
        )
        return Step(
            blocks=[read.block] * worker.model.depth,
            inputs=worker.features.inner,
            exchange=exchange,
            loss=worker.train_loss,
            narrow=self.options.narrow,
            aggregated=self.aggregated,
            stats=stats or {},
        )

    @classmethod
    def bytes_per_epoch(cls, options: PipelinedOptionsT, case: BytesCase) -> Bytes | None:
        """Return the bytes of `full`; synchronous first iterations send their rows twice."""
        sent = boundary_bytes(case, case.boundary, precompute=options.precompute, narrow=options.narrow)
        if options.warmup == "sync" and case.epoch < options.staleness:
            return sent | {purpose: 2 * sent[purpose] for purpose in ("feature", "embedding")}
        return sent

    def settle(self) -> None:
        """See `Method`."""
        self.pipeline.settle()

    def close(self) -> None:
        """See `Method`."""
        self.pipeline.close()
