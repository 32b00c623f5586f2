"""Any number of runners share a suite's directory: each leases a trial before it runs it, and shows that it lives.

A lease is a file, `.leases/TRIAL.N`, which one only of all who try can make; the highest N holds. None is ever removed,
so that nobody can make again what somebody has made. No lock and no clock of another machine is asked: a runner
elsewhere is lost when its heartbeat has stood still for LOST_S of the observer's own time.
See docs/design/leases.md.
"""

from __future__ import annotations

import contextlib
import errno
import inspect
import json
import os
import platform
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import psutil
from pydantic import BaseModel, ConfigDict, ValidationError

from harness.errors import UserError, writing
from harness.files import SMALL, read_bytes, read_text

RUNNERS, LEASES = ".runners", ".leases"
HEARTBEAT_S, LOST_S = 5.0, 60.0
_GONE = "gone"  # the last heartbeat of a runner that has ended
SAY_S = 1.0  # between two times that a runner writes how far its trial is
_UNKNOWN = "unknown"  # whoever is writing a lease at this moment
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


class RunnerInfo(BaseModel):
    """Says who a runner is and what it does.

    `machine` (its boot, and the namespace of process ids) and `born` (when it was started) tell a process from all
    others. `job` is the cluster's name for the job that it runs in. `elapsed_s`: how long the trial has run.
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

    @classmethod
    def here(cls, id_: str) -> RunnerInfo:
        """Return that of this process."""
        return cls(
            id=id_,
            host=platform.node(),
            pid=os.getpid(),
            machine=_machine(),
            born=start_time(os.getpid()) or 0,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            job=_job(os.environ),
        )

    @property
    def where(self) -> str:
        """Return host, process and job, as a person would ask for them."""
        return f"{self.host}, pid {self.pid}" + (f", {self.job}" if self.job else "")


def named(holder: RunnerInfo | str) -> str:
    """Return where a holder of a lease is, or the id of one that says nothing of itself."""
    return holder if isinstance(holder, str) else holder.where


def start_time(pid: int) -> int | None:
    """Return when a process was started, in a unit of the system's; None if it has ended.

    With it a process that was given a dead one's id is not taken for that.
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


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"{platform.node()} {psutil.boot_time():.0f}"


def _job(variables: Mapping[str, str]) -> str | None:
    if array := variables.get("SLURM_ARRAY_JOB_ID"):
        return f"slurm job {array}_{variables.get('SLURM_ARRAY_TASK_ID')}"
    if job := variables.get("SLURM_JOB_ID"):
        return f"slurm job {job}"
    return variables.get("HARNESS_JOB")


def _write_heartbeats(path: str, interval_s: float, gone: str) -> None:
    """Write a counter into a file every `interval_s`, and `gone` when standard input ends.

    It runs alone, from its source: with the standard library only it starts in a few hundredths of a second.
    """
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


def start_heartbeat(*arguments: str, inherited: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    """Start Python with `arguments` as a process that is to end when its standard input does: when this one ends.

    It is a process, because partitioners hold the interpreter for minutes: a thread would fall silent. `inherited`:
    file descriptors that it has, too.
    """
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is the runner's
        pass_fds=inherited,
    )


def stop_heartbeat(process: subprocess.Popen[bytes], patience_s: float) -> None:
    """End such a process; it has `patience_s` for its last write."""
    assert process.stdin is not None
    process.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(patience_s)
    process.kill()
    process.wait()


@dataclass
class Liveness:
    """Watches values that change while a process lives, by the own clock: clocks of two machines are never compared."""

    clock: Callable[[], float] = time.monotonic
    _seen: dict[str, tuple[str | None, float]] = field(default_factory=dict)

    def unchanged_s(self, key: str, value: str | None) -> float:
        """Return for how many seconds this has been the value of `key`; 0 when it is new."""
        now = self.clock()
        last, since = self._seen.setdefault(key, (value, now))
        if value != last:
            self._seen[key] = value, now
            return 0.0
        return now - since


