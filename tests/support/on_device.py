"""Training on the fake device, in a process of its own: torch must know the device before the first backward pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from harness_methods.psc_gcn import edges
from support.fake_device import in_place_of_cuda, recorded, register
from torch import Tensor

from harness.check.training import Case, RankOutcome, outcome
from harness.graph.block import Block
from harness.graph.csr import Ints
from harness.graph.devices import upload
from harness.runtime.clock import EpochTime
from harness.sampling import boundary
from harness.sampling.boundary import BoundarySampler


@dataclass
class OnDevice:
    """What a rank saw of a case on the CPU and on the device.

    `waits`: the host's waits for the device in the time of epochs, (what, where); `unheld`, `races`: see `Record`;
    `uploads`: the epochs', see `Record`; `operations`: all that were done on the device.
    """

    cpu: RankOutcome
    device: RankOutcome
    unheld: set[str]
    races: set[str]
    waits: Counter[tuple[str, str]]
    uploads: list[int]
    operations: set[str]


def train_on_both(rank: int, world: int, cases: list[Case], gloo_reads: bool = True) -> list[OnDevice]:
    """Train each case for its epochs, on the CPU and then on the device."""
    register()
    return [_both(rank, world, case, gloo_reads) for case in cases]


def _both(rank: int, world: int, case: Case, gloo_reads: bool) -> OnDevice:
    on_cpu = outcome(case.trainer(rank, world))
    with in_place_of_cuda(gloo_reads=gloo_reads) as device, recorded() as whole, _drawn_as_on_cpu(device):
        trainer = replace(case, device="cuda").trainer(rank, world, rehearsed=True)
        assert trainer.worker.device == device
        waits, uploads, epoch = Counter[tuple[str, str]](), [0, 0], trainer.worker.clock.epoch

        @contextmanager
        def watched(*, aligned: bool = False) -> Iterator[EpochTime]:
            with epoch(aligned=aligned) as timed, recorded() as record:
                yield timed
            waits.update((wait.what, wait.where) for wait in record.waits)
            uploads[:] = [sum(both) for both in zip(uploads, record.uploads, strict=True)]

        trainer.worker.clock.epoch = watched  # type: ignore[method-assign]
        trainer.worker.originals._hidden.clear()  # or that broke a rule
        on_device = outcome(trainer)
    return OnDevice(on_cpu, on_device, set(whole.unheld), set(whole.races), waits, uploads, set(whole.operations))


@contextmanager
def _drawn_as_on_cpu(device: torch.device) -> Iterator[None]:
    """Have the device's draws be those of the CPU, to be compared; their chances are tested by themselves."""

    def draw_boundary(
        pointers: Ints, rate: float, sampler: BoundarySampler, rng: np.random.Generator, *_: Any
    ) -> tuple[Tensor, Tensor]:
        kept, factors = boundary.sample_boundary(pointers, rate, sampler, rng)
        return upload(kept, device), upload(factors, device)

    def draw_numbers(count: int, _: torch.device, rng: np.random.Generator) -> Tensor:
        return upload(rng.random(count), device)

    with patch.object(boundary, "_draw_on_device", draw_boundary), patch.object(edges, "uniform_numbers", draw_numbers):
        yield


FAULTS: dict[str, Callable[[Tensor], Any]] = {
    "numpy": lambda rows: rows.numpy(),
    "mixed": lambda rows: rows + torch.ones(rows.shape),
    "item": lambda rows: rows.sum().item(),
}


def train_with_fault(rank: int, world: int, case: Case, fault: str) -> list[OnDevice]:
    """Train a case as `train_on_both` does; on the device a fault is done to the rows of each forward product."""
    _plant(fault)
    return train_on_both(rank, world, [case])


def _plant(fault: str) -> None:
    multiply = Block.multiply

    def faulty(block: Block, x: Tensor) -> Tensor:
        if x.device.type != "cpu":
            FAULTS[fault](x)
        return multiply(block, x)

    Block.multiply = faulty  # type: ignore[method-assign]


def train_captured(
    rank: int, world: int, case: Case, fault: bool = False
) -> tuple[RankOutcome, RankOutcome, tuple[int, int]]:
    """Train a case on the device as it is, and with its steps captured; return how much work is, how often replayed.

    `fault`: with a wait for the device in each forward product of what is captured.
    """
    register()
    with in_place_of_cuda():
        case = replace(case, device="cuda", timing="wall")
        plain = outcome(case.trainer(rank, world))
        if fault:
            _plant("item")
        captured = replace(case, train=case.train.model_copy(update={"cuda_graphs": True})).trainer(rank, world)
        found = outcome(captured)
        assert captured.captured is not None
        graph = captured.captured._graph
    return plain, found, (len(graph.work), graph.replays)
