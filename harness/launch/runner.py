"""Run a suite: each trial becomes a record, running it again goes on, and no failed trial stops it."""

from __future__ import annotations

import gc
import hashlib
import json
import shutil
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Protocol

from harness.errors import UserError
from harness.launch.group import GroupResult, RankFailure
from harness.launch.hardware import check_device, cores
from harness.launch.inputs import InputCache, TrialInputs, on_todays_data
from harness.launch.machines import OneMachine, SpeedReference, TrialJob, explain
from harness.launch.process import Latest, clean_scratch
from harness.launch.runner_process import FAILED, INTERRUPTED, OK
from harness.launch.slots import Request, RunOptions, Slots, TrialQueue, Turn, is_done
from harness.results.environment import Measurement, collect
from harness.results.leases import Leases, Runner
from harness.results.record import Record, Status, as_kept, epoch_rows, unlike, without_epochs
from harness.results.record_store import ResultStore, kept, kept_suites, records_under
from harness.results.reduce import flags, mark_load, reduce
from harness.runtime.checkpoint import CheckpointPlace
from harness.runtime.method import METHODS
from harness.suite.expand import expand
from harness.suite.schema import Suite, TrialConfig

QUEUE_POLL_S = 0.5
GOES_ON: frozenset[Status] = frozenset(("error", "oom", "timeout"))
"""Statuses of a trial that, if it is run again, goes on from its last checkpoint."""
CHECKPOINT_LAYOUT = 1  # of what is in a checkpoint
BUILD = ("harness", "commit", "dirty", "python", "packages")  # of an environment: what may round otherwise


class TrialProgress(Protocol):
    """Receives what happens in a run, in order, and must not raise."""

    def suite_started(self, total: int, done: int) -> None:
        """`total` trials are selected, `done` of them have a record that is kept."""

    def trial_started(self, number: int, trial: TrialConfig) -> None:
        """Trial `number` (from 1, among the selected) begins."""

    def trial_stage(self, text: str) -> None:
        """Work before training begins that may take a while; reported once for all trials that share it."""

    def trial_event(self, event: dict[str, Any]) -> None:
        """The trial wrote a line of its `progress.jsonl`."""

    def trial_finished(self, number: int, record: Record) -> None:
        """The trial's record is on disk."""

    def run_elsewhere(self, count: int) -> None:
        """Other runners have run so many of the selected trials since this was called last."""

    def suite_waits(self, text: str) -> None:
        """No trial can be run now; reported again whenever the reason changes."""


class _SharedProgress:
    """Passes on what happens, and shows how far the trial is next to the results, for `harness status`."""

    def __init__(self, to: TrialProgress, runner: Runner) -> None:
        self._to, self._runner, self._latest = to, runner, Latest()
        self.suite_started, self.run_elsewhere, self.suite_waits = to.suite_started, to.run_elsewhere, to.suite_waits

    def trial_started(self, number: int, trial: TrialConfig) -> None:
        self._latest = Latest()
        self._runner.say("", trial=trial.id, label=trial.label)
        self._to.trial_started(number, trial)

    def trial_stage(self, text: str) -> None:
        self._runner.say(text)
        self._to.trial_stage(text)

    def trial_event(self, event: dict[str, Any]) -> None:
        self._latest.take(event)
        self._runner.say(self._latest.line())
        self._to.trial_event(event)

    def trial_finished(self, number: int, record: Record) -> None:
        self._runner.rest()
        self._to.trial_finished(number, record)


@dataclass
class TrialOutcome:
    """Says what a trial came to, before that is a record."""

    group: GroupResult = field(default_factory=GroupResult)
    result: dict[str, Any] = field(default_factory=dict)
    inputs: TrialInputs | None = None
    reference: Measurement | None = None

    def failed(self, status: Status, reason: str, log: str = "") -> None:
        """Take over that the runner could not go on with the trial."""
        self.group = replace(
            self.group, failures=[RankFailure(None, status, reason)], limit_s=None, log=self.group.log + log
        )


