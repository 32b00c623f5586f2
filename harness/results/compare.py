"""Two sets of results compared trial by trial, and a metric followed over the versions of a code."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from harness.errors import UserError
from harness.metrics import Metric, find_metric
from harness.results.contrast import RISK, Contrast, Drift, Estimate, Pairs, moment, needed, share_of_risk
from harness.results.frames import declared_metrics, row_of
from harness.results.record import Json, Record, of_workload, whole_config
from harness.results.record_store import read_records
from harness.results.stats import Interval

ABSENT = "(absent)"  # of a key that a configuration lacks
NORMAL = 1.96


@dataclass(frozen=True)
class Trial:
    """A record and the directory that it lies in."""

    record: Record
    place: Path

    def value(self, column: str) -> float | None:
        """Return a column of `load_results`, None if the trial lacks it."""
        value = row_of(self.record).get(column)
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


@dataclass(frozen=True)
class Pair:
    """One trial before and after."""

    before: Trial
    after: Trial

    @property
    def ok(self) -> bool:
        """Whether both ended well."""
        return self.before.record.status == self.after.record.status == "ok"

    @property
    def label(self) -> str:
        """What the trial is called, without its seed and repeat."""
        record = self.after.record
        label = record.label.removesuffix(f" seed={record.config.get('seed')}")
        return label.removesuffix(f" repeat={record.config.get('repeat')}")


@dataclass(frozen=True)
class Pairing:
    """Pairs, those on other data, what sets their sides apart on purpose, and what has no partner."""

    pairs: tuple[Pair, ...]
    apart: tuple[str, ...]  # keys of the configuration
    only_before: tuple[Trial, ...]
    only_after: tuple[Trial, ...]
    other_data: tuple[Pair, ...] = ()  # of one name, known to differ: they are none of `pairs`


def load_trials(directory: Path) -> list[Trial]:
    """Read the trials under a results directory, a suite's or a trial's, as they started.

    Of two records of one trial (of two suites) the later is taken. UserError if there is none.
    """
    found = [Trial(record, place) for place, record in read_records(directory, required=True).items()]
    ordered = sorted(found, key=lambda trial: (trial.record.started, trial.record.trial))
    return list({trial.record.trial: trial for trial in ordered}.values())


def metric_of(column: str, trials: Sequence[Trial]) -> Metric:
    """Return what is known of a column of some trials; UserError if it is no number."""
    declared = {name: m for trial in trials for name, m in declared_metrics(trial.record).items()}
    try:
        return find_metric(column, declared.values())
    except UserError as error:
        raise UserError(error.message, key="--metric", fix=error.fix) from error


def pair(before: Sequence[Trial], after: Sequence[Trial]) -> Pairing:
    """Pair trials by their ids; where no id is on both sides, by all that does not set the sides apart.

    Nor does what methods set themselves (`per_method`): where ids differ, it may.

    A key sets the sides apart if no value of it is on both, e.g. the method where one side is `full` and the
    other `bns-gcn`. What data sets contain under one name, and parts of one partition, must be the same.
    UserError if several trials fit one, or nothing fits.
    """
    ids = {trial.record.trial for trial in before} & {trial.record.trial for trial in after}
    mine, yours = ([_workload(trial) for trial in side] for side in (before, after))
    keys = [] if ids else sorted({key for config in (*mine, *yours) for key in config} - {"data"})
    apart = tuple(key for key in keys if not {c.get(key, ABSENT) for c in mine} & {c.get(key, ABSENT) for c in yours})

    def name(trial: Trial) -> str:
        config = _workload(trial)
        return trial.record.trial if ids else json.dumps([config.get(key, ABSENT) for key in keys if key not in apart])

    partners, others = _by_name(before, name, apart), _by_name(after, name, apart)
    pairs = tuple(Pair(partners[key], trial) for key, trial in others.items() if key in partners)
    if not pairs:
        raise UserError("no trial is on both sides", fix="compare results of one suite")
    other_data = tuple(each for each in pairs if _other_data(each))
    pairs = tuple(each for each in pairs if each not in other_data)
    if not pairs:
        raise UserError("all trials that are on both sides ran on other data", fix="run both on the same data")
    only_before = tuple(trial for key, trial in partners.items() if key not in others)
    only_after = tuple(trial for key, trial in others.items() if key not in partners)
    return Pairing(pairs, apart, only_before, only_after, other_data)


def _workload(trial: Trial) -> Json:
    """Return a trial's configuration without what its method sets itself: that is the method's."""
    return whole_config(of_workload(trial.record.config))


def _other_data(pair: Pair) -> bool:
    """Return whether the sides are known to have read other data, or other parts, under the same names."""
    one, other = pair.before.record, pair.after.record
    named = all(one.config.get(key) == other.config.get(key) for key in ("dataset", "partition"))
    return named and None not in (one.data, other.data) and one.data != other.data


def group_seeds(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """Group pairs that differ in their seed or repeat only, in the order of the first of each."""
    cells: dict[str, list[Pair]] = {}
    for each in pairs:
        config = whole_config(each.after.record.config)
        config.pop("seed", None)
        config.pop("repeat", None)
        config["data"] = each.after.record.data
        cells.setdefault(json.dumps(config, sort_keys=True), []).append(each)
    return list(cells.values())


def _by_name(trials: Sequence[Trial], name: Callable[[Trial], str], apart: tuple[str, ...]) -> dict[str, Trial]:
    named: dict[str, Trial] = {}
    for trial in trials:
        other = named.setdefault(name(trial), trial)
        if other is not trial:
            what = f"'{other.record.label}' and '{trial.record.label}' differ in {', '.join(apart)} only"
            raise UserError(what, file=trial.place.parent, fix="leave one of them out: --only")
    return named


SAME, UNSURE = "same", "cannot tell"


@dataclass(frozen=True)
class Compared:
    """One trial, all its seeds together, or all trials, before and after.

    `before`, `after`: means of the metric over trials, in its unit; `change`: after / before (their geometric
    mean), or after - before, with the interval that the verdict is read from (None where nothing says how sure it
    is), both without the machine's drift as far as it is known; `verdict`: a word of the metric, "same" or "cannot
    tell"; `worse`: whether it is one for the worse; `needs`: what would decide it, "" of other verdicts; `drift`: what
    became of the machine's.
    """

    label: str
    trials: int
    before: float
    after: float
    change: float
    interval: Interval | None
    verdict: str
    worse: bool
    needs: str
    drift: Drift


def compare(
    pairs: Sequence[Pair], metric: Metric, worth: float | None = None, comparisons: int = 1
) -> tuple[list[Compared], Compared | None]:
    """Compare pairs of trials by a metric.

    `worth`: the smallest change that is worth knowing, a share or of scores a difference; what needs more runs needs
    them for it. Returns what each trial shows, its seeds together, and what all show together (None of no pair that has
    the metric). Intervals hold together: of comparisons of a code with itself at most 5 % should find anything at
    all, half of them over all and half in the trials; where several `comparisons` are made, of all of them together.
    """
    groups = [found for cell in group_seeds(pairs) if (found := [p for p in cell if _comparable(p, metric)])]
    if not groups:
        return [], None
    contrast = Contrast([_cell(group, metric) for group in groups], metric)
    share = share_of_risk(len(groups)) / comparisons
    rows = [_judged(metric, group, contrast.row(i, share), share, worth) for i, group in enumerate(groups)]
    if len(rows) == 1:
        return rows, rows[0]
    risk = RISK / 2 / comparisons
    everything = [pair for group in groups for pair in group]
    return rows, _judged(metric, everything, contrast.whole(risk), risk, worth)


def _comparable(pair: Pair, metric: Metric) -> bool:
    """Return whether both have the metric, and it has a ratio where one is asked for."""
    before, after = pair.before.value(metric.name), pair.after.value(metric.name)
    if before is None or after is None:
        return False
    return metric.difference or before == after or (before > 0 and after > 0)


def _cell(pairs: Sequence[Pair], metric: Metric) -> Pairs:
    sides = [[pair.before for pair in pairs], [pair.after for pair in pairs]]
    values = np.array([[trial.value(metric.name) for trial in side] for side in sides])
    if not metric.machine:  # runs of one seed have the same scores and sizes: they are no repeats
        seeds = np.array([trial.record.config.get("seed") or 0 for trial in sides[0]])
        values = np.array([values[:, seeds == seed].mean(axis=1) for seed in dict.fromkeys(seeds.tolist())]).T
        unknown = np.full(values.shape, math.nan)
        return Pairs.of(metric, values, unknown, unknown)
    started = [[moment(trial.record.started) for trial in side] for side in sides]
    references = [[trial.record.environment.get("reference_s") or math.nan for trial in side] for side in sides]
    cores = [[trial.record.environment.get("reference_cores") for trial in side] for side in sides]
    alike = np.array([a == b for a, b in zip(*cores, strict=True)])  # else they are times of other work
    return Pairs.of(metric, values, np.array(started), np.where(alike, references, math.nan))


def _judged(metric: Metric, pairs: Sequence[Pair], found: Estimate, risk: float, worth: float | None) -> Compared:
    """Return what pairs show together; `risk`: of the interval."""

    def shown(size: float) -> float:
        return size if metric.difference else math.exp(size)

    before = [p.before.value(metric.name) or 0.0 for p in pairs]
    after = [p.after.value(metric.name) or 0.0 for p in pairs]
    interval = None
    if found.low is not None and found.high is not None:
        interval = Interval(shown(found.size), shown(found.low), shown(found.high))
    same = before == after
    unsure = not same and not found.sure
    unit = "run" if metric.machine else "seed"
    epochs = _epochs_variance(pairs[0], metric)
    needs = needed(found, metric, risk, worth, unit=unit, epochs=epochs) if unsure else ""
    return Compared(
        pairs[0].label,
        len(pairs),
        float(np.mean(before)),
        float(np.mean(after)),
        shown(found.size),
        interval,
        SAME if same else UNSURE if unsure else metric.word(found.size),
        not unsure and not same and metric.worse(found.size),
        needs,
        found.drift,
    )


def _epochs_variance(pair: Pair, metric: Metric) -> float:
    """Return the variance of log(B / A) that the epochs show, 0 where they show none."""
    if not metric.by_epoch:
        return 0.0
    ends = ([trial.value(f"epoch_time_{end}_s") for end in ("low", "high")] for trial in (pair.before, pair.after))
    return sum((math.log(high / low) / (2 * NORMAL)) ** 2 for low, high in ends if low and high)


CODE = ("harness", "commit", "dirty")
# Of two containers on one machine `machine` differs; these do not.
HARDWARE = ("cpu", "cores", "logical_cores", "memory_gib", "gpus", "nodes")
APART = ("packages", "memory_bytes", "machine", "reference_s", "reference_cores")  # not compared as they are
ALIKE = 0.1  # reruns on a quiet machine differ by less than this in the processor that ranks get


@dataclass(frozen=True)
class Differences:
    """Lines on what differs: `code` is what one compares, `software` may explain it, `hardware` does."""

    code: tuple[str, ...]
    software: tuple[str, ...]
    hardware: tuple[str, ...]


def differences(pairs: Sequence[Pair]) -> Differences:
    """Return what differs between the environments of the two sides, a line "key: before -> after" each.

    A key differs if its values over all trials of a side do: a suite may have run on two commits.
    """
    before, after = (_values(trials) for trials in zip(*((p.before, p.after) for p in pairs), strict=True))
    lines: dict[tuple[str, ...], list[str]] = {CODE: [], HARDWARE: [], (): []}
    for key in dict.fromkeys([*before, *after]):
        if before.get(key) != after.get(key):
            kind = next((keys for keys in (CODE, HARDWARE) if key in keys), ())
            lines[kind].append(f"{key}: {_text(before.get(key))} -> {_text(after.get(key))}")
    return Differences(tuple(lines[CODE]), tuple(lines[()]), tuple(lines[HARDWARE]))


def busier(pairs: Sequence[Pair]) -> str | None:
    """Return a line if ranks got much less of the processor on one side than on the other.

    Other programs that took it make times longer; a code that waits more does so too.
    """
    shares = [(p.before.value("cpu_utilisation"), p.after.value("cpu_utilisation")) for p in pairs]
    known = [(a, b) for a, b in shares if a and b]
    if not known:
        return None
    before, after = np.median(np.array(known), axis=0)
    if max(before, after) <= (1 + ALIKE) * min(before, after):
        return None
    return (
        f"a rank used {before:.2f} cores in A, {after:.2f} in B (median): "
        "other programs were at work, or the code waits more"
    )


def _values(trials: Iterable[Trial]) -> dict[str, set[str]]:
    """Return the values of every key over the trials, as text."""
    found: dict[str, set[str]] = {}
    for trial in trials:
        for key, value in _flat(trial.record.environment).items():
            found.setdefault(key, set()).add(value)
    return found


def _flat(environment: Json) -> dict[str, str]:
    """Return an environment as text by key: packages by their names, memory in whole GiB."""
    plain = {key: value for key, value in environment.items() if key not in APART}
    plain |= environment.get("packages") or {}
    if memory := environment.get("memory_bytes"):
        plain["memory_gib"] = round(memory / 2**30)  # a kernel's update changes what it has left by less
    if plain.get("commit"):
        plain["commit"] = str(plain["commit"])[:10]
    return {key: v if isinstance(v, str) else json.dumps(v) for key, v in plain.items() if v is not None}


def _text(values: set[str] | None) -> str:
    return " and ".join(sorted(values)) if values else "unknown"


COMMIT_DIGITS = 8


@dataclass(frozen=True)
class Version:
    """The trials of one commit, as they started; `name`: its first digits, + where files differed, or a directory's."""

    name: str
    trials: tuple[Trial, ...]

    @property
    def started(self) -> str:
        """When the first of them began."""
        return self.trials[0].record.started


