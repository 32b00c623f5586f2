"""A run's progress: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from html import escape
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from harness.cli.terminal import beginning, end_of, is_terminal, seconds_text
from harness.launch.process import Latest
from harness.results.record import Record
from harness.results.stats import trials
from harness.suite.schema import TrialConfig

QUIET_S = 5.0  # between plain lines of a trial that trains
RENEWED_S = 0.5  # between renewals of a notebook's table
MOST_ROWS = 40  # of it
BLOCKS = re.compile("[█░]")  # of a bar
WIDE = 200  # characters of its lines


def view() -> AbstractContextManager[Bars | Lines | NotebookTable]:
    """Return bars if standard output is a terminal, a table in a notebook, else lines; to be used in a `with` block."""
    ipython = sys.modules.get("IPython")
    if ipython is None or not hasattr(ipython.get_ipython(), "kernel"):
        return Bars() if is_terminal() else nullcontext(Lines())
    from IPython.display import HTML, display

    handle = display(HTML(""), display_id=True)
    return nullcontext(NotebookTable(show=lambda html: handle.update(HTML(html))))


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
    _work: str = ""

    def suite_started(self, total: int, done: int) -> None:
        """Say how much there is to do."""
        self._total = total
        self.write(f"{trials(total)}, {done} done already, {total - done} to run")

    def trial_started(self, number: int, trial: TrialConfig) -> None:
        """Say which trial begins."""
        self._latest, self._last = Latest(), self.clock()
        self.write(f"[{number}/{self._total}] {trial.label}")

    def trial_stage(self, text: str) -> None:
        """Say what takes long before training."""
        work, *counted = BLOCKS.split(text)
        if not counted or work != self._work:  # of what is counted, once what it is
            self.write(f"    {work.rstrip()}")
        if counted:
            self._work = work

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
        self.write(f"{trials(count)} run by other runners")

    def suite_waits(self, text: str) -> None:
        """Say what is waited for."""
        self.write(text)


@dataclass
class _Counted:
    """What a run has come to: counts trials, and follows the one that runs; `_ends` has a line of those that ended."""

    clock: Callable[[], float] = time.monotonic
    _total: int = 0
    _done: int = 0  # before this run, or by others
    _ends: list[tuple[str, str, str]] = field(default_factory=list)  # label, status, outcome
    _started: float = 0.0
    _label: str = ""
    _trial_started: float = 0.0
    _latest: Latest = field(default_factory=Latest)
    _waits: str = ""

    def suite_started(self, total: int, done: int) -> None:
        self._total, self._done, self._started = total, done, self.clock()

    def trial_started(self, number: int, trial: TrialConfig) -> None:
        self._latest, self._label, self._trial_started, self._waits = Latest(), trial.label, self.clock(), ""
        self._changed()

    def trial_stage(self, text: str) -> None:
        self._latest.stage = text
        self._changed()

    def trial_event(self, event: dict[str, Any]) -> None:
        self._latest.take(event)
        self._changed(RENEWED_S)

    def trial_finished(self, number: int, record: Record) -> None:
        self._ends.append((record.label, record.status, outcome_text(record)))
        self._label = ""
        self._changed()

    def run_elsewhere(self, count: int) -> None:
        self._done += count

    def suite_waits(self, text: str) -> None:
        self._waits = text
        self._changed()

    def _changed(self, after_s: float = 0.0) -> None:
        """Show what is new, where nothing else renews the picture, unless that was done less than `after_s` ago."""

    def lines(self, room: int) -> list[str]:
        """Return the suite's and the trial's line, of at most `room` characters each; most important first."""
        now, latest = self.clock(), self._latest
        share = latest.epoch / latest.epochs if latest.epochs and self._label else 0.0
        counted, so_far = self._done + len(self._ends), now - self._started
        worked, rest = len(self._ends) + share, self._total - counted - share
        left = f"{seconds_text(so_far / worked * rest)} left" if worked and rest > 0 else ""
        failures = sum(status not in ("ok", "skipped") for _, status, _ in self._ends)
        failed = f"{failures} failed" if failures else ""
        bar = _bar(counted / self._total if self._total else 0)
        suite = beginning(
            [f"{counted}/{trials(self._total)} {bar}", left, failed, f"{seconds_text(so_far)} so far"], room
        )
        if not self._label:
            return [suite]
        epoch = [f"epoch {latest.epoch}/{latest.epochs}", _bar(share)] if latest.epoch else ["starting"]
        how_far = [latest.stage] if latest.stage else epoch
        took = now - self._trial_started
        left = f"{seconds_text(took / share * (1 - share))} left" if share and not latest.stage else ""
        # The end of a label distinguishes it from others: method, parts, seed.
        label = end_of(self._label, max(room - len("  ".join([*how_far, left])) - 2, room // 2))
        values = latest.text().split("  ") if latest.epoch else []
        return [suite, beginning([label, *how_far, left, *values], room)]


@dataclass
class Bars(_Counted):
    """Two lines that renew themselves, the suite's and the trial's, and above them a line for each trial that ended."""

    console: Console = field(default_factory=Console)

    def __post_init__(self) -> None:
        # The ranks share the cores: twice a second is enough.
        self._live = Live(console=self.console, get_renderable=self._drawn, refresh_per_second=2, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def trial_finished(self, number: int, record: Record) -> None:
        """Write how the trial ended and move the suite's line."""
        super().trial_finished(number, record)
        style = {"ok": "green", "skipped": "yellow"}.get(record.status, "red")
        self.console.print(Text.assemble((record.label + "  ", ""), (outcome_text(record), style)))

    def suite_waits(self, text: str) -> None:
        """Write the reason for the wait."""
        self.console.print(text, markup=False)

    def _drawn(self) -> Text:
        return Text("\n".join(self.lines(self.console.width - 1)), no_wrap=True, overflow="ellipsis")


@dataclass
class NotebookTable(_Counted):
    """A table of the trials that renews itself in a notebook's cell; `show` puts HTML there in place of what it was."""

    show: Callable[[str], None] = lambda html: None
    _shown: float = -math.inf

    def _changed(self, after_s: float = 0.0) -> None:
        if self.clock() - self._shown < after_s:
            return
        self._shown = self.clock()
        suite, *running = self.lines(WIDE)
        rows = [(label, outcome) for label, _, outcome in self._ends[-MOST_ROWS:]]
        if running:
            rows.append((self._label, running[0].removeprefix(self._label).strip()))
        earlier = len(self._ends) - MOST_ROWS
        notes = [suite, f"{earlier} earlier trials are not shown" if earlier > 0 else "", self._waits]
        head = "<br>".join(escape(note) for note in notes if note)
        cells = "".join(f"<tr><td>{escape(label)}</td><td>{escape(text)}</td></tr>" for label, text in rows)
        style = "text-align: left; font-variant-numeric: tabular-nums"
        self.show(f'<div style="{style}">{head}<table>{cells}</table></div>')


def _bar(share: float, width: int = 12) -> str:
    filled = round(share * width)
    return "█" * filled + "░" * (width - filled)