@dataclass(frozen=True)
class TrialRunner:
    """Runs trials of one suite into one store."""

    suite: Suite
    store: ResultStore
    inputs: InputCache
    environment: dict[str, Any]
    machine: OneMachine
    leases: Leases
    reference: SpeedReference

    def run(self, turn: Turn, progress: TrialProgress) -> Record | None:
        """Run one trial and commit its record; a failure of the trial is a record too.

        None if others took this runner for dead meanwhile: the trial is theirs then.
        Raises KeyboardInterrupt (nothing is recorded), and UserError if the record cannot be written.
        """
        started, trial, acquired = datetime.now(UTC), turn.trial, turn.acquired
        machine, outcome = self.machine.at(acquired.slot), TrialOutcome()
        try:
            self._train(turn, machine, outcome, progress)
        except Exception as error:  # the suite goes on whatever one trial runs into
            outcome.failed(*explain(error))
        acquired.withdraw()  # before the record is written: trials that start meanwhile disturb nothing of this one
        environment = {**self.environment, "threads": machine.threads(trial), **acquired.described()}
        environment["reference_s"] = outcome.reference and outcome.reference.seconds
        environment["reference_cores"] = outcome.reference and outcome.reference.cores
        try:
            return self._keep(turn, outcome, started, environment, progress)
        except UserError:
            raise
        except Exception as error:  # a rank may have reported anything, and the suite goes on whatever that is
            status, reason, log = explain(error)
            lost = replace(outcome, group=GroupResult(log=outcome.group.log), result={})
            lost.failed(status, f"what its ranks reported cannot be kept: {reason}", log)
            return self._keep(turn, lost, started, environment, progress)

    def _train(self, turn: Turn, machine: OneMachine, outcome: TrialOutcome, progress: TrialProgress) -> None:
        trial, log = turn.trial, ""
        if (reason := machine.why_not(trial)) is not None:
            outcome.failed("skipped", reason)
            return
        machine.expect(trial)
        outcome.inputs = self.inputs.get(trial, progress.trial_stage)
        if turn.acquired.alone and trial.device == "cpu":
            outcome.reference = self.reference.before(lambda: machine.measure(trial))
        group = self._start(trial, outcome.inputs, machine, progress)
        for again in range(self.suite.retries):
            if not group.lost:
                break
            text = f"{group.reason}; started again, {again + 1} of {self.suite.retries} times at most (`retries`)"
            progress.trial_stage(text)
            log += f"{group.log}==== {text} ====\n"
            outcome.group = GroupResult(log=log)  # if it cannot be started again
            group = self._start(trial, outcome.inputs, machine, progress)
        outcome.group = replace(group, log=log + group.log)
        mark_load(group.ranks)
        if group.status == "ok":
            method = METHODS.load(trial.method.name, trial.plugin)
            outcome.result = reduce(group.ranks, method.metrics_by_column())

    def _start(
        self, trial: TrialConfig, inputs: TrialInputs, machine: OneMachine, progress: TrialProgress
    ) -> GroupResult:
        """Start the ranks of a trial, which go on from the last checkpoint if there is one, and wait for their end."""
        checkpoints, out = None, self.store.stage(trial.id)
        try:
            if trial.train.checkpoint != "off":
                # Checkpoints are of this trial, these data, this code and these libraries: those of others go.
                code = {name: source.sha256 for name, source in trial.sources.items()}
                build = {key: self.environment.get(key) for key in BUILD}
                text = json.dumps([CHECKPOINT_LAYOUT, trial.id, inputs.fingerprint, code, build], sort_keys=True)
                # An absolute path, because other machines get it.
                home = self.store.checkpoints(trial.id).absolute()
                directory = home / hashlib.sha256(text.encode()).hexdigest()[:16]
                for other in home.iterdir() if home.is_dir() else ():
                    if other.name != directory.name:
                        report = "an earlier checkpoint is of other data, code or libraries: training starts anew"
                        progress.trial_stage(report)
                        shutil.rmtree(other, ignore_errors=True)
                resume = any(directory.glob("rank*"))
                checkpoints = CheckpointPlace(directory=directory, lineage=uuid.uuid4().hex, resume=resume)
            return machine.run(
                TrialJob(trial, inputs, out, progress.trial_stage, progress.trial_event, checkpoints=checkpoints)
            )
        except BaseException:
            shutil.rmtree(out, ignore_errors=True)
            raise

    def _keep(
        self, turn: Turn, outcome: TrialOutcome, started: datetime, environment: dict[str, Any], progress: TrialProgress
    ) -> Record | None:
        trial, inputs, group = turn.trial, outcome.inputs, outcome.group
        environment["warm"] = group.warm
        if group.nodes:
            environment["nodes"] = list(group.nodes)
        # Earlier starts of a rank took time up to the checkpoint that it went on from.
        earlier_s = max((float(rank.get("earlier_s") or 0) for rank in group.ranks), default=0)
        record = as_kept(
            trial=trial.id,
            suite=self.suite.name,
            label=trial.label,
            status=group.status,
            reason=group.reason,
            flags=flags(group.ranks),
            started=started.isoformat(timespec="seconds"),
            wall_s=None if group.wall_s is None else group.wall_s + earlier_s,
            config=trial.model_dump(mode="json"),
            declared=METHODS.load(trial.method.name, trial.plugin).declared(),
            environment=environment,
            dataset=inputs.dataset if inputs else {"name": trial.dataset.name},
            partition=inputs.partition if inputs else [],
            partition_fingerprint=inputs.partition_fingerprint if inputs else None,
            result=outcome.result,
            ranks=without_epochs(group.ranks),
        )
        differ = unlike(record, trial, self.store.directory, self.suite.repeat)
        left = [f"left: {group.left} processes that ranks had started outlived them, and were ended"] * (group.left > 0)
        record = record.model_copy(update={"flags": [*record.flags, *left, *differ]})
        if not self.leases.holds(turn.lease):
            progress.trial_stage("another runner took this one for dead and runs the trial: the result is dropped")
            self.store.drop(trial.id)
            return None
        try:
            self.store.commit(trial.id, record, [*epoch_rows(group.ranks), *group.epochs], group.log)
        except OSError as error:
            what = f"cannot write the record: {error.strerror or error}"
            raise UserError(what, file=error.filename, fix="choose another place with --results") from error
        turn.done = True
        if record.status not in GOES_ON:  # its checkpoints serve nothing any more
            self.store.forget(trial.id)
        return record


