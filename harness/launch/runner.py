"""Run a suite: each trial becomes a record, running it again goes on, and no failed trial stops it."""

from __future__ import annotations

import gc
import json
import shutil
import time
import traceback
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from harness.errors import DataUnavailable, UserError, of_system
from harness.launch.ahead import compile_ahead
from harness.launch.checkpoints import place_of
from harness.launch.data_changes import on_todays_data
from harness.launch.fork_server import NoWarmStart, fork_server
from harness.launch.gpus import check_device, near_cores
from harness.launch.inputs import InputCache, TrialInputs, cores_of, threads_of
from harness.launch.local import GroupResult, OnProgress, run_group
from harness.launch.network import clean_namespaces, network, why_not
from harness.launch.options import WORKER, RunOptions, is_done
from harness.launch.preparing import NotPrepared
from harness.launch.process import Placement, placements_of, rank_environment
from harness.launch.progress import Shown, TrialProgress
from harness.launch.queue import Request, TrialQueue, Turn
from harness.launch.reference import Reference, run_reference
from harness.launch.runner_process import FAILED, INTERRUPTED, OK
from harness.launch.scratch import clean_scratch
from harness.launch.seats import WHOLE, Seat, Seats
from harness.results.environment import Measurement
from harness.results.leases import Leases
from harness.results.record import Record, Status, epoch_rows, unlike, without_epochs
from harness.results.record_store import ResultStore, kept, kept_suites
from harness.results.reduce import flags, mark_load, reduce
from harness.runtime.method import METHODS, Method
from harness.suite.expand import expand
from harness.suite.schema import Suite, Timeouts, TrialConfig

if TYPE_CHECKING:
    from harness.runtime.checkpoint import CheckpointPlace
    from harness.runtime.job import RanksRendezvous

QUEUE_POLL_S = 0.5
GOES_ON: frozenset[Status] = frozenset(("error", "oom", "timeout"))
"""Statuses of a trial that, if it is run again, goes on from its last checkpoint."""
COMPILING = "harness.runtime.compiling_rank"


class Machines(Protocol):
    """Trials run on them."""

    @property
    def nodes(self) -> int:
        """Return how many machines they are."""

    def why_not(self, trial: TrialConfig) -> str | None:
        """Return why `trial` cannot run on them and is skipped; None if it can."""

    def compile(self, trials: Sequence[TrialConfig], tell: Callable[[str], None]) -> tuple[int, int]:
        """Compile ahead what `trials` call; see `compile_ahead`. What goes wrong is told and no error."""

    def expect(self, trial: TrialConfig) -> None:
        """Begin with what the ranks of `trial` need; it is about to run."""

    def at(self, seat: Seat) -> Self:
        """Return these machines for a trial that has `seat` of this one."""

    def threads(self, trial: TrialConfig) -> int:
        """Return the CPU threads of each rank of `trial`."""

    def measure(self, trial: TrialConfig) -> Measurement | None:
        """Return how fast the runner's machine is, as `trial` will have it; None if that cannot be told."""

    def run(
        self,
        trial: TrialConfig,
        inputs: TrialInputs,
        out: Path,
        progress: TrialProgress,
        checkpoints: CheckpointPlace | None = None,
    ) -> GroupResult:
        """Run the ranks of `trial` to their end; `out` is an empty directory for what they write.

        `checkpoints`: where they go on from, and keep what they can go on from; None: nowhere.
        """


