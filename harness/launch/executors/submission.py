"""What all executors share: the command line of a job, what the jobs ask of nodes, and the records as they come."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import UserError
from harness.launch.hardware import blocks
from harness.launch.runner import TrialProgress, exit_code, request_of
from harness.launch.runner_process import FAILED
from harness.launch.slots import RunOptions, needs_quiet
from harness.results.record import Record
from harness.results.record_store import ResultStore, read_at, records_under
from harness.suite.schema import Suite, TrialConfig

JOBS = ".jobs"  # beside a suite's records: scripts, logs and what else the engines write


@dataclass(frozen=True)
class Need:
    """Says what one job asks of each of its `nodes`.

    `cpus`: cores for the ranks of a node, None: all that the node has; `gpus`: of a node; `alone`: no other job may
    run there, because that would be in the results.
    """

    nodes: int
    cpus: int | None
    gpus: int
    alone: bool

    @classmethod
    def of(cls, trial: TrialConfig, nodes: int = 1) -> Need:
        """Return what `trial` needs on `nodes` nodes: a core a rank if nothing says how many, or all if it is timed."""
        ranks, threads = len(blocks(trial.partition.parts, nodes)[0]), trial.train.threads
        alone = needs_quiet(trial)
        cpus = None if alone and threads is None else ranks * (threads or 1)
        return cls(nodes, cpus, ranks if trial.device == "cuda" else 0, alone)

    def __str__(self) -> str:
        cores = "all cores" if self.cpus is None else f"{self.cpus} core{'s' * (self.cpus > 1)}"
        gpus = f", {self.gpus} GPU{'s' * (self.gpus > 1)}" if self.gpus else ""
        nodes = "1 node" if self.nodes == 1 else f"{self.nodes} nodes, each"
        return f"{nodes} with {cores}{gpus}" + (", nothing beside it" if self.alone else "")


@dataclass(frozen=True)
class Submission:
    """What a user asks of an executor.

    `arguments` are those of `harness run` but for `--only`, with absolute paths; `jobs` is how many may run at once
    (None: as many as the executor likes); `nodes` is how many machines a trial takes.
    """

    suite: Suite
    trials: Sequence[TrialConfig]
    store: ResultStore
    options: RunOptions
    arguments: Sequence[str]
    jobs: int | None = None
    nodes: int = 1
    detach: bool = False

    @property
    def place(self) -> Path:
        """Return the directory, on all nodes, for what jobs and engines write beside records."""
        return self.store.directory.absolute() / JOBS

    def command(self, trials: Sequence[TrialConfig], *more: str) -> tuple[str, ...]:
        """Return the command line of a job that runs `trials`, each unless another runner does."""
        ids = "|".join(trial.id for trial in trials)
        return (sys.executable, "-P", "-m", "harness", "run", *self.arguments, "--only", f"id={ids}", *more)


def check_devices(suite: Suite, device: str | None) -> None:
    """Raise UserError if it is left to the machine at hand which device trials have."""
    if "auto" in (device, suite.device if device is None else None):
        what = "auto would be what the machine that submits has, not what the nodes have"
        raise UserError(what, file=suite.source.file, key="device", fix="--device cpu, or --device cuda")


class Arrivals:
    """Tells `progress` of the records of a submission's trials as they come.

    A trial that is to run again has come with another record than it had at the beginning. `request` names what is
    to run for all of the jobs.
    """

    def __init__(self, submission: Submission, progress: TrialProgress) -> None:
        store = self._store = submission.store
        self._progress = progress
        request = request_of(submission.trials, store, store.leases(), submission.options)
        self.request = request.write(store.directory)
        statuses = store.finished()
        self.todo = {trial.id: trial for trial in submission.trials if trial.id in request.trials}
        self.statuses = {trial.id: statuses[trial.id] for trial in submission.trials if trial.id not in self.todo}
        self._before = self._now()
        progress.suite_started(len(submission.trials), len(self.statuses))

    @property
    def missing(self) -> list[TrialConfig]:
        """Return the trials that have no record yet."""
        return [trial for id_, trial in self.todo.items() if id_ not in self.statuses]

    def look(self) -> None:
        """Tell of the records that came since the last look."""
        for id_, signature in self._now().items():
            if id_ in self.statuses or self._before.get(id_) == signature:
                continue
            record = self._read(id_)
            if record is None:
                continue
            self.statuses[id_] = record.status
            number = len(self.statuses)
            self._progress.trial_started(number, self.todo[id_])
            self._progress.trial_finished(number, record)

    def look_afresh(self) -> None:
        """Look, and not at what a network file system remembers: one's own change makes it ask the server."""
        with suppress(OSError), tempfile.NamedTemporaryFile(dir=self._store.directory, prefix="."):
            pass
        self.look()

    def conclude(self, tell: Quietly, why: Callable[[TrialConfig], str]) -> int:
        """Look a last time, tell of each trial without a record and `why` it has none, and return the exit code."""
        self.look()
        for trial in self.missing:
            tell(f"no record: {trial.id}  {trial.label}: {why(trial)}")
        return FAILED if self.missing else exit_code(self.statuses)

    def _read(self, id_: str) -> Record | None:
        with suppress(UserError):  # it is just being replaced
            return read_at(self._store.directory / id_)
        return None

    def _now(self) -> dict[str, tuple[int, int]]:
        found = {}
        for place in records_under(self._store.directory):
            with suppress(OSError):
                if place.name in self.todo:
                    stat = (place / "record.json").stat()
                    found[place.name] = (stat.st_ino, stat.st_mtime_ns)
        return found


@dataclass
class Quietly:
    """Says a line only if it is not what was said last."""

    write: Callable[[str], None]
    _said: str = field(default="", init=False)

    def __call__(self, line: str) -> None:
        """Say `line` if it is new."""
        if line != self._said:
            self._said = line
            self.write(line)
