"""Which trial of one set of results belongs to which of another."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import special

from harness.errors import UserError
from harness.metrics import Metric, find_metric
from harness.results.frames import declared_metrics, row_of
from harness.results.record import Json, Record, whole_config
from harness.results.stats import CONFIDENCE, Interval, paired_test, ratio_interval
from harness.results.store import read_at, read_epochs, record_places, timed_epochs

ABSENT = "(absent)"  # of a key that a configuration lacks


@dataclass(frozen=True)
class Trial:
    """A record and the directory that it lies in."""

    record: Record
    place: Path

    def value(self, column: str) -> float | None:
        """Return a column of `load_results`, None if the trial lacks it."""
        value = row_of(self.record).get(column)
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None

    def epoch_times(self) -> np.ndarray:
        """Return seconds of the slowest rank [epochs], of the epochs that `epoch_time_s` is the median of."""
        rows = read_epochs(self.place / "epochs.parquet")
        rows = rows[rows["epoch"] >= (self.record.result.get("warmup_epochs") or 0)]
        return timed_epochs(rows, len(rows))["epoch_time_s"].to_numpy(dtype=np.float64)


@dataclass(frozen=True)
class Pair:
    """One trial before and after."""

    before: Trial
    after: Trial

    @property
    def label(self) -> str:
        """What the trial is called, without its seed."""
        record = self.after.record
        return record.label.removesuffix(f" seed={record.config.get('seed')}")


@dataclass(frozen=True)
class Pairing:
    """Pairs, what sets their sides apart on purpose, and what has no partner."""

    pairs: tuple[Pair, ...]
    apart: tuple[str, ...]  # keys of the configuration
    only_before: tuple[Trial, ...]
    only_after: tuple[Trial, ...]


def load_trials(directory: Path) -> list[Trial]:
    """Read the trials under a results directory, a suite's or a trial's, as they started.

    Of two records of one trial (of two suites) the later is taken. UserError if there is none.
    """
    found = [Trial(read_at(place), place) for place in record_places(directory)]
    if not found:
        raise UserError("holds no finished trial", file=directory, fix="run `harness run SUITE` first")
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

    A key sets the sides apart if no value of it is on both, e.g. the method where one side is `full` and the
    other `bns-gcn`. UserError if several trials fit one, or nothing fits.
    """
    ids = {trial.record.trial for trial in before} & {trial.record.trial for trial in after}
    mine, yours = ([whole_config(trial.record.config) for trial in side] for side in (before, after))
    keys = [] if ids else sorted({key for config in (*mine, *yours) for key in config})
    apart = tuple(key for key in keys if not {c.get(key, ABSENT) for c in mine} & {c.get(key, ABSENT) for c in yours})

    def name(trial: Trial) -> str:
        config = whole_config(trial.record.config)
        return trial.record.trial if ids else json.dumps([config.get(key, ABSENT) for key in keys if key not in apart])

    partners, others = _by_name(before, name, apart), _by_name(after, name, apart)
    pairs = tuple(Pair(partners[key], trial) for key, trial in others.items() if key in partners)
    if not pairs:
        raise UserError("no trial is on both sides", fix="compare results of one suite")
    only_before = tuple(trial for key, trial in partners.items() if key not in others)
    return Pairing(pairs, apart, only_before, tuple(trial for key, trial in others.items() if key not in partners))


