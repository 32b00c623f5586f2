"""What a report is made from: the trials' frames and the records behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from harness.errors import UserError
from harness.results.frames import load_epochs, load_results, record_places
from harness.results.record import Record
from harness.results.store import read_at

RecordKey = tuple[str, str]
_TRIAL = ["suite", "trial"]  # what a trial is known by


@dataclass(frozen=True)
class Inputs:
    """Everything a report shows.

    `results`: one row a trial, `epochs`: one row an epoch and rank (columns as in
    `harness.results.frames`); `records`: the record of each (suite, trial), possibly fewer;
    `directories`: where they were read; `repeated`: how many trials were in several of them, each with
    other figures (the one that started last is shown).
    """

    results: pd.DataFrame
    epochs: pd.DataFrame
    records: Mapping[RecordKey, Record] = field(default_factory=dict)
    directories: tuple[Path, ...] = ()
    repeated: int = 0

    def record(self, row: Mapping[Any, Any]) -> Record | None:
        """Return the record of a row of `results`, None if it is not there."""
        return self.records.get((str(row["suite"]), str(row["trial"])))

    def config(self, row: Mapping[Any, Any]) -> Mapping[str, Any]:
        """Return the resolved configuration of a row of `results`, empty without its record."""
        record = self.record(row)
        return record.config if record else {}


def load_inputs(directories: Path | Sequence[Path]) -> Inputs:
    """Read the trials under results roots, suites' directories or trials' own.

    A trial (its suite's name and its id) that is in several is taken from where it started last. UserError
    if a directory is missing, holds no trial, or a record is damaged.
    """
    listed = [directories] if isinstance(directories, Path) else list(directories)
    places = tuple({place.resolve(): place for place in listed}.values())
    own = [_load(place) for place in places]
    if len(own) == 1:
        return own[0]
    every = pd.concat([each.results.assign(place=i) for i, each in enumerate(own)], ignore_index=True)
    every = every.sort_values(["suite", "started", "trial"], kind="stable")
    runs = every.drop_duplicates([*_TRIAL, "started"])
    last = runs.drop_duplicates(_TRIAL, keep="last")
    from_place = dict(zip(zip(last["suite"], last["trial"], strict=True), last["place"], strict=True))
    epochs = [
        each.epochs[[from_place[key] == i for key in zip(*(each.epochs[c] for c in _TRIAL), strict=True)]]
        for i, each in enumerate(own)
    ]
    return Inputs(
        last.drop(columns="place").reset_index(drop=True),
        pd.concat(epochs, ignore_index=True),
        {key: own[i].records[key] for key, i in from_place.items() if key in own[i].records},
        places,
        len(runs[runs.duplicated(_TRIAL)].drop_duplicates(_TRIAL)),
    )


def _load(place: Path) -> Inputs:
    if not place.is_dir():
        raise UserError("no such directory of results", file=place, fix="run `harness run SUITE` first")
    results = load_results(place).drop_duplicates(_TRIAL, ignore_index=True)
    if results.empty:
        raise UserError("holds no finished trial", file=place, fix="run `harness run SUITE` first")
    records = (read_at(home) for home in record_places(place))
    return Inputs(results, load_epochs(place), {(r.suite, r.trial): r for r in records}, (place,))
