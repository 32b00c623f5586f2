"""What a tracker is told of a trial: its configuration, its metrics, and those of every epoch."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from harness.errors import UserError
from harness.results.frames import row_of
from harness.results.record import Record, flat_config
from harness.results.store import read_at, read_epochs, record_places
from harness.suite.schema import PLAIN_NAME

FIRST = ("loss", "lr", "train_score", "val_score", "test_score", "sampled_val_score", "sampled_test_score")
SUMS = ("bytes_", "stat_", "energy_")  # beginnings of what ranks have a share of
_ODD = re.compile(r"[^\w\-./ ]")  # what not every tracker takes in a name


@dataclass(frozen=True)
class TrackedRun:
    """A trial; `started`: seconds since 1970; `epochs`: row by row, index from 1, NaN where there is none.

    `params`: the configuration as `section.key`; `metrics`: its numbers, as in `load_results`. An epoch has
    the slowest rank's time, sums of bytes and the method's metrics, means of the phases' times over ranks.
    """

    suite: str
    trial: str
    label: str
    status: str
    started: float
    params: Mapping[str, Any]
    metrics: Mapping[str, float]
    epochs: pd.DataFrame

    def steps(self) -> Iterator[tuple[int, float, dict[str, float]]]:
        """Yield each epoch's number, the time of its end (since 1970, training alone) and its metrics."""
        now = self.started
        for epoch, row in self.epochs.iterrows():
            known = {str(key): float(value) for key, value in row.items() if np.isfinite(value)}
            now += known.get("epoch_time_s", 0.0)
            yield int(str(epoch)), now, known


def read_runs(path: Path) -> list[TrackedRun]:
    """Read the trials of a results directory, a suite's or a trial's, as they started; UserError if none."""
    found = sorted((_run(read_at(p), p) for p in record_places(path)), key=lambda run: run.started)
    if not found:
        raise UserError("holds no finished trial", file=path, fix="run `harness run SUITE` first")
    return found


def import_extra(module: str, extra: str) -> Any:
    """Import what an extra installs; UserError that names the extra if it is not there."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        what = f"{extra} is not installed"
        raise UserError(what, key="--to", fix=f"python -m pip install '.[{extra}]'") from error


def _run(record: Record, place: Path) -> TrackedRun:
    if not all(re.fullmatch(PLAIN_NAME, name) for name in (record.suite, record.trial)):
        raise UserError("its suite and trial cannot name directories", file=place)
    numbers = {
        _ODD.sub("_", key): float(value)
        for key, value in row_of(record).items()
        if isinstance(value, int | float) and not isinstance(value, bool) and np.isfinite(value)
    }
    for key in ("parts", "seed"):  # of the configuration
        numbers.pop(key, None)
    return TrackedRun(
        record.suite,
        record.trial,
        record.label,
        record.status,
        datetime.fromisoformat(record.started).timestamp(),
        {_ODD.sub("_", key): value for key, value in flat_config(record.config).items()},
        numbers,
        _by_epoch(read_epochs(place / "epochs.parquet")),
    )


def _by_epoch(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row an epoch of the rows of its ranks."""
    if rows.empty:
        return pd.DataFrame()
    groups: Any = rows.groupby("epoch", sort=True)
    columns: dict[str, Any] = {"epoch_time_s": groups["epoch_time_s"].max()}
    for name in map(str, rows.select_dtypes("number")):
        if name in FIRST:
            columns[name] = groups[name].first()
        elif name.startswith(SUMS):
            columns[_ODD.sub("_", name)] = groups[name].sum(min_count=1)
        elif name.startswith("time_"):
            columns[name] = groups[name].mean()
    frame = pd.DataFrame(columns)
    return frame.set_axis(frame.index + 1)