def group_seeds(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """Group pairs that differ in their seed only, in the order of the first of each."""
    cells: dict[str, list[Pair]] = {}
    for each in pairs:
        config = whole_config(each.after.record.config)
        config.pop("seed", None)
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
PRIOR = 8  # degrees of freedom that the deviation measured beforehand counts as
WILD = 4  # times its variance from which on it says nothing of this machine
NORMAL = 1.96


@dataclass(frozen=True)
class Compared:
    """One trial, all its seeds together, or all trials, before and after.

    `before`, `after`: means of the metric over trials, in its unit; `change`: after / before (their geometric
    mean), or after - before, with its 95 % interval (None where nothing says how sure it is); `verdict`: a
    word of the metric, "same" or "cannot tell"; `worse`: whether it is one for the worse; `p`: of the paired
    t-test over the trials.
    """

    label: str
    trials: int
    before: float
    after: float
    change: float
    interval: Interval | None
    verdict: str
    worse: bool
    p: float | None


@dataclass(frozen=True)
class _Change:
    """A pair's values; `size`: log(after / before), or after - before; `error`: its own, as epochs tell."""

    pair: Pair
    before: float
    after: float
    size: float
    error: float


@dataclass(frozen=True)
class _Noise:
    """Variance of a pair's change from run to run, beside what epochs tell; `freedom`: degrees of freedom."""

    variance: float
    freedom: float


def compare(pairs: Sequence[Pair], metric: Metric) -> tuple[list[Compared], Compared | None]:
    """Compare pairs of trials by a metric.

    Returns:
        What each trial shows, its seeds together, and what all show together (None of no pair that has the
        metric). Verdicts allow for how many there are: of comparisons of a code with itself at most 5 %
        should find anything at all, half of them in the verdict over all and half in those of the trials.
    """
    cells = [found for cell in group_seeds(pairs) if (found := [c for p in cell if (c := _change(p, metric))])]
    if not cells:
        return [], None
    noise = _noise(cells, metric)
    risk = 1 - CONFIDENCE
    each = risk / 2 / len(cells) if len(cells) > 1 else risk
    means = [float(np.mean([change.size for change in cell])) for cell in cells]
    # the variance of the mean change of a trial's seeds, without drift
    own = [None if noise is None else (noise.variance + _explained(cell)) / len(cell) for cell in cells]
    rows = [
        _judged(metric, cell, mean, variance, noise, each)
        for cell, mean, variance in zip(cells, means, own, strict=True)
    ]
    together = None if noise is None else sum(v for v in own if v is not None) / len(cells) ** 2
    everything = [change for cell in cells for change in cell]
    return rows, _judged(metric, everything, float(np.mean(means)), together, noise, max(each, risk / 2))


def _change(pair: Pair, metric: Metric) -> _Change | None:
    """Return by how much a pair differs; None if one lacks the metric or a ratio cannot be taken."""
    before, after = pair.before.value(metric.name), pair.after.value(metric.name)
    if before is None or after is None:
        return None
    if metric.difference:
        return _Change(pair, before, after, after - before, 0.0)
    if before != after and not (before > 0 and after > 0):
        return None
    size = 0.0 if before == after else math.log(after / before)
    return _Change(pair, before, after, size, _epochs_error(pair) if metric.by_epoch else 0.0)


def _epochs_error(pair: Pair) -> float:
    """Return the standard error of log(ratio of median epoch times) that the epochs tell; 0 without them."""
    ratio = ratio_interval(pair.after.epoch_times(), pair.before.epoch_times(), paired=False)
    return 0.0 if ratio is None or not ratio.low > 0 else math.log(ratio.high / ratio.low) / (2 * NORMAL)


def _explained(changes: Sequence[_Change]) -> float:
    """Return the mean variance of changes that their epochs tell."""
    return float(np.mean([change.error**2 for change in changes]))


def _noise(cells: Sequence[Sequence[_Change]], metric: Metric) -> _Noise | None:
    """Return how far changes scatter that should be equal: over seeds, else robustly over all trials.

    What was measured beforehand counts as `PRIOR` degrees of freedom of it (as in a moderated t-test, Smyth,
    Stat. Appl. Genet. Mol. Biol. 3, 2004), so that two seeds that agree by chance make nothing sure; where
    these scatter more, they count alone; where far more, with their own freedom. None if nothing is known.
    """
    explained = _explained([change for cell in cells for change in cell])
    freedom: float = sum(len(cell) - 1 for cell in cells)
    if freedom:
        squares = sum(float(np.var([c.size for c in cell])) * len(cell) for cell in cells)
        scatter = squares / freedom
    elif metric.exact:
        return _Noise(0.0, math.inf)
    else:
        sizes = np.array([cell[0].size for cell in cells])
        scatter = (1.4826 * float(np.median(np.abs(sizes - np.median(sizes))))) ** 2
        freedom = (len(cells) - 1) / 2  # the median deviation has less than half the mean square's
    beyond = max(0.0, scatter - explained)
    if metric.rerun is None:
        return _Noise(beyond, freedom) if freedom else None
    both = (PRIOR * metric.rerun**2 + freedom * beyond) / (PRIOR + freedom)
    if beyond > both and beyond > WILD * metric.rerun**2:
        return _Noise(beyond, max(freedom, 1.0))
    return _Noise(max(both, beyond), PRIOR + freedom)


def _judged(
    metric: Metric, changes: Sequence[_Change], mean: float, variance: float | None, noise: _Noise | None, risk: float
) -> Compared:
    """Return what pairs show together; `variance`: of their mean change, `risk`: of a verdict on nothing."""
    label = changes[0].pair.label
    before, after = ([getattr(c, side) for c in changes] for side in ("before", "after"))

    def shown(size: float) -> float:
        return size if metric.difference else math.exp(size)

    interval, sure = None, False
    if variance is not None and noise is not None:
        error = math.sqrt(variance + metric.drift**2)
        reach = error * _quantile(noise.freedom, 1 - CONFIDENCE)
        interval = Interval(shown(mean), shown(mean - reach), shown(mean + reach))
        sure = abs(mean) > error * _quantile(noise.freedom, risk)
    same = all(change.size == 0 for change in changes)
    return Compared(
        label,
        len(changes),
        float(np.mean(before)),
        float(np.mean(after)),
        shown(mean),
        interval,
        SAME if same else metric.word(mean) if sure else UNSURE,
        sure and metric.worse(mean),
        paired_test(after, before),
    )


def _quantile(freedom: float, beyond: float) -> float:
    """Return Student's quantile that a share `beyond` lies outside of, both sides together."""
    if math.isinf(freedom):
        return float(special.ndtri(1 - beyond / 2))
    return float(special.stdtrit(freedom, 1 - beyond / 2))


CODE = ("harness", "commit", "dirty")
# A machine's name is not recorded: these tell it from another.
HARDWARE = ("cpu", "cores", "logical_cores", "memory_gib", "gpus", "nodes")
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
    plain = {key: value for key, value in environment.items() if key not in ("packages", "memory_bytes")}
    plain |= environment.get("packages") or {}
    if memory := environment.get("memory_bytes"):
        plain["memory_gib"] = round(memory / 2**30)  # a kernel's update changes what it has left by less
    if plain.get("commit"):
        plain["commit"] = str(plain["commit"])[:10]
    return {key: v if isinstance(v, str) else json.dumps(v) for key, v in plain.items() if v is not None}


def _text(values: set[str] | None) -> str:
    return " and ".join(sorted(values)) if values else "unknown"
