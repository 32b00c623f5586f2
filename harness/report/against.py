"""Who is best in a metric, and who cannot be told from that one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from harness.metrics import Metric
from harness.report.sections import Section
from harness.report.variants import Variant
from harness.results.contrast import Pairs, against_best, moment, needed


class _Run(NamedTuple):
    """A metric of a run, when it began, and what the reference workload took before it; seconds, NaN: not known."""

    value: float
    started: float
    reference: float


Runs = dict[tuple[int, ...], _Run]
"""Runs of a variant by seed, repeat and number of the run; the mean of a seed's by seed."""


class Field:
    """A metric of all variants at a number of parts, of which any may be held against others."""

    def __init__(self, section: Section, parts: int, column: str) -> None:
        self.metric = section.metric_of(column)
        self.unit = "run" if self.metric.machine and section.repeats is not None else "seed"
        self._section, self._parts = section, parts
        self._known: dict[Variant, Runs] = {}

    def against(self, best: Variant, others: Sequence[Variant], among: int | None = None) -> Against:
        """Return how one variant compares with others; `among`: how many others there are, if not these alone."""
        return Against(self, best, others, len(others) if among is None else among)

    def pairs(self, best: Variant, other: Variant) -> Pairs | None:
        """Return the runs of seeds that two variants share; None if they share none, or a ratio cannot be taken.

        Runs of one seed are pairs where the machine is in the values (times), else their mean is one.
        """
        a, b = self._runs(best), self._runs(other)
        shared = [key for key in a if key in b]
        if not self.metric.difference:
            shared = [key for key in shared if min(a[key].value, b[key].value) > 0 or a[key].value == b[key].value]
        if not shared:
            return None
        values, started, references = (
            np.array([[run[i] for run in map(side.__getitem__, shared)] for side in (a, b)]) for i in range(3)
        )
        return Pairs.of(self.metric, values, started, references)

    def _runs(self, variant: Variant) -> Runs:
        if variant not in self._known:
            section = self._section
            trials = (section.runs_of if self.metric.machine else section.select)(variant, self._parts)
            self._known[variant] = _runs(trials, self.metric)
        return self._known[variant]


class Against:
    """The best of some variants against each of the others, with intervals that hold for all of them together."""

    def __init__(self, field: Field, best: Variant, others: Sequence[Variant], among: int) -> None:
        cells = {v: cell for v in others if (cell := field.pairs(best, v))}
        found, self.risk = against_best(list(cells.values()), field.metric, among)
        self.others, self.unit = others, field.unit
        self.best, self.metric, self.found = best, field.metric, dict(zip(cells, found, strict=True))

    def ratio(self, other: Variant, means: Mapping[Variant, float]) -> float:
        """Return the metric of a variant over the best's: their geometric mean over seeds, without drift.

        That of the `means` where no seed is in common.
        """
        return math.exp(self.found[other].size) if other in self.found else means[other] / means[self.best]

    def interval(self, other: Variant) -> str:
        """Write the interval of a ratio, or of a difference in points."""
        found = self.found.get(other)
        if found is None or found.low is None or found.high is None:
            return f"of one {self.unit}" if found else "of no seed in common"
        if self.metric.difference:
            low, high = -100 * found.high, -100 * found.low
        else:
            low, high = math.exp(found.low), math.exp(found.high)
        return f"95 % interval {low:.2f} to {high:.2f} over {counted_units(found.pairs, self.unit)}"

    def ties(self) -> str:
        """Say what the best cannot be told from, and what it takes; "" if it is the best beyond doubt."""
        tied = [v for v in self.others if not self.behind(v)]
        if not tied:
            return ""
        first = self.found.get(tied[0])
        others = f" and {len(tied) - 1} more" if len(tied) > 1 else ""
        needs = needed(first, self.metric, self.risk, unit=self.unit) if first else "no seed in common"
        return f" Cannot be told from {tied[0].label}{others}: {needs}."

    def behind(self, other: Variant) -> bool:
        """Return whether a variant is surely behind; one without a pair is if the metric is exact."""
        found = self.found.get(other)
        return found.sure and self.metric.worse(found.size) if found else self.metric.exact


def _runs(trials: pd.DataFrame, metric: Metric) -> Runs:
    """Return the runs that have a value, the first one first."""
    known = trials[trials[metric.name].notna()].sort_values("started", kind="stable")
    known = known.reindex(columns=["seed", "repeat", metric.name, "started", "reference_s"])
    found: dict[tuple[int, ...], list[_Run]] = {}
    for seed, repeat, *run in known.fillna({"repeat": 0}).itertuples(index=False, name=None):
        value, started, reference = run
        key = (int(seed), int(repeat)) if metric.machine else (int(seed),)
        found.setdefault(key, []).append(_Run(float(value), moment(started), float(reference)))
    if metric.machine:
        return {(*key, i): run for key, own in found.items() for i, run in enumerate(own)}
    return {key: own[0]._replace(value=float(np.mean([run.value for run in own]))) for key, own in found.items()}


def by_seed(section: Section, variant: Variant, parts: int, column: str) -> pd.Series[float]:
    """Return a metric of the trials of a variant, by seed, where it is there."""
    trials = section.select(variant, parts)
    return trials.set_index("seed")[column].dropna().groupby(level=0).mean()


def counted_units(count: int, unit: str) -> str:
    """Write a number of seeds or runs."""
    return f"one {unit}" if count == 1 else f"{count} {unit}s"
