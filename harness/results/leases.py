"""Leases of trials and runners' heartbeats: any number of runners share a suite's directory.

A lease is a file, `.leases/TRIAL.N`, which exactly one of the runners that try can make; the highest N is valid. None
is ever removed, so that no runner can make one again that another has made. No lock and no other machine's clock is
involved: a runner elsewhere is lost when its heartbeat has not changed for LOST_S of the observer's own time.
See docs/design/clusters.md.
"""

from __future__ import annotations

import contextlib
import errno
import inspect
import json
import os
import platform
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import psutil
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from harness.errors import UserError, readable, writing
from harness.files import SMALL, read_bytes, read_object, read_text, write_whole

RUNNERS, LEASES = ".runners", ".leases"
HEARTBEAT_S, LOST_S = 5.0, 60.0
_GONE = "gone"  # the last heartbeat of a runner that has ended
SAY_S = 1.0  # between two writes of a trial's progress
_UNKNOWN = "unknown"  # the runner of a lease that is being written
_LEASE = re.compile(r"([^.]{1,100})\.([1-9][0-9]{0,8})")  # ours; whatever else lies there is nobody's lease
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


class RunnerInfo(BaseModel):
    """A runner's identity and what it does.

    `machine` (its boot, and `process_space`) and `born` (its start time) distinguish a process from all
    others. `job`: the cluster's name of its job; `elapsed_s`: seconds that the trial has run.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: str
    host: str
    pid: int
    machine: str
    born: int
    started: str
    job: str | None = None
    trial: str | None = None
    label: str | None = None
    doing: str = ""
    elapsed_s: float | None = None

    @field_validator("*", mode="before")
    @classmethod
    def _readable(cls, value: Any) -> Any:
        return readable(value)

    @property
    def where(self) -> str:
        """Host, process and job, for people."""
        return f"{self.host}, pid {self.pid}" + (f", {self.job}" if self.job else "")


def named(holder: RunnerInfo | str) -> str:
    """Return where a lease's holder runs, or its id if no more is known."""
    return holder if isinstance(holder, str) else holder.where


def start_time(pid: int) -> int | None:
    """Return a process's start time in a unit of the system's; None if it has ended.

    It distinguishes a process from a later one that was given the same id.
    """
    if sys.platform != "linux":
        with contextlib.suppress(psutil.Error):
            return int(psutil.Process(pid).create_time() * 100)
        return None
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def process_space() -> str:
    """Return where ids and start times of processes are the same: a container has its own, perhaps after a move."""
    spaces = [Path("/proc/self/ns", each) for each in ("pid", "time")]  # kernels before 5.6 have no second
    return ".".join(str(each.stat().st_ino) for each in spaces if each.exists()) or "0"


def _machine() -> str:
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {process_space()}"
    except OSError:
        return f"{platform.node()} {psutil.boot_time():.0f}"


def _write_heartbeats(path: str, interval_s: float, gone: str) -> None:
    """Write a counter into a file every `interval_s`, and `gone` when standard input ends."""
    # It runs alone, from its source: with the standard library only it starts in a few hundredths of a second.
    import contextlib
    import os
    import select

    def write(text: str) -> None:
        with contextlib.suppress(OSError):  # a full or an unreachable disk: the next write may succeed
            # Replaced in place: who opens the file on another machine then asks the server for its content.
            fd = os.open(path, os.O_WRONLY)
            try:
                os.pwrite(fd, text.encode(), 0)
                os.ftruncate(fd, len(text))
                os.fsync(fd)
            finally:
                os.close(fd)

    count, alive = 0, True
    while alive:
        count += 1
        write(f"{count}\n")
        ready, _, _ = select.select([0], [], [], interval_s)
        alive = not ready or bool(os.read(0, 64))
    write(f"{gone}\n")


