"""Values of a metric over the runs of a claim's cells, and the intervals that they are judged by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pandas as pd

from harness.metrics import Formula, Metric, find_metric
from harness.results import contrast
from harness.results.contrast import RISK, Contrast, difference_reach, mean_reach
from harness.results.stats import Interval, join_unique, text
from harness.suite.schema import TrialConfig
from harness.suite.select import Cell

By = Literal["ratio", "difference"]
Run = tuple[int, int]  # a seed, and which of its repeats


@dataclass(frozen=True)
class Measured:
    """A metric of the trials of one cell.

    By run: the values, when it began (seconds), and what the reference workload took before it (NaN: not measured).
    Runs of one seed count where the machine is in the values (times), else their mean. `lacking` says why there is no
    value, or, with values, what of the seeds is missing.
    """

    by_run: dict[Run, float]
    started: dict[Run, float]
    references: dict[Run, float]
    lacking: str = ""

    @cached_property
    def value(self) -> float | None:
        """The mean over runs."""
        return float(np.mean(list(self.by_run.values()))) if self.by_run else None


class Results:
    """Results of one suite, by trial."""

    def __init__(self, frame: pd.DataFrame) -> None:
        """Take one row a run of a trial."""
        self._trials: dict[str, list[dict[Any, Any]]] = {}
        for row in frame.to_dict("records"):
            self._trials.setdefault(row["trial"], []).append(row)

    def origin(self, trial: TrialConfig) -> str:
        """Return where a trial's data came from, "" if it was not run or does not say."""
        return text(self._trials.get(trial.id, [{}])[-1].get("origin"))

    def measure(self, formula: Formula, cell: Cell, timed: bool) -> Measured:
        """Return the metric of a cell's trials that ended well and have it; `timed`: each run of a seed counts."""
        found: dict[Run, float] = {}
        rows: dict[Run, dict[Any, Any]] = {}
        lacking: list[str] = []
        for trial in cell:
            runs = self._trials.get(trial.id, [])
            values = [self._value(formula, row) for row in runs]
            known = [(value, row) for value, row in zip(values, runs, strict=True) if not isinstance(value, str)]
            if not known:
                lacking.append(str(values[-1]) if values else "not run")
            elif timed:
                by_run = {(trial.seed, int(row.get("repeat") or 0)): (value, row) for value, row in known}
                found |= {run: value for run, (value, _) in by_run.items()}
                rows |= {run: row for run, (_, row) in by_run.items()}
            else:
                found[trial.seed, 0], rows[trial.seed, 0] = float(np.mean([v for v, _ in known])), known[0][1]
        why = join_unique(lacking)
        if found and lacking:
            why = f"{len(cell) - len(lacking)} of {len(cell)} seeds ({why})"
        started = {run: contrast.moment(row.get("started")) for run, row in rows.items()}
        references = {run: float(row.get("reference_s") or math.nan) for run, row in rows.items()}
        return Measured(found, started, references, why)

    @staticmethod
    def _value(formula: Formula, row: dict[Any, Any]) -> float | str:
        """Return the metric of a run, or why there is none."""
        if row["status"] != "ok":
            return f"{row['status']}: {reason}" if (reason := text(row["reason"])) else str(row["status"])
        if missing := formula.lacking(row):
            return f"has no {', '.join(missing)}"
        value = formula.value(row)
        return f"{' + '.join(formula.per)} is 0" if value is None else value


def same_runs(cells: Sequence[Measured]) -> list[Measured]:
    """Return the cells with the runs that all of them have, if they share any and not all."""
    common = set.intersection(*(set(cell.by_run) for cell in cells))
    if not common or all(set(cell.by_run) == common for cell in cells):
        return list(cells)
    return [replace(c, by_run={run: v for run, v in c.by_run.items() if run in common}) for c in cells]


