"""`--executor slurm`: arrays of jobs, and the steps in which `srun` starts a node's `harness run`."""

from __future__ import annotations

import contextlib
import io
import os
import re
import secrets
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import UserError, nearest
from harness.launch.executors import Arrivals, Executor, Need, Submission
from harness.launch.hardware import Capacity
from harness.launch.runner_process import FAILED, INTERRUPTED, OK, USAGE, start_runner, stop_runner
from harness.runtime.channel import write_secret

if TYPE_CHECKING:
    from submitit.core.utils import DelayedSubmission

    from harness.launch.rendezvous import Cluster
    from harness.launch.runner import TrialProgress
    from harness.suite.schema import TrialConfig

MOST_JOBS = 32  # elements of an array, if nobody says how many
REQUEUES = 10  # how often a job that reached its time limit goes on in the queue
SIGNAL_S = 60  # before the time limit; a runner ends in less
MARGIN_MIN = 30  # on top of the limit of one trial, to prepare data and compile
RUNNERS = 3  # that a job starts, if they are killed
LOOK_S, STATES_S = 1.0, 5.0
FIRST_SLURM_PORT, SLURM_PORTS = 20_000, 10_000  # below the ports that Linux hands out by itself (32768 up)
_RANGE = r"\d+(?:-\d+)?"
_ENTRY = rf"(?:[^,\[\]]|\[{_RANGE}(?:,{_RANGE})*\])+"
ENDED = frozenset(
    [
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "GONE", "NODE_FAIL", "OUT_OF_MEMORY"),
        *("PREEMPTED", "REVOKED", "TIMEOUT"),
    ]
)
OTHERWISE = {
    "nodes": "--nnodes",
    "array": "--jobs",
    "ntasks": "one task a node",
    "ntasks-per-node": "one task a node",
    "output": "logs are kept next to the records",
    "error": "logs are kept next to the records",
    "signal": "it is what ends a runner in time",
    "wrap": "a job is a run of the suite",
    "open-mode": "logs are kept next to the records",
}
"""Options of sbatch that are not the user's, and what to do instead or why."""


def sbatch_options() -> frozenset[str]:
    """Return the names of the options of this site's sbatch; UserError where there is none."""
    return frozenset(re.findall(r"--([a-z][a-z-]+[a-z])", _slurm("sbatch", "--help")))


