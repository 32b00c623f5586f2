"""What a runner tells of its progress; the command line shows it, tests collect it."""

from __future__ import annotations

from typing import Any, Protocol

from harness.results.record import Record
from harness.suite.schema import TrialConfig


class Progress(Protocol):
    """Receives what happens, in order; must not raise."""

    def suite_started(self, total: int, done: int) -> None:
        """`total` trials are selected, `done` of them have a record that is kept."""

    def trial_started(self, number: int, trial: TrialConfig) -> None:
        """Trial `number` (from 1, among the selected) begins."""

    def trial_stage(self, text: str) -> None:
        """Work before training that may take a while begins; told once for all trials that share it."""

    def trial_event(self, event: dict[str, Any]) -> None:
        """A line of the trial's `progress.jsonl`."""

    def trial_finished(self, number: int, record: Record) -> None:
        """The trial's record is on disk."""


class Silent:
    """Shows nothing."""

    def suite_started(self, total: int, done: int) -> None:
        """Do nothing."""

    def trial_started(self, number: int, trial: TrialConfig) -> None:
        """Do nothing."""

    def trial_stage(self, text: str) -> None:
        """Do nothing."""

    def trial_event(self, event: dict[str, Any]) -> None:
        """Do nothing."""

    def trial_finished(self, number: int, record: Record) -> None:
        """Do nothing."""