def exit_code(statuses: Mapping[str, str]) -> int:
    """Return 1 if a trial failed; a skipped one has not."""
    return OK if all(status in ("ok", "skipped") for status in statuses.values()) else FAILED


def run_suite(
    suite: Suite,
    trials: Sequence[TrialConfig],
    store: ResultStore,
    options: RunOptions,
    progress: TrialProgress,
    machine: OneMachine | None = None,
) -> int:
    """Run every selected trial that has no record yet, on `machine` (None: this one), and return the exit code.

    The suite, with all of its trials, is kept next to the records for those who read them; those of a tuning are these
    and those kept before, not what the suite expands to; of rounds of fresh seeds there are none that no round had.

    Other runners may be at work on the same results, here or elsewhere: they share the trials, and this one returns
    when all have ended. The exit code is 0 if all are ok or skipped, 1 if some of the selected failed (now or
    earlier), and 130 if the user interrupted the run.
    Raises UserError for a mistake that concerns the whole suite.
    """
    on = machine or OneMachine(suite.timeouts, options.worker, options.warm, audit=options.audit)
    check_device(trials, on.nodes)
    with store.runner() as me:
        leases, shown = store.leases(), _SharedProgress(progress, me)
        store.clean(leases)
        clean_scratch()
        if any(trial.tuning for trial in trials):
            before = kept_suites([store.directory]).get(suite.name)
            every = list({trial.id: trial for trial in (*(before.trials if before else ()), *trials)}.values())
        else:
            every = expand(suite, device=trials[0].device if trials else None, data_dir=options.data_dir)
            if all_have := suite.first_look or suite.first_seeds:  # of the seeds that follow only those of a round run
                asked, first = {trial.id for trial in trials}, suite.seeds[:all_have]
                every = [t for t in every if t.seed in first or t.id in asked or (store.directory / t.id).is_dir()]
        today, _ = on_todays_data(every, store, options.data_dir)
        store.keep_suite(kept(suite, today))
        request = request_of(trials, store, leases, options)
        queue = TrialQueue(store, leases, Slots(options.jobs, options.together), request, trials, on.nodes)
        shown.suite_started(len(trials), len(trials) - len(queue.left))
        inputs = InputCache(options.data_dir, apart=True)
        gc.freeze()  # what is known of the suite stays, so that a collection looks through little
        try:
            reference = SpeedReference(store.directory)
            runner = TrialRunner(suite, store, inputs, collect(cores()) if queue.left else {}, on, leases, reference)
            _run_queue(queue, runner, shown, len(trials), options.wait)
            with suppress(KeyboardInterrupt):  # all trials have ended
                reference.after(queue.slots.quiet())
        except KeyboardInterrupt:
            return INTERRUPTED
        finally:
            gc.unfreeze()
    statuses = store.finished()
    return exit_code({trial.id: statuses[trial.id] for trial in trials if trial.id in statuses})