@dataclass(frozen=True)
class Point:
    """A version against the one of the last change, `since` (None of the first): each trial, and all together.

    `why`: why they are not compared.
    """

    version: Version
    since: Version | None = None
    rows: tuple[Compared, ...] = ()
    whole: Compared | None = None
    why: str = ""

    @property
    def changed(self) -> tuple[Compared, ...]:
        """What surely changed: trials, or else all of them together."""
        sure = [row for row in (*self.rows, self.whole) if row and row.verdict not in (SAME, UNSURE)]
        return tuple(row for row in sure if row is not self.whole) or tuple(sure[:1])


def versions(directories: Iterable[Path]) -> list[Version]:
    """Return the versions whose trials lie under directories, the first that ran first; of a trial's runs the last.

    Raises:
        UserError: a directory that is missing or holds no trial, a damaged record.
    """
    found: dict[str, dict[str, Trial]] = {}
    every = []
    for directory in directories:
        trials = read_records(directory, required=True).items()
        every += [(directory, Trial(record, place)) for place, record in trials]
    for directory, trial in sorted(every, key=lambda each: (each[1].record.started, each[1].record.trial)):
        found.setdefault(_version_of(trial, directory), {})[trial.record.trial] = trial
    listed = [Version(name, tuple(trials.values())) for name, trials in found.items()]
    return sorted(listed, key=lambda version: version.started)


