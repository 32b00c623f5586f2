"""Two sets of results compared trial by trial, and a metric followed over the versions of a code."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from harness.errors import UserError
from harness.metrics import Metric, find_metric
from harness.results.contrast import RISK, Contrast, Drift, Estimate, Pairs, Run, needed, share_of_risk
from harness.results.frames import declared_metrics, row_of
from harness.results.record import Json, Record, of_workload, whole_config
from harness.results.record_store import read_records
from harness.results.stats import Interval

NORMAL = 1.96


@dataclass(frozen=True)
class Pair:
    """One trial before and after."""

    before: Record
    after: Record

    @property
    def ok(self) -> bool:
        """Whether both ended well."""
        return self.before.status == self.after.status == "ok"

    @property
    def label(self) -> str:
        """The trial's label without its seed and repeat."""
        label = self.after.label.removesuffix(f" seed={self.after.config.get('seed')}")
        return label.removesuffix(f" repeat={self.after.config.get('repeat')}")


@dataclass(frozen=True)
class Pairing:
    """Pairs, the keys of the configuration that set their sides apart on purpose, and trials without a partner.

    `other_data`: pairs that read other data under the same names; they are none of `pairs`.
    """

    pairs: tuple[Pair, ...]
    apart: tuple[str, ...]
    only_before: tuple[Record, ...]
    only_after: tuple[Record, ...]
    other_data: tuple[Pair, ...] = ()


def load_trials(directory: Path) -> list[Record]:
    """Read the trials under a results directory, a suite's or a trial's, as they started.

    Of two records of one trial (of two suites) the later is taken. UserError if there is none.
    """
    found = sorted(read_records(directory, required=True).values(), key=lambda record: (record.started, record.trial))
    return list({record.trial: record for record in found}.values())


def metric_of(column: str, trials: Sequence[Record], others: Sequence[Metric] = ()) -> Metric:
    """Return the metric that is a column of some trials, or one of `others`; UserError if it is no number."""
    declared = {name: metric for trial in trials for name, metric in declared_metrics(trial).items()}
    try:
        return find_metric(column, (*others, *declared.values()))
    except UserError as error:
        raise UserError(error.message, key="--metric", fix=error.fix) from error


def pair(before: Sequence[Record], after: Sequence[Record]) -> Pairing:
    """Pair trials by their ids; where no id is on both sides, by all that does not set the sides apart.

    A key sets the sides apart if no value of it is on both, e.g. the method where one side is `full` and the
    other `bns-gcn`; settings of one method alone (`per_method`) may differ, too. What data sets contain under one name,
    and parts of one partition, must be the same. UserError if several trials fit one, or nothing fits.
    """
    ids = {record.trial for record in before} & {record.trial for record in after}
    mine, yours = ([whole_config(of_workload(record.config)) for record in side] for side in (before, after))
    keys = [] if ids else sorted({key for config in (*mine, *yours) for key in config} - {"data"})
    absent = "(absent)"
    apart = tuple(key for key in keys if not {c.get(key, absent) for c in mine} & {c.get(key, absent) for c in yours})

    def by_name(side: str, records: Sequence[Record], configs: Sequence[Json]) -> dict[str, Record]:
        named: dict[str, Record] = {}
        for record, config in zip(records, configs, strict=True):
            name = record.trial if ids else json.dumps([config.get(key, absent) for key in keys if key not in apart])
            if (other := named.setdefault(name, record)) is not record:
                what = f"'{other.label}' and '{record.label}' differ in {', '.join(apart)} only"
                raise UserError(what, key=side, fix="name the directory of a suite, or of a trial, with one of them")
        return named

    partners, others = by_name("A", before, mine), by_name("B", after, yours)
    pairs: dict[bool, list[Pair]] = {True: [], False: []}
    for name, two in others.items():
        if one := partners.get(name):
            named = all(one.config.get(key) == two.config.get(key) for key in ("dataset", "partition"))
            other_data = named and None not in (one.data, two.data) and one.data != two.data
            pairs[other_data].append(Pair(one, two))
    if not any(pairs.values()):
        raise UserError("no trial is on both sides", fix="compare results of one suite")
    if not pairs[False]:
        raise UserError("all trials that are on both sides ran on other data", fix="run both on the same data")
    only_before = tuple(record for name, record in partners.items() if name not in others)
    only_after = tuple(record for name, record in others.items() if name not in partners)
    return Pairing(tuple(pairs[False]), apart, only_before, only_after, tuple(pairs[True]))