class Runner:
    """This process as a runner of a suite's directory, registered there while the context lasts."""

    def __init__(self, directory: Path, id_: str | None = None, heartbeat_s: float = HEARTBEAT_S) -> None:
        job = os.environ.get("SLURM_JOB_ID")
        if array := os.environ.get("SLURM_ARRAY_JOB_ID"):
            job = f"{array}_{os.environ.get('SLURM_ARRAY_TASK_ID')}"
        self.id = id_ or uuid.uuid4().hex[:10]
        self.info = RunnerInfo(
            id=self.id,
            host=platform.node(),
            pid=os.getpid(),
            machine=_machine(),
            born=start_time(os.getpid()) or 0,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            job=f"slurm job {job}" if job else os.environ.get("HARNESS_JOB"),
        )
        self._interval_s = heartbeat_s
        self._info_file, self._heartbeat_file = _files(directory, self.id)
        self._said = self._since = 0.0
        self._heartbeat: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        home = self._heartbeat_file.parent
        try:
            home.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise _no_directory(home) from error
        with writing(home):
            self._heartbeat_file.write_text("0\n")
        self._write()
        self._start_heartbeat()
        return self

    def __exit__(self, *error: object) -> None:
        heartbeat, self._heartbeat = self._heartbeat, None
        # The files go first: a second Ctrl-C may come while the heartbeat is being stopped.
        for path in (self._info_file, self._heartbeat_file):
            with contextlib.suppress(OSError):  # on a disk that takes no more writes the last heartbeat shows the end
                path.unlink(missing_ok=True)
        if heartbeat is not None and heartbeat.stdin is not None:
            heartbeat.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                heartbeat.wait(5)  # for its last write
            heartbeat.kill()
            heartbeat.wait()

    def say(self, doing: str, *, trial: str | None = None, label: str | None = None) -> None:
        """Publish what this runner does, at most once in SAY_S; `trial` and `label` when it begins one."""
        now, began = time.monotonic(), trial is not None
        if began:
            self._since = now
            self.info = self.info.model_copy(update={"trial": trial, "label": label})
        if self.info.trial is not None:
            self.info = self.info.model_copy(update={"doing": doing, "elapsed_s": round(now - self._since, 1)})
        if began or now - self._said >= SAY_S:
            self._said = now
            self._write()
            if self._heartbeat is not None and self._heartbeat.poll() is not None:  # it alone was killed
                self._start_heartbeat()

    def rest(self) -> None:
        """Publish that this runner has no trial."""
        self.info = self.info.model_copy(update={"trial": None, "label": None, "doing": "", "elapsed_s": None})
        self._write()

    def _start_heartbeat(self) -> None:
        arguments = f"{str(self._heartbeat_file)!r}, {self._interval_s}, {_GONE!r}"
        source = f"from __future__ import annotations\n{inspect.getsource(_write_heartbeats)}"
        # A process, because partitioners hold the interpreter for minutes: a thread would fall silent. It ends when its
        # standard input does, that is with this process; Ctrl-C is the runner's, not its.
        self._heartbeat = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", f"{source}\n_write_heartbeats({arguments})"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _write(self) -> None:
        with contextlib.suppress(OSError):  # on a full disk the progress is not known, the trial goes on
            write_whole(self._info_file, self.info.model_dump_json(), self._info_file.with_suffix(".new"))


def _no_directory(path: Path) -> UserError:
    return UserError("is no directory", file=path, fix="remove it: the next run makes it")


def _files(directory: Path, id_: str) -> tuple[Path, Path]:
    """Return the files of a runner's information and of its heartbeat."""
    return directory / RUNNERS / f"{id_}.json", directory / RUNNERS / f"{id_}.beat"


@dataclass
class Runners:
    """The runners of a suite's directory as an observer sees them, dead ones too."""

    directory: Path
    lost_s: float = LOST_S
    clock: Callable[[], float] = time.monotonic
    _seen: dict[str, tuple[str, float]] = field(default_factory=dict)

    def stands_still(self, key: str, value: str) -> bool:
        """Return whether this has been the value of `key` for longer than `lost_s`, by the observer's own clock."""
        now = self.clock()
        last, since = self._seen.setdefault(key, (value, now))
        if value != last:
            self._seen[key] = value, now
        return value == last and now - since > self.lost_s

    def all(self) -> list[RunnerInfo]:
        """Return the runners, the first started first."""
        found = (self.info(path.stem) for path in (self.directory / RUNNERS).glob("*.json"))
        return sorted((info for info in found if info), key=lambda info: (info.started, info.id))

    def info(self, id_: str) -> RunnerInfo | None:
        """Return the information that a runner has published; None if it has none."""
        with contextlib.suppress(OSError, UserError, ValidationError):
            return RunnerInfo.model_validate_json(read_bytes(_files(self.directory, id_)[0], SMALL))
        return None

    def dead(self, id_: str) -> str | None:
        """Return why a runner is known to have ended; None if it lives or its state is not known (yet)."""
        try:
            heartbeat = read_text(_files(self.directory, id_)[1], SMALL).strip()
        except FileNotFoundError:
            return "has ended"
        except (OSError, UserError, UnicodeDecodeError):
            return None
        if heartbeat == _GONE:
            return "was killed"
        info = self.info(id_)
        if info is not None and info.machine == _machine():
            return None if start_time(info.pid) == info.born else "was killed"
        return f"has been silent for {self.lost_s:g} s" if self.stands_still(id_, heartbeat) else None

    def heartbeats_elsewhere(self) -> dict[str, str]:
        """Return the heartbeats of the runners on other machines, by id."""
        found = {}
        for id_ in [info.id for info in self.all() if info.machine != _machine()]:
            with contextlib.suppress(OSError, UserError, UnicodeDecodeError):
                found[id_] = read_text(_files(self.directory, id_)[1], SMALL).strip()
        return found

    def bury(self) -> None:
        """Remove the files of dead runners; their leases remain."""
        for path in (self.directory / RUNNERS).glob("*.beat"):
            if self.dead(path.stem):
                for file in _files(self.directory, path.stem):
                    file.unlink(missing_ok=True)


