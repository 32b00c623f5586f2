"""Does a claim hold? Its pairs measured, one by one, and the verdict over them; of all suites of results."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast

import pandas as pd

from harness.claims.text import compares, differences, expectation, number, span, unit_of, with_interval
from harness.claims.values import By, Measured, Results, against, interval_against, interval_of, same_seeds
from harness.errors import UserError
from harness.metrics import Formula, Metric
from harness.results.frames import load_inputs
from harness.results.record import flatten
from harness.results.stats import Interval
from harness.results.suite_file import KeptSuite, kept, kept_suites
from harness.results.text import join_unique
from harness.suite.pairing import Cell, Row, pairs_of
from harness.suite.schema import Claim, Expect, TrialConfig

State = Literal["holds", "fails", "not measured"]
TWIN = "twin"  # as data set, and as origin of a record's data


@dataclass(frozen=True)
class Finding:
    """One trial, pair or order that a claim speaks of.

    `label`: what sets it apart from the claim's others; `values`: of its cells, None where not measured;
    `value`: what is held against the expectation (None: not measured, or an order), with its 95 % interval;
    `shown`: these as text. `sure`: whether the interval is all on one side of what is expected; None without
    an interval.
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

    `expected`, `measured`: as text; `why`: what a reader must know of a verdict, "" if nothing; `twin`: some
    of it was (or is to be) measured on a generated twin of a data set, so that it says nothing of a paper's
    absolute numbers.
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
    """Hold claims against results.

    Args:
        claims: of a suite.
        frame: one row a trial, as `load_results` returns it; trials that are not the suite's are not read.
        epochs: one row an epoch and rank, as `load_epochs`.
        trials: all trials of the suite, run or not.
        declared: the metrics that methods declare.

    Returns:
        A verdict for each claim, in their order. A trial's seeds are repetitions: values are means over those
        that ended well, intervals are over them, or over epochs where a time has one seed only.
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
    rows = tuple(
        replace(_finding(claim, row, results, unit), label=label) for (_, row), label in zip(pairs, labels, strict=True)
    )
    states = {row.state for row in rows}
    state: State = "fails" if "fails" in states else "holds" if "holds" in states else "not measured"
    twin = any(_on_twin(cell, results) for cell, _ in pairs)
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
    how = compares(claim)
    if how is None:
        value, interval = values[0], interval_of(cells[0])
    else:
        by = cast(By, how)
        value = against(cells[0], cells[1], by)
        if value is None and None not in values:
            lacking = "what it is compared with is 0"
        interval = None if value is None else interval_against(cells[0], cells[1], by)
    if value is None:
        return Finding("", values, None, None, "", "not measured", lacking)
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
        if before.value is None or after.value is None:
            continue
        least = before.value - slack * abs(before.value)
        most = before.value + slack * abs(before.value)
        right.append(after.value >= least if rises else after.value <= most)
        sure.append(_sure(interval_against(after, before, "ratio"), low, high))
    values = tuple(cell.value for cell in cells)
    state: State = "holds" if len(right) == len(cells) - 1 else "not measured"
    if not all(right):
        state = "fails"
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
    return f"{number(low, unit, bounds) if alike else span(low, high, unit, bounds=bounds)} ({count})"


def _why(rows: Sequence[Finding], state: State) -> str:
    """Say what limits a verdict: rows that are missing, seeds that are, and intervals that reach too far."""
    missing = [row for row in rows if row.state == "not measured"]
    reasons = join_unique(row.why for row in missing)
    if state == "not measured":
        return reasons
    measured = [row for row in rows if row.state != "not measured"]
    unsure = sum(row.sure is False for row in measured if row.state == state)
    return "; ".join(_limits(len(rows), len(missing), reasons, measured, unsure, state))


def _limits(
    count: int, missing: int, reasons: str, measured: Sequence[Finding], unsure: int, state: State
) -> Iterator[str]:
    if unsure:
        deciding = sum(row.state == state for row in measured)
        of = "the interval" if len(measured) == 1 else f"the interval of {unsure} of {deciding}"
        yield f"not sure: {of} reaches past the bound"
    if missing:
        yield f"{missing} of {count} not measured: {reasons}"
    if short := join_unique(row.why for row in measured):
        yield short


def _on_twin(cell: Cell, results: Results) -> bool:
    """Whether a cell's data set is a twin, by its name or as a record says."""
    return cell[0].dataset.name == TWIN or any(results.origin(trial) == TWIN for trial in cell)


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
    return [
        _judged(suite, results[results["suite"] == name], epochs[epochs["suite"] == name], declared)
        for name, suite in sorted(suites.items())
        if suite.claims and (results["suite"] == name).any()
    ]


def judge_directories(directories: Sequence[Path], suites: Iterable[KeptSuite] = ()) -> list[Judged]:
    """Evaluate the claims of what was run, each suite as it is kept beside its results.

    Args:
        directories: results directories, suites' directories in them, or trials'.
        suites: suites to hold the results against in place of those kept.

    Raises:
        UserError: a directory is missing or holds no trial, or a record or `suite.json` is damaged.
    """
    inputs = load_inputs(directories)
    given = {suite.name: suite for suite in suites}
    return judge(inputs.results, inputs.epochs, given or kept_suites(inputs.directories), inputs.declared)


def suite_of(file: Path, results: Sequence[Path], data_dir: Path | None = None) -> KeptSuite:
    """Return the suite of a file with the trials that it has on the device that the results are of.

    Raises:
        UserError: a mistake in the suite, or no record under its name.
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


def _judged(suite: KeptSuite, results: pd.DataFrame, epochs: pd.DataFrame, declared: Sequence[Metric]) -> Judged:
    verdicts = evaluate(suite.claims, results, epochs, suite.trials, declared)
    ids = {trial.id for trial in suite.trials}
    known = set(results["trial"])
    finished, others = len(ids & known), len(known - ids)
    return Judged(suite.name, suite.file, tuple(verdicts), len(ids), finished, others)
