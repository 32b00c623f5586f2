"""The numbers that a claim speaks of: a metric of the trials of a cell, with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pandas as pd

from harness.metrics import METRICS, Formula
from harness.results.stats import (
    Interval,
    Statistic,
    difference_interval,
    mean_interval,
    median_interval,
    ratio_interval,
)
from harness.results.store import timed_epochs
from harness.results.text import join_unique, text
from harness.suite.pairing import Cell
from harness.suite.schema import TrialConfig

By = Literal["ratio", "difference"]
# Figures that an epoch has, too: medians over epochs, or their inverse.
TIMED = ("step_time_s", *(name for name, metric in METRICS.items() if metric.by_epoch))


@dataclass(frozen=True)
class Measured:
    """A metric of the trials of one cell.

    `by_seed`: the trials' values; `epochs`: the values of the only trial's timed epochs where the metric has
    such, else empty. `lacking` says why there is no value, or, with values, what of the seeds is missing.
    """

    by_seed: dict[int, float]
    epochs: np.ndarray = field(default_factory=lambda: np.empty(0))
    lacking: str = ""

    @cached_property
    def value(self) -> float | None:
        """The mean over seeds."""
        return float(np.mean(list(self.by_seed.values()))) if self.by_seed else None


class Results:
    """Results of one suite, by trial."""

    def __init__(self, frame: pd.DataFrame, epochs: pd.DataFrame) -> None:
        """Take one row a trial, and one an epoch and rank; of a trial's several rows the last counts."""
        self._trials: dict[str, dict[Any, Any]] = {row["trial"]: row for row in frame.to_dict("records")}
        self._epochs = dict(iter(epochs.groupby("trial")))

    def origin(self, trial: TrialConfig) -> str:
        """Return where a trial's data came from, "" if it was not run or does not say."""
        return text(self._trials.get(trial.id, {}).get("origin"))

    def measure(self, formula: Formula, cell: Cell) -> Measured:
        """Return the metric of a cell's trials that ended well and have it."""
        found: dict[int, float] = {}
        lacking: list[str] = []
        for trial in cell:
            value = self._value(formula, trial.id)
            if isinstance(value, str):
                lacking.append(value)
            else:
                found[trial.seed] = value
        why = join_unique(lacking)
        if found and lacking:
            why = f"{len(found)} of {len(cell)} seeds ({why})"
        if len(found) != 1:
            return Measured(found, lacking=why)
        [id_] = [trial.id for trial in cell if trial.seed in found]
        return Measured(found, self._over_epochs(formula, id_), why)

    def _value(self, formula: Formula, trial: str) -> float | str:
        """Return the metric of a trial, or why there is none."""
        row = self._trials.get(trial)
        if row is None:
            return "not run"
        if row["status"] != "ok":
            return f"{row['status']}: {reason}" if (reason := text(row["reason"])) else str(row["status"])
        if missing := formula.lacking(row):
            return f"has no {', '.join(missing)}"
        value = formula.value(row)
        return f"{' + '.join(formula.per)} is 0" if value is None else value

    def _over_epochs(self, formula: Formula, trial: str) -> np.ndarray:
        """Return the metric of a trial's timed epochs [epochs], none if it is no metric of an epoch."""
        [name, *more] = formula.columns
        row = self._trials[trial]
        count = float(row.get("timed_epochs", math.nan))
        if more or formula.per or name not in TIMED or trial not in self._epochs or math.isnan(count):
            return np.empty(0)
        timed = timed_epochs(self._epochs[trial], int(count))
        times = timed["epoch_time_s"].to_numpy(dtype=np.float64)
        if name == "step_time_s":
            times = times / timed["steps"].to_numpy(dtype=np.float64)
        elif name != "epoch_time_s":  # a throughput: a number of things / epoch time
            times = row[name] * row["epoch_time_s"] / times
        return times


def same_seeds(cells: Sequence[Measured]) -> list[Measured]:
    """Return the cells with the seeds that all of them have, if they share any and not all."""
    common = set.intersection(*(set(cell.by_seed) for cell in cells))
    if not common or all(set(cell.by_seed) == common for cell in cells):
        return list(cells)
    return [Measured({s: v for s, v in c.by_seed.items() if s in common}, c.epochs, c.lacking) for c in cells]


def interval_of(cell: Measured) -> Interval | None:
    """Return the 95 % interval of a cell's value: over seeds, else over epochs; None of one number."""
    if len(cell.by_seed) > 1:
        return mean_interval(list(cell.by_seed.values()))
    return median_interval(cell.epochs) if len(cell.epochs) > 1 else None


def interval_against(of: Measured, over: Measured, by: By) -> Interval | None:
    """Return the 95 % interval of two cells' ratio or difference, as `interval_of`.

    Seeds that both cells have are resampled together.
    """
    interval = ratio_interval if by == "ratio" else difference_interval
    if len(of.by_seed) > 1 and len(over.by_seed) > 1:
        paired = of.by_seed.keys() == over.by_seed.keys()
        seeds = sorted(of.by_seed), sorted(over.by_seed)
        samples = [[c.by_seed[s] for s in own] for c, own in zip((of, over), seeds, strict=True)]
        statistic: Statistic = "mean"
    elif len(of.epochs) > 1 and len(over.epochs) > 1:
        samples, paired, statistic = [list(of.epochs), list(over.epochs)], False, "median"
    else:
        return None
    return interval(*samples, paired=paired, statistic=statistic)


def against(of: Measured, over: Measured, by: By) -> float | None:
    """Return the ratio or difference of two cells' values; None if a value is missing, or a divisor is 0."""
    if of.value is None or over.value is None:
        return None
    if by == "difference":
        return of.value - over.value
    return of.value / over.value if over.value else None
