"""Methods that learn from more than the suite gives them, in ways that no rule on a trial sees."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from harness_methods.full import Full
from torch import Tensor, nn

from harness import FullGraphOptions, Step, Worker


class ValidationToo(Full):
    """Adds to the gradient of the logits that of the loss of all nodes, their labels read from the data set's files."""

    name = "validation-too"
    exact = None
    baseline = None

    def __init__(self, worker: Worker, options: FullGraphOptions) -> None:
        super().__init__(worker, options)
        labels = np.load(worker.job.graph / "labels.npy")[worker.view.nodes[worker.partition.inner]]
        self.rows = torch.arange(labels.shape[0])[labels >= 0]
        self.labels = torch.from_numpy(labels)[self.rows]
        worker.model.register_forward_hook(self.after)

    def after(self, model: nn.Module, arguments: Any, logits: Tensor) -> None:
        if model.training:
            own = logits.detach().requires_grad_()
            (more,) = torch.autograd.grad(nn.functional.cross_entropy(own[self.rows], self.labels), own)
            logits.register_hook(lambda gradient: gradient + more)


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
