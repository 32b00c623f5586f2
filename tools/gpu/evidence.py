"""A folder of evidence: steps end one by one, each leaves a file, and a later call goes on with what is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from harness.files import write_whole
from harness.results.environment import checkout

State = Literal["ok", "failed", "skipped", "left"]
"""How a step's turn ended; `left`: a later call goes on with it; `skipped`: it needs what is not here."""
GRACE_S = 20.0  # what a command may take to end when it is asked to


@dataclass(frozen=True)
class Setting:
    """Says what the evidence is of: nothing of another setting counts.

    Attributes:
        device: "cpu" or "cuda".
        quick: small sizes, to try the commands.
    """

    device: str
    quick: bool = False

    @property
    def words(self) -> str:
        """Return the setting as the folder names it."""
        return f"{self.device}-quick" if self.quick else self.device


@dataclass(frozen=True)
class Outcome:
    """Says how a step's turn ended, why it is not ok, and what it found (JSON)."""

    state: State
    reason: str = ""
    found: Mapping[str, Any] = field(default_factory=dict)


class TimeUp(Exception):  # noqa: N818 - no error: the rest is for a later call
    """The call's time is up; the step goes on in a later one."""


class Turn:
    """A step's turn: the folder it writes to, and the time that is left of the call.

    Args:
        root: repository.
        home: folder of the setting, where the step may keep what it needs to go on.
        setting: what is measured.
        end: `time.monotonic()` at which everything has to have ended.
    """

    def __init__(self, root: Path, home: Path, setting: Setting, end: float) -> None:
        self.root, self.home, self.setting, self.end = root, home, setting, end

    @property
    def left_s(self) -> float:
        """Return the seconds that a command may still take, the grace of its end left out."""
        return self.end - time.monotonic() - GRACE_S

    def command(self, arguments: Sequence[str | Path], log: str, **environment: str) -> int:
        """Run a command in the repository, its output in the file `log`; return its exit code.

        When the time is up it is interrupted as by Ctrl-C, killed with all it started if that does not end it, and
        TimeUp is raised.
        """
        if self.left_s <= 0:
            raise TimeUp
        with (self.home / log).open("ab") as output:
            process = subprocess.Popen(
                [str(argument) for argument in arguments],
                cwd=self.root,
                env=os.environ | environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                return process.wait(self.left_s)
            except subprocess.TimeoutExpired:
                raise TimeUp from None
            finally:
                end_session(process)

    def log_tail(self, log: str) -> str:
        """Return the last line of a log that says something."""
        lines = (self.home / log).read_text(encoding="utf-8", errors="replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "no output")


def end_session(process: subprocess.Popen[bytes]) -> None:
    """End a leader of a session, and whatever of its process group is left."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S / 2)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@dataclass(frozen=True)
class Step:
    """A named piece of evidence; `work` gathers it, in one turn or in several."""

    name: str
    title: str
    work: Callable[[Turn], Outcome]
    always: bool = False  # reads what others left: done anew each time


def commit_of(root: Path) -> str:
    """Return the commit of a checkout in short, with a + if files differ from it; "unknown" without git."""
    commit, differs = checkout(root)
    return f"{commit[:10]}{'+' if differs else ''}" if commit else "unknown"


class Evidence:
    """The files of the steps that have ended, below a folder, by setting."""

    def __init__(self, root: Path, folder: Path, setting: Setting) -> None:
        self.root, self.setting = root, setting
        self.home = folder / setting.words
        self.home.mkdir(parents=True, exist_ok=True)

    def ended(self, name: str) -> dict[str, Any] | None:
        """Return what a step that has ended left: state, reason, seconds, found; None if it has not ended."""
        path = self._file(name)
        if not path.is_file():
            return None
        ended: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return None if ended["state"] == "left" else ended

    def take(self, step: Step, end: float) -> Outcome:
        """Give a step its turn and keep how it ended; what it raises is a failure of this step alone."""
        before, start = self._seconds(step.name), time.monotonic()
        try:
            outcome = step.work(Turn(self.root, self.home, self.setting, end))
        except TimeUp:
            outcome = Outcome("left", "the time was up")
        except Exception as error:  # whatever is wrong with one step, the others go on
            outcome = Outcome("failed", f"{type(error).__name__}: {error}")
        seconds = time.monotonic() - start + (0 if step.always else before)
        told = {"step": step.name, "state": outcome.state, "reason": outcome.reason, "seconds": round(seconds, 1)}
        told["commits"] = sorted({*self._commits(step), commit_of(self.root)})
        write_whole(self._file(step.name), json.dumps(told | {"found": dict(outcome.found)}, indent=1) + "\n")
        return outcome

    def forget(self, name: str) -> None:
        """Have a step done anew, and its turns counted anew."""
        self._file(name).unlink(missing_ok=True)
        (self.home / f"{name}.cut").unlink(missing_ok=True)

    def _commits(self, step: Step) -> list[str]:
        """Return whose code the step's earlier turns were of; of a step that is always done anew, none."""
        path = self._file(step.name)
        if step.always or not path.is_file():
            return []
        return list(json.loads(path.read_text(encoding="utf-8")).get("commits", ()))

    def _seconds(self, name: str) -> float:
        path = self._file(name)
        return float(json.loads(path.read_text(encoding="utf-8"))["seconds"]) if path.is_file() else 0.0

    def _file(self, name: str) -> Path:
        return self.home / f"{name}.json"
