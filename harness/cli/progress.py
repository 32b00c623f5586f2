"""A run's progress: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from harness.cli.options import is_terminal, seconds_text
from harness.launch.progress import Latest
from harness.results.record import Record
from harness.suite.schema import TrialConfig

QUIET_S = 5.0  # between plain lines of a trial that trains


def view() -> AbstractContextManager[Bars | Lines]:
    """Return bars if standard output is a terminal, lines if not; to be used in a `with` block."""
    return Bars() if is_terminal() else nullcontext(Lines())


def outcome_text(record: Record) -> str:
    """Return how a trial ended, in one line."""
    result = record.result
    parts: list[str] = [record.status]
    if isinstance(time_s := result.get("epoch_time_s"), int | float):
        parts.append(f"{time_s:.3g} s/epoch")
    for key, name in (("best_val", "val"), ("test_at_best_val", "test")):
        if isinstance(score := result.get(key), int | float):
            parts.append(f"{name} {score:.4f}")
    if record.wall_s is not None and record.status != "skipped":
        parts.append(f"({seconds_text(record.wall_s)})")
    if record.flags:
        keys = dict.fromkeys(flag.partition(":")[0] for flag in record.flags)
        parts.append(f"flagged: {', '.join(keys)}")
    return "  ".join(parts) + (f": {record.reason}" if record.reason else "")


@dataclass
class Lines:
    """One line at a trial's start and end, and one every few seconds between."""

    write: Callable[[str], None] = lambda line: print(line, flush=True)
    clock: Callable[[], float] = time.monotonic
    _total: int = 0
    _latest: Latest = field(default_factory=Latest)
    _last: float = 0.0

    def suite_started(self, total: int, done: int) -> None:
        """Say how much there is to do."""
        self._total = total
        self.write(f"{total} trials, {done} done already, {total - done} to run")

    def trial_started(self, number: int, trial: TrialConfig) -> None:
        """Say which trial begins."""
        self._latest, self._last = Latest(), self.clock()
        self.write(f"[{number}/{self._total}] {trial.label}")

    def trial_stage(self, text: str) -> None:
        """Say what takes long before training."""
        self.write(f"    {text}")

    def trial_event(self, event: dict[str, Any]) -> None:
        """Say how far the trial is, unless that was said just now."""
        self._latest.take(event)
        if (line := self._latest.line()) and self.clock() - self._last >= QUIET_S:
            self._last = self.clock()
            self.write(f"    {line}")

    def trial_finished(self, number: int, record: Record) -> None:
        """Say how the trial ended."""
        self.write(f"    {outcome_text(record)}")

    def run_elsewhere(self, count: int) -> None:
        """Say that others help."""
        self.write(f"{count} trial{'s' * (count > 1)} run by other runners")

    def suite_waits(self, text: str) -> None:
        """Say what is waited for."""
        self.write(text)


class Bars:
    """A bar for the suite, a bar for the trial, and a line above them for each trial that ended."""

    def __init__(self, console: Console | None = None) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[values]}", markup=False),
            TimeRemainingColumn(),
            console=console or Console(),
            refresh_per_second=2,  # the ranks share the cores
            transient=True,
            speed_estimate_period=3600,
        )
        self._suite: TaskID | None = None
        self._trial: TaskID | None = None
        self._latest = Latest()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def suite_started(self, total: int, done: int) -> None:
        """Draw the suite's bar, with what is done already."""
        values = f"{done} done already" if done else ""
        self._suite = self._progress.add_task("suite", total=total, completed=done, values=values)

    def trial_started(self, number: int, trial: TrialConfig) -> None:
        """Draw the trial's bar."""
        self._latest = Latest()
        if self._trial is not None:
            self._progress.remove_task(self._trial)
        self._trial = self._progress.add_task(trial.label, total=None, values="")

    def trial_stage(self, text: str) -> None:
        """Show what is done before training."""
        if self._trial is not None:
            self._progress.update(self._trial, values=text)

    def trial_event(self, event: dict[str, Any]) -> None:
        """Move the trial's bar."""
        self._latest.take(event)
        if self._trial is not None:
            now = self._latest
            values = now.stage or now.text()
            self._progress.update(self._trial, total=now.epochs or None, completed=now.epoch, values=values)

    def trial_finished(self, number: int, record: Record) -> None:
        """Write the trial's line and move the suite's bar."""
        style = {"ok": "green", "skipped": "yellow"}.get(record.status, "red")
        self._progress.console.print(Text.assemble((record.label + "  ", ""), (outcome_text(record), style)))
        if self._suite is not None:
            self._progress.advance(self._suite)

    def run_elsewhere(self, count: int) -> None:
        """Move the suite's bar."""
        if self._suite is not None:
            self._progress.advance(self._suite, count)

    def suite_waits(self, text: str) -> None:
        """Write what is waited for."""
        self._progress.console.print(text, markup=False)