def request_of(trials: Sequence[TrialConfig], store: ResultStore, leases: Leases, options: RunOptions) -> Request:
    """Return which trials are to run: those of the request that was made before, or those that are not done now."""
    if options.request is not None:
        return Request.read(store.directory, options.request)
    statuses, latest = store.finished(), leases.latest()
    todo = [trial.id for trial in trials if not is_done(statuses.get(trial.id), options)]
    for id_, status in statuses.items():  # a runner was killed between a record and this
        if status not in GOES_ON and store.checkpoints(id_).exists() and leases.holder(latest.get(id_)) is None:
            store.forget(id_)
    if options.fresh:
        for id_ in todo:
            store.forget(id_)
    numbers = {id_: latest[id_].number if id_ in latest else 0 for id_ in todo}
    recorded = {place.name for place in records_under(store.directory)}  # damaged ones, too
    return Request(trials=numbers, recorded=frozenset(todo) & recorded)


def _run_queue(queue: TrialQueue, runner: TrialRunner, progress: TrialProgress, total: int, wait: bool) -> None:
    """Run trials until all are run, by whichever runner, or (not `wait`) begun."""
    is_warm, waited, known = False, "", len(queue.left)
    while queue.left:
        with queue.turn() as turn:
            if elsewhere := known - len(queue.left):
                progress.run_elsewhere(elsewhere)
            if turn is not None:
                waited, number = "", total - len(queue.left) + 1
                progress.trial_started(number, turn.trial)
                if not is_warm and runner.inputs.missing(turn.trial.dataset) is None:
                    present = [each for each in queue.left.values() if runner.inputs.missing(each.dataset) is None]
                    runner.machine.warm_up(present, progress.trial_stage)
                    is_warm = True
                if record := runner.run(turn, progress):
                    del queue.left[turn.trial.id]
                    progress.trial_finished(number, record)
                gc.collect()  # JSON's writers are cycles, which Python lets pile up to a quarter of all there is
            known = len(queue.left)
        if turn is None and queue.left:
            free, why = queue.waits()
            if not wait and not free:
                return
            if why != waited:
                progress.suite_waits(waited := why)
            time.sleep(QUEUE_POLL_S)
