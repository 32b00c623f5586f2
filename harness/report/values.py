"""Values of a section over seeds, by variant and number of parts, and which of them differ significantly."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Literal, TypeVar

import numpy as np
import pandas as pd

from harness.metrics import Metric
from harness.report.columns import MODEL, MODEL_SUFFIX
from harness.report.palette import PHASES, PURPOSES
from harness.report.sections import Section
from harness.report.variants import Variant
from harness.results.comparison import comparable
from harness.results.contrast import Drift, Estimate, Pairs, Run, all_pairs, needed
from harness.results.stats import Interval, Stat, numbers, over_seeds, significant

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
    "purpose": ("bytes_", "", tuple(PURPOSES)),
    "model": (MODEL, MODEL_SUFFIX, ()),
}
Component = Literal["phase", "purpose", "model"]


def component_columns(section: Section, kind: Component) -> dict[str, str]:
    """Return the columns of the components that any trial has some of, by name, in the usual order.

    Phases of an epoch (seconds), purposes of traffic, components of the memory model
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
    """A metric of all variants at a number of parts that have it, every two of them compared.

    `means` [variant]: over seeds; `order`: the best first.
    """

    def __init__(self, section: Section, parts: int, column: str, means: Mapping[Variant, float]) -> None:
        self.metric, self.means = section.metric_of(column), means
        self.doubt = math.log(section.doubt(parts, parts)) if self.metric.unit.startswith("s") else 0.0
        self.unit = "run" if self.metric.machine and section.repeats is not None else "seed"
        self.order = sorted(means, key=lambda variant: means[variant], reverse=self.metric.better == "more")
        trials = section.runs_of if self.metric.machine else section.select
        runs = {variant: _runs(trials(variant, parts), self.metric) for variant in self.order}
        cells = {(a, b): self._pairs(runs[a], runs[b]) for a, b in itertools.combinations(self.order, 2)}
        self.cells = {names: cell for names, cell in cells.items() if cell}

    @cached_property
    def found(self) -> dict[tuple[Variant, Variant], Estimate]:
        """How every two of them differ, the second as B; judged together."""
        return all_pairs(self.cells, self.metric)

    def _pairs(self, a: Runs, b: Runs) -> Pairs | None:
        """Return the runs of seeds that two variants share; None if they share none, or a ratio cannot be taken.

        Runs of one seed are pairs where the machine is in the values (times), else their mean is one.
        """
        shared = [key for key in a if key in b]
        shared = [key for key in shared if comparable(self.metric, a[key].value, b[key].value)]
        if not shared:
            return None
        values, started, references = (
            np.array([[run[i] for run in map(side.__getitem__, shared)] for side in (a, b)]) for i in range(3)
        )
        return Pairs.of(self.metric, values, started, references)

    def behind(self, one: Variant, other: Variant) -> bool:
        """Return whether a variant is significantly behind another, and its mean is, too.

        One without a run in common is if the metric is exact.
        """
        if self.order.index(one) < self.order.index(other) or self.means[one] == self.means[other]:
            return False
        found = self.found.get((other, one))
        if found and self.doubt and min(abs(found.low or 0.0), abs(found.high or 0.0)) < self.doubt:  # of a projection
            return False
        return found.sure and self.metric.worse(found.size) if found else self.metric.exact

    @cached_property
    def leaders(self) -> list[Variant]:
        """The variants that are behind no other: the set that contains the best, by their means."""
        return [one for one in self.order if not any(self.behind(one, other) for other in self.order)]

    def least(self, one: Variant) -> float | None:
        """Return by how much a variant is behind the best at least: a factor, or a difference; None if not known.

        The best is one of those that it is behind, or better. Never more than the means say.
        """
        pairs = (self.found.get((other, one)) for other in self.order if self.behind(one, other))
        ends = [min(abs(p.low), abs(p.high)) for p in pairs if p and p.low is not None and p.high is not None]
        if not ends:
            return None
        first, own = self.means[self.order[0]], self.means[one]
        if self.metric.difference:
            return min(max(ends), abs(first - own))
        return min(math.exp(max(ends)), max(own / first, first / own))

    def gap(self, one: Variant) -> str:
        """Write how far a variant is behind the first: of the means, and of pairs of runs with their interval."""
        first, found = self.order[0], self.found.get((self.order[0], one))
        if self.metric.difference:
            said, sign, units = 100 * abs(self.means[first] - self.means[one]), -100, " points below"
        else:
            said, sign, units = self.means[one] / self.means[first], 0, " times as long"
        text = f"{factor(said)}{units}"
        if found is None:
            return f"{text} (no seed in common)"
        count = counted_units(found.pairs, self.unit)
        if found.low is None or found.high is None or found.pairs == 1:
            return f"{text} ({count})"
        size, *ends = (sign * end if sign else math.exp(end) for end in (found.size, found.low, found.high))
        low, high = sorted(ends)
        if Interval(size, low, high).absurd:
            return f"{text} ({count}, which scatter too much for an interval)"
        paired = f"{factor(size)} {PAIRED[found.drift]}, "
        if factor(size) == factor(said) or not self.metric.worse(found.size):
            paired = ""
        return f"{text} ({paired}95 % interval [{factor(low)}, {factor(high)}], {count})"

    def sure(self) -> str:
        """Write which variants contain the best, which are behind it, and by how much at least."""
        first, *ties = self.leaders
        behind = {one: self.least(one) for one in self.order if one not in self.leaders}
        said = ""
        if ties:
            found = self.found.get((first, ties[0]))
            needs = f": {needed(found, self.metric, unit=self.unit)}" if found else ": no seed in common"
            said = f" Not significantly different from {listed([v.label for v in ties])}{needs}."
        if behind and not self.metric.exact:
            known = [least for least in behind.values() if least is not None]
            size, unit = (100, "points") if self.metric.difference else (1, "times")
            least = f", {factor(size * min(known))} {unit} or more" if known else ""
            said += (
                f" Significantly behind the best: {listed([v.label for v in behind]) if ties else 'all others'}{least}."
            )
        return said


PAIRED: dict[Drift, str] = {
    "none": "by pairs", "turns": "by pairs in turns", "reference": "corrected for drift", "unknown": "by pairs",
}  # fmt: skip


def factor(value: float) -> str:
    """Write a ratio, or points: two decimals, of large ones three digits."""
    return f"{value:.2f}" if abs(value) < 10 else significant(value)


def listed(names: Sequence[str]) -> str:
    """List names, of many the first."""
    shown = names if len(names) <= NAMED + 1 else [*names[:NAMED], f"{len(names) - NAMED} others"]
    return " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]]))


NAMED = 3  # variants that a sentence names


def standing(section: Section, name: str, parts: int) -> dict[Variant, tuple[int, tuple[int, ...]]]:
    """Return each variant's rank in a metric, and the better ranks that it is not significantly behind."""
    means = {variant: stat.mean for (variant, count), stat in values_of(section, name).items() if count == parts}
    found = Comparison(section, parts, name, means)
    places = list(dict.fromkeys(means[v] for v in found.order))
    ranks = {v: places.index(means[v]) for v in found.order}
    ahead = {v: [other for other in found.order if ranks[other] < own] for v, own in ranks.items()}
    return {v: (own, tuple(sorted({ranks[o] for o in ahead[v] if not found.behind(v, o)}))) for v, own in ranks.items()}


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
