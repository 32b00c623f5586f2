"""Who is told what happens in a run: the command line, and whoever asks from elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from harness.results.leases import Runner
from harness.results.record import Record
from harness.suite.schema import TrialConfig


class TrialProgress(Protocol):
    """Receives what happens, in order, and must not raise."""

    def suite_started(self, total: int, done: int) -> None:
        """`total` trials are selected, `done` of them have a record that is kept."""

    def trial_started(self, number: int, trial: TrialConfig) -> None:
        """Trial `number` (from 1, among the selected) begins."""

    def trial_stage(self, text: str) -> None:
        """Work before training begins that may take a while; it is told once for all trials that share it."""

    def trial_event(self, event: dict[str, Any]) -> None:
        """The trial wrote a line of its `progress.jsonl`."""

    def trial_finished(self, number: int, record: Record) -> None:
        """The trial's record is on disk."""

    def run_elsewhere(self, count: int) -> None:
        """Other runners have run so many of the selected trials since this was called last."""

    def suite_waits(self, text: str) -> None:
        """No trial can be run now; it is told again whenever the reason changes."""


@dataclass
class Latest:
    """The values seen last of a trial; evaluations are rarer than epochs."""

    epoch: int = 0
    epochs: int = 0
    values: dict[str, float] = field(default_factory=dict)
    stage: str = ""

    def take(self, event: dict[str, Any]) -> None:
        """Take over what an event tells; a stage lasts until another event."""
        self.stage = str(event.get("text", "")) if event.get("event") == "stage" else ""
        if event.get("event") == "epoch":
            self.epoch = int(event.get("epoch", 0)) + 1
        self.epochs = int(event.get("epochs") or self.epochs)
        for key in ("loss", "val", "s_per_epoch"):
            if isinstance(event.get(key), int | float):
                self.values[key] = float(event[key])

    def text(self) -> str:
        """Return loss, validation score and seconds per epoch, those that are known."""
        shown = {"loss": "loss {:.4f}", "val": "val {:.4f}", "s_per_epoch": "{:.3g} s/epoch"}
        return "  ".join(shown[key].format(self.values[key]) for key in shown if key in self.values)

    def line(self) -> str:
        """Return how far the trial is: the stage, or the epoch; "" before there is either."""
        if self.stage or not self.epoch:
            return self.stage
        return f"epoch {self.epoch}/{self.epochs}  {self.text()}"


@dataclass
class Shown:
    """Passes on what happens, and shows how far the trial is beside the results, for `harness status`."""

    to: TrialProgress
    runner: Runner
    _latest: Latest = field(default_factory=Latest)

    def suite_started(self, total: int, done: int) -> None:
        """Pass it on."""
        self.to.suite_started(total, done)

    def trial_started(self, number: int, trial: TrialConfig) -> None:
        """Show the trial."""
        self._latest = Latest()
        self.runner.say("", trial=trial.id, label=trial.label)
        self.to.trial_started(number, trial)

    def trial_stage(self, text: str) -> None:
        """Show what is done before training."""
        self.runner.say(text)
        self.to.trial_stage(text)

    def trial_event(self, event: dict[str, Any]) -> None:
        """Show how far the trial is."""
        self._latest.take(event)
        self.runner.say(self._latest.line())
        self.to.trial_event(event)

    def trial_finished(self, number: int, record: Record) -> None:
        """Show that there is no trial."""
        self.runner.rest()
        self.to.trial_finished(number, record)

    def run_elsewhere(self, count: int) -> None:
        """Pass it on."""
        self.to.run_elsewhere(count)

    def suite_waits(self, text: str) -> None:
        """Pass it on."""
        self.to.suite_waits(text)
