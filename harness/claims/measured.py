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
from harness.results.contrast import DRIFT, RISK, Contrast, Pairs, Run, mean_reach
from harness.results.stats import Interval, join_unique, text
from harness.suite.schema import TrialConfig
from harness.suite.select import Cell

By = Literal["ratio", "difference"]


@dataclass(frozen=True)
class Measured:
    """A metric of the trials of one cell.

    `runs`: by seed and repeat. Runs of one seed count where the machine is in the values (times), else their mean.
    `lacking` says why there is no value, or, with values, which seeds have none.
    """

    runs: dict[tuple[int, int], Run]
    lacking: str = ""

    @cached_property
    def value(self) -> float | None:
        """The mean over runs."""
        return float(np.mean(self.values)) if self.runs else None

    @property
    def values(self) -> list[float]:
        """The values of the runs."""
        return [run.value for run in self.runs.values()]


class Results:
    """Results of one suite, by trial."""

    def __init__(self, frame: pd.DataFrame) -> None:
        """Take one row a run of a trial."""
        self._trials: dict[str, list[dict[Any, Any]]] = {}
        for row in frame.to_dict("records"):
            self._trials.setdefault(row["trial"], []).append(row)

    def origin(self, trial: TrialConfig) -> str:
        """Return the origin of a trial's data, "" if it was not run or does not say."""
        return text(self._trials.get(trial.id, [{}])[-1].get("origin"))

    def measure(self, formula: Formula, cell: Cell, timed: bool) -> Measured:
        """Return the metric of a cell's trials that ended well and have it; `timed`: each run of a seed counts."""
        runs: dict[tuple[int, int], Run] = {}
        lacking: list[str] = []
        for trial in cell:
            reason, known = "not run", dict[int, Run]()
            for row in self._trials.get(trial.id, []):
                if row["status"] != "ok":
                    reason = ": ".join(filter(None, (row["status"], text(row["reason"]))))
                elif missing := formula.lacking(row):
                    unreached = all("to_target" in name for name in missing)
                    reason = "does not reach the target" if unreached else f"has no {', '.join(missing)}"
                elif (value := formula.value(row)) is None:
                    reason = f"{' + '.join(formula.per)} is 0"
                else:
                    number = int(row.get("repeat") or 0) if timed else len(known)
                    known[number] = Run.of(value, row.get("started"), row.get("reference_s"))
            if not known:
                lacking.append(reason)
            elif timed:
                runs |= {(trial.seed, number): run for number, run in known.items()}
            else:
                runs[trial.seed, 0] = known[0]._replace(value=float(np.mean([run.value for run in known.values()])))
        why = join_unique(lacking)
        if runs and lacking:
            why = f"{len(cell) - len(lacking)} of {len(cell)} seeds count; of the others: {why}"
        return Measured(runs, why)


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
        reach = 0.0 if self.metric.exact and len(cell.runs) == 1 else mean_reach(cell.values, self.risk)
        if reach is None or cell.value is None:
            return None
        if self.metric.machine:  # at another time the machine may be faster or slower
            reach += DRIFT * abs(cell.value)
        return Interval(cell.value, cell.value - reach, cell.value + reach)

    def against(self, of: Measured, over: Measured, by: By) -> Interval | None:
        """Return the interval of two cells' ratio or difference about its value without drift; None if not known.

        Runs that both cells have go together.
        """
        whole = against(of, over, by)
        if whole is None or over.value is None or of.value is None:
            return None
        if of.runs.keys() != over.runs.keys():
            return self._of_other_seeds(of, over, by, whole)
        runs = np.array([[cell.runs[key] for key in sorted(of.runs)] for cell in (over, of)])
        a, b = values = runs[..., 0]
        positive = bool(values.min() > 0)
        unit = abs(over.value) if self.metric.machine and by == "difference" else 1.0
        if by == "difference":
            sizes = (b - a) / unit
        elif positive:  # of means: their ratio, and how far the pairs are from it
            sizes = math.log(whole) + b / of.value - a / over.value
        else:
            sizes = whole + (b - whole * a) / over.value
        middles = np.log(values).mean(axis=0) if positive else None
        references = np.log(runs[..., 2]) * (-1 if self.metric.better == "more" else 1)
        # Over several seeds nothing is exact, and ratios are no scores.
        score = self.metric.difference and by == "difference"
        kind = replace(self.metric, exact=self.metric.exact and len(a) == 1, unit="fraction" if score else "")
        found = Contrast([Pairs(sizes, runs[..., 1], references, middles)], kind).row(0, self.risk)
        if found.low is None or found.high is None:
            return None
        moved = [end - float(sizes.mean()) for end in (found.size, found.low, found.high)]
        if by == "ratio" and positive:
            return Interval(*(whole * math.exp(by_much) for by_much in moved))
        return Interval(*(whole + unit * by_much for by_much in moved))

    def _of_other_seeds(self, of: Measured, over: Measured, by: By, whole: float) -> Interval | None:
        """Return the interval of independent samples; drift may be all of its bound."""
        if by == "ratio" and not of.value:
            return None
        a, b = (np.array(cell.values) / ((cell.value or 1.0) if by == "ratio" else 1.0) for cell in (over, of))
        reach = mean_reach(a, self.risk, less=b)
        if reach is None:
            return None
        bound = DRIFT if self.metric.machine else 0.0
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
