"""Optimizers and schedules of the learning rate, by name."""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import Field

from harness.deferred import torch
from harness.registry import Registered, Registry
from harness.runtime.run_config import TrainSpec
from harness.spec import PluginSource, Spec

OptionsT = TypeVar("OptionsT", bound=Spec)


class _Named(Registered, ABC, Generic[OptionsT]):
    """What a training names, with options of its own."""

    name: ClassVar[str]
    Options: ClassVar[type[Spec]] = Spec

    def __init__(self, options: OptionsT) -> None:
        self.options = options


class Optimizer(_Named[OptionsT]):
    """Makes the optimizer of a trial, the same for every method.

    Attributes:
        Options: its own options; in a suite `optimizer: {sgd: {momentum: 0.9}}`.
        moments: vectors as long as the weights that it keeps, for the memory model.
    """

    kind = "optimizer"
    group = "harness.optimizers"

    @abstractmethod
    def make(self, parameters: list[torch.nn.Parameter], *, lr: float, weight_decay: float) -> torch.optim.Optimizer:
        """Return the optimizer of the parameters, a vector of all weights."""

    @property
    @abstractmethod
    def moments(self) -> int:
        """See above."""


@cache
def light(kind: type[torch.optim.Optimizer]) -> Callable[..., torch.optim.Optimizer]:
    """Return one of torch's optimizers with its methods bare: the same steps, without torch's compiler."""
    # Torch wraps them, to keep them out of what is compiled around them, and imports the compiler for that: a second
    # of CPU time and 70 MiB in every rank. Nothing is compiled around them here.
    named = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")
    bare = {name: inspect.unwrap(getattr(kind, name)) for name in named}
    return type(kind.__name__, (kind,), bare | {"step": torch.no_grad()(inspect.unwrap(kind.step))})


class AdamOptions(Spec):
    """Options of Adam."""

    betas: tuple[float, float] = Field((0.9, 0.999), description="shares of the past in the two moments")
    eps: float = Field(1e-8, gt=0, description="added to the root of the second moment")


class Adam(Optimizer[AdamOptions]):
    """Adam (Kingma and Ba, ICLR 2015); weight decay is an L2 penalty."""

    name = "adam"
    Options = AdamOptions
    moments = 2
    _of_torch = "Adam"

    def make(self, parameters: list[torch.nn.Parameter], *, lr: float, weight_decay: float) -> torch.optim.Optimizer:
        """See `Optimizer`."""
        options = self.options.model_dump()
        return light(getattr(torch.optim, self._of_torch))(parameters, lr=lr, weight_decay=weight_decay, **options)


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, ICLR 2019)."""

    name = "adamw"
    _of_torch = "AdamW"


class SGDOptions(Spec):
    """Options of stochastic gradient descent."""

    momentum: float = Field(0.0, ge=0, lt=1, description="share of the past in the direction")


class SGD(Optimizer[SGDOptions]):
    """Stochastic gradient descent, with or without momentum."""

    name = "sgd"
    Options = SGDOptions

    def make(self, parameters: list[torch.nn.Parameter], *, lr: float, weight_decay: float) -> torch.optim.Optimizer:
        """See `Optimizer`."""
        return light(torch.optim.SGD)(parameters, lr=lr, weight_decay=weight_decay, momentum=self.options.momentum)

    @property
    def moments(self) -> int:
        """See `Optimizer`."""
        return int(self.options.momentum > 0)


class Schedule(_Named[OptionsT]):
    """A factor of the learning rate by epoch.

    Attributes:
        Options: its own options; in a suite `schedule: {step: {every: 30}}`.
    """

    kind = "schedule"
    group = "harness.schedules"

    @abstractmethod
    def factor(self, epoch: int, epochs: int) -> float:
        """Return the factor in `epoch` (from 0) of at most `epochs`, those of `train.lr_warmup` not counted in either.

        It depends on nothing else but the calls of `evaluated`.
        """

    def evaluated(self, val: float) -> None:  # most do not ask
        """Follow a validation score, the same on all ranks."""


class Constant(Schedule[Spec]):
    """The same learning rate in every epoch."""

    name = "constant"

    def factor(self, epoch: int, epochs: int) -> float:
        """See `Schedule`."""
        return 1.0


class CosineOptions(Spec):
    """Options of the cosine."""

    least: float = Field(0.0, ge=0, le=1, description="factor that it falls to")


class Cosine(Schedule[CosineOptions]):
    """Falls along half a cosine (Loshchilov and Hutter, ICLR 2017)."""

    name = "cosine"
    Options = CosineOptions

    def factor(self, epoch: int, epochs: int) -> float:
        """See `Schedule`."""
        least = self.options.least
        return least + (1 - least) * (1 + math.cos(math.pi * epoch / max(1, epochs))) / 2


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


class PlateauOptions(Spec):
    """Options of the plateau."""

    factor: float = Field(0.5, gt=0, lt=1, description="what the rate is multiplied with")
    patience: int = Field(5, ge=0, description="evaluations without a better one that are borne before it falls")
    least: float = Field(0.0, ge=0, le=1, description="factor that it does not fall below")


class Plateau(Schedule[PlateauOptions]):
    """Falls when the validation score has stopped rising (torch's ReduceLROnPlateau)."""

    name = "plateau"
    Options = PlateauOptions

    def __init__(self, options: PlateauOptions) -> None:
        super().__init__(options)
        self._followed = light(torch.optim.SGD)([torch.zeros(1)], lr=1.0)  # its rate is the factor
        self._scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
            self._followed, mode="max", factor=options.factor, patience=options.patience,
            threshold=0.0, threshold_mode="abs", min_lr=options.least, eps=0.0,
        )  # fmt: skip

    def factor(self, epoch: int, epochs: int) -> float:
        """See `Schedule`."""
        return float(self._followed.param_groups[0]["lr"])

    def evaluated(self, val: float) -> None:
        """See `Schedule`."""
        self._scheduler.step(val)


def learning_rate(spec: TrainSpec, schedule: Schedule[Any], epoch: int) -> float:
    """Return the rate in `epoch` (from 0): it rises linearly for `lr_warmup` epochs, then the schedule begins."""
    warmup = spec.lr_warmup
    if epoch < warmup:
        return spec.lr * (epoch + 1) / (warmup + 1)
    return spec.lr * schedule.factor(epoch - warmup, spec.epochs - warmup)


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
