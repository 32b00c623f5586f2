"""Who is best in a metric, and who cannot be told from that one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from harness.metrics import Metric
from harness.report.sections import Section, Variant
from harness.results.contrast import Pairs, against_best, moment, needed


class Against:
    """The best of some variants against each of the others, with intervals that hold for all of them together."""

    def __init__(self, section: Section, parts: int, column: str, best: Variant, others: Sequence[Variant]) -> None:
        metric = section.metric_of(column)
        cells = {v: cell for v in others if (cell := _pairs(section, parts, metric, best, v))}
        found, self.risk = against_best(list(cells.values()), metric, len(others))
        self.others = others
        self.unit = "run" if metric.machine and section.repeats is not None else "seed"
        self.best, self.metric, self.found = best, metric, dict(zip(cells, found, strict=True))

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


def _pairs(section: Section, parts: int, metric: Metric, best: Variant, other: Variant) -> Pairs | None:
    """Return the runs of seeds that two variants share; None if they share none, or a ratio cannot be taken.

    Runs of one seed are pairs where the machine is in the values (times), else their mean is one.
    """
    trials = section.runs_of if metric.machine else section.select
    a, b = (_runs(trials(variant, parts), metric) for variant in (best, other))
    shared = a.index.intersection(b.index)
    values = np.array([side.loc[shared, metric.name].to_numpy(dtype=np.float64) for side in (a, b)])
    if not metric.difference:
        shared = shared[keep := (values > 0).all(axis=0) | (values[0] == values[1])]
        values = values[:, keep]
    if not len(shared):
        return None
    started = np.array([[moment(when) for when in side.loc[shared, "started"]] for side in (a, b)])
    references = np.array([side.loc[shared, "reference_s"].to_numpy(dtype=np.float64) for side in (a, b)])
    return Pairs.of(metric, values, started, references)


def _runs(trials: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    """Return a metric of runs, when they began and their reference, by seed and repeat."""
    known = trials[trials[metric.name].notna()].sort_values("started", kind="stable")
    known = known.reindex(columns=["seed", "repeat", metric.name, "started", "reference_s"])
    if not metric.machine:
        first = known.groupby("seed").first()
        return first.assign(**{metric.name: known.groupby("seed")[metric.name].mean()})
    known = known.fillna({"repeat": 0})
    return known.assign(run=known.groupby(["seed", "repeat"]).cumcount()).set_index(["seed", "repeat", "run"])


def by_seed(section: Section, variant: Variant, parts: int, column: str) -> pd.Series[float]:
    """Return a metric of the trials of a variant, by seed, where it is there."""
    trials = section.select(variant, parts)
    return trials.set_index("seed")[column].dropna().groupby(level=0).mean()


def counted_units(count: int, unit: str) -> str:
    """Write a number of seeds or runs."""
    return f"one {unit}" if count == 1 else f"{count} {unit}s"
