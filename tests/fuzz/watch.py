"""What is not allowed of an input: to take long or much memory, to be executed, to be refused unclearly."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from numba.core import caching

from harness.errors import DataUnavailable, UserError, UserErrors

from .mutate import CANARY

SECONDS = 10.0  # for one input
BYTES = 256 << 20  # that the process may grow by for one input
SPACE = 2 << 30  # of addresses beyond what it has when it begins
FORBIDDEN = (
    *("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "pickle.find_class"),
    *("socket.connect", "socket.bind", "shutil.rmtree", "webbrowser.open"),
)


class TooLong(BaseException):
    """The alarm of an input; not an Exception, so that no reader takes it for damage."""


@dataclass
class Tally:
    """What came of the inputs of a target; `violations` say which and why."""

    accepted: int = 0
    refused: int = 0
    seconds: float = 0.0  # of the slowest
    grown: int = 0  # bytes, of the largest
    violations: list[str] = field(default_factory=list)

    def add(self, other: dict[str, Any]) -> None:
        """Take in another's counts."""
        self.accepted += other["accepted"]
        self.refused += other["refused"]
        self.seconds, self.grown = max(self.seconds, other["seconds"]), max(self.grown, other["grown"])
        self.violations += other["violations"]


class Watch:
    """Runs inputs one after another in this process, which is for nothing else."""

    def __init__(self, folder: Path, seconds: float = SECONDS) -> None:
        self.tally, self.folder, self.seconds = Tally(), folder, seconds
        self._seen: list[str] = []
        self._watching = False
        sys.addaudithook(self._hear)
        signal.signal(signal.SIGALRM, self._ring)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + SPACE, used + SPACE))

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._watching or (event == "pickle.find_class" and _by_numba()):
            return
        if event in FORBIDDEN or (event == "open" and self._writes_elsewhere(arguments)):
            self._seen.append(f"{event} {str(arguments)[:80]}")

    def _writes_elsewhere(self, arguments: tuple[Any, ...]) -> bool:
        path, _, flags = arguments
        writes = isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR))
        ours = str(path).startswith((str(self.folder), "/dev/shm", "/tmp/numba"))
        return writes and isinstance(path, str) and not ours and "__pycache__" not in path and path != "/dev/null"

    def _ring(self, *_: object) -> None:
        raise TooLong

    def run(self, what: str, read: Callable[[], object], named: str) -> None:
        """Run one input; `named` is what every line of a refusal has to name, `what` describes the input."""
        before, start = _peak(), time.perf_counter()
        self._seen.clear()
        try:
            why = self._outcome(read, named)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            self._watching = False
        seconds, grown = time.perf_counter() - start, _peak() - before
        self.tally.seconds, self.tally.grown = max(self.tally.seconds, seconds), max(self.tally.grown, grown)
        if grown > BYTES:
            why = why or f"took {grown >> 20} MiB"
        if self._seen:
            why = f"executed: {self._seen[0]}"
        if (self.folder / CANARY).exists() or Path(CANARY).exists():
            why = "the canary was executed"
        if why:
            self.tally.violations.append(f"{what}: {why}")

    def _outcome(self, read: Callable[[], object], named: str) -> str:
        """Return what is wrong with how an input was taken; "" if nothing is."""
        try:
            self._watching = True
            signal.setitimer(signal.ITIMER_REAL, self.seconds)
            read()
        except (UserError, DataUnavailable) as error:
            self.tally.refused += 1
            return _unclear(error, named)
        except TooLong:
            return f"took more than {self.seconds:g} s in {_where(sys.exc_info()[2])}"
        except BaseException as error:
            return f"{type(error).__name__}: {str(error)[:100]!r} in {_where(error.__traceback__)}"
        self.tally.accepted += 1
        return ""

    def result(self) -> dict[str, Any]:
        """Return the tally as JSON."""
        return asdict(self.tally)


def _by_numba() -> bool:
    """Return whether compiled kernels are read from numba's cache, which is the user's own and of pickles."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename == caching.__file__:
            return True
        frame = frame.f_back
    return False


def _unclear(error: Exception, named: str) -> str:
    lines = [str(each) for each in (error.errors if isinstance(error, UserErrors) else (error,))]
    for line in lines:
        if not line.isprintable():
            return f"a refusal is no clean line: {line[:100]!r}"
        if named not in line and "--set" not in line:
            return f"a refusal does not name {named}: {line[:200]!r}"
        if len(line) > 12_000:
            return f"a refusal of {len(line)} characters: {line[:100]!r}"
    return "" if lines else "a refusal of no lines"


def _where(trace: Any) -> str:
    frames = [f for f in traceback.extract_tb(trace) if "/harness/" in f.filename] or traceback.extract_tb(trace)
    return " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(frames[-3:]))


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
