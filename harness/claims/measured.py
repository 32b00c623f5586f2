"""What claims are judged by: the values of a metric that the runs of a cell's trials have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from harness.metrics import Formula
from harness.results import contrast
from harness.results.stats import join_unique, text
from harness.suite.schema import TrialConfig
from harness.suite.select import Cell

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