@dataclass(frozen=True)
class Sureness:
    """How intervals of a claim's values are made.

    `metric`: stands for the claim's formula: whether it drifts with the machine, is exact, is a score; `risk`: of an
    interval that misses the truth, where there are several claims.
    """

    metric: Metric
    risk: float

    @classmethod
    def of(cls, formula: Formula, declared: Sequence[Metric], count: int) -> Sureness:
        """Return that of a formula, of which `count` values are held against one expectation."""
        above, below = ([find_metric(name, declared) for name in side] for side in (formula.columns, formula.per))
        timed = [any(metric.machine for metric in side) for side in (above, below)]
        rises = timed[1] or (timed[0] and above[0].better == "more")  # as the machine gets faster
        score = not below and above[0].difference
        return cls(
            Metric(
                "claimed",
                unit="fraction" if score else "",
                better="more" if rises or score else "less",
                machine=timed[0] != timed[1],
                exact=all(metric.exact for metric in (*above, *below)),
            ),
            RISK / max(1, count),
        )

    def interval(self, cell: Measured) -> Interval | None:
        """Return the interval of a cell's value over runs; None of one, unless it is exact."""
        values = list(cell.by_run.values())
        reach = 0.0 if self.metric.exact and len(values) == 1 else mean_reach(values, self.risk)
        if reach is None or cell.value is None:
            return None
        if self.metric.machine:  # at another time the machine may be faster or slower
            reach += contrast.DRIFT * abs(cell.value)
        return Interval(cell.value, cell.value - reach, cell.value + reach)

    def against(self, of: Measured, over: Measured, by: By) -> Interval | None:
        """Return the interval of two cells' ratio or difference about its value without drift; None if not known.

        Runs that both cells have go together.
        """
        runs = sorted(of.by_run)
        whole = against(of, over, by)
        if whole is None or over.value is None or of.value is None:
            return None
        if of.by_run.keys() != over.by_run.keys():
            return self._of_other_seeds(of, over, by, whole)
        a, b = (np.array([cell.by_run[run] for run in runs]) for cell in (over, of))
        positive = min(a.min(), b.min()) > 0
        unit = abs(over.value) if self.metric.machine and by == "difference" else 1.0
        if by == "difference":
            sizes = (b - a) / unit
        elif positive:  # of means: their ratio, and how far the pairs are from it
            sizes = math.log(whole) + b / of.value - a / over.value
        else:
            sizes = whole + (b - whole * a) / over.value
        middles = np.log([a, b]).mean(axis=0) if positive else None
        found = Contrast([self._pairs(sizes, over, of, middles)], self._kind(by, len(runs))).row(0, self.risk)
        if found.low is None or found.high is None:
            return None
        moved = [end - float(sizes.mean()) for end in (found.size, found.low, found.high)]
        if by == "ratio" and positive:
            return Interval(*(whole * math.exp(by_much) for by_much in moved))
        return Interval(*(whole + unit * by_much for by_much in moved))

    def _kind(self, by: By, count: int) -> Metric:
        """Return the metric as `Contrast` takes it: over several seeds nothing is exact, and ratios are no scores."""
        score = self.metric.difference and by == "difference"
        return replace(self.metric, exact=self.metric.exact and count == 1, unit="fraction" if score else "")

    def _pairs(self, sizes: np.ndarray, over: Measured, of: Measured, middles: np.ndarray | None) -> contrast.Pairs:
        runs = sorted(of.by_run)
        started, measured = (
            np.array([[getattr(cell, name)[run] for run in runs] for cell in (over, of)])
            for name in ("started", "references")
        )
        sign = -1 if self.metric.better == "more" else 1
        return contrast.Pairs(sizes, started, sign * np.log(measured), middles)

    def _of_other_seeds(self, of: Measured, over: Measured, by: By, whole: float) -> Interval | None:
        """Return the interval of independent samples; drift may be all of its bound."""
        scales = (over.value, of.value) if by == "ratio" else (1.0, 1.0)
        if not scales[0] or not scales[1]:
            return None
        a, b = (np.array(list(c.by_run.values())) / scale for c, scale in zip((over, of), scales, strict=True))
        reach = difference_reach(a, b, self.risk)
        if reach is None:
            return None
        bound = contrast.DRIFT if self.metric.machine else 0.0
        if by == "ratio" and whole > 0:
            return Interval(whole, whole * math.exp(-reach - bound), whole * math.exp(reach + bound))
        reach = abs(whole) * (reach + bound) if by == "ratio" else reach + bound * abs(over.value or 0.0)
        return Interval(whole, whole - reach, whole + reach)


def against(of: Measured, over: Measured, by: By) -> float | None:
    """Return the ratio or difference of two cells' values; None if a value is missing, or a divisor is 0."""
    if of.value is None or over.value is None:
        return None
    if by == "difference":
        return of.value - over.value
    return of.value / over.value if over.value else None
