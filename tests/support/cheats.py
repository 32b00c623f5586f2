"""Methods that would win unfairly, by will or by mistake: each is to be caught, by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from harness_methods.full import Full
from harness_methods.graphsage import GraphSAGE
from torch import nn

from harness import FullGraphOptions, Loss, Step, Worker
from harness.runtime.worker import evaluate

STEPS = 5


def train(worker: Worker, steps: Iterator[Step], optimizer: torch.optim.Optimizer) -> None:
    """Do steps of one's own."""
    for step in steps:
        logits = worker.model(step.blocks, step.inputs, step.exchange)
        nn.functional.cross_entropy(logits[step.loss.rows], step.loss.labels).backward()
        optimizer.step()


class _Cheat(Full):
    exact = None

    def __init__(self, worker: Worker, options: FullGraphOptions) -> None:
        super().__init__(worker, options)
        self.own = torch.optim.SGD(worker.model.parameters(), lr=0.1)


class AllNodes(_Cheat):
    """Trains on validation and test nodes, too."""

    def steps(self, epoch: int) -> Iterator[Step]:
        labels = self.worker.view.labels
        loss = Loss(torch.arange(labels.shape[0]), labels, labels.shape[0])
        for step in super().steps(epoch):
            yield dataclasses.replace(step, loss=loss)


class Narrower(_Cheat):
    """Replaces the model by a narrower one."""

    def __init__(self, worker: Worker, options: FullGraphOptions) -> None:
        super().__init__(worker, options)
        spec = worker.model.spec.model_copy(update={"hidden": 2})
        width, classes = worker.stored_features.shape[1], list(worker.model.parameters())[-1].shape[-1]
        worker.model = type(worker.model)(spec, width, classes, seed=0, dtype=worker.dtype)


class Ahead(_Cheat):
    """Trains in its set-up."""

    def __init__(self, worker: Worker, options: FullGraphOptions) -> None:
        super().__init__(worker, options)
        for _ in range(STEPS):
            train(worker, super().steps(0), self.own)


class WhileEvaluated(GraphSAGE):
    """Trains while it is asked for the scores of its sampler."""

    def __init__(self, worker: Worker, options: Any) -> None:
        super().__init__(worker, options)
        self.own = torch.optim.SGD(worker.model.parameters(), lr=0.1)

    def sampled_scores(self) -> dict[str, float | None]:
        train(self.worker, self.steps(0), self.own)
        return super().sampled_scores()


class WhenLookedAt(_Cheat):
    """Trains whenever its model is evaluated."""

    def __init__(self, worker: Worker, options: FullGraphOptions) -> None:
        super().__init__(worker, options)
        worker.model.register_forward_hook(self.after)

    def after(self, model: nn.Module, arguments: Any, logits: Any) -> None:
        if not model.training:
            with torch.enable_grad():
                model.train()
                train(self.worker, super().steps(0), self.own)
                model.eval()


class Twice(_Cheat):
    """Takes a step of its own beside each of the trainer's."""

    def steps(self, epoch: int) -> Iterator[Step]:
        for _ in range(2):
            yield from super().steps(epoch)
            train(self.worker, super().steps(epoch), self.own)


class BehindTheBack(_Cheat):
    """Writes to the weights in a way that torch does not count."""

    def steps(self, epoch: int) -> Iterator[Step]:
        for parameter in self.worker.model.parameters():
            parameter.data.mul_(0.9)
        yield from super().steps(epoch)


class OwnTensors(_Cheat):
    """Puts tensors of its own in the place of the weights."""

    def steps(self, epoch: int) -> Iterator[Step]:
        for parameter in self.worker.model.parameters():
            parameter.data = parameter.data.clone()
        yield from super().steps(epoch)


class Honest(_Cheat):
    """Scores itself on training nodes while it trains, and changes nothing."""

    def steps(self, epoch: int) -> Iterator[Step]:
        yield from super().steps(epoch)
        evaluate(self.worker.model, self.worker.eval_view, self.worker.comm)
