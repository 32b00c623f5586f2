"""Values of a section over seeds, by variant and number of parts, and which of them differ significantly."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, TypeVar

import numpy as np
import pandas as pd

from harness.metrics import SUMS, Metric
from harness.report.columns import MODEL, MODEL_SUFFIX
from harness.report.palette import PHASES, PURPOSES
from harness.report.sections import Section
from harness.report.variants import Variant
from harness.results.contrast import Pairs, Run, against_best, needed
from harness.results.stats import Stat, numbers, over_seeds

Values = dict[tuple[Variant, int], Stat]


def values_of(section: Section, column: str) -> Values:
    """Return the statistics over seeds of a column, for each variant and number of parts that has any."""
    if column not in section.ok:
        return {}
    values = numbers(section.ok[column])
    return {cell: stat for cell, rows in section.cells.items() if (stat := over_seeds(values[rows]))}


def named_columns(section: Section, prefix: str, suffix: str) -> dict[str, str]:
    """Return the columns `prefix<name>suffix` with any figure, by name, as they come."""
    return {
        column[len(prefix) : len(column) - len(suffix)]: column
        for column in section.ok.columns
        if column.startswith(prefix) and column.endswith(suffix) and section.ok[column].notna().any()
    }


def numbered(section: Section, prefix: str, suffix: str = "") -> list[Values]:
    """Return the statistics of the columns `prefix<number>suffix` with any figure, by rising number."""
    found = named_columns(section, prefix, suffix)
    return [values_of(section, found[number]) for number in sorted(found, key=int)]


# Prefix and suffix of the columns of each kind of component, and the usual order of their names (() as they come).
_COMPONENTS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "phase": ("time_", "_s", tuple(PHASES)),
    "sum": ("sum_", "_s", tuple(SUMS)),
    "purpose": ("bytes_", "", tuple(PURPOSES)),
    "model": (MODEL, MODEL_SUFFIX, ()),
}
Component = Literal["phase", "sum", "purpose", "model"]


def component_columns(section: Section, kind: Component) -> dict[str, str]:
    """Return the columns of the components that any trial has some of, by name, in the usual order.

    Phases of an epoch and the papers' sums of them (seconds), purposes of traffic, components of the memory model
    (bytes). Names that are not known (of a method of a user's) come before the last known one.
    """
    prefix, suffix, known = _COMPONENTS[kind]
    there = named_columns(section, prefix, suffix)
    there = {name: column for name, column in there.items() if (section.ok[column].fillna(0) != 0).any()}
    if not known:
        return there
    there = {name: column for name, column in there.items() if not name.startswith("to_target")}  # no phases
    names = [*known[:-1], *sorted(there.keys() - set(known)), known[-1]]
    return {name: there[name] for name in names if name in there}


def components(section: Section, kind: Component) -> dict[str, Values]:
    """Return the statistics of `component_columns` by name."""
    return {name: values_of(section, column) for name, column in component_columns(section, kind).items()}


Key = TypeVar("Key")


def totals(values: Mapping[str, Mapping[Key, Stat]]) -> dict[Key, float]:
    """Return the sum of the components that are there, for each variant and number of parts, say."""
    totals: dict[Key, float] = {}
    for found in values.values():
        for key, stat in found.items():
            totals[key] = totals.get(key, 0.0) + stat.mean
    return totals


def largest_total(values: dict[str, Values]) -> float | None:
    """Return the largest sum of components, None if there is none."""
    return max(totals(values).values(), default=None)


Runs = dict[tuple[int, ...], Run]
"""Runs of a variant by seed, repeat and number of the run; the mean of a seed's by seed."""


class Comparison:
    """A metric of all variants at a number of parts, any of which may be compared with others."""

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

    def __init__(self, comparison: Comparison, best: Variant, others: Sequence[Variant], among: int) -> None:
        cells = {v: cell for v in others if (cell := comparison.pairs(best, v))}
        found, self.risk = against_best(list(cells.values()), comparison.metric, among)
        self.others, self.unit = others, comparison.unit
        self.best, self.metric, self.found = best, comparison.metric, dict(zip(cells, found, strict=True))

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
        return f"95 % interval [{low:.2f}, {high:.2f}] over {counted_units(found.pairs, self.unit)}"

    def ties(self) -> str:
        """Name what does not differ significantly from the best, and what would show it; "" if all does."""
        tied = [v for v in self.others if not self.behind(v)]
        if not tied:
            return ""
        first = self.found.get(tied[0])
        others = f" and {len(tied) - 1} other{'s' * (len(tied) > 2)}" if len(tied) > 1 else ""
        needs = needed(first, self.metric, self.risk, unit=self.unit) if first else "no seed in common"
        return f" Not significantly different from {tied[0].label}{others}: {needs}."

    def behind(self, other: Variant) -> bool:
        """Return whether a variant is significantly behind; one without a pair is if the metric is exact."""
        found = self.found.get(other)
        return found.sure and self.metric.worse(found.size) if found else self.metric.exact


def standing(section: Section, name: str, parts: int) -> dict[Variant, tuple[int, tuple[int, ...]]]:
    """Return each variant's rank in a metric, and the better ranks from which it does not differ significantly."""
    means = {variant: stat.mean for (variant, count), stat in values_of(section, name).items() if count == parts}
    comparison, more = Comparison(section, parts, name), section.metric_of(name).better == "more"
    order = sorted(means, key=lambda v: -means[v] if more else means[v])
    places = list(dict.fromkeys(means[v] for v in order))
    ties: dict[Variant, list[int]] = {v: [] for v in order}
    for rank, mean in enumerate(places):
        best = next(v for v in order if means[v] == mean)
        if others := [v for v in order if places.index(means[v]) > rank]:
            found = comparison.against(best, others, len(order) - 1)
            for other in others:
                if not found.behind(other):
                    ties[other].append(rank)
    return {v: (places.index(means[v]), tuple(own)) for v, own in ties.items()}


def _runs(trials: pd.DataFrame, metric: Metric) -> Runs:
    """Return the runs that have a value, the first one first."""
    known = trials[trials[metric.name].notna()].sort_values("started", kind="stable")
    known = known.reindex(columns=["seed", "repeat", metric.name, "started", "reference_s"])
    found: dict[tuple[int, ...], list[Run]] = {}
    for seed, repeat, *run in known.fillna({"repeat": 0}).itertuples(index=False, name=None):
        value, started, reference = run
        key = (int(seed), int(repeat)) if metric.machine else (int(seed),)
        found.setdefault(key, []).append(Run.of(float(value), started, reference))
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
