"""What a report is made from: the trials' frames and the records behind them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from harness.errors import UserError
from harness.results.frames import load_epochs, load_results
from harness.results.record import Record, read_record

RecordKey = tuple[str, str]


@dataclass(frozen=True)
class Inputs:
    """Everything a report shows.

    `results`: one row a trial, `epochs`: one row an epoch and rank (columns as in
    `harness.results.frames`); `records`: the record of each (suite, trial), possibly fewer.
    """

    results: pd.DataFrame
    epochs: pd.DataFrame
    records: Mapping[RecordKey, Record] = field(default_factory=dict)

    def record(self, row: Mapping[Any, Any]) -> Record | None:
        """Return the record of a row of `results`, None if it is not there."""
        return self.records.get((str(row["suite"]), str(row["trial"])))

    def config(self, row: Mapping[Any, Any]) -> Mapping[str, Any]:
        """Return the resolved configuration of a row of `results`, empty without its record."""
        record = self.record(row)
        return record.config if record else {}


def load_inputs(results_dir: Path) -> Inputs:
    """Read the trials under a results root, a suite's directory or one trial's.

    UserError if the directory is missing, holds no trial, or a record is damaged.
    """
    if not results_dir.is_dir():
        raise UserError("no such directory of results", file=results_dir, fix="run `harness run SUITE` first")
    results = load_results(results_dir).drop_duplicates(["suite", "trial"], ignore_index=True)
    if results.empty:
        raise UserError("holds no finished trial", file=results_dir, fix="run `harness run SUITE` first")
    return Inputs(results, load_epochs(results_dir), _records(results_dir))


def _records(results_dir: Path) -> dict[RecordKey, Record]:
    """Read the records; one that a runner is just replacing is left out."""
    records: dict[RecordKey, Record] = {}
    for pattern in ("record.json", "*/record.json", "*/*/record.json"):
        for path in sorted(results_dir.glob(pattern)):
            if any(part.startswith(".") for part in path.relative_to(results_dir).parts):
                continue
            with contextlib.suppress(FileNotFoundError):
                record = read_record(path)
                records[record.suite, record.trial] = record
    return records
