"""One trial from its configuration to its record, whatever happens on the way."""

from __future__ import annotations

import json
import shutil
import traceback
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.errors import DataUnavailable, UserError
from harness.launch.inputs import InputCache, Inputs, threads_of
from harness.launch.local import WORKER, run_group
from harness.launch.network import network, why_not
from harness.launch.progress import Progress
from harness.results.record import Record, Status, epoch_rows, without_epochs
from harness.results.reduce import reduce
from harness.results.store import ResultStore
from harness.suite.schema import Suite, TrialConfig


@dataclass
class Outcome:
    """What a trial came to, before it is a record."""

    status: Status = "error"
    reason: str | None = None
    log: str = ""
    wall_s: float | None = None
    ranks: list[dict[str, Any]] = field(default_factory=list)
    result: dict[str, Any] = field(default_factory=dict)
    inputs: Inputs | None = None


@dataclass(frozen=True)
class TrialRunner:
    """Runs trials of one suite into one store."""

    suite: Suite
    store: ResultStore
    inputs: InputCache
    environment: dict[str, Any]
    worker: str = WORKER

    def run(self, trial: TrialConfig, progress: Progress) -> Record:
        """Run one trial and commit its record; a failure of the trial is a record too.

        Raises KeyboardInterrupt (nothing is recorded), and UserError if the record cannot be written.
        """
        started = datetime.now(UTC)
        outcome = self._attempt(trial, progress)
        record = self._record(trial, outcome, started)
        try:
            self.store.commit(trial.id, record, epoch_rows(outcome.ranks), outcome.log)
        except OSError as error:
            what = f"cannot write the record: {error.strerror}"
            raise UserError(what, file=error.filename, fix="choose another place with --results") from error
        return record

    def _attempt(self, trial: TrialConfig, progress: Progress) -> Outcome:
        outcome = Outcome()
        try:
            self._train(trial, outcome, progress)
        except DataUnavailable as missing:
            outcome.status, outcome.reason = "skipped", str(missing)
        except UserError as error:
            outcome.status, outcome.reason = "error", str(error)
        except MemoryError as error:
            outcome.status, outcome.reason = "oom", f"out of memory in the runner: {error}"
            outcome.log += traceback.format_exc()
        except Exception as error:  # the suite goes on whatever one trial runs into
            outcome.status = "error"
            outcome.reason = f"{type(error).__name__} in the runner: {' '.join(str(error).split())}"
            outcome.log += traceback.format_exc()
        return outcome

    def _train(self, trial: TrialConfig, outcome: Outcome, progress: Progress) -> None:
        if trial.network is not None and (reason := why_not(trial.network)) is not None:
            outcome.status, outcome.reason = "skipped", reason
            return
        outcome.inputs = self.inputs.get(trial, progress.trial_stage)
        out = self.store.stage(trial.id)
        job = write_job(trial, outcome.inputs, out, self.suite.timeouts.collective_s)
        try:
            with network(trial.network, trial.partition.parts) as places:
                group = run_group(
                    job,
                    places,
                    out,
                    threads=threads_of(trial),
                    timeout_s=self.suite.timeouts.trial_s,
                    on_progress=progress.trial_event,
                    worker=self.worker,
                )
        except BaseException:
            shutil.rmtree(out, ignore_errors=True)
            raise
        outcome.status, outcome.reason, outcome.log = group.status, group.reason, group.log
        outcome.ranks, outcome.wall_s = group.ranks, group.wall_s
        if group.status == "ok":
            outcome.result = reduce(group.ranks)

    def _record(self, trial: TrialConfig, outcome: Outcome, started: datetime) -> Record:
        inputs = outcome.inputs
        return Record(
            trial=trial.id,
            suite=self.suite.name,
            label=trial.label,
            status=outcome.status,
            reason=outcome.reason,
            started=started.isoformat(timespec="seconds"),
            wall_s=outcome.wall_s,
            config=trial.model_dump(mode="json"),
            environment={**self.environment, "threads": threads_of(trial)},
            dataset=inputs.dataset if inputs else {"name": trial.dataset.name},
            partition=inputs.partition if inputs else [],
            result=outcome.result,
            ranks=without_epochs(outcome.ranks),
        )


def write_job(trial: TrialConfig, inputs: Inputs, out: Path, collective_s: float) -> Path:
    """Write the file that every rank reads and return its path."""
    job = {
        "config": trial.model_dump(mode="json"),
        "graph": str(inputs.graph),
        "train_view": str(inputs.train_view),
        "full_view": str(inputs.full_view),
        "inductive": inputs.inductive,
        "store": str(out / "rendezvous"),
        "out": str(out),
        "threads": threads_of(trial),
        "collective_timeout_s": collective_s,
    }
    path = out / "job.json"
    path.write_text(json.dumps(job, indent=1))
    return path