@dataclass(frozen=True)
class OneMachine:
    """Trials run on this machine alone, their ranks as `RunOptions` says; `timeouts` are the suite's."""

    timeouts: Timeouts
    worker: str = WORKER
    warm: bool = False
    nodes: int = 1
    seat: Seat = WHOLE
    audit: bool = False

    def at(self, seat: Seat) -> OneMachine:
        """Return this machine for a trial that has `seat` of it."""
        return replace(self, seat=seat)

    def threads(self, trial: TrialConfig) -> int:
        """Return the threads that the suite asks for, or else the ranks of a node share the seat's cores."""
        return threads_of(trial, self.nodes, self._cores)

    @property
    def _cores(self) -> int | None:
        return len(self.seat.cores) if self.seat.cores else None

    def why_not(self, trial: TrialConfig) -> str | None:
        """Return why the trial's network cannot be had here; None if it can."""
        return None if trial.network is None else why_not(trial.network)

    def expect(self, trial: TrialConfig) -> None:
        """Start the process that forks ranks: it imports while data are prepared."""
        if self.warm:
            threads = self.threads(trial)
            with suppress(NoWarmStart):  # said when the ranks start
                fork_server(self.worker, rank_environment(placements_of(range(1), 1)[0], threads))

    def compile(self, trials: Sequence[TrialConfig], tell: Callable[[str], None]) -> tuple[int, int]:
        """See `Machines`."""

        ranks = replace(self, worker=COMPILING)

        def run(trial: TrialConfig, out: Path, inputs: InputCache) -> GroupResult:
            placements = placements_of(range(trial.partition.parts), trial.partition.parts)
            return ranks.start(trial, inputs.get(trial, _ignore), out, placements, _ignore)

        if self.worker != WORKER:
            return 0, 0
        try:
            return compile_ahead(trials, run, tell)
        except Exception as error:  # trials then compile as they go
            tell(f"kernels are not compiled ahead: {explain(error)[1]}")
            return 0, len(trials)

    def measure(self, trial: TrialConfig) -> Measurement | None:
        """Run the reference workload."""
        if self.worker != WORKER:
            return None
        return run_reference(self.threads(trial), warm=self.warm)

    def run(
        self,
        trial: TrialConfig,
        inputs: TrialInputs,
        out: Path,
        progress: TrialProgress,
        checkpoints: CheckpointPlace | None = None,
    ) -> GroupResult:
        """Run all ranks of `trial` here."""
        with network(trial.network, trial.partition.parts) as placements:
            return self.start(trial, inputs, out, placements, progress.trial_event, checkpoints=checkpoints)

    def start(
        self,
        trial: TrialConfig,
        inputs: TrialInputs,
        out: Path,
        placements: Sequence[Placement],
        tell: OnProgress,
        *,
        rendezvous: RanksRendezvous | None = None,
        failed_elsewhere: Callable[[], bool] = lambda: False,
        checkpoints: CheckpointPlace | None = None,
    ) -> GroupResult:
        """Run the ranks of `placements` here; the others of the trial, if any, come to the same `rendezvous`."""
        threads, own = self.threads(trial), cores_of(trial, self.nodes, self._cores)
        near = near_cores(self.seat.gpus) if trial.device == "cuda" else []
        limit = self.timeouts.collective_s
        return run_group(
            write_job(
                trial,
                inputs,
                out,
                limit,
                threads=threads,
                cores=own,
                rendezvous=rendezvous,
                checkpoints=checkpoints,
                audit=self.audit,
            ),
            [replace(self.seat.placed(each, own, near), own_pages=trial.timing != "off") for each in placements],
            out,
            threads=threads,
            timeout_s=self.timeouts.trial_s,
            on_progress=tell,
            worker=self.worker,
            warm=self.warm,
            failed_elsewhere=failed_elsewhere,
            progress_s=self.timeouts.progress_s,
        )


@dataclass
class TrialOutcome:
    """Says what a trial came to, before that is a record."""

    group: GroupResult = field(default_factory=GroupResult)
    status: Status = "error"
    reason: str | None = None
    log: str = ""
    result: dict[str, Any] = field(default_factory=dict)
    inputs: TrialInputs | None = None
    reference: Measurement | None = None