@dataclass(frozen=True)
class Lease:
    """The `number`-th lease of a trial, of `runner` (an id; None: it was returned, `done`: with the record written)."""

    trial: str
    number: int
    runner: str | None = None
    done: bool = False


class Leases:
    """The leases of a suite's directory, taken by the runner `own`."""

    def __init__(self, directory: Path, own: str, runners: Runners) -> None:
        self.home, self.own, self.runners = directory / LEASES, own, runners
        self._read: dict[tuple[str, int], Lease] = {}

    def latest(self) -> dict[str, Lease]:
        """Return the valid lease of each trial that was ever leased."""
        numbers: dict[str, int] = {}
        try:
            names = os.listdir(self.home)
        except FileNotFoundError:
            names = []
        except NotADirectoryError as error:
            raise _no_directory(self.home) from error
        for trial, number in (match.groups() for match in map(_LEASE.fullmatch, names) if match):
            numbers[trial] = max(numbers.get(trial, 0), int(number))
        return {trial: self._content(trial, number) for trial, number in numbers.items()}

    def holder(self, lease: Lease | None) -> RunnerInfo | str | None:
        """Return the living runner that holds a lease: its information, or its id; None if there is none."""
        if lease is None or lease.runner is None:
            return None
        if lease.runner not in (self.own, _UNKNOWN) and self.runners.dead(lease.runner):
            return None
        return self.runners.info(lease.runner) or lease.runner

    def take(self, trial: str, known: Lease | None) -> Lease | None:
        """Lease a trial of which `known` was the latest lease; None if a living runner holds it or was faster."""
        if self.holder(known) is not None:
            return None
        mine = Lease(trial, known.number + 1 if known else 1, self.own)
        return mine if self._make(mine) else None

    def holds(self, lease: Lease) -> bool:
        """Return whether a lease is the latest: a runner that was taken for dead may have lost it."""
        return not (self.home / f"{lease.trial}.{lease.number + 1}").exists()

    def end(self, lease: Lease, *, done: bool) -> None:
        """Return a lease; `done`: the trial's record is written."""
        self._make(Lease(lease.trial, lease.number + 1, None, done))

    def _make(self, lease: Lease) -> bool:
        """Write a lease whole; False if there is one of its number."""
        self.home.mkdir(parents=True, exist_ok=True)
        path = self.home / f"{lease.trial}.{lease.number}"
        text = json.dumps({"runner": lease.runner, "done": lease.done}).encode()
        temporary = self.home / f".{lease.trial}.{uuid.uuid4().hex}"
        try:
            with writing(self.home):
                temporary.write_bytes(text)
            os.link(temporary, path)
        except OSError as error:
            # A server that answered twice says of our own link that it exists: then there are two names for the file.
            if error.errno == errno.EEXIST:
                return temporary.stat().st_nlink == 2
            if error.errno not in _NO_LINKS:
                raise
            # Without hard links a reader may see the file before it has its content.
            try:
                with path.open("xb") as file:
                    file.write(text)
            except FileExistsError:
                return False
        finally:
            temporary.unlink(missing_ok=True)
        return True

    def _content(self, trial: str, number: int) -> Lease:
        key = trial, number
        if key not in self._read:
            path = self.home / f"{trial}.{number}"
            content = read_object(path, SMALL)
            if content is None and path.exists() and not path.is_file():  # nobody will ever write it
                return Lease(trial, number, None)
            if content is None:  # being written, by a runner that may die before the end
                waited = self.runners.stands_still(f"{trial}.{number}", "")
                return Lease(trial, number, None if waited else _UNKNOWN)
            self._read[key] = Lease(trial, number, content.get("runner"), bool(content.get("done")))
        return self._read[key]
