"""Where records live: one directory a trial, written whole or not at all.

Layout: `root/suite/<trial id>/{record.json, epochs.parquet, log.txt}`; work in progress and what is being
replaced lie in `root/suite/.staging`. A record is complete when its directory has its final name: the
directory is filled and flushed under `.staging` first, then renamed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.results.epochs import write_epochs
from harness.results.record import Record, read_record
from harness.suite.schema import PLAIN_NAME

STAGING = ".staging"
REPLACED = ".old"  # suffix of a record, under .staging, whose successor is being put in place


class ResultStore:
    """The records of one suite under a results directory."""

    def __init__(self, root: Path, suite: str) -> None:
        if not re.fullmatch(PLAIN_NAME, suite):
            raise UserError(f"'{suite}' cannot name a directory", key="name", fix="letters, digits, . _ -")
        self.root, self.suite = root, suite
        self.directory = root / suite
        self.staging = self.directory / STAGING
        self._staged: set[Path] = set()

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the suite's directory for one runner; a second one gets a UserError naming the first's pid."""
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / ".lock"
        with path.open("a+", encoding="ascii") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                holder = file.read().strip() or "unknown"
                raise UserError(
                    f"another run (pid {holder}) is writing to this suite",
                    file=self.directory,
                    fix="wait for it, stop it, or give another --results directory",
                ) from None
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
            yield

    def finished(self) -> dict[str, str]:
        """Return the status of every complete record by trial id; UserError if one is damaged."""
        return {path.name.removesuffix(REPLACED): read_at(path).status for path in records_under(self.directory)}

    def stage(self, trial_id: str) -> Path:
        """Return an empty working directory for a trial; `commit` or `clean` removes it."""
        path = self.staging / f"{_plain(trial_id)}-{os.getpid()}"
        shutil.rmtree(path, ignore_errors=True)  # of a dead runner that had our pid
        path.mkdir(parents=True)
        self._staged.add(path)
        return path

    def clean(self) -> None:
        """Remove what dead runners left and put back a record they were replacing. Call under `lock()`."""
        if not self.staging.is_dir():
            return
        for path in self.staging.iterdir():
            home = self.directory / path.name.removesuffix(REPLACED)
            if path.name.endswith(REPLACED) and not home.exists():
                path.rename(home)
            elif path.is_dir() and path not in self._staged:
                shutil.rmtree(path, ignore_errors=True)

    def commit(self, trial_id: str, record: Record, epochs: Sequence[dict[str, Any]], log: str) -> Path:
        """Write a record as `<trial id>/`, in place of an older one, and remove the trial's stage.

        Killed at any moment, it leaves the older record (or none) or the new one, never a part.
        """
        stage = self.staging / f"{_plain(trial_id)}-{os.getpid()}"
        built = stage.with_name(stage.name + ".commit")
        shutil.rmtree(built, ignore_errors=True)
        built.mkdir(parents=True)
        write_epochs(epochs, built / "epochs.parquet")
        (built / "log.txt").write_text(log, encoding="utf-8", errors="replace")
        (built / "record.json").write_text(record.to_json(), encoding="utf-8")
        home = self._put(built, trial_id)
        shutil.rmtree(stage, ignore_errors=True)
        self._staged.discard(stage)
        return home

    def adopt(self, place: Path, trial_id: str) -> Path:
        """Copy a whole record's directory here as `<trial id>/`, in place of an older one; as `commit`.

        Plain files only: a link would lead out of the results.
        """
        built = self.staging / f"{_plain(trial_id)}-{os.getpid()}.commit"
        shutil.rmtree(built, ignore_errors=True)
        built.mkdir(parents=True)
        for file in place.iterdir():
            if file.is_file() and not file.is_symlink():
                shutil.copyfile(file, built / file.name)
        return self._put(built, trial_id)

    def _put(self, built: Path, trial_id: str) -> Path:
        """Flush a filled directory and rename it to its final name; one cannot be renamed over another."""
        for path in [*built.iterdir(), built]:
            _flush(path)
        home, old = self.directory / trial_id, self.staging / f"{trial_id}{REPLACED}"
        if home.exists():
            shutil.rmtree(old, ignore_errors=True)
            home.rename(old)
        built.rename(home)
        _flush(self.directory)
        shutil.rmtree(old, ignore_errors=True)
        return home


def records_under(directory: Path) -> list[Path]:
    """Return the directories of the complete records of a suite, by trial id.

    Includes a record that a runner moved aside and whose successor is not there (yet).
    """
    homes = [p for p in _listed(directory) if not p.name.startswith(".") and (p / "record.json").is_file()]
    names = {path.name for path in homes}
    aside = [p for p in _listed(directory / STAGING) if p.name.endswith(REPLACED)]
    homes += [p for p in aside if p.name.removesuffix(REPLACED) not in names and (p / "record.json").is_file()]
    return sorted(homes, key=lambda path: path.name)


def read_at(path: Path) -> Record:
    """Read the record in a directory that `records_under` returned, also when it has moved since."""
    trial = path.name.removesuffix(REPLACED)
    suite = path.parent.parent if path.parent.name == STAGING else path.parent
    for place in (path, suite / STAGING / f"{trial}{REPLACED}", suite / trial):
        with contextlib.suppress(FileNotFoundError):
            return read_record(place / "record.json")
    raise UserError("record disappeared while it was read", file=path, fix="try again")


def _listed(directory: Path) -> list[Path]:
    """Return what is in a directory; nothing if it does not exist."""
    try:
        return list(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _plain(trial_id: str) -> str:
    """Return a trial id that is safe as a directory's name."""
    if not re.fullmatch(PLAIN_NAME, trial_id):
        raise ValueError(f"not a trial id: {trial_id!r}")
    return trial_id


def _flush(path: Path) -> None:
    """Have the kernel write a file, or a directory's entries, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
