"""Optimizers and schedules of the learning rate, by name."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, TypeVar

import torch
from pydantic import Field

from harness.registry import Registered, Registry
from harness.runtime.spec import TrainSpec
from harness.spec import PluginSource, Spec

OptionsT = TypeVar("OptionsT", bound=Spec)


class Optimizer(Registered, ABC, Generic[OptionsT]):
    """Makes the optimizer of a trial, the same for every method.

    Attributes:
        Options: its own options; in a suite `optimizer: {sgd: {momentum: 0.9}}`.
    """

    kind = "optimizer"
    group = "harness.optimizers"
    name: ClassVar[str]
    Options: ClassVar[type[Spec]] = Spec

    def __init__(self, options: OptionsT) -> None:
        self.options = options

    @abstractmethod
    def make(self, parameters: list[torch.nn.Parameter], *, lr: float, weight_decay: float) -> torch.optim.Optimizer:
        """Return the optimizer of the parameters, a vector of all weights."""

    @property
    @abstractmethod
    def moments(self) -> int:
        """Vectors as long as the weights that it keeps, for the memory model."""


class AdamOptions(Spec):
    """Options of Adam."""

    betas: tuple[float, float] = Field((0.9, 0.999), description="shares of the past in the two moments")
    eps: float = Field(1e-8, gt=0, description="added to the root of the second moment")


class Adam(Optimizer[AdamOptions]):
    """Adam (Kingma and Ba, ICLR 2015); weight decay is an L2 penalty."""

    name = "adam"
    Options = AdamOptions

    def make(self, parameters: list[torch.nn.Parameter], *, lr: float, weight_decay: float) -> torch.optim.Optimizer:
        """See `Optimizer`."""
        betas, eps = self.options.betas, self.options.eps
        return torch.optim.Adam(parameters, lr=lr, weight_decay=weight_decay, betas=betas, eps=eps)

    @property
    def moments(self) -> int:
        """See `Optimizer`."""
        return 2


class SGDOptions(Spec):
    """Options of stochastic gradient descent."""

    momentum: float = Field(0.0, ge=0, lt=1, description="share of the past in the direction")


class SGD(Optimizer[SGDOptions]):
    """Stochastic gradient descent, with or without momentum."""

    name = "sgd"
    Options = SGDOptions

    def make(self, parameters: list[torch.nn.Parameter], *, lr: float, weight_decay: float) -> torch.optim.Optimizer:
        """See `Optimizer`."""
        return torch.optim.SGD(parameters, lr=lr, weight_decay=weight_decay, momentum=self.options.momentum)

    @property
    def moments(self) -> int:
        """See `Optimizer`."""
        return int(self.options.momentum > 0)


class Schedule(Registered, ABC, Generic[OptionsT]):
    """What the learning rate of an epoch is multiplied with.

    Attributes:
        Options: its own options; in a suite `schedule: {step: {every: 30}}`.
    """

    kind = "schedule"
    group = "harness.schedules"
    name: ClassVar[str]
    Options: ClassVar[type[Spec]] = Spec

    def __init__(self, options: OptionsT) -> None:
        self.options = options

    @abstractmethod
    def factor(self, epoch: int, epochs: int) -> float:
        """Return the factor in `epoch` (from 0) of at most `epochs`; it depends on nothing else."""


class Constant(Schedule[Spec]):
    """The same learning rate in every epoch."""

    name = "constant"

    def factor(self, epoch: int, epochs: int) -> float:
        """See `Schedule`."""
        return 1.0


class CosineOptions(Spec):
    """Options of the cosine."""

    warmup: int = Field(0, ge=0, description="epochs in which the rate rises linearly before it falls")
    least: float = Field(0.0, ge=0, le=1, description="factor that it falls to")


class Cosine(Schedule[CosineOptions]):
    """Falls along half a cosine (Loshchilov and Hutter, ICLR 2017), after a linear rise."""

    name = "cosine"
    Options = CosineOptions

    def factor(self, epoch: int, epochs: int) -> float:
        """See `Schedule`."""
        warmup, least = self.options.warmup, self.options.least
        if epoch < warmup:
            return (epoch + 1) / (warmup + 1)
        done = (epoch - warmup) / max(1, epochs - warmup)
        return least + (1 - least) * (1 + math.cos(math.pi * done)) / 2


class StepsOptions(Spec):
    """Options of steps."""

    every: int = Field(30, ge=1, description="epochs between two steps")
    factor: float = Field(0.1, gt=0, le=1, description="what each step multiplies the rate with")


class Steps(Schedule[StepsOptions]):
    """Falls by a factor every so many epochs."""

    name = "steps"
    Options = StepsOptions

    def factor(self, epoch: int, epochs: int) -> float:
        """See `Schedule`."""
        return float(self.options.factor ** (epoch // self.options.every))


OPTIMIZERS: Registry[type[Optimizer[Any]]] = Registry(Optimizer, __name__)
SCHEDULES: Registry[type[Schedule[Any]]] = Registry(Schedule, __name__)


def optimizer_of(spec: TrainSpec, source: PluginSource | None = None) -> Optimizer[Any]:
    """Return the optimizer that a training names; `source`: where its code is, if it is a plugin's."""
    found = OPTIMIZERS.load(spec.optimizer, source)
    return found(found.Options(**spec.optimizer_options))


def schedule_of(spec: TrainSpec, source: PluginSource | None = None) -> Schedule[Any]:
    """Return the schedule that a training names; `source` as for `optimizer_of`."""
    found = SCHEDULES.load(spec.schedule, source)
    return found(found.Options(**spec.schedule_options))
