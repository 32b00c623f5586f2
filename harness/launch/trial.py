"""One trial from its configuration to its record, whatever happens on the way."""

from __future__ import annotations

import json
import shutil
import traceback
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from harness.errors import DataUnavailable, UserError
from harness.launch.inputs import InputCache, Inputs, threads_of
from harness.launch.local import WORKER, GroupResult, OnProgress, run_group
from harness.launch.network import network, why_not
from harness.launch.place import Place
from harness.launch.progress import Progress
from harness.results.record import Record, Status, epoch_rows, without_epochs
from harness.results.reduce import reduce
from harness.results.store import ResultStore
from harness.runtime.method import METHODS, Method
from harness.suite.schema import Suite, Timeouts, TrialConfig

if TYPE_CHECKING:
    from harness.runtime.job import Meeting


class Machines(Protocol):
    """What trials run on."""

    @property
    def nodes(self) -> int:
        """Return how many machines they are."""

    def why_not(self, trial: TrialConfig) -> str | None:
        """Return why `trial` cannot run on them and is skipped; None if it can."""

    def run(self, trial: TrialConfig, inputs: Inputs, out: Path, progress: Progress) -> GroupResult:
        """Run the ranks of `trial` to their end; `out` is an empty directory for what they write."""


@dataclass(frozen=True)
class OneMachine:
    """This machine alone: `timeouts` are the suite's, `worker` the module every rank runs."""

    timeouts: Timeouts
    worker: str = WORKER
    nodes: int = 1

    def why_not(self, trial: TrialConfig) -> str | None:
        """Return why the trial's network cannot be had here; None if it can."""
        return None if trial.network is None else why_not(trial.network)

    def run(self, trial: TrialConfig, inputs: Inputs, out: Path, progress: Progress) -> GroupResult:
        """Run all ranks of `trial` here."""
        with network(trial.network, trial.partition.parts) as places:
            return self.start(trial, inputs, out, places, progress.trial_event)

    def start(
        self,
        trial: TrialConfig,
        inputs: Inputs,
        out: Path,
        places: Sequence[Place],
        tell: OnProgress,
        *,
        meeting: Meeting | None = None,
        failed_elsewhere: Callable[[], bool] = lambda: False,
    ) -> GroupResult:
        """Run the ranks of `places` here; the others of the trial, if any, come to the same `meeting`."""
        threads = threads_of(trial, self.nodes)
        return run_group(
            write_job(trial, inputs, out, self.timeouts.collective_s, threads=threads, meeting=meeting),
            places,
            out,
            threads=threads,
            timeout_s=self.timeouts.trial_s,
            on_progress=tell,
            worker=self.worker,
            failed_elsewhere=failed_elsewhere,
        )


@dataclass
class Outcome:
    """What a trial came to, before it is a record."""

    group: GroupResult = field(default_factory=GroupResult)
    status: Status = "error"
    reason: str | None = None
    log: str = ""
    result: dict[str, Any] = field(default_factory=dict)
    inputs: Inputs | None = None


@dataclass(frozen=True)
class TrialRunner:
    """Runs trials of one suite into one store."""

    suite: Suite
    store: ResultStore
    inputs: InputCache
    environment: dict[str, Any]
    machines: Machines

    def run(self, trial: TrialConfig, progress: Progress) -> Record:
        """Run one trial and commit its record; a failure of the trial is a record too.

        Raises KeyboardInterrupt (nothing is recorded), and UserError if the record cannot be written.
        """
        started = datetime.now(UTC)
        outcome = self._attempt(trial, progress)
        record = self._record(trial, outcome, started)
        try:
            self.store.commit(trial.id, record, epoch_rows(outcome.group.ranks), outcome.log)
        except OSError as error:
            what = f"cannot write the record: {error.strerror}"
            raise UserError(what, file=error.filename, fix="choose another place with --results") from error
        return record

    def _attempt(self, trial: TrialConfig, progress: Progress) -> Outcome:
        outcome = Outcome()
        try:
            self._train(trial, outcome, progress)
        except Exception as error:  # the suite goes on whatever one trial runs into
            outcome.status, outcome.reason = explain(error)
            if not isinstance(error, DataUnavailable | UserError):
                outcome.log += traceback.format_exc()
        return outcome

    def _train(self, trial: TrialConfig, outcome: Outcome, progress: Progress) -> None:
        if (reason := self.machines.why_not(trial)) is not None:
            outcome.status, outcome.reason = "skipped", reason
            return
        outcome.inputs = self.inputs.get(trial, progress.trial_stage)
        out = self.store.stage(trial.id)
        try:
            group = self.machines.run(trial, outcome.inputs, out, progress)
        except BaseException:
            shutil.rmtree(out, ignore_errors=True)
            raise
        outcome.group, outcome.log = group, group.log
        outcome.status, outcome.reason = group.status, group.reason
        if group.status == "ok":
            outcome.result = reduce(group.ranks, _method(trial).metrics_by_column())

    def _record(self, trial: TrialConfig, outcome: Outcome, started: datetime) -> Record:
        inputs, group = outcome.inputs, outcome.group
        environment = {**self.environment, "threads": threads_of(trial, self.machines.nodes)}
        if group.nodes:
            environment["nodes"] = list(group.nodes)
        return Record(
            trial=trial.id,
            suite=self.suite.name,
            label=trial.label,
            status=outcome.status,
            reason=outcome.reason,
            started=started.isoformat(timespec="seconds"),
            wall_s=group.wall_s,
            config=trial.model_dump(mode="json"),
            declared=_method(trial).declared(),
            environment=environment,
            dataset=inputs.dataset if inputs else {"name": trial.dataset.name},
            partition=inputs.partition if inputs else [],
            result=outcome.result,
            ranks=without_epochs(group.ranks),
        )


def _method(trial: TrialConfig) -> type[Method[Any]]:
    return METHODS.load(trial.method.name, trial.plugin)


def explain(error: Exception) -> tuple[Status, str]:
    """Return status and reason of a trial that `error` ended in the runner."""
    if isinstance(error, DataUnavailable):
        return "skipped", str(error)
    if isinstance(error, UserError):
        return "error", str(error)
    if isinstance(error, MemoryError):
        return "oom", f"out of memory in the runner: {error}"
    return "error", f"{type(error).__name__} in the runner: {' '.join(str(error).split())}"


def write_job(
    trial: TrialConfig, inputs: Inputs, out: Path, collective_s: float, *, threads: int, meeting: Meeting | None = None
) -> Path:
    """Write the file that every rank reads and return its path."""
    job = {
        "config": trial.model_dump(mode="json"),
        "graph": str(inputs.graph),
        "train_view": str(inputs.train_view),
        "full_view": str(inputs.full_view),
        "inductive": inputs.inductive,
        "store": str(out / "rendezvous"),
        "out": str(out),
        "threads": threads,
        "attempt": uuid.uuid4().hex,
        "collective_timeout_s": collective_s,
    }
    if meeting is not None:
        job["meeting"] = meeting.model_dump(mode="json")
    path = out / "job.json"
    path.write_text(json.dumps(job, indent=1))
    return path