class Runner:
    """This process as one of the runners of a suite's directory, from entering it as a context to leaving it."""

    def __init__(self, directory: Path, id_: str | None = None, heartbeat_s: float = HEARTBEAT_S) -> None:
        self.info = RunnerInfo.here(id_ or uuid.uuid4().hex[:10])
        self.directory, self.id = directory, self.info.id
        self._home, self._interval_s = directory / RUNNERS, heartbeat_s
        self._said = self._since = 0.0
        self._heartbeat: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._home.mkdir(parents=True, exist_ok=True)
        with writing(self._home):
            _heartbeat_path(self.directory, self.id).write_text("0\n")
        self._write()
        self._start_heartbeat()
        return self

    def __exit__(self, *error: object) -> None:
        heartbeat, self._heartbeat = self._heartbeat, None
        # The files go first: a second Ctrl-C may come while the heart is being stopped.
        for path in (_info_path(self.directory, self.id), _heartbeat_path(self.directory, self.id)):
            with contextlib.suppress(OSError):  # a disk that takes no more writes: the heart's end tells, or silence
                path.unlink(missing_ok=True)
        if heartbeat is not None:
            stop_heartbeat(heartbeat, 5)

    def say(self, doing: str, *, trial: str | None = None, label: str | None = None) -> None:
        """Show what this runner does; `trial` and `label` when it begins one. Written once in SAY_S at most."""
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
        """Show that this runner has no trial."""
        self.info = self.info.model_copy(update={"trial": None, "label": None, "doing": "", "elapsed_s": None})
        self._write()

    def _start_heartbeat(self) -> None:
        path = _heartbeat_path(self.directory, self.id)
        call = f"_write_heartbeats({str(path)!r}, {self._interval_s}, {_GONE!r})"
        script = f"from __future__ import annotations\n{inspect.getsource(_write_heartbeats)}\n{call}"
        self._heartbeat = start_heartbeat("-I", "-S", "-c", script)

    def _write(self) -> None:
        path = _info_path(self.directory, self.id)
        temporary = path.with_suffix(".new")
        with contextlib.suppress(OSError):  # a full disk: what it does is not known, the trial goes on
            try:
                temporary.write_text(self.info.model_dump_json(), encoding="utf-8")
                temporary.replace(path)
            except OSError:
                temporary.unlink(missing_ok=True)


def _info_path(directory: Path, id_: str) -> Path:
    return directory / RUNNERS / f"{id_}.json"


def _heartbeat_path(directory: Path, id_: str) -> Path:
    return directory / RUNNERS / f"{id_}.beat"


def _heartbeat(directory: Path, id_: str) -> str:
    return read_text(_heartbeat_path(directory, id_), SMALL).strip()


