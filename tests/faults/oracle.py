"""What must be true of a place after a fault, found without any of harness's own readers.

Every trial has one record directory; its JSON parses; its status, weights and curve are those of an undisturbed run,
bit for bit; nothing that the run started or made for a while is left.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet

from tests.faults.place import PATIENCE_S, SHARED, Place, is_private

LOST, DOUBLED, WRONG, ORPHANS, HANGS = OUTCOMES = ("lost", "doubled", "wrong", "orphans", "hangs")
LINES = 7  # of a traceback are told
TRACEBACK = "Traceback (most recent call last)"
KEPT = {
    ".leases",
    ".runners",
    ".staging",
    ".checkpoints",
    ".requests",
    ".jobs",
    "suite.json",
    "reference.jsonl",
    ".reference.jsonl.lock",
}
CURVE = ("epoch", "rank", "steps", "loss", "lr", "train_score", "val_score", "test_score")


class Finding(NamedTuple):
    """Something that must not be: which of OUTCOMES, and what it is in words."""

    outcome: str
    what: str


@dataclass(frozen=True)
class Trial:
    """What a trial came to: all of it that does not depend on time."""

    status: str
    config: str
    checksum: object
    curve: tuple[tuple[Any, ...], ...]


class Damaged(Exception):  # noqa: N818 - a finding, and no error of the matrix
    """A record cannot be read; the message says why."""


def read_trial(place: Path) -> Trial:
    """Read a record's directory. Raises Damaged."""
    try:
        record = json.loads((place / "record.json").read_bytes(), parse_constant=_refuse)
        status, result = record["status"], record["result"]
        curve = () if status != "ok" else _curve(place / "epochs.parquet")
        config = json.dumps(record["config"], sort_keys=True)
        if record["trial"] != place.name:
            raise Damaged(f"{place.name}: says it is trial {record['trial']}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Damaged(f"{place.name}: {type(error).__name__}: {error}") from error
    return Trial(status, config, result.get("checksum"), curve)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _curve(path: Path) -> tuple[tuple[Any, ...], ...]:
    table = pyarrow.parquet.read_table(path)
    names = [*CURVE, *sorted(name for name in table.column_names if name.startswith("bytes_"))]
    rows = zip(*(table.column(name).to_pylist() for name in names), strict=True)
    # Of floats every bit: equal text of `hex` is equal bits, and NaN equals NaN.
    whole = (tuple(value.hex() if isinstance(value, float) else value for value in row) for row in rows)
    return tuple(sorted(whole, key=lambda row: (row[0], row[1])))


def read_trials(trials: Path) -> tuple[dict[str, Trial], list[Finding]]:
    """Read all records of a suite's directory, whole ones by id, and what is wrong with the others."""
    found, findings = {}, []
    homes = [path for path in trials.iterdir() if not path.name.startswith(".") and path.is_dir()]
    for home in sorted(homes):
        try:
            found[home.name] = read_trial(home)
        except Damaged as damaged:
            findings.append(Finding(WRONG, f"damaged record {damaged}"))
    return found, findings


def failures(place: Place) -> set[tuple[str, int]]:
    """Return the records of failures: which trial's, and a number that no other record of it has."""
    found = read_trials(place.trials)[0] if place.trials.is_dir() else {}
    paths = {id_: place.trials / id_ / "record.json" for id_, trial in found.items() if trial.status != "ok"}
    return {(id_, path.stat().st_mtime_ns) for id_, path in paths.items()}


def judge_between(place: Place, reference: dict[str, Trial], may: Mapping[str, Collection[str]]) -> list[Finding]:
    """Judge what a fault leaves: what is recorded as ok is right, and no trial failed in a way it may not.

    `may`: the statuses that each trial may have which failed since the fault before.
    """
    if not place.trials.is_dir():
        return []
    found, findings = read_trials(place.trials)
    for id_, trial in found.items():
        findings += _differs(id_, trial, reference, may.get(id_, (trial.status,)))
    return findings


def judge(place: Place, reference: dict[str, Trial], failed: Counter[str]) -> list[Finding]:
    """Judge a place after its last command: all trials are there, once, and nothing else is.

    `failed`: how often each trial's record was one of a failure, which was written over, or went away.
    """
    found, findings = read_trials(place.trials)
    findings += [Finding(LOST, f"{id_} has no record") for id_ in reference.keys() - found.keys()]
    for id_, trial in found.items():
        findings += _differs(id_, trial, reference, ())
    return [*findings, *_doubled(place, failed), *_left(place)]


def _differs(id_: str, trial: Trial, reference: dict[str, Trial], may: Collection[str]) -> list[Finding]:
    if id_ not in reference:
        return [Finding(DOUBLED, f"{id_} is no trial of the suite")]
    own = reference[id_]
    if trial.config != own.config:
        return [Finding(WRONG, f"{id_}: another configuration")]
    if trial.status != own.status:
        return [] if trial.status in may else [Finding(WRONG, f"{id_}: status {trial.status}")]
    if trial.checksum != own.checksum:
        return [Finding(WRONG, f"{id_}: other weights")]
    return [] if trial.curve == own.curve else [Finding(WRONG, f"{id_}: another curve")]


def _doubled(place: Place, failed: Counter[str]) -> list[Finding]:
    ended: Counter[str] = Counter()
    for path in place.trials.glob(".leases/[!.]*"):
        with suppress(ValueError):
            word = json.loads(path.read_bytes())
            ended[path.name.rpartition(".")[0]] += isinstance(word, dict) and bool(word.get("done"))
    findings = [
        Finding(DOUBLED, f"{id_} was recorded {count} times") for id_, count in ended.items() if count > 1 + failed[id_]
    ]
    hidden = place.trials.glob(".*/**/record.json")
    return findings + [Finding(DOUBLED, f"another record {path}") for path in hidden]


def _left(place: Place) -> list[Finding]:
    """Return the files that a run makes for a while and that are still there."""
    own = [
        place.temporary,
        *(place.trials / name for name in (".staging", ".runners", ".checkpoints")),
        *(SHARED if is_private() else ()),
    ]
    left = [path for directory in own if directory.is_dir() for path in directory.iterdir()]
    left += [path for path in place.trials.iterdir() if not path.is_dir() and path.name not in KEPT]
    left += [path for path in place.trials.glob(".*") if path.name not in KEPT]
    left += [path for root in (place.cache, place.trials) for path in root.rglob("*") if _is_temporary(path)]
    return [Finding(ORPHANS, f"left behind: {path}") for path in dict.fromkeys(left) if not _is_torchs(path)]


def _is_torchs(path: Path) -> bool:
    """Whether it is the empty directory, one a user, that torch makes when it is imported."""
    return path.name.startswith("torchinductor_") and path.is_dir() and not any(path.iterdir())


def _is_temporary(path: Path) -> bool:
    return path.suffix in (".tmp", ".new", ".part", ".commit", ".old")


def judge_processes(place: Place) -> list[Finding]:
    """Wait for what a command started to end with it, and return what does not."""
    end = time.monotonic() + PATIENCE_S
    while (left := place.processes()) and time.monotonic() < end:
        time.sleep(0.02)
    return [Finding(ORPHANS, f"still alive: {each.role} {each.pid} {each.name}") for each in left]


def judge_output(said: str) -> list[Finding]:
    """Judge what a command printed: whatever happens, no traceback."""
    if TRACEBACK not in said:
        return []
    before, _, after = said.partition(TRACEBACK)
    lines = [line.strip() for line in (*before.splitlines()[-1:], *after.splitlines()) if line.strip(" ^~\t")]
    return [Finding(WRONG, "a traceback: " + " | ".join([*lines[:1], *lines[1:][-LINES:]]))]
