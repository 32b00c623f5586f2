"""How long trials will take: by what trials like them took on this machine, else by their arithmetic."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from harness.data.catalog import DatasetInfo
from harness.launch.inputs import cores, threads_of
from harness.results.record import Record
from harness.runtime.method import METHODS
from harness.suite.schema import TrialConfig

# By 557 records of 20 suites on one machine: full-graph methods took 0.5 to 2 times as long as this says where an epoch
# is more than 10 ms, mini-batch methods 0.3 to 5 times.
FLOPS_A_CORE = 15e9
STEP_S = 0.02  # of a mini-batch at least
STEPS = 5  # an epoch, of methods whose batches are subgraphs
SETUP_S = 3.0  # of a trial whose like was never run: processes, graph, first batches


@dataclass(frozen=True)
class Forecast:
    """Says how long a trial may take, in seconds of wall time, and how that is known.

    `same`: the trial itself ran here, perhaps with another seed; `like`: its method did, on the same data and model,
    with other settings; `model`: neither did, and its arithmetic is all there is to go by.
    """

    seconds: float
    by: Literal["same", "like", "model"]


@dataclass
class Forecaster:
    """Forecasts trials from records.

    `machine`: whose records count, as their environment names it.
    """

    machine: str
    _same: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    _like: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))

    def learn(self, records: Iterable[Record]) -> None:
        """Take over what trials took that ended well on this machine."""
        for record in records:
            epoch, ran = record.result.get("epoch_time_s"), record.result.get("epochs")
            if record.environment.get("machine") != self.machine or record.status != "ok" or record.wall_s is None:
                continue
            try:
                trial = TrialConfig.model_validate(record.config)
            except ValueError:
                continue  # of another version
            self._same[_seedless(trial)].append(record.wall_s)
            if isinstance(epoch, float) and isinstance(ran, int):
                self._like[_kind(trial)].append((epoch, max(0.0, record.wall_s - epoch * ran)))

    def of(self, trial: TrialConfig, info: DatasetInfo) -> Forecast:
        """Return how long a trial may take."""
        if took := self._same.get(_seedless(trial)):
            return Forecast(statistics.median(took), "same")
        if seen := self._like.get(_kind(trial)):
            epoch, around = (statistics.median(values) for values in zip(*seen, strict=True))
            return Forecast(around + epoch * trial.train.epochs, "like")
        busy = min(trial.partition.parts * threads_of(trial), cores())
        epoch = work(trial, info) / (FLOPS_A_CORE * busy)
        if METHODS.load(trial.method.name, trial.plugin).family == "mini-batch":
            epoch = max(epoch, STEP_S * _steps(trial, info))
        return Forecast(SETUP_S + epoch * trial.train.epochs, "model")


def _steps(trial: TrialConfig, info: DatasetInfo) -> int:
    size = trial.method.options.get("batch_size")
    return math.ceil(info.nodes / trial.partition.parts / size) if isinstance(size, int) and size else STEPS


def work(trial: TrialConfig, info: DatasetInfo) -> float:
    """Return the floating-point operations of one epoch of full-graph training, evaluations among them."""
    model = trial.model
    widths = [info.features, *[model.hidden] * (model.layers - 1), info.classes]
    dense = sum(a * b for a, b in pairwise(widths)) * info.nodes * 2
    sparse = sum(min(a, b) for a, b in pairwise(widths)) * info.edges * 2
    passes = 3 + (1 / trial.train.eval_every if trial.train.eval_every else 0)
    return passes * (dense + sparse)


def _seedless(trial: TrialConfig) -> str:
    return trial.model_copy(update={"seed": 0, "repeat": 0, "data": None}).id


def _kind(trial: TrialConfig) -> str:
    options = trial.method.options
    sizes = {key: options[key] for key in ("batch_size", "fanouts", "size") if key in options}
    return f"{trial.dataset} {trial.model} {trial.method.name} {sizes} {trial.partition.parts} {trial.device}"
