"""PipeGCN: full-graph training with pipelined boundary communication."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from pydantic import Field

from harness import Step, Worker
from harness.plugin import MemoryCase, PipelinedMethod, PipelinedOptions, TrainGraph, stale_memory


class PipeOptions(PipelinedOptions):
    """Options of PipeGCN."""

    smoothing: bool = Field(False, description="replace received rows and gradients by moving averages")
    decay: float = Field(0.95, ge=0, lt=1, description="share of the past in the moving averages")


class PipeGCN(PipelinedMethod[PipeOptions]):
    """Boundary rows and gradients of the last iteration, moved during the training (PipeGCN, ICLR 2022).

    `psc-gcn` without sampling and cache. With `smoothing` (section 3.4) received values v are replaced by
    m = decay m + (1 - decay) v; the first v stands for the past before it. Exact with staleness 0. Bytes:
    those of `full`, in every iteration; with `warmup: sync` the first `staleness` ones send rows twice.
    """

    name = "pipegcn"
    colour = "#cc79a7"
    Options = PipeOptions
    space: ClassVar[dict[str, Any]] = {"smoothing": [False, True]}
    exact: ClassVar[dict[str, Any]] = {"staleness": 0}

    def __init__(self, worker: Worker, options: PipeOptions) -> None:
        super().__init__(worker, options, options.decay if options.smoothing else None)

    def steps(self, epoch: int) -> Iterator[Step]:
        """Yield one step: the full block in every layer, boundary rows of `staleness` iterations ago."""
        partition = self.worker.partition
        whole = TrainGraph(partition.full_block, partition.full_halo)
        yield self.step(sent=whole, read=whole, stats={"sampled_boundary": partition.num_boundary})

    @classmethod
    def memory(cls, options: PipeOptions, case: MemoryCase) -> dict[str, int]:
        """See `stale_memory`."""
        return stale_memory(case, options, averages=options.smoothing)
