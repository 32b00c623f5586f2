"""Claims: whether results show what their suite says that they do."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from harness.claims.text import By, compares, differences, expectation, number, span, unit_of, with_interval
from harness.errors import UserError
from harness.metrics import METRICS, Formula, Metric
from harness.results.frames import load_inputs
from harness.results.record import flatten
from harness.results.stats import Interval, difference_interval, mean_interval, median_interval, ratio_interval
from harness.results.store import KeptSuite, kept, kept_suites, timed_epochs
from harness.results.text import join_unique, text
from harness.suite.schema import Claim, Expect, TrialConfig
from harness.suite.select import Cell, Row, pairs_of

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
        samples = [[cell.by_seed[seed] for seed in sorted(cell.by_seed)] for cell in (of, over)]
        return interval(*samples, paired=paired, statistic="mean")
    if len(of.epochs) > 1 and len(over.epochs) > 1:
        return interval(of.epochs, over.epochs, paired=False)
    return None


def against(of: Measured, over: Measured, by: By) -> float | None:
    """Return the ratio or difference of two cells' values; None if a value is missing, or a divisor is 0."""
    if of.value is None or over.value is None:
        return None
    if by == "difference":
        return of.value - over.value
    return of.value / over.value if over.value else None


State = Literal["holds", "fails", "not measured"]
TWIN = "twin"  # as data set, and as origin of a record's data


