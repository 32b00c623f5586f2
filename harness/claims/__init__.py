"""Claims: whether results show what their suite says that they do."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from harness.claims.measured import By, Measured, Results, Sureness, against
from harness.errors import UserError
from harness.metrics import Formula, Metric, find_metric
from harness.results.frames import load_inputs
from harness.results.record import Record, flatten
from harness.results.record_store import KeptSuite, kept, kept_suites
from harness.results.stats import Interval, byte_unit, join_unique, show_value, significant, time_unit
from harness.suite.schema import TrialConfig
from harness.suite.sections import Claim, Expect
from harness.suite.select import Row, link, pairs_of

State = Literal["holds", "indicated", "indicated against", "fails", "not measured"]
WORST: tuple[State, ...] = ("fails", "indicated against", "indicated", "holds")
NO_RATIO = "not sure: ratios of values of 0 and below have no interval"
TWIN = "twin"  # as data set, and as origin of a record's data


@dataclass(frozen=True)
class Finding:
    """One trial, pair or order that a claim speaks of.

    `label`: what sets it apart from the claim's others; `values`: of its cells, None where not measured; `value`:
    what is held against the expectation (None: not measured, or an order), with its interval; `shown`: these
    as text. `sure`: whether the interval is all on one side of what is expected; None without an interval. A value
    that is as expected "holds" if that is sure, else it is "indicated"; others alike.
    """

    label: str
    values: tuple[float | None, ...]
    value: float | None
    interval: Interval | None
    shown: str
    state: State
    why: str = ""
    sure: bool | None = None

    @property
    def single(self) -> bool:
        """Whether it is not sure for want of a second run."""
        return self.sure is None and self.state != "not measured" and NO_RATIO not in self.why


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds: its state is the worst of its rows that are measured.

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
    claims: Sequence[Claim], frame: pd.DataFrame, trials: Sequence[TrialConfig], declared: Sequence[Metric] = ()
) -> list[Verdict]:
    """Hold a suite's claims against results and return a verdict for each, in their order.

    `frame`: one row a run, as `load_results` returns them; trials that are not the suite's are not read. `trials`:
    all of the suite, run or not. `declared`: the metrics that methods declare. A trial's seeds are repetitions: values
    are means over those that ended well, intervals are over them.
    """
    results = Results(frame)
    return [_verdict(claim, results, trials, declared) for claim in claims]


def _verdict(claim: Claim, results: Results, trials: Sequence[TrialConfig], declared: Sequence[Metric]) -> Verdict:
    unit = ""
    try:
        unit = unit_of(claim, declared)
        pairs = list(pairs_of(claim, trials))
        sureness = Sureness.of(Formula.parse(claim.metric), declared, len(pairs))
    except UserError as error:  # a metric of a plugin that is not here is among the reasons
        why = f"{error.key}: {error.message}" if error.key else error.message
        twin = all(trial.dataset.name == TWIN for trial in trials)
        return Verdict(claim, expectation(claim, unit), "", (), "not measured", why, twin)
    labels = differences([flatten(cell[0].model_dump(mode="json") | {"network": link(cell[0])}) for cell, _ in pairs])
    named = zip(pairs, labels, strict=True)
    rows = tuple(replace(_finding(claim, row, results, unit, sureness), label=label) for (_, row), label in named)
    state = worst(row.state for row in rows)
    twin = any(TWIN in (trial.dataset.name, results.origin(trial)) for cell, _ in pairs for trial in cell)
    return Verdict(claim, expectation(claim, unit), _summary(claim, rows, unit), rows, state, _why(rows, state), twin)


def _finding(claim: Claim, row: Row | UserError, results: Results, unit: str, sureness: Sureness) -> Finding:
    """Measure one row and hold it against the expectation."""
    if isinstance(row, UserError):
        return Finding("", (), None, None, "", "not measured", row.message)
    metric = Formula.parse(claim.metric)
    cells = [results.measure(metric, cell, sureness.metric.machine) for cell in row]
    if common := set.intersection(*(set(cell.runs) for cell in cells)):
        cells = [replace(each, runs={key: own for key, own in each.runs.items() if key in common}) for each in cells]
    reasons = {cell.lacking for cell in cells}
    own = [(trials[0].method.name, each.lacking) for trials, each in zip(row, cells, strict=True)]
    lacking = join_unique(f"{name}: {why}" if why and len(reasons) > 1 else why for name, why in own)
    values = tuple(cell.value for cell in cells)
    if claim.expect.order is not None:
        return _ordered(claim, cells, lacking, unit, sureness)
    by = compares(claim)
    value = values[0] if by is None else against(cells[0], cells[1], by)
    if value is None:
        why = lacking if None in values else "what it is compared with is 0"
        return Finding("", values, None, None, "", "not measured", why)
    interval = sureness.interval(cells[0]) if by is None else sureness.against(cells[0], cells[1], by)
    value = value if interval is None else interval.centre
    low, high = _bounds(claim.expect)
    if by == "ratio" and interval is None and min(len(cell.runs) for cell in cells) > 1:
        lacking = join_unique([lacking, NO_RATIO])
    several = len(cells[0].runs) > 1
    wide = interval is not None and (interval.absurd or (unit in ("%", "points") and interval.beyond_scores))
    if several and wide:
        lacking = join_unique([lacking, f"{len(cells[0].runs)} runs scatter too much for an interval"])
    shown = with_interval(value, interval if several and not wide else None, unit, (low, high))
    return Finding("", values, value, interval, shown, *decide(value, interval, low, high, lacking))


def decide(
    value: float, interval: Interval | None, low: float, high: float, why: str = ""
) -> tuple[State, str, bool | None]:
    """Return what a value and its interval say of an expectation, `why`, and whether that is sure."""
    sure = _sure(interval, low, high)
    return _state(low <= value <= high, bool(sure)), why, sure


def worst(states: Iterable[State]) -> State:
    """Return what a claim is whose rows are so."""
    found = set(states)
    return next((state for state in WORST if state in found), "not measured")


def _state(expected: bool, sure: bool) -> State:
    if expected:
        return "holds" if sure else "indicated"
    return "fails" if sure else "indicated against"


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


def _ordered(claim: Claim, cells: Sequence[Measured], lacking: str, unit: str, sureness: Sureness) -> Finding:
    """Hold every step of an order against its direction; a step with an end missing is not measured."""
    rises, slack = claim.expect.direction == "increasing", claim.expect.tolerance or 0.0
    low, high = (1 - slack, float("inf")) if rises else (float("-inf"), 1 + slack)
    steps = len(cells) - 1
    each = replace(sureness, risk=sureness.risk / max(1, steps))
    states: list[State] = []
    known: list[bool | None] = []
    for before, after in itertools.pairwise(cells):
        if before.value is not None and after.value is not None:
            room = slack * abs(before.value)
            right = after.value >= before.value - room if rises else after.value <= before.value + room
            interval = each.against(after, before, "ratio") if min(before.value, after.value) > 0 else None
            if interval is None and min(len(before.runs), len(after.runs)) > 1:
                lacking = join_unique([lacking, NO_RATIO])
            known.append(_sure(interval, low, high))
            states.append(_state(right, bool(known[-1])))
    values = tuple(cell.value for cell in cells)
    state = worst(states)
    if len(states) < steps and state in ("holds", "indicated"):
        state = "not measured"
    shown = ", ".join("?" if value is None else number(value, unit) for value in values)
    sure = None if None in known or not known else all(known)
    return Finding("", values, None, None, shown if states else "", state, lacking, sure)


def _summary(claim: Claim, rows: Sequence[Finding], unit: str) -> str:
    """Write what was measured: the one row, or the range of several and how many hold."""
    measured = [row for row in rows if row.state != "not measured"]
    if len(measured) < 2:
        return measured[0].shown if measured else ""
    expected = sum(row.state in ("holds", "indicated") for row in measured)
    count = f"{expected} of {len(measured)} as expected"
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
    if single := sum(row.single for row in deciding):
        of = "" if len(measured) == 1 else f" of {single} of {len(deciding)}"
        limits.append(f"not sure: one seed{of}")
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


def judge(runs: pd.DataFrame, suites: Mapping[str, KeptSuite], declared: Sequence[Metric] = ()) -> list[Judged]:
    """Evaluate the claims of suites on runs (as of `ResultInputs`, with what methods declare).

    Suites without claims, and without a record, are left out.
    """
    judged = []
    for name, suite in sorted(suites.items()):
        own = runs[runs["suite"] == name]
        if suite.claims and len(own):
            first = {trial.id: trial.model_copy(update={"repeat": 0}).id for trial in suite.trials}
            own = own.assign(trial=own["trial"].map(lambda id_, first=first: first.get(id_, id_)))
            verdicts = evaluate(suite.claims, own, suite.trials, declared)
            ids, known = {trial.id for trial in suite.trials if not trial.repeat}, set(own["trial"])
            counts = len(ids), len(ids & known), len(known - ids)
            judged.append(Judged(suite.name, suite.file, tuple(verdicts), *counts))
    return judged


def judge_directories(directories: Sequence[Path], suites: Iterable[KeptSuite] = ()) -> list[Judged]:
    """Evaluate the claims of what was run, each suite as it is kept with its results.

    `directories`: of results, of suites in them, or of trials; `suites`: to hold the results against in place of those
    kept. UserError if a directory is missing or holds no trial, or a record or `suite.json` is damaged.
    """
    inputs = load_inputs(directories)
    given = {suite.name: suite for suite in suites}
    return judge(inputs.runs, given or kept_suites(inputs.directories), inputs.declared)


def suite_of(
    file: Path,
    results: Sequence[Path],
    data_dir: Path | None = None,
    plugins: Sequence[str] = (),
    *,
    trusted: bool = False,
) -> KeptSuite:
    """Return the suite of a file with the trials that it has on the device, and on the data, that ran last.

    `plugins`, `trusted`: what may be imported to read it, as `read_suite` has it.
    UserError if there is a mistake in the suite, or no record under its name.
    """
    from harness.suite.expand import expand
    from harness.suite.suite_file import read_suite

    suite = read_suite(file, (), plugins, trusted=trusted)
    inputs = load_inputs(results)
    frame = inputs.results
    devices = frame.loc[frame["suite"] == suite.name, "device"].unique()
    if not len(devices):
        there = ", ".join(sorted(frame["suite"].unique())) or "none"
        raise UserError(f"no results of suite '{suite.name}'", file=file, fix=f"suites there: {there}")
    trials = [trial for device in devices for trial in expand(suite, device=str(device), data_dir=data_dir)]
    return kept(suite, _on_last_data(trials, [r for (name, _), r in inputs.records.items() if name == suite.name]))


def _on_last_data(trials: Sequence[TrialConfig], records: Sequence[Record]) -> list[TrialConfig]:
    """Return the trials as those of the data that they, or others that read the same, ran on last."""
    started = {record.trial: record.started for record in records}
    names = sorted({record.config.get("data") or "" for record in records} | {""})
    last: dict[str, tuple[str, str]] = {}
    reads = [f"{trial.dataset.model_dump_json()} {trial.partition.model_dump_json()}" for trial in trials]
    for trial, what in zip(trials, reads, strict=True):
        ids = (trial.model_copy(update={"data": name or None}).id for name in names)
        found = max((started.get(id_, ""), name) for id_, name in zip(ids, names, strict=True))
        last[what] = max(last.get(what, ("", "")), found if found[0] else ("", ""))
    return [trial.model_copy(update={"data": last[what][1] or None}) for trial, what in zip(trials, reads, strict=True)]


_SIGNS = {"increasing": " < ", "decreasing": " > "}


def unit_of(claim: Claim, declared: Iterable[Metric] = ()) -> str:
    """Return the unit that a claim's values are written in; "" for plain numbers.

    `declared`: the metrics of methods' own.
    """
    formula = Formula.parse(claim.metric)
    if compares(claim) == "ratio":
        return "×"
    if formula.per:
        return ""
    metric = find_metric(formula.columns[0], declared)
    if metric.difference:
        return "%" if claim.by is None else "points"
    unit = metric.unit.removesuffix("/epoch")
    return unit if unit in ("s", "B") else ""


def compares(claim: Claim) -> By | None:
    """Return how a claim compares: by ratio, by difference, or not (None)."""
    return (claim.by or "ratio") if claim.over is not None else None


def number(value: float, unit: str, bounds: Sequence[float] = ()) -> str:
    """Write a value in its unit, with three digits, or as many as distinguish it from the bounds."""
    return f"{_digits(value, unit, bounds)} {_scale(value, unit)[1]}".rstrip()


def span(low: float, high: float, unit: str, bounds: Sequence[float]) -> str:
    """Write two values as `number` does, their unit once where it is the same."""
    ends = low, high
    return _spanned([_digits(end, unit, bounds) for end in ends], [_scale(end, unit)[1] for end in ends], " to ")


def _spanned(texts: Sequence[str], names: Sequence[str], join: str) -> str:
    first = texts[0] if names[0] == names[1] else f"{texts[0]} {names[0]}"
    return f"{first}{join}{texts[1]} {names[1]}".rstrip()


def _digits(value: float, unit: str, bounds: Sequence[float] = ()) -> str:
    size, _ = _scale(value, unit)

    def write(one: float, digits: int) -> str:
        if unit in ("%", "points"):
            return f"{one / size:{'+' if unit == 'points' else ''}.{digits - 1}f}"
        return significant(one / size, digits)

    looks_alike = [b for b in bounds if b != value and math.isfinite(b)]
    enough = (d for d in range(3, 9) if all(write(b, d) != write(value, d) for b in looks_alike))
    return write(value, next(enough, 9))


def _scale(value: float, unit: str) -> tuple[float, str]:
    """Return in what to write a value: (how much of the metric's unit, name)."""
    if unit in ("%", "points"):
        return 0.01, unit
    if unit == "B":
        return byte_unit(abs(value))
    return time_unit(abs(value)) if unit == "s" else (1.0, unit)


def with_interval(value: float, interval: Interval | None, unit: str, bounds: Sequence[float] = ()) -> str:
    """Write a value and its interval, the ends in the value's unit."""
    if interval is None:
        return number(value, unit, bounds)
    size, name = _scale(value, unit)
    own = unit if unit in ("%", "points") else ""
    ends = (end if own else end / size for end in (interval.low, interval.high))
    low, high = (_digits(end, own) for end in ends)
    return f"{_digits(value, unit, bounds)} [{low}, {high}] {name}".rstrip()


def _bound(value: float, unit: str) -> str:
    """Write a bound as briefly as the suite does."""
    size, name = _scale(value, unit)
    return f"{value / size:{'+' if unit == 'points' and value else ''}.6g} {name}".rstrip()


def expectation(claim: Claim, unit: str) -> str:
    """Write what a claim expects; `unit`: as `unit_of` has it."""
    expect = claim.expect
    if expect.order is not None:
        order = _SIGNS[expect.direction or "increasing"].join(selector_text(item) for item in expect.order)
        allowed = f" ({100 * expect.tolerance:g} % the wrong way allowed)" if expect.tolerance else ""
        return order + allowed
    if expect.between is not None:
        low, high = expect.between
        if low == high:
            return _bound(low, unit)
        texts, _, names = zip(*(_bound(end, unit).partition(" ") for end in (low, high)), strict=True)
        return "between " + _spanned(texts, names, " and ")
    if expect.at_least is not None:
        return f"at least {_bound(expect.at_least, unit)}"
    return f"at most {_bound(expect.at_most or 0.0, unit)}"


def subject(claim: Claim) -> str:
    """Write what a claim measures: its metric, of which trials, over which."""
    over = f" over {selector_text(claim.over)}" if claim.over is not None else ""
    return f"{claim.metric} of {selector_text(claim.of)}{over}"


def selector_text(selector: Mapping[str, Any]) -> str:
    """Write a selector: its keys' values, with the key where the value is no name."""
    return " ".join(
        value if isinstance(value, str) else f"{key.split('.')[-1]}={show_value(value)}"
        for key, value in selector.items()
    )


def differences(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say for each of several flat configurations what sets it apart: as few of its keys as distinguish them all."""
    chosen: list[str] = []
    distinct, keys = 1, {key for config in configs for key in config}
    # Names come before options, and these before what a data set brings with it.
    for key in sorted(keys, key=lambda key: (not key.endswith((".name", "dataset.options.of")), key)):
        kinds = len({str([config.get(k) for k in (*chosen, key)]) for config in configs})
        if kinds > distinct:
            chosen, distinct = [*chosen, key], kinds
    return [selector_text({key: config[key] for key in chosen if config.get(key) is not None}) for config in configs]