def group_seeds(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """Group pairs that differ in their seed or repeat only, in the order of the first of each."""
    cells: dict[str, list[Pair]] = {}
    for each in pairs:
        config = whole_config(each.after.config) | {"seed": None, "repeat": None, "data": each.after.data}
        cells.setdefault(json.dumps(config, sort_keys=True), []).append(each)
    return list(cells.values())


SAME, UNSURE = "same", "cannot tell"


@dataclass(frozen=True)
class Compared:
    """One trial, all its seeds together, or all trials, before and after.

    `before`, `after`: means of the metric over trials, in its unit, NaN where they have none; `raw`: after / before
    (their geometric mean), or after - before; `change`: the same without the machine's drift as far as it is known,
    with the interval that the verdict is read from (None where nothing says how sure it is); `verdict`: a word of the
    metric, "same" or "cannot tell"; `worse`: whether it is one for the worse; `needs`: runs that would decide it, "" of
    other verdicts; `numeric`: whether the change is a number, not one to or from 0, or of what one side lacks.
    """

    label: str
    trials: int
    before: float
    after: float
    raw: float
    change: float
    interval: Interval | None
    verdict: str
    worse: bool
    needs: str
    drift: Drift
    numeric: bool = True


Known = tuple[Pair, float, float]  # a pair with its values of the metric


def compare(
    pairs: Sequence[Pair], metric: Metric, worth: float | None = None, comparisons: int = 1
) -> tuple[list[Compared], Compared | None]:
    """Compare pairs of trials by a metric.

    `worth`: the smallest change that is worth knowing, a share or of scores a difference; runs that are needed are
    needed for it. Returns each trial, its seeds together, then those whose change is no number (see `_apart`), and all
    others together (None of no other).
    Intervals hold together: of comparisons of a code with itself at most 5 % should find anything at all, half of them
    over all and half in the trials; where several `comparisons` are made, of all of them together.
    """
    cells: list[list[Known]] = []
    others: list[Compared] = []
    for group in group_seeds(pairs):
        values = [(p, value_of(p.before, metric.name), value_of(p.after, metric.name)) for p in group]
        known = [(p, a, b) for p, a, b in values if a is not None and b is not None]
        if cell := [(p, a, b) for p, a, b in known if comparable(metric, a, b)]:
            cells.append(cell)
        others += _apart(metric, values)
    if not cells:
        return others, None
    contrast = Contrast([_cell(cell, metric) for cell in cells], metric)
    share = share_of_risk(len(cells)) / comparisons
    rows = [_judged(metric, cell, contrast.row(i, share), worth) for i, cell in enumerate(cells)]
    if len(rows) == 1:
        return [*rows, *others], rows[0]
    whole = contrast.whole(RISK / 2 / comparisons)
    return [*rows, *others], _judged(metric, [each for cell in cells for each in cell], whole, worth)


def comparable(metric: Metric, a: float, b: float) -> bool:
    """Return whether a change from one value to another is a number: a ratio to or from 0 is none."""
    return metric.difference or a == b or min(a, b) > 0


def _apart(metric: Metric, values: Sequence[tuple[Pair, float | None, float | None]]) -> Iterator[Compared]:
    """Yield rows of trials that changed to or from 0, or have the metric on one side only, for each such kind.

    Who lacks it is at the bad end of the scale: a target that is not reached any more is worse than any time to it.
    """
    kinds: dict[tuple[str, float], list[tuple[Pair, float, float]]] = {}
    bad = 1.0 if metric.better == "less" else -1.0
    for p, a, b in values:
        if (a is None) != (b is None):
            said = "no value before" if a is None else "no value now"
            kinds.setdefault((said, -bad if a is None else bad), []).append((p, _or_nan(a), _or_nan(b)))
        elif a is not None and b is not None and not comparable(metric, a, b):
            rise = 1.0 if b > a else -1.0
            kinds.setdefault((metric.word(rise), rise), []).append((p, a, b))
    for (said, rise), own in kinds.items():
        change = rise * math.inf if metric.difference else math.inf if rise > 0 else 0.0
        before, after = (float(np.mean([each[i] for each in own])) for i in (1, 2))
        yield Compared(
            label=own[0][0].label, trials=len(own), before=before, after=after, raw=change, change=change,
            interval=None, verdict=said, worse=metric.worse(rise), needs="", drift="none", numeric=False,
        )  # fmt: skip


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def value_of(record: Record, column: str) -> float | None:
    """Return a trial's column of `load_results`, None if it lacks it."""
    value = row_of(record).get(column)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _cell(known: Sequence[Known], metric: Metric) -> Pairs:
    values = np.array([(a, b) for _, a, b in known]).T
    if not metric.machine:  # runs of one seed have the same scores and sizes: they are no repeats
        seeds = np.array([p.before.config.get("seed") or 0 for p, *_ in known])
        means = [values[:, seeds == seed].mean(axis=1) for seed in dict.fromkeys(seeds.tolist())]
        return Pairs.of(metric, np.array(means).T)
    pairs = [p for p, *_ in known]
    sides = [[p.before for p in pairs], [p.after for p in pairs]]
    runs = np.array(
        [
            [Run.of(value, r.started, r.environment.get("reference_s")) for r, value in zip(side, own, strict=True)]
            for side, own in zip(sides, values, strict=True)
        ]
    )
    cores = [[r.environment.get("reference_cores") for r in side] for side in sides]
    alike = np.array([a == b for a, b in zip(*cores, strict=True)])  # else they are times of other work
    return Pairs.of(metric, values, runs[..., 1], np.where(alike, runs[..., 2], math.nan))


def _judged(metric: Metric, known: Sequence[Known], found: Estimate, worth: float | None) -> Compared:
    """Return the verdict on pairs together."""
    (first, *_), before, after = known[0], [a for _, a, _ in known], [b for *_, b in known]

    def needs(estimate: Estimate) -> str:
        epochs = 0.0
        if metric.by_epoch:  # epochs show how a run scatters, where repeats do not
            ends = (
                [value_of(side, f"epoch_time_{end}_s") for end in ("low", "high")]
                for side in (first.before, first.after)
            )
            epochs = sum((math.log(high / low) / (2 * NORMAL)) ** 2 for low, high in ends if low and high)
        return needed(estimate, metric, worth, unit="run" if metric.machine else "seed", epochs=epochs)

    means = float(np.mean(before)), float(np.mean(after))
    row = compared(first.label, means, found, metric, same=before == after, needs=needs)
    return replace(row, trials=len(known))


def compared(
    label: str,
    values: tuple[float, float],
    found: Estimate,
    metric: Metric,
    *,
    same: bool,
    needs: Callable[[Estimate], str],
) -> Compared:
    """Return the verdict on an estimate. `values`: of both sides; `needs`: what one that is not sure needs."""

    def shown(size: float) -> float:
        return size if metric.difference else math.exp(size)

    interval, numeric = None, math.isfinite(found.size)
    if found.low is not None and found.high is not None and numeric:
        interval = Interval(shown(found.size), shown(found.low), shown(found.high))
    unsure = not same and not found.sure
    return Compared(
        label=label,
        trials=found.pairs,
        before=values[0],
        after=values[1],
        raw=shown(found.raw),
        change=shown(found.size),
        interval=interval,
        verdict=SAME if same else UNSURE if unsure else metric.word(found.size),
        worse=not unsure and not same and metric.worse(found.size),
        needs=needs(found) if unsure else "",
        drift=found.drift,
        numeric=numeric,
    )


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
    """Return the differences between the environments of the two sides, a line "key: before -> after" each.

    A key differs if its values over all trials of a side do: a suite may have run on two commits.
    """
    sides: tuple[dict[str, set[str]], ...] = {}, {}
    for values, records in zip(sides, ([p.before for p in pairs], [p.after for p in pairs]), strict=True):
        for environment in (record.environment for record in records):
            plain = {key: value for key, value in environment.items() if key not in APART}
            plain |= environment.get("packages") or {}
            if memory := environment.get("memory_bytes"):
                plain["memory_gib"] = round(memory / 2**30)  # a kernel's update changes what it has left by less
            if plain.get("commit"):
                plain["commit"] = str(plain["commit"])[:10]
            for key, value in plain.items():
                if value is not None:
                    values.setdefault(key, set()).add(value if isinstance(value, str) else json.dumps(value))
    lines: dict[tuple[str, ...], list[str]] = {CODE: [], HARDWARE: [], (): []}
    for key in dict.fromkeys([*sides[0], *sides[1]]):
        if sides[0].get(key) != sides[1].get(key):
            kind = next((keys for keys in (CODE, HARDWARE) if key in keys), ())
            before, after = (" and ".join(sorted(side.get(key, ()))) or "unknown" for side in sides)
            lines[kind].append(f"{key}: {before} -> {after}")
    return Differences(tuple(lines[CODE]), tuple(lines[()]), tuple(lines[HARDWARE]))


def busier(pairs: Sequence[Pair]) -> str | None:
    """Return a line if ranks got much less of the processor on one side than on the other.

    Other programs that took it make times longer; a code that waits more does so too.
    """
    shares = [[value_of(record, "cpu_utilisation") for record in (p.before, p.after)] for p in pairs]
    if not (known := [share for share in shares if all(share)]):
        return None
    before, after = np.median(np.array(known), axis=0)
    if max(before, after) <= (1 + ALIKE) * min(before, after):
        return None
    return (
        f"a rank used {before:.2f} cores in A, {after:.2f} in B (median): "
        "other programs were at work, or the code waits more"
    )


@dataclass(frozen=True)
class Version:
    """The trials of one commit, as they started; `name`: its first digits, + where files differed, or a directory's."""

    name: str
    trials: tuple[Record, ...]

    @property
    def started(self) -> str:
        """The start of the first of them."""
        return self.trials[0].started


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
        """Trials that surely changed, or else all of them together."""
        sure = [row for row in (*self.rows, self.whole) if row and row.verdict not in (SAME, UNSURE)]
        return tuple(row for row in sure if row is not self.whole) or tuple(sure[:1])


def versions(directories: Iterable[Path]) -> list[Version]:
    """Return the versions whose trials lie under directories, the first that ran first; of a trial's runs the last.

    UserError for a directory that is missing or holds no trial, and for a damaged record.
    """
    every = [(place, record) for place in directories for record in read_records(place, required=True).values()]
    found: dict[str, dict[str, Record]] = {}
    for directory, record in sorted(every, key=lambda each: (each[1].started, each[1].trial)):
        commit, dirty = record.environment.get("commit"), record.environment.get("dirty")
        name = f"{commit[:8]}{'+' * bool(dirty)}" if commit else directory.resolve().name
        found.setdefault(name, {})[record.trial] = record
    listed = [Version(name, tuple(trials.values())) for name, trials in found.items()]
    return sorted(listed, key=lambda version: version.started)


def history(found: Sequence[Version], metric: Metric) -> list[Point]:
    """Compare each version with that of the last change, so that many small changes are found as one.

    Of a code that never changes at most 5 % of histories have any change, however many versions they are of.
    """
    if not found:
        return []
    points, since = [Point(found[0])], found[0]
    for version in found[1:]:
        points.append(_compared(since, version, metric, len(found) - 1))
        if points[-1].why or points[-1].changed:
            since = version
    return points


def _compared(since: Version, version: Version, metric: Metric, comparisons: int) -> Point:
    try:
        pairs = pair(since.trials, version.trials).pairs
    except UserError as error:
        return Point(version, since, why=error.message)
    ok = [each for each in pairs if each.ok]
    if metric.machine and (hardware := differences(ok).hardware):
        return Point(version, since, why=f"another machine ({'; '.join(hardware)})")
    rows, whole = compare(ok, metric, comparisons=comparisons)
    if not rows:
        return Point(version, since, why=f"no trial of both ended well with '{metric.name}'")
    return Point(version, since, tuple(rows), whole)
