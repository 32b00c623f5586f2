"""Executors: the base class, what all of them share, and the records of jobs as they arrive.

Modules of this package import the runner in functions only: jobs of an engine import them before they start a runner.
"""

from __future__ import annotations

import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from harness.errors import UserError
from harness.launch.hardware import Capacity, blocks
from harness.launch.runner_process import FAILED
from harness.registry import Registered, Registry, find_plugins, whole_entries

if TYPE_CHECKING:
    from harness.launch.runner import TrialProgress
    from harness.launch.slots import RunOptions
    from harness.results.record_store import ResultStore
    from harness.suite.schema import Suite, TrialConfig

JOBS = ".jobs"  # next to a suite's records: scripts, logs and what else the engines write


class Executor(Registered, ABC):
    """A way to run the trials of a suite: jobs of a cluster, or runners on this machine.

    A subclass sets `name` and defines `capacity` and `run`; a plugin that has one is named by `--plugin FILE`.

    Attributes:
        takes: the flags of `harness run` that only some executors have and this one reads, of "--executor-option"
            (also spelled --slurm), "--detach" and "--rdzv".
    """

    kind = "executor"
    group = "harness.executors"
    name: ClassVar[str]
    takes: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, options: Sequence[str] = ()) -> None:
        """Take the KEY=VALUE pairs of --executor-option; a subclass that has some raises UserError for a wrong one."""

    @abstractmethod
    def capacity(self, nodes: int) -> Capacity:
        """Return what `nodes` machines have that a trial may run on; UserError if there are fewer."""

    @abstractmethod
    def run(self, submission: Submission, progress: TrialProgress, report: Callable[[str], None]) -> int:
        """Run what has no record yet and return the exit code of `harness run`; Ctrl-C ends all that was started.

        `progress` receives trials as they end (see `Arrivals`), `report` lines for the user.
        """


EXECUTORS: Registry[type[Executor]] = Registry(Executor, "harness.launch.executors")


def executor_of(name: str, plugins: Iterable[str] = (), **given: object) -> type[Executor]:
    """Return the executor of a name.

    Args:
        name: of the tool's own, an installed package's, or one that a file or module of `plugins` brings.
        given: values of the flags that only some executors read, by their names with _.

    Raises:
        UserError: there is none, or a flag is given that it does not read.
    """
    sources = find_plugins(whole_entries(plugins))
    try:
        found = EXECUTORS.find(name, sources).value
    except UserError as error:
        raise UserError(error.message, file=error.file, key="--executor", fix=error.fix) from error
    for flag in (f"--{key.replace('_', '-')}" for key, value in given.items() if value):
        if flag not in found.takes:
            whose = [each for each in EXECUTORS.names(sources) if flag in EXECUTORS.find(each, sources).value.takes]
            key = "--slurm, --executor-option" if flag == "--executor-option" else flag
            fix = "leave it out, or name that executor"
            raise UserError(f"applies only to --executor {' or '.join(whose)}", key=key, fix=fix)
    return found


def require_named_device(suite: Suite, device: str | None) -> None:
    """Raise UserError if the machine that submits would decide which device trials have on the nodes."""
    if "auto" in (device, suite.device if device is None else None):
        what = "auto would be what the machine that submits has, not what the nodes have"
        raise UserError(what, file=suite.source.file, key="device", fix="--device cpu, or --device cuda")


@dataclass(frozen=True)
class Need:
    """The resources that one job asks of each of its `nodes`.

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
        from harness.launch.slots import needs_quiet

        ranks, threads = len(blocks(trial.partition.parts, nodes)[0]), trial.train.threads
        alone = needs_quiet(trial)
        cpus = None if alone and threads is None else ranks * (threads or 1)
        return cls(nodes, cpus, ranks if trial.device == "cuda" else 0, alone)

    def __str__(self) -> str:
        cores = "all cores" if self.cpus is None else f"{self.cpus} core{'s' * (self.cpus > 1)}"
        gpus = f", {self.gpus} GPU{'s' * (self.gpus > 1)}" if self.gpus else ""
        nodes = "1 node" if self.nodes == 1 else f"{self.nodes} nodes, each"
        return f"{nodes} with {cores}{gpus}" + (", no other job there" if self.alone else "")


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
        """Directory, on all nodes, for what jobs and engines write next to records."""
        return self.store.directory.absolute() / JOBS

    def command(self, trials: Sequence[TrialConfig], *more: str) -> tuple[str, ...]:
        """Return the command line of a job that runs `trials`, each unless another runner does."""
        ids = "|".join(trial.id for trial in trials)
        return (sys.executable, "-P", "-m", "harness", "run", *self.arguments, "--only", f"id={ids}", *more)


class Arrivals:
    """Reports to `progress` the records of a submission's trials as they arrive.

    A trial that is to run again has arrived with another record than it had at the beginning. `request` names what is
    to run for all of the jobs.
    """

    def __init__(self, submission: Submission, progress: TrialProgress) -> None:
        from harness.launch.runner import request_of

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
        """The trials that have no record yet."""
        return [trial for id_, trial in self.todo.items() if id_ not in self.statuses]

    def look(self) -> None:
        """Report the records that came since the last look."""
        from harness.results.record_store import read_at

        for id_, signature in self._now().items():
            if id_ in self.statuses or self._before.get(id_) == signature:
                continue
            try:
                record = read_at(self._store.directory / id_)
            except UserError:  # another process replaces it just now: the next look finds it
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

    def conclude(self, report: Callable[[str], None], why: Callable[[TrialConfig], str]) -> int:
        """Look a last time, report each trial without a record and `why` it has none, and return the exit code."""
        from harness.launch.runner import exit_code

        self.look()
        for trial in self.missing:
            report(f"no record: {trial.id}  {trial.label}: {why(trial)}")
        return FAILED if self.missing else exit_code(self.statuses)

    def _now(self) -> dict[str, tuple[int, int]]:
        from harness.results.record_store import records_under

        found = {}
        for place in records_under(self._store.directory):
            with suppress(OSError):
                if place.name in self.todo:
                    stat = (place / "record.json").stat()
                    found[place.name] = (stat.st_ino, stat.st_mtime_ns)
        return found