def minutes_of(text: str) -> int:
    """Return the minutes, rounded up, of a time limit as Slurm writes them (60, 1:30:00, 1-12, 1-12:30 ...)."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if found is None:
        raise UserError(f"'{text}' is not a time limit", key="--slurm time", fix="e.g. 60, 1:30:00 or 1-12")
    days, *fields = [int(number or 0) for number in found.groups()]
    if found[1] is None and found[4] is None:  # minutes[:seconds]
        fields = [0, *fields[:2]]
    hours, minutes, seconds = fields
    limit = days * 1440 + hours * 60 + minutes + -(-seconds // 60)
    if limit < 1:
        raise UserError(f"'{text}' is no time at all", key="--slurm time", fix="e.g. 60")
    return limit


def _slurm(*command: str) -> str:
    """Return what a command of Slurm prints; UserError if there is none or it fails."""
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    except FileNotFoundError:
        what = f"there is no {command[0]} here"
        raise UserError(what, key="--executor slurm", fix="run it on a login node") from None
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        said = " ".join(str(error.stderr or error).split())
        raise UserError(said, key=command[0], fix="does Slurm answer? see `sinfo`") from error


class Slurm(Executor):
    """Arrays of Slurm's jobs, submitted through submitit; each element drains the trials of one need."""

    name = "slurm"
    takes = frozenset(("--executor-option", "--detach"))

    def __init__(self, options: Sequence[str] = ()) -> None:
        """Take KEY=VALUE; keys are those of `sbatch --help`, and `requeues`. UserError names the nearest key."""
        known = sbatch_options() - OTHERWISE.keys() | {"requeues"}
        self.sbatch: dict[str, str] = {}
        for pair in options:
            key, equals, value = pair.partition("=")
            key = key.strip().replace("_", "-")
            if not (key and equals and value) or "\n" in value:
                raise UserError(f"'{pair}' is not KEY=VALUE", key="--slurm", fix="e.g. --slurm partition=gpu")
            if key in OTHERWISE:
                raise UserError(f"'{key}' is not for you to set", key="--slurm", fix=OTHERWISE[key])
            if key not in known:
                raise UserError(f"sbatch has no option '{key}'", key="--slurm", fix=nearest(key, known))
            self.sbatch[key.replace("-", "_")] = value
        self.time_min = minutes_of(self.sbatch.pop("time")) if "time" in self.sbatch else None
        requeues = self.sbatch.pop("requeues", str(REQUEUES))
        if not requeues.isdecimal():
            raise UserError(f"'{requeues}' is not a number", key="--slurm requeues", fix=f"e.g. {REQUEUES}")
        self.requeues = int(requeues)

    def capacity(self, nodes: int) -> Capacity:
        """Return the memory of the nodes a job of `nodes` nodes can have: the smallest of the partition's largest.

        UserError if the partition has fewer nodes. The memory of GPUs is not known to Slurm.
        """
        partition = self.sbatch.get("partition")
        of = [f"--partition={partition}"] if partition else []
        lines = _slurm("sinfo", "--noheader", "--Node", "--format=%P|%N|%m", *of).splitlines()
        found = [line.strip().split("|") for line in lines]
        if not partition:  # the default has a star
            found = [line for line in found if line[0].endswith("*")] or found
        sizes = sorted({name: int(memory.rstrip("+")) << 20 for _, name, memory in found}.values(), reverse=True)
        if len(sizes) < nodes:
            what = f"{nodes} nodes, the partition has {len(sizes)}"
            raise UserError(what, key="--nnodes", fix="see `sinfo`, and --slurm partition=NAME")
        return Capacity(sizes[nodes - 1], where=f"a node of partition {found[0][0].rstrip('*')}", nodes=nodes)

    def run(self, submission: Submission, progress: TrialProgress, report: Callable[[str], None]) -> int:
        """See `Executor`; Ctrl-C cancels the jobs, with `detach` it returns after submitting."""
        from harness.launch.runner import exit_code

        arrivals = Arrivals(submission, progress)
        logs: dict[str, Path] = {}  # of each job, by its id as Slurm writes it
        try:
            for need, trials in by_need(arrivals.missing, submission.nodes).items():
                command = submission.command(trials, "--request", arrivals.request, "--no-wait", "--jobs", "1")
                count = min(submission.jobs or MOST_JOBS, len(trials))
                array = self._submit(submission, need, count, command)
                logs |= array
                jobs = f"{len(array)} job{'s' * (len(array) > 1)} {min(array).partition('_')[0]}"
                report(f"slurm: {jobs} for {len(trials)} trials: {need}")
        except BaseException:
            cancel(logs)
            raise
        if submission.detach:
            return OK
        states = dict.fromkeys(logs, "PENDING")
        try:
            watch(arrivals, states, report)
        except KeyboardInterrupt:
            cancel(logs)
            report(f"cancelled the jobs {' '.join(dict.fromkeys(id_.partition('_')[0] for id_ in logs))}")
            return INTERRUPTED
        if not arrivals.missing:
            cancel([id_ for id_, state in states.items() if state not in ENDED])
            return exit_code(arrivals.statuses)
        report(f"{len(arrivals.missing)} trials have no record; the same command goes on with them:")
        for trial in arrivals.missing:
            report(f"    {trial.id}  {trial.label}")
        for id_, log in logs.items():
            where = log if log.exists() else f"no log at {log}: is that directory shared by the nodes?"
            report(f"    job {id_} {states[id_].lower()}: {where}")
        return FAILED

    def _submit(self, submission: Submission, need: Need, count: int, command: tuple[str, ...]) -> dict[str, Path]:
        """Submit an array of `count` jobs, each of which runs `command`, and return the log of each by its id.

        UserError gives Slurm's reason if it takes none.
        """
        from submitit import SlurmExecutor
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        python = f"{shlex.quote(sys.executable)} -P"  # a user's queue.py is not Python's
        executor = SlurmExecutor(submission.place, max_num_timeout=self.requeues, python=python)
        sbatch: dict[str, Any] = {"requeue": True, "job_name": f"harness-{submission.suite.name}"}
        if need.alone:
            sbatch |= {"exclusive": True, "mem": "0"}  # all memory of the node
        if need.cpus is not None:
            sbatch["cpus_per_task"] = need.cpus
        if need.gpus and not self.sbatch.keys() & {"gres", "gpus", "gpus_per_task"}:
            sbatch["gpus_per_node"] = need.gpus
        sbatch |= self.sbatch
        # A node that ends does not take the others with it; srun does not take over sbatch's --cpus-per-task.
        srun = ["--kill-on-bad-exit=0"]
        srun += [f"--cpus-per-task={sbatch['cpus_per_task']}"] if "cpus_per_task" in sbatch else []
        executor.update_parameters(
            time=self.time_min or -(-int(submission.suite.timeouts.trial_s) // 60) + MARGIN_MIN,
            nodes=need.nodes,
            ntasks_per_node=1,
            array_parallelism=count,
            signal_delay_s=SIGNAL_S,
            stderr_to_stdout=True,
            srun_args=srun,
            additional_parameters=sbatch,
        )
        secret = None
        if need.nodes > 1:
            submission.place.mkdir(parents=True, exist_ok=True)
            write_secret(secret := submission.place / f"secret-{secrets.token_hex(8)}")
        try:
            with _outside_a_job(), contextlib.redirect_stderr(io.StringIO()), executor.batch():
                jobs = [executor.submit(RunnerJob(command, secret)) for _ in range(count)]
        except (FailedJobError, FailedSubmissionError, OSError) as error:
            what = re.sub(r"sbatch: (error: )?", "", " ".join(str(error).split()))
            raise UserError(what, key="sbatch", fix="see --slurm") from error
        return {str(job.job_id): job.paths.stdout for job in jobs}


def by_need(trials: Sequence[TrialConfig], nodes: int) -> dict[Need, list[TrialConfig]]:
    """Return the trials by what their jobs ask for, in order."""
    groups: dict[Need, list[TrialConfig]] = {}
    for trial in trials:
        groups.setdefault(Need.of(trial, nodes), []).append(trial)
    return groups


@contextlib.contextmanager
def _outside_a_job() -> Iterator[None]:
    """Hide the variables of the job that this process may itself run in: sbatch would take them for options."""
    inside = "SLURM_JOB_ID" in os.environ
    hidden = [name for name in os.environ if inside and name.startswith("SLURM_") and name != "SLURM_CONF"]
    kept = {name: os.environ.pop(name) for name in hidden}
    try:
        yield
    finally:
        os.environ.update(kept)


def watch(arrivals: Arrivals, states: dict[str, str], report: Callable[[str], None]) -> None:
    """Report records and jobs until there is nothing to wait for; renew `states` of the jobs.

    Needs no accounting: a job that the controller has forgotten keeps the end that was seen, or is "GONE".
    """
    command = ("squeue", "--array", "--noheader", f"--user={os.getuid()}", "--states=all", "--format=%i|%T|%r")
    ended, due, last = 0, 0.0, ""
    while ended < 2:  # twice: a job that is put back in the queue ends for a moment
        arrivals.look()
        if not arrivals.missing:
            return
        if time.monotonic() >= due:
            try:
                lines = [line.strip().split("|", 2) for line in _slurm(*command).splitlines()]
                now = {id_: (state, reason) for id_, state, reason in lines if id_ in states}
                for id_, state in states.items():
                    states[id_] = now[id_][0] if id_ in now else state if state in ENDED else "GONE"
                reasons = sorted({reason for state, reason in now.values() if state == "PENDING"})
            except UserError:
                reasons = ["Slurm does not answer"]  # a controller that restarts is none of the jobs' end
            counts = ", ".join(f"{count} {state.lower()}" for state, count in sorted(Counter(states.values()).items()))
            line = f"jobs: {counts}" + (f" ({', '.join(reasons)})" if reasons else "")
            if line != last:
                report(last := line)
            ended = ended + 1 if ENDED.issuperset(states.values()) else 0
            due = time.monotonic() + STATES_S
        time.sleep(LOOK_S)
    arrivals.look_afresh()


def cancel(jobs: Iterable[str]) -> None:
    """Cancel jobs; those that have ended are no mistake."""
    if ids := list(jobs):
        with contextlib.suppress(UserError):
            _slurm("scancel", "--quiet", *ids)


class RunnerJob:
    """A job's element: one runner. It is what submitit pickles, and what it asks to end before a time limit.

    `secret` is the file by which the nodes of a trial know each other.
    """

    def __init__(self, command: tuple[str, ...], secret: Path | None = None) -> None:
        self.command, self.secret = command, secret
        self._pid: int | None = None

    def __call__(self) -> int:
        """Run the command to its end and return its exit code; RuntimeError if it cannot do what it should.

        A runner that is killed is followed by another, which takes its trial over.
        """
        env = os.environ | ({"HARNESS_SECRET_FILE": str(self.secret)} if self.secret else {})
        for _ in range(RUNNERS):
            child = start_runner(self.command, env=env)
            self._pid = child.pid
            while (code := child.poll()) is None:  # `wait` would hold a lock that `checkpoint` needs
                time.sleep(0.2)
            if code in (OK, FAILED):
                return code
            if code in (USAGE, INTERRUPTED):
                break
        raise RuntimeError(f"`harness run` ended with {code}, see above")

    def checkpoint(self) -> DelayedSubmission:
        """End the runner, which gives back its claim, and return what goes on when the job runs again."""
        from submitit.helpers import DelayedSubmission

        if self._pid is not None:
            stop_runner(self._pid)
        return DelayedSubmission(RunnerJob(self.command, self.secret))


def this_step(variables: Mapping[str, str]) -> Cluster | None:
    """Return the nodes of the step that `srun` started this process in; None outside one (also in a batch script).

    Raises UserError for a step of several nodes with more than one task on a node.
    """
    from harness.launch.rendezvous import Cluster

    if "SLURM_STEP_ID" not in variables or "SLURM_NODEID" not in variables:
        return None
    nodes = variables.get("SLURM_STEP_NUM_NODES") or variables.get("SLURM_NNODES", "1")
    names = variables.get("SLURM_STEP_NODELIST") or variables.get("SLURM_JOB_NODELIST", "")
    if int(nodes) > 1:  # on one node it may be a shell in a step of many tasks
        counts = variables.get("SLURM_STEP_TASKS_PER_NODE") or variables.get("SLURM_TASKS_PER_NODE", "1")
        most = max(map(int, re.findall(r"(\d+)(?:\(x\d+\))?", counts)))
        if most > 1 or variables.get("SLURM_LOCALID", "0") != "0":
            raise UserError(
                "more than one task on a node",
                key=f"SLURM_STEP_TASKS_PER_NODE={counts}",
                fix="srun --ntasks-per-node=1: harness starts the ranks of a node itself",
            )
    port = port_of(int(variables.get("SLURM_JOB_ID", "0")), int(variables["SLURM_STEP_ID"]))
    return Cluster(int(nodes), first_host(names), port, coordinator=int(variables["SLURM_NODEID"]) == 0)


def port_of(job: int, step: int) -> int:
    """Return a port that every node derives alike, and that jobs that share a node rarely share."""
    return FIRST_SLURM_PORT + (job + 997 * step) % SLURM_PORTS


def first_host(text: str) -> str:
    """Return the first name that a list such as `node[01-03,7],x` stands for."""
    if not re.fullmatch(rf"{_ENTRY}(?:,{_ENTRY})*", text):
        raise UserError(f"'{text}' is not a list of nodes", key="SLURM_STEP_NODELIST")
    first = re.match(_ENTRY, text)
    assert first is not None
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", first[0])
