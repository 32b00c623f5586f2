"""Times of the reference workload beside a suite's results: how fast each machine was, and when.

`reference.jsonl` has one JSON object a line, and is only ever added to.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from harness.data.store import locked
from harness.files import RECORD, read_bytes
from harness.results.record import Record

FILE = "reference.jsonl"


class Measurement(BaseModel):
    """One time of the reference workload."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    machine: str = Field(description="see `machine`")
    when: AwareDatetime = Field(description="its end")
    seconds: float = Field(gt=0, description="median of its repetitions")
    cores: int = Field(ge=1, description="that worked at it together, one thread each")


@cache
def machine() -> str:
    """Return 8 hex digits that tell this machine from others, without naming it."""
    try:
        own = Path("/etc/machine-id").read_text().strip()
    except OSError:
        own = ""
    return hashlib.blake2b(f"{platform.node()} {own}".encode(), digest_size=4).hexdigest()


def measured(seconds: float, cores: int) -> Measurement:
    """Return the measurement that this machine has just made."""
    when = datetime.now(UTC)
    return Measurement(machine=machine(), when=when, seconds=seconds, cores=cores)


def measurements(folder: Path) -> list[Measurement]:
    """Return what was measured for the results in `folder`, oldest first: a results directory, a suite's or a trial's.

    Lines that are not whole are left out; results older than the file have none.
    """
    home = folder.resolve().parent if (folder / "record.json").is_file() else folder
    return _ordered(each for path in [home / FILE, *home.glob(f"*/{FILE}")] for each in _read(path))


def at_middle(record: Record, known: Sequence[Measurement]) -> Record:
    """Return a trial's record with the `reference_s` that was measured nearest to the middle of the trial.

    That is the last before it, which the record has, or a later one of `known`, oldest first. It is never a mean of
    two: runs that share a measurement share its error, which `results.contrast` counts.
    """
    own = [each for each in known if each.seconds == record.environment.get("reference_s")]
    if not own:
        return record
    last = own[-1]
    begun = max(datetime.fromisoformat(record.started), last.when)
    middle = begun + timedelta(seconds=(record.wall_s or 0.0) / 2)
    later = [e for e in known if (e.machine, e.cores) == (last.machine, last.cores) and e.when >= last.when]
    nearest = min(later, key=lambda each: abs(each.when - middle))
    return record.model_copy(update={"environment": record.environment | {"reference_s": nearest.seconds}})


def note(directory: Path, new: Sequence[Measurement]) -> None:
    """Add measurements that are not there yet to those of a suite's `directory`; several processes may."""
    path = directory / FILE
    with locked(path):
        there = set(_read(path))
        lines = "".join(each.model_dump_json() + "\n" for each in _ordered(new) if each not in there)
        if not lines:
            return
        with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666), "ab+") as file:
            if file.tell() and not _ends_whole(path):
                lines = "\n" + lines  # whoever wrote last was killed in the middle of a line
            file.write(lines.encode())


def _ends_whole(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"


def _read(path: Path) -> list[Measurement]:
    try:
        lines = read_bytes(path, RECORD).splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        with suppress(ValidationError):
            found.append(Measurement.model_validate_json(line))
    return found


def _ordered(found: Iterable[Measurement]) -> list[Measurement]:
    return sorted(set(found), key=lambda each: (each.when, each.machine))