@dataclass(frozen=True)
class Finding:
    """One trial, pair or order that a claim speaks of.

    `label`: what sets it apart from the claim's others; `values`: of its cells, None where not measured; `value`:
    what is held against the expectation (None: not measured, or an order), with its 95 % interval; `shown`: these
    as text. `sure`: whether the interval is all on one side of what is expected; None without an interval.
    """

    label: str
    values: tuple[float | None, ...]
    value: float | None
    interval: Interval | None
    shown: str
    state: State
    why: str = ""
    sure: bool | None = None


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds: it fails if one of its rows does, and holds if some are measured and none fails.

    `expected`, `measured`: as text; `why`: what a reader must know of a verdict, "" if nothing; `twin`: some of it
    was (or is to be) measured on a generated twin of a data set: it says nothing of a paper's absolute numbers.
    """

    claim: Claim
    expected: str
    measured: str
    rows: tuple[Finding, ...]
    state: State
    why: str
    twin: bool


def evaluate(
    claims: Sequence[Claim],
    frame: pd.DataFrame,
    epochs: pd.DataFrame,
    trials: Sequence[TrialConfig],
    declared: Sequence[Metric] = (),
) -> list[Verdict]:
    """Hold a suite's claims against results and return a verdict for each, in their order.

    `frame`: one row a trial, as `load_results` returns it; trials that are not the suite's are not read. `epochs`: one
    row an epoch and rank, as `load_epochs`. `trials`: all of the suite, run or not. `declared`: the metrics that
    methods declare. A trial's seeds are repetitions: values are means over those that ended well, intervals are over
    them, or over epochs where a time has one seed only.
    """
    results = Results(frame, epochs)
    return [_verdict(claim, results, trials, unit_of(claim, declared)) for claim in claims]


def _verdict(claim: Claim, results: Results, trials: Sequence[TrialConfig], unit: str) -> Verdict:
    try:
        pairs = list(pairs_of(claim, trials))
    except UserError as error:
        why = f"{error.key}: {error.message}"
        twin = all(trial.dataset.name == TWIN for trial in trials)
        return Verdict(claim, expectation(claim, unit), "", (), "not measured", why, twin)
    labels = differences([flatten(cell[0].model_dump(mode="json")) for cell, _ in pairs])
    named = zip(pairs, labels, strict=True)
    rows = tuple(replace(_finding(claim, row, results, unit), label=label) for (_, row), label in named)
    states = {row.state for row in rows}
    state: State = "fails" if "fails" in states else "holds" if "holds" in states else "not measured"
    twin = any(TWIN in (trial.dataset.name, results.origin(trial)) for cell, _ in pairs for trial in cell)
    return Verdict(claim, expectation(claim, unit), _summary(claim, rows, unit), rows, state, _why(rows, state), twin)


def _finding(claim: Claim, row: Row | UserError, results: Results, unit: str) -> Finding:
    """Measure one row and hold it against the expectation."""
    if isinstance(row, UserError):
        return Finding("", (), None, None, "", "not measured", row.message)
    metric = Formula.parse(claim.metric)
    cells = same_seeds([results.measure(metric, cell) for cell in row])
    lacking = join_unique(cell.lacking for cell in cells)
    values = tuple(cell.value for cell in cells)
    if claim.expect.order is not None:
        return _ordered(claim, cells, lacking, unit)
    by = compares(claim)
    value = values[0] if by is None else against(cells[0], cells[1], by)
    if value is None:
        why = lacking if None in values else "what it is compared with is 0"
        return Finding("", values, None, None, "", "not measured", why)
    interval = interval_of(cells[0]) if by is None else interval_against(cells[0], cells[1], by)
    low, high = _bounds(claim.expect)
    shown = with_interval(value, interval, unit, (low, high))
    state: State = "holds" if low <= value <= high else "fails"
    return Finding("", values, value, interval, shown, state, lacking, _sure(interval, low, high))


def _bounds(expect: Expect) -> tuple[float, float]:
    """Return the least and the largest value that an expectation allows."""
    if expect.between is not None:
        return expect.between
    low = float("-inf") if expect.at_least is None else expect.at_least
    return low, float("inf") if expect.at_most is None else expect.at_most


def _sure(interval: Interval | None, low: float, high: float) -> bool | None:
    """Return whether an interval is all inside or all outside of the bounds."""
    if interval is None:
        return None
    inside = low <= interval.low and interval.high <= high
    return inside or interval.high < low or interval.low > high


def _ordered(claim: Claim, cells: Sequence[Measured], lacking: str, unit: str) -> Finding:
    """Hold every step of an order against its direction; a step with an end missing is not measured."""
    rises, slack = claim.expect.direction == "increasing", claim.expect.tolerance or 0.0
    low, high = (1 - slack, float("inf")) if rises else (float("-inf"), 1 + slack)
    right: list[bool] = []
    sure: list[bool | None] = []
    for before, after in itertools.pairwise(cells):
        if before.value is not None and after.value is not None:
            room = slack * abs(before.value)
            right.append(after.value >= before.value - room if rises else after.value <= before.value + room)
            sure.append(_sure(interval_against(after, before, "ratio"), low, high))
    values = tuple(cell.value for cell in cells)
    state: State = "fails" if not all(right) else "holds" if len(right) == len(cells) - 1 else "not measured"
    shown = ", ".join("?" if value is None else number(value, unit) for value in values)
    known = None if None in sure or not sure else all(sure)
    return Finding("", values, None, None, shown if right else "", state, lacking, known)


def _summary(claim: Claim, rows: Sequence[Finding], unit: str) -> str:
    """Write what was measured: the one row, or the range of several and how many hold."""
    measured = [row for row in rows if row.state != "not measured"]
    if len(measured) < 2:
        return measured[0].shown if measured else ""
    holding = sum(row.state == "holds" for row in measured)
    count = f"{holding} of {len(measured)} hold"
    values = [row.value for row in measured if row.value is not None]
    if not values:
        return count
    bounds = _bounds(claim.expect)
    low, high = min(values), max(values)
    alike = number(low, unit, bounds) == number(high, unit, bounds)
    return f"{number(low, unit, bounds) if alike else span(low, high, unit, bounds)} ({count})"


def _why(rows: Sequence[Finding], state: State) -> str:
    """Say what limits a verdict: rows that are missing, seeds that are, and intervals that reach too far."""
    missing = [row for row in rows if row.state == "not measured"]
    reasons = join_unique(row.why for row in missing)
    if state == "not measured":
        return reasons
    measured = [row for row in rows if row.state != "not measured"]
    deciding = [row for row in measured if row.state == state]
    limits = []
    if unsure := sum(row.sure is False for row in deciding):
        of = "the interval" if len(measured) == 1 else f"the interval of {unsure} of {len(deciding)}"
        limits.append(f"not sure: {of} reaches past the bound")
    if missing:
        limits.append(f"{len(missing)} of {len(rows)} not measured: {reasons}")
    if short := join_unique(row.why for row in measured):
        limits.append(short)
    return "; ".join(limits)


@dataclass(frozen=True)
class Judged:
    """A suite's claims and what its results make of them.

    `file`: the suite file's name, if known; `trials`, `finished`: how many trials the suite has, and how many
    of them have a record; `others`: records under its name that are none of its trials (another version of
    the suite, or overrides).
    """

    suite: str
    file: str | None
    verdicts: tuple[Verdict, ...]
    trials: int
    finished: int
    others: int


def judge(
    results: pd.DataFrame, epochs: pd.DataFrame, suites: Mapping[str, KeptSuite], declared: Sequence[Metric] = ()
) -> list[Judged]:
    """Evaluate the claims of suites on results (frames as of `load_results`, `load_epochs`, with what methods declare).

    Suites without claims, and without a record, are left out.
    """
    judged = []
    for name, suite in sorted(suites.items()):
        own = results[results["suite"] == name]
        if suite.claims and len(own):
            verdicts = evaluate(suite.claims, own, epochs[epochs["suite"] == name], suite.trials, declared)
            ids, known = {trial.id for trial in suite.trials}, set(own["trial"])
            counts = len(ids), len(ids & known), len(known - ids)
            judged.append(Judged(suite.name, suite.file, tuple(verdicts), *counts))
    return judged


def judge_directories(directories: Sequence[Path], suites: Iterable[KeptSuite] = ()) -> list[Judged]:
    """Evaluate the claims of what was run, each suite as it is kept beside its results.

    `directories`: of results, of suites in them, or of trials; `suites`: to hold the results against in place of those
    kept. UserError if a directory is missing or holds no trial, or a record or `suite.json` is damaged.
    """
    inputs = load_inputs(directories)
    given = {suite.name: suite for suite in suites}
    return judge(inputs.results, inputs.epochs, given or kept_suites(inputs.directories), inputs.declared)


def suite_of(file: Path, results: Sequence[Path], data_dir: Path | None = None) -> KeptSuite:
    """Return the suite of a file with the trials that it has on the device that the results are of.

    UserError if there is a mistake in the suite, or no record under its name.
    """
    from harness.suite.expand import expand
    from harness.suite.load import load_suite

    suite = load_suite(file)
    frame = load_inputs(results).results
    devices = frame.loc[frame["suite"] == suite.name, "device"].unique()
    if not len(devices):
        there = ", ".join(sorted(frame["suite"].unique())) or "none"
        raise UserError(f"no results of suite '{suite.name}'", file=file, fix=f"suites there: {there}")
    trials = [trial for device in devices for trial in expand(suite, device=str(device), data_dir=data_dir)]
    return kept(suite, trials)