@dataclass
class Runners:
    """Sees the runners of a suite's directory, and which of them live."""

    directory: Path
    lost_s: float = LOST_S
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._liveness = Liveness(self.clock)

    def all(self) -> list[RunnerInfo]:
        """Return those that show themselves, the first started first; dead ones too."""
        found = (self.info(path.stem) for path in (self.directory / RUNNERS).glob("*.json"))
        return sorted((info for info in found if info), key=lambda info: (info.started, info.id))

    def info(self, id_: str) -> RunnerInfo | None:
        """Return what a runner says of itself; None if it says nothing."""
        with contextlib.suppress(OSError, UserError, ValidationError):
            return RunnerInfo.model_validate_json(read_bytes(_info_path(self.directory, id_), SMALL))
        return None

    def dead(self, id_: str) -> str | None:
        """Return why a runner is known to have ended; None if it lives or that cannot be told (yet)."""
        try:
            heartbeat = _heartbeat(self.directory, id_)
        except FileNotFoundError:
            return "has ended"
        except (OSError, UserError, UnicodeDecodeError):
            return None
        if heartbeat == _GONE:
            return "was killed"
        info = self.info(id_)
        if info is not None and info.machine == _machine():
            return None if start_time(info.pid) == info.born else "was killed"
        silent = self._liveness.unchanged_s(id_, heartbeat) > self.lost_s
        return f"has been silent for {self.lost_s:g} s" if silent else None

    def heartbeats_elsewhere(self) -> dict[str, str]:
        """Return the heartbeats of the runners on other machines, by id."""
        found = {}
        for info in self.all():
            if info.machine != _machine():
                with contextlib.suppress(OSError, UserError, UnicodeDecodeError):
                    found[info.id] = _heartbeat(self.directory, info.id)
        return found

    def bury(self) -> None:
        """Remove what dead runners show of themselves; the leases that they held tell of them no less."""
        for path in (self.directory / RUNNERS).glob("*.beat"):
            if self.dead(path.stem):
                _info_path(self.directory, path.stem).unlink(missing_ok=True)
                path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Lease:
    """The `number`-th word on a trial: a runner's id, or (None) that it is nobody's; `done`: its record was written."""

    trial: str
    number: int
    runner: str | None = None
    done: bool = False


@dataclass
class Leases:
    """The leases of a suite's directory, taken by the runner `own`."""

    directory: Path
    own: str
    runners: Runners
    _read: dict[tuple[str, int], Lease] = field(default_factory=dict)
    _empty: dict[tuple[str, int], float] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        """The directory of the files."""
        return self.directory / LEASES

    def latest(self) -> dict[str, Lease]:
        """Return what holds of each trial that was ever leased."""
        numbers: dict[str, int] = {}
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self.home):
                trial, _, number = name.rpartition(".")
                if trial and not trial.startswith(".") and number.isdigit():
                    numbers[trial] = max(numbers.get(trial, 0), int(number))
        return {trial: self._content(trial, number) for trial, number in numbers.items()}

    def holder(self, lease: Lease | None) -> RunnerInfo | str | None:
        """Return who holds a lease: what the runner says of itself, or its id; None if nobody living does."""
        if lease is None or lease.runner is None:
            return None
        if lease.runner not in (self.own, _UNKNOWN) and self.runners.dead(lease.runner):
            return None
        return self.runners.info(lease.runner) or lease.runner

    def take(self, trial: str, known: Lease | None) -> Lease | None:
        """Lease a trial of which `known` was the latest word; None if somebody living holds it or was faster."""
        if self.holder(known) is not None:
            return None
        mine = Lease(trial, known.number + 1 if known else 1, self.own)
        return mine if self._make(mine) else None

    def holds(self, lease: Lease) -> bool:
        """Return whether a lease is the latest word: whoever was taken for dead may have lost it."""
        return not (self.home / f"{lease.trial}.{lease.number + 1}").exists()

    def end(self, lease: Lease, *, done: bool) -> None:
        """Give a lease back; `done`: the trial's record is written."""
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
            return _make_exclusively(path, text)
        finally:
            temporary.unlink(missing_ok=True)
        return True

    def _content(self, trial: str, number: int) -> Lease:
        key = trial, number
        if key not in self._read:
            content: Any = None
            with contextlib.suppress(OSError, UserError, ValueError, RecursionError):
                content = json.loads(read_bytes(self.home / f"{trial}.{number}", SMALL))
            if not isinstance(content, dict):  # being written, by somebody who may die before the end
                since = self._empty.setdefault(key, self.runners.clock())
                waited = self.runners.clock() - since > self.runners.lost_s
                return Lease(trial, number, None if waited else _UNKNOWN)
            self._read[key] = Lease(trial, number, content.get("runner"), bool(content.get("done")))
        return self._read[key]


def _make_exclusively(path: Path, text: bytes) -> bool:
    """Do without hard links: a reader may see the file before it has its content."""
    try:
        with path.open("xb") as file:
            file.write(text)
    except FileExistsError:
        return False
    return True