def _version_of(trial: Trial, directory: Path) -> str:
    where = trial.record.environment
    commit = where.get("commit")
    return f"{commit[:COMMIT_DIGITS]}{'+' * bool(where.get('dirty'))}" if commit else directory.resolve().name


def history(found: Sequence[Version], metric: Metric) -> list[Point]:
    """Compare each version with that of the last change, so that many small changes are found as one.

    Of a code that never changes at most 5 % of histories have any change, however many versions they are of.
    """
    if not found:
        return []
    points, since = [Point(found[0])], found[0]
    for version in found[1:]:
        point = _compared(since, version, metric, len(found) - 1)
        points.append(point)
        if point.why or point.changed:
            since = version
    return points


def _compared(since: Version, version: Version, metric: Metric, comparisons: int) -> Point:
    try:
        pairs = pair(since.trials, version.trials).pairs
    except UserError as error:
        return Point(version, since, why=error.message)
    ok = [each for each in pairs if each.ok]
    hardware = differences(ok).hardware if ok and metric.machine else ()
    if hardware:
        return Point(version, since, why=f"another machine ({'; '.join(hardware)})")
    rows, whole = compare(ok, metric, comparisons=comparisons)
    if whole is None:
        return Point(version, since, why=f"no trial of both ended well with '{metric.name}'")
    return Point(version, since, tuple(rows), whole)