@dataclass(frozen=True)
class TrialRunner:
    """Runs trials of one suite into one store."""

    suite: Suite
    store: ResultStore
    inputs: InputCache
    environment: dict[str, Any]
    machines: Machines
    leases: Leases
    reference: Reference

    def run(self, turn: Turn, progress: TrialProgress) -> Record | None:
        """Run one trial and commit its record; a failure of the trial is a record too.

        None if others took this runner for dead meanwhile: the trial is theirs then.
        Raises KeyboardInterrupt (nothing is recorded), and UserError if the record cannot be written.
        """
        started, trial = datetime.now(UTC), turn.trial
        machines = self.machines.at(turn.taken.seat)
        outcome = TrialOutcome()
        try:
            self._train(turn, machines, outcome, progress)
        except Exception as error:  # the suite goes on whatever one trial runs into
            outcome.status, outcome.reason = explain(error)
            if isinstance(error, NotPrepared):
                outcome.log += error.log
            elif not isinstance(error, DataUnavailable | UserError):
                outcome.log += traceback.format_exc()
        turn.taken.stand()
        environment = {**self.environment, "threads": machines.threads(trial), **turn.taken.described()}
        environment["reference_s"] = outcome.reference and outcome.reference.seconds
        environment["reference_cores"] = outcome.reference and outcome.reference.cores
        try:
            return self._keep(turn, outcome, started, environment, progress)
        except UserError:
            raise
        except Exception as error:  # a rank may have reported anything, and the suite goes on whatever that is
            status, reason = explain(error)
            what, log = f"what its ranks reported cannot be kept: {reason}", outcome.log + traceback.format_exc()
            lost = replace(outcome, group=GroupResult(), status=status, reason=what, log=log, result={})
            return self._keep(turn, lost, started, environment, progress)

    def _keep(
        self, turn: Turn, outcome: TrialOutcome, started: datetime, environment: dict[str, Any], progress: TrialProgress
    ) -> Record | None:
        trial = turn.trial
        record = self._record(trial, outcome, started, environment)
        differ = unlike(record, trial, self.store.directory, self.suite.repeat)
        record = record.model_copy(update={"flags": [*record.flags, *differ]})
        if not self.leases.holds(turn.lease):
            progress.trial_stage("another runner took this one for dead and runs the trial: the result is dropped")
            self.store.drop(trial.id)
            return None
        try:
            epochs = [*epoch_rows(outcome.group.ranks), *outcome.group.epochs]
            self.store.commit(trial.id, record, epochs, outcome.log)
        except OSError as error:
            what = f"cannot write the record: {error.strerror or error}"
            raise UserError(what, file=error.filename, fix="choose another place with --results") from error
        turn.done = True
        if record.status not in GOES_ON:
            self.store.forget(trial.id)
        return record

    def _train(self, turn: Turn, machines: Machines, outcome: TrialOutcome, progress: TrialProgress) -> None:
        trial = turn.trial
        if (reason := machines.why_not(trial)) is not None:
            outcome.status, outcome.reason = "skipped", reason
            return
        machines.expect(trial)
        outcome.inputs = self.inputs.get(trial, progress.trial_stage)
        if turn.taken.alone and trial.device == "cpu":
            outcome.reference = self.reference.before(lambda: machines.measure(trial))
        group = self._started(trial, outcome.inputs, machines, progress)
        for again in range(self.suite.retries):
            if not group.lost:
                break
            text = f"{group.reason}; started again, {again + 1} of {self.suite.retries} times at most (`retries`)"
            progress.trial_stage(text)
            outcome.log += f"{group.log}==== {text} ====\n"
            group = self._started(trial, outcome.inputs, machines, progress)
        outcome.group, outcome.log = group, outcome.log + group.log
        outcome.status, outcome.reason = group.status, group.reason
        mark_load(group.ranks)
        if group.status == "ok":
            outcome.result = reduce(group.ranks, _method(trial).metrics_by_column())

    def _started(
        self, trial: TrialConfig, inputs: TrialInputs, machines: Machines, progress: TrialProgress
    ) -> GroupResult:
        """Start the ranks of a trial, which go on from the last checkpoint if there is one, and wait for their end."""
        home, out = self.store.checkpoints(trial.id), self.store.stage(trial.id)
        try:
            place = place_of(home, trial, inputs, self.environment, progress.trial_stage)
            return machines.run(trial, inputs, out, progress, place)
        except BaseException:
            shutil.rmtree(out, ignore_errors=True)
            raise

    def _record(
        self, trial: TrialConfig, outcome: TrialOutcome, started: datetime, environment: dict[str, Any]
    ) -> Record:
        inputs, group = outcome.inputs, outcome.group
        environment["warm"] = group.warm
        if group.nodes:
            environment["nodes"] = list(group.nodes)
        return Record(
            trial=trial.id,
            suite=self.suite.name,
            label=trial.label,
            status=outcome.status,
            reason=outcome.reason,
            flags=flags(group.ranks),
            started=started.isoformat(timespec="seconds"),
            wall_s=None if group.wall_s is None else group.wall_s + max((earlier_s(r) for r in group.ranks), default=0),
            config=trial.model_dump(mode="json"),
            declared=_method(trial).declared(),
            environment=environment,
            dataset=inputs.dataset if inputs else {"name": trial.dataset.name},
            partition=inputs.partition if inputs else [],
            partition_fingerprint=inputs.partition_fingerprint if inputs else None,
            result=outcome.result,
            ranks=without_epochs(group.ranks),
        )


def earlier_s(rank: Mapping[str, Any]) -> float:
    """Return the seconds that earlier starts of a rank took up to the checkpoint that it went on from."""
    return float(rank.get("earlier_s") or 0)


def _ignore(event: object) -> None:
    pass


def _method(trial: TrialConfig) -> type[Method[Any]]:
    return METHODS.load(trial.method.name, trial.plugin)


def explain(error: Exception) -> tuple[Status, str]:
    """Return status and reason of a trial that `error` ended in the runner."""
    if isinstance(error, DataUnavailable):
        return "skipped", str(error)
    if isinstance(error, UserError):
        return "error", str(error)
    if isinstance(error, NotPrepared):
        return error.status, str(error)
    if isinstance(error, OSError) and (told := of_system(error)) is not None:
        return "error", str(told)
    if isinstance(error, MemoryError):
        return "oom", f"out of memory in the runner: {error}"
    return "error", f"{type(error).__name__} in the runner: {' '.join(str(error).split())}"


