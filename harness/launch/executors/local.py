"""`--jobs`: runners side by side on this machine, each an ordinary `harness run` with a share of it."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from harness.errors import UserError
from harness.launch.executors.submission import Arrivals, Quietly, Submission
from harness.launch.hardware import Capacity, capacity, cores
from harness.launch.planner import plan, total
from harness.launch.runner import TrialProgress
from harness.launch.runner_process import INTERRUPTED, USAGE, start_runner, stop_runner
from harness.launch.slots import needs_quiet
from harness.suite.schema import TrialConfig

RANK_BYTES = 2**29  # of a rank, beside what the memory model counts: interpreter and libraries
STARTS = 3  # of the runners of one share, if they are killed
LOOK_S = 0.5


def jobs_here(submission: Submission, todo: Sequence[TrialConfig], *, together: bool) -> int:
    """Return how many of the trials `todo` may run at once here: what was asked for, or what the machine has room for.

    That is by cores (one for each thread of each rank), by GPUs (one a rank), and by memory as `harness plan` has it.
    Trials that are timed have the machine to themselves, unless `together`.
    """
    sharing = [trial for trial in todo if together or not needs_quiet(trial)]
    if not sharing:
        return 1
    if submission.jobs is not None:
        return min(submission.jobs, len(sharing))
    has = capacity()
    return max(1, min(len(sharing), *(_room(trial, has) for trial in sharing), _by_memory(submission, sharing, has)))


def _room(trial: TrialConfig, has: Capacity) -> int:
    ranks = trial.partition.parts
    by_cores = cores() // (ranks * (trial.train.threads or 1))
    return min(by_cores, len(has.gpus) // ranks) if trial.device == "cuda" else by_cores


def _by_memory(submission: Submission, trials: Sequence[TrialConfig], has: Capacity) -> int:
    """Return how many of the largest trial's kind fit the machine's memory."""
    planned = plan(trials, submission.store, submission.options)
    needed = max(
        sum(map(total, each.memory)) * (each.trial.device == "cpu") + RANK_BYTES * each.trial.partition.parts
        for each in planned
    )
    return int(has.machine // needed)


def run(submission: Submission, jobs: int, progress: TrialProgress, tell: Quietly, *more: str) -> int:
    """Run what has no record yet with `jobs` runners, and return the exit code; Ctrl-C ends them all.

    `more`: further arguments of each runner.
    """
    arrivals = Arrivals(submission, progress)
    shares = [_Share(submission, number, jobs, arrivals, tell, more) for number in range(jobs)]
    timed = sum(map(needs_quiet, arrivals.missing))
    tell(f"{jobs} runners side by side" + (f"; {timed} trials are timed and run alone" if timed and not more else ""))
    try:
        with ExitStack() as running:
            for share in shares:
                running.callback(share.stop)
            going = shares
            while going := [share for share in going if share.goes_on()]:
                time.sleep(LOOK_S)
                arrivals.look()
    except KeyboardInterrupt:
        return INTERRUPTED
    return arrivals.conclude(tell, lambda trial: f"see {submission.place}")


class _Share:
    """The runners that have one share of the machine, one after another if they are killed."""

    def __init__(
        self, submission: Submission, number: int, jobs: int, arrivals: Arrivals, tell: Quietly, more: Sequence[str]
    ) -> None:
        own = ("--request", arrivals.request, "--share", str(jobs), *more)
        self._command, self._tell = submission.command(arrivals.missing, *own), tell
        submission.place.mkdir(parents=True, exist_ok=True)
        self._log = Path(submission.place, f"{arrivals.request}-{number}.log")
        self._starts = 0
        self._runner: subprocess.Popen[bytes] | None = None

    def goes_on(self) -> bool:
        """Start a runner if there was none, or if the last was killed; False once there is none any more."""
        code = None if self._runner is None else self._runner.poll()
        if self._runner is not None and code is None:
            return True
        if code == USAGE:
            said = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise UserError(f"a runner said: {said[-1] if said else 'nothing'}", file=self._log)
        if self._starts == STARTS or (code is not None and code >= 0):
            return False
        if code is not None:
            self._tell(f"a runner was killed by signal {-code}; another takes its trial over, see {self._log}")
        self._starts += 1
        with self._log.open("ab") as log:
            # A session of its own: Ctrl-C is for this process, which ends it.
            options = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "start_new_session": True}
            self._runner = start_runner(self._command, **options)
        return True

    def stop(self) -> None:
        """End the runner, if it runs; it gives its trial back."""
        if self._runner is not None and self._runner.poll() is None:
            stop_runner(self._runner.pid)
            with contextlib.suppress(ChildProcessError):
                self._runner.wait()
