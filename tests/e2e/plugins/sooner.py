"""A method that trains otherwise than the suite says, in a way that no rule on a trial sees."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import torch
from harness_methods.full import Full

from harness import Step


class HiddenRate(Full):
    """Takes five times the suite's learning rate."""

    name = "hidden-rate"
    exact = None
    baseline = None

    def steps(self, epoch: int) -> Iterator[Step]:
        for optimizer in (each for each in gc.get_objects() if isinstance(each, torch.optim.Optimizer)):
            for group in optimizer.param_groups:
                group["lr"] *= 5
        yield from super().steps(epoch)
