"""Which trial of one set of results belongs to which of another."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from harness.errors import UserError
from harness.metrics import Metric, find_metric
from harness.results.epochs import read_epochs, timed_epochs
from harness.results.frames import declared_metrics, record_places, row_of
from harness.results.record import Record, flatten
from harness.results.store import read_at

ABSENT = "(absent)"  # of a key that a configuration lacks


@dataclass(frozen=True)
class Trial:
    """A record and the directory that it lies in."""

    record: Record
    place: Path

    def figure(self, column: str) -> float | None:
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
    other `bns-gcn`.

    Raises:
        UserError: several trials fit one; nothing fits.
    """
    ids = {trial.record.trial for trial in before} & {trial.record.trial for trial in after}
    if ids:
        return _matched(before, after, lambda trial: trial.record.trial, ())
    mine, yours = ([flat_config(trial.record.config) for trial in side] for side in (before, after))
    keys = sorted({key for config in (*mine, *yours) for key in config})
    apart = tuple(key for key in keys if not {c.get(key, ABSENT) for c in mine} & {c.get(key, ABSENT) for c in yours})
    common = [key for key in keys if key not in apart]

    def name(trial: Trial) -> str:
        config = flat_config(trial.record.config)
        return json.dumps([config.get(key, ABSENT) for key in common])

    found = _matched(before, after, name, apart)
    if not found.pairs:
        raise UserError("no trial is on both sides", fix="compare results of one suite")
    return found


def group_seeds(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """Group pairs that differ in their seed only, in the order of the first of each."""
    cells: dict[str, list[Pair]] = {}
    for each in pairs:
        config = flat_config(each.after.record.config)
        config.pop("seed", None)
        cells.setdefault(json.dumps(config, sort_keys=True), []).append(each)
    return list(cells.values())


def _matched(
    before: Sequence[Trial], after: Sequence[Trial], name: Callable[[Trial], str], apart: tuple[str, ...]
) -> Pairing:
    """Pair trials of equal names."""
    partners = _by_name(before, name, apart)
    others = _by_name(after, name, apart)
    return Pairing(
        tuple(Pair(partners[key], trial) for key, trial in others.items() if key in partners),
        apart,
        tuple(trial for key, trial in partners.items() if key not in others),
        tuple(trial for key, trial in others.items() if key not in partners),
    )


def _by_name(trials: Sequence[Trial], name: Callable[[Trial], str], apart: tuple[str, ...]) -> dict[str, Trial]:
    named: dict[str, Trial] = {}
    for trial in trials:
        other = named.setdefault(name(trial), trial)
        if other is not trial:
            what = f"'{other.record.label}' and '{trial.record.label}' differ in {', '.join(apart)} only"
            raise UserError(what, file=trial.place.parent, fix="leave one of them out: --only")
    return named


def flat_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration as `section.key` and plain values: lists as text, of a path its name."""
    return {key: _plain(key, value) for key, value in flatten(config).items()}


def _plain(key: str, value: Any) -> str | int | float | None:
    if key == "partition.file" and isinstance(value, str):
        return PurePath(value).name
    return value if isinstance(value, str | int | float | None) else json.dumps(value)
