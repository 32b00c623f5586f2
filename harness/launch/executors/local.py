"""`--jobs`: runners at the same time on this machine, each an ordinary `harness run` with a share of it."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import UserError
from harness.launch.executors import Arrivals, Executor, Submission
from harness.launch.hardware import Capacity, capacity, check_device, cores
from harness.launch.planner import plan, total
from harness.launch.runner_process import INTERRUPTED, USAGE, start_runner, stop_runner
from harness.launch.slots import needs_quiet

if TYPE_CHECKING:
    from harness.launch.runner import TrialProgress

RANK_BYTES = 2**29  # of a rank, besides what the memory model counts: interpreter and libraries
STARTS = 3  # of the runners of one share, if they are killed
LOOK_S = 0.5


class Local(Executor):
    """This machine, or with --rdzv this one and others: one runner, or as many as it has room for."""

    name = "local"
    takes = frozenset(("--rdzv",))

    def capacity(self, nodes: int) -> Capacity:
        """Return what this machine has; other nodes are taken for machines like it."""
        return capacity() if nodes == 1 else replace(capacity(), nodes=nodes, where="a node like this machine")

    def run(self, submission: Submission, progress: TrialProgress, report: Callable[[str], None]) -> int:
        """Run with `submission.jobs` runners; see `Executor`."""
        check_device(submission.trials)
        arrivals = Arrivals(submission, progress)
        jobs, together = submission.jobs or 1, submission.options.together
        shares = [_Share(submission, number, jobs, arrivals, report) for number in range(jobs)]
        timed = sum(map(needs_quiet, arrivals.missing))
        alone = f"; {timed} trials are timed and run alone" if timed and not together else ""
        report(f"{jobs} runners side by side{alone}")
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
        return arrivals.conclude(report, lambda trial: f"see {submission.place}")


def jobs_here(submission: Submission) -> int:
    """Return how many trials without a record may run at once here: as many as asked, or as the machine has room for.

    That is by cores (one for each thread of each rank), by GPUs (one a rank), and by memory as `harness plan` has it.
    Trials that are timed have the machine to themselves, unless they are to run together.
    """
    from harness.launch.runner import request_of  # numpy: a plan does without

    sharing = [trial for trial in submission.trials if submission.options.together or not needs_quiet(trial)]
    if submission.jobs == 1 or not sharing:
        return 1
    request = request_of(submission.trials, submission.store, submission.store.leases(), submission.options)
    sharing = [trial for trial in sharing if trial.id in request.trials]
    if not sharing:
        return 1
    if submission.jobs is not None:
        return min(submission.jobs, len(sharing))
    has, room = capacity(), len(sharing)
    for trial in sharing:
        room = min(room, cores() // (trial.partition.parts * (trial.train.threads or 1)))
        if trial.device == "cuda":
            room = min(room, len(has.gpus) // trial.partition.parts)
    needed = max(
        sum(map(total, each.memory)) * (each.trial.device == "cpu") + RANK_BYTES * each.trial.partition.parts
        for each in plan(sharing, submission.store, submission.options)
    )
    return max(1, min(room, int(has.machine // needed)))


class _Share:
    """The runners that have one share of the machine, one after another if they are killed."""

    def __init__(
        self, submission: Submission, number: int, jobs: int, arrivals: Arrivals, report: Callable[[str], None]
    ) -> None:
        together = ["--together"] if submission.options.together else []
        own = ("--request", arrivals.request, "--share", str(jobs), *together)
        self._command, self._report = submission.command(arrivals.missing, *own), report
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
            self._report(f"a runner was killed by signal {-code}; another takes its trial over, see {self._log}")
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
