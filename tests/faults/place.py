"""A place of a case's own: suite, results, cache, temporary files, and the commands that run there."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.planted import PLAN

HARNESS = (sys.executable, "-P", "-m", "harness")
MARK = "HARNESS_FAULTS_CASE"  # in the environment of all that a case starts
PRIVATE = "HARNESS_FAULTS_PRIVATE"  # says that mounts, shared memory and names of namespaces are this process's own
NAME = "faults"  # of every suite
SHARED = (Path("/dev/shm"), Path("/run/netns"))
LIMIT_S = 150.0  # of a command; undisturbed it takes a few seconds
PATIENCE_S = 15.0  # what a command started has so long to end after it
POLL_S = 0.005


@dataclass
class Command:
    """A command that was started; what it prints goes to `output`."""

    process: subprocess.Popen[bytes]
    output: Path

    @property
    def pid(self) -> int:
        """Its process, or that of the tool in front of it."""
        return self.process.pid

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def said(self) -> str:
        """Return all that it printed."""
        return self.output.read_text(errors="replace")


@dataclass(frozen=True)
class Process:
    """A living process of a case: its id, its name (`comm`), its arguments."""

    pid: int
    name: str
    arguments: str

    @property
    def role(self) -> str:
        """Say what it is to a run: rank, forker, heart, or runner (all else)."""
        if self.name.startswith("harness-rank"):
            return "rank"
        if "harness.launch.fork_server" in self.arguments:
            return "forker"
        return "heart" if "/beat.py" in self.arguments else "runner"

    def signal(self, number: int) -> None:
        """Send it a signal; nothing where it has ended."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)


@dataclass
class Place:
    """Where a case happens: everything below `home`. `arguments` are added to the command, `prefix` before it."""

    home: Path
    arguments: tuple[str, ...] = ("--jobs", "1")
    prefix: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    started: list[Command] = field(default_factory=list)

    @classmethod
    def make(cls, home: Path, suite: str, prepared: Path | None = None) -> Place:
        """Make a place with a suite's text and a copy of the prepared cache (None: an empty one)."""
        place = cls(home)
        for path in (home, place.temporary, place.locks, place.results):
            path.mkdir(parents=True)
        place.suite.write_text(suite)
        if prepared is None:
            place.cache.mkdir()
        else:
            shutil.copytree(prepared, place.cache)
        return place

    @property
    def suite(self) -> Path:
        """The suite file."""
        return self.home / f"{NAME}.yaml"

    @property
    def results(self) -> Path:
        """What `--results` names."""
        return self.home / "results"

    @property
    def trials(self) -> Path:
        """The suite's directory of results."""
        return self.results / NAME

    @property
    def cache(self) -> Path:
        """HARNESS_CACHE."""
        return self.home / "cache"

    @property
    def temporary(self) -> Path:
        """TMPDIR."""
        return self.home / "tmp"

    @property
    def locks(self) -> Path:
        """HARNESS_LOCKS."""
        return self.home / "locks"

    @property
    def plan(self) -> Path:
        """What planted ranks read."""
        return self.home / "plan.json"

    def environment(self) -> dict[str, str]:
        """Return the variables of its commands."""
        outside = {key: value for key, value in os.environ.items() if not key.startswith("HARNESS_")}
        own = {"HARNESS_CACHE": self.cache, "HARNESS_LOCKS": self.locks, "TMPDIR": self.temporary, PLAN: self.plan}
        return outside | {MARK: str(self.home)} | {key: str(path) for key, path in own.items()} | self.variables

    def start(self, *more: str, prefix: Sequence[str] = (), variables: Mapping[str, str] | None = None) -> Command:
        """Start the command of this place, always the same but for what is given here."""
        output = self.home / f"output{len(self.started)}.txt"
        command = [*self.prefix, *prefix, *HARNESS, "run", str(self.suite), "--results", str(self.results)]
        with output.open("wb") as stream:
            process = subprocess.Popen(
                [*command, "--retry", "error,oom,timeout", *self.arguments, *more],
                cwd=self.home,
                env=self.environment() | dict(variables or {}),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
        self.started.append(Command(process, output))
        return self.started[-1]

    def processes(self, *roles: str) -> list[Process]:
        """Return the living processes of this place that have one of `roles` (none given: all)."""
        found = []
        for path in Path("/proc").iterdir():
            if path.name.isdigit() and (process := _of(path, f"{MARK}={self.home}".encode())) is not None:
                found.append(process)
        return [process for process in found if not roles or process.role in roles]

    def records(self) -> int:
        """Return how many trials have a record."""
        return len(list(self.trials.glob("[!.]*/record.json")))

    def training(self) -> bool:
        """Return whether a trial has ended an epoch and not all."""
        for progress in self.trials.glob(".staging/*/progress.jsonl"):
            with suppress(OSError):
                text = progress.read_text(errors="replace")
                if '"epoch"' in text and '"done"' not in text:
                    return True
        return False

    def staged(self) -> bool:
        """Return whether a trial has a directory to work in."""
        return any(self.trials.glob(".staging/*"))

    def committing(self) -> bool:
        """Return whether a record is being written."""
        return any(self.trials.glob(".staging/*.commit"))

    def clear(self) -> list[Process]:
        """Kill what is left of the case, and return it."""
        left = self.processes()
        for process in left:
            process.signal(signal.SIGKILL)
        for command in self.started:
            command.process.wait()
        return left


def _of(path: Path, mark: bytes) -> Process | None:
    try:
        if mark not in (path / "environ").read_bytes().split(b"\0"):
            return None
        if (path / "stat").read_text().rpartition(")")[2].split()[0] in "ZX":
            return None
        arguments = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        return Process(int(path.name), (path / "comm").read_text().strip(), arguments)
    except (OSError, PermissionError):
        return None


def is_private() -> bool:
    """Return whether mounts, shared memory and names of network namespaces are seen by nobody else: only root can."""
    return PRIVATE in os.environ


def private_prefix() -> tuple[str, ...]:
    """Return what starts a command so that `enter_private` gives it all that; nothing where that cannot be."""
    able = os.geteuid() == 0 and shutil.which("unshare") and shutil.which("mount")
    return ("unshare", "--mount", "env", f"{PRIVATE}=1") if able else ()


def enter_private() -> None:
    """Give this process, started with `private_prefix`, shared memory and names of namespaces of its own."""
    if is_private():
        for path in SHARED:
            path.mkdir(exist_ok=True)
            subprocess.run(["mount", "-t", "tmpfs", "none", str(path)], check=True)


def wait_until(true: Callable[[], bool], command: Command, limit_s: float = LIMIT_S) -> bool:
    """Wait until something is true; False if the command ended first, or the time did."""
    end = time.monotonic() + limit_s
    while command.runs and time.monotonic() < end:
        if true():
            return True
        time.sleep(POLL_S)
    return False