def write_job(
    trial: TrialConfig,
    inputs: TrialInputs,
    out: Path,
    collective_s: float,
    *,
    threads: int,
    cores: int,
    rendezvous: RanksRendezvous | None = None,
    checkpoints: CheckpointPlace | None = None,
    audit: bool = False,
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
        "cores": cores,
        "attempt": uuid.uuid4().hex,
        "collective_timeout_s": collective_s,
        "audit": audit,
    }
    if rendezvous is not None:
        job["rendezvous"] = rendezvous.model_dump(mode="json")
    if checkpoints is not None:
        job["checkpoints"] = checkpoints.model_dump(mode="json")
    path = out / "job.json"
    path.write_text(json.dumps(job, indent=1))
    return path


def exit_code(statuses: Mapping[str, str]) -> int:
    """Return 1 if a trial failed; a skipped one has not."""
    return OK if all(status in ("ok", "skipped") for status in statuses.values()) else FAILED


def run_suite(
    suite: Suite,
    trials: Sequence[TrialConfig],
    store: ResultStore,
    options: RunOptions,
    progress: TrialProgress,
    machines: Machines | None = None,
) -> int:
    """Run every selected trial that has no record yet, on `machines` (None: this one), and return the exit code.

    The suite, with all of its trials, is kept beside the records for those who read them; those of a tuning are these
    and those kept before, not what the suite expands to.

    Other runners may be at work on the same results, here or elsewhere: they share the trials, and this one returns
    when all have ended. The exit code is 0 if all are ok or skipped, 1 if some of the selected failed (now or
    earlier), and 130 if the user interrupted the run.
    Raises UserError for a mistake that concerns the whole suite.
    """
    from harness.results.environment import collect

    on = machines or OneMachine(suite.timeouts, options.worker, options.warm, audit=options.audit)
    check_device(trials, on.nodes)
    with store.runner() as me:
        leases, shown = store.leases(), Shown(progress, me)
        store.clean(leases)
        clean_namespaces()
        clean_scratch()
        device = trials[0].device if trials else None
        if any(trial.tuning for trial in trials):
            before = kept_suites([store.directory]).get(suite.name)
            every = list({trial.id: trial for trial in (*(before.trials if before else ()), *trials)}.values())
        else:
            every = expand(suite, device=device, data_dir=options.data_dir)
        today, _ = on_todays_data(every, store, options.data_dir, options.cache, build=False)
        store.keep_suite(kept(suite, today))
        request = request_of(trials, store, leases, options)
        queue = TrialQueue(store, leases, Seats(options.jobs, options.together), request, trials, on.nodes)
        shown.suite_started(len(trials), len(trials) - len(queue.left))
        inputs = InputCache(options.data_dir, options.cache, apart=True)
        gc.freeze()  # what is known of the suite stays, so that a collection looks through little
        try:
            reference = Reference(store.directory)
            runner = TrialRunner(suite, store, inputs, collect() if queue.left else {}, on, leases, reference)
            _run_queue(queue, runner, shown, len(trials), options.wait)
            with suppress(KeyboardInterrupt):  # all trials have ended
                reference.after(queue.seats.quiet())
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
    return Request(trials=numbers, recorded=frozenset(todo) & statuses.keys())


def _run_queue(queue: TrialQueue, runner: TrialRunner, progress: TrialProgress, total: int, wait: bool) -> None:
    """Run trials until all are run, whoever runs them, or (not `wait`) begun."""
    compiled, waited, known = False, "", len(queue.left)
    while queue.left:
        with queue.turn() as turn:
            if elsewhere := known - len(queue.left):
                progress.run_elsewhere(elsewhere)
            if turn is not None:
                waited, number = "", total - len(queue.left) + 1
                progress.trial_started(number, turn.trial)
                if not compiled:
                    runner.machines.compile([*queue.left.values()], progress.trial_stage)
                    compiled = True
                if record := runner.run(turn, progress):
                    del queue.left[turn.trial.id]
                    progress.trial_finished(number, record)
                gc.collect()  # JSON's writers are cycles, which Python lets pile up to a quarter of all there is
            known = len(queue.left)
        if turn is None and queue.left:
            waits = queue.waits()
            if not wait and not waits.free:
                return
            if (why := str(waits)) != waited:
                progress.suite_waits(waited := why)
            time.sleep(QUEUE_POLL_S)
