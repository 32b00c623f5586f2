"""A suite from its trials to its records: resumed by running it again, and never stopped by one trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import UserError
from harness.launch import namespaces
from harness.launch.inputs import InputCache
from harness.launch.local import WORKER
from harness.launch.progress import Progress
from harness.launch.trial import Machines, OneMachine, TrialRunner
from harness.results.store import ResultStore
from harness.results.suite_file import kept, write_suite
from harness.suite.expand import expand
from harness.suite.schema import Suite, TrialConfig

OK, FAILED, INTERRUPTED = 0, 1, 130


@dataclass(frozen=True)
class RunOptions:
    """What a user may ask of a run.

    `retry`: statuses whose trials run again; `fresh`: all selected trials run again; `data_dir` and `cache`:
    where data is looked up and kept (None: the environment's); `worker`: the module every rank runs.
    """

    retry: frozenset[str] = frozenset()
    fresh: bool = False
    data_dir: Path | None = None
    cache: Path | None = None
    worker: str = WORKER


def is_done(status: str | None, options: RunOptions) -> bool:
    """Return whether a trial with this status (None: no record) is left as it is; a skipped one never is."""
    return status not in (None, "skipped") and status not in options.retry and not options.fresh


def check_device(trials: Sequence[TrialConfig]) -> None:
    """Raise UserError if a trial wants a GPU and torch can use none."""
    import torch

    if any(trial.device == "cuda" for trial in trials) and not torch.cuda.is_available():
        raise UserError("torch can use no GPU here", key="device cuda", fix="--device cpu; see `harness doctor`")


def exit_code(statuses: Mapping[str, str]) -> int:
    """Return 1 if a trial failed; a skipped one has not."""
    return OK if all(status in ("ok", "skipped") for status in statuses.values()) else FAILED


def run_suite(
    suite: Suite,
    trials: Sequence[TrialConfig],
    store: ResultStore,
    options: RunOptions,
    progress: Progress,
    machines: Machines | None = None,
) -> int:
    """Run every selected trial that has no record yet and return the exit code.

    The suite, with all of its trials, is kept beside the records for those who read them.

    `machines`: what the ranks run on; None: this machine.

    0: all ok or skipped; 1: some of the selected failed (now or earlier); 130: interrupted by the user.
    Raises UserError for a mistake that concerns the whole suite, and when another runner is at work here.
    """
    from harness.results.environment import collect

    check_device(trials)
    with store.lock():
        store.clean()
        namespaces.clean()
        device = trials[0].device if trials else None
        write_suite(store.directory, kept(suite, expand(suite, device=device, data_dir=options.data_dir)))
        statuses = {id_: status for id_, status in store.finished().items() if id_ in {t.id for t in trials}}
        todo = [trial for trial in trials if not is_done(statuses.get(trial.id), options)]
        progress.suite_started(len(trials), len(trials) - len(todo))
        inputs = InputCache(options.data_dir, options.cache)
        try:
            on = machines or OneMachine(suite.timeouts, options.worker)
            runner = TrialRunner(suite, store, inputs, collect() if todo else {}, on)
            for number, trial in enumerate(todo, len(trials) - len(todo) + 1):
                progress.trial_started(number, trial)
                record = runner.run(trial, progress)
                statuses[trial.id] = record.status
                progress.trial_finished(number, record)
        except KeyboardInterrupt:
            return INTERRUPTED
    return exit_code(statuses)
