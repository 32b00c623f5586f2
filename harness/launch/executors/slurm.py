"""`--executor slurm`: arrays of jobs, submitted through submitit, whose elements drain the trials of one need."""

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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import UserError, nearest
from harness.launch.executors.submission import Arrivals, Need, Quietly, Submission
from harness.launch.hardware import Capacity
from harness.launch.runner import TrialProgress, exit_code
from harness.launch.runner_process import FAILED, INTERRUPTED, OK, RunnerJob
from harness.runtime.channel import write_secret
from harness.suite.schema import TrialConfig

if TYPE_CHECKING:
    from submitit import SlurmExecutor

MOST_JOBS = 32  # elements of an array, if nobody says how many
REQUEUES = 10  # how often a job that reached its time limit goes on in the queue
SIGNAL_S = 60  # before the time limit; a runner ends in less
MARGIN_MIN = 30  # beside the limit of one trial, to prepare data and compile
LOOK_S, STATES_S = 1.0, 5.0
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
    "output": "logs are kept beside the records",
    "error": "logs are kept beside the records",
    "signal": "it is what ends a runner in time",
    "wrap": "a job is a run of the suite",
    "open-mode": "logs are kept beside the records",
}
"""Options of sbatch that are not the user's, and what to do instead or why."""


@dataclass(frozen=True)
class SlurmOptions:
    """What `--slurm KEY=VALUE` says: sbatch's options, written with _, and how often a job may reach its limit."""

    sbatch: Mapping[str, str] = field(default_factory=dict)
    time_min: int | None = None
    requeues: int = REQUEUES

    @classmethod
    def parse(cls, pairs: Sequence[str]) -> SlurmOptions:
        """Parse KEY=VALUE; keys are those of `sbatch --help`, and `requeues`. UserError names the nearest key."""
        known = sbatch_options() - OTHERWISE.keys() | {"requeues"}
        found: dict[str, str] = {}
        for pair in pairs:
            key, equals, value = pair.partition("=")
            key = key.strip().replace("_", "-")
            if not (key and equals and value) or "\n" in value:
                raise UserError(f"'{pair}' is not KEY=VALUE", key="--slurm", fix="e.g. --slurm partition=gpu")
            if key in OTHERWISE:
                raise UserError(f"'{key}' is not for you to set", key="--slurm", fix=OTHERWISE[key])
            if key not in known:
                raise UserError(f"sbatch has no option '{key}'", key="--slurm", fix=nearest(key, known))
            found[key.replace("-", "_")] = value
        time_min = minutes_of(found.pop("time")) if "time" in found else None
        requeues = found.pop("requeues", str(REQUEUES))
        if not requeues.isdecimal():
            raise UserError(f"'{requeues}' is not a number", key="--slurm requeues", fix=f"e.g. {REQUEUES}")
        return cls(found, time_min, int(requeues))


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
        raise UserError(
            f"there is no {command[0]} here", key="--executor slurm", fix="run it on a login node"
        ) from None
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        said = " ".join(str(error.stderr or error).split())
        raise UserError(said, key=command[0], fix="does Slurm answer? see `sinfo`") from error


@dataclass(frozen=True)
class Element:
    """One job of an array: its id as Slurm writes it, and its log."""

    id: str
    log: Path


def run(submission: Submission, asked: SlurmOptions, progress: TrialProgress, tell: Quietly) -> int:
    """Submit what has no record yet, and watch until all has one or all jobs have ended; return the exit code.

    Ctrl-C cancels the jobs. With `detach` it returns after submitting. Raises UserError if Slurm takes no job.
    """
    arrivals = Arrivals(submission, progress)
    elements: list[Element] = []
    try:
        for need, trials in by_need(arrivals.missing, submission.nodes).items():
            command = submission.command(trials, "--request", arrivals.request, "--no-wait", "--jobs", "1")
            array = submit(submission, asked, need, min(submission.jobs or MOST_JOBS, len(trials)), command)
            elements += array
            jobs = f"{len(array)} job{'s' * (len(array) > 1)}"
            tell(f"slurm: {jobs} {array[0].id.partition('_')[0]} for {len(trials)} trials: {need}")
    except BaseException:
        cancel(elements)
        raise
    if submission.detach:
        return OK
    try:
        states = watch(arrivals, elements, tell)
    except KeyboardInterrupt:
        cancel(elements)
        tell(f"cancelled the jobs {' '.join(arrays_of(elements))}")
        return INTERRUPTED
    if arrivals.missing:
        for line in lost(arrivals.missing, elements, states):
            tell(line)
        return FAILED
    cancel([element for element in elements if states.get(element.id) not in ENDED])
    return exit_code(arrivals.statuses)


def by_need(trials: Sequence[TrialConfig], nodes: int) -> dict[Need, list[TrialConfig]]:
    """Return the trials by what their jobs ask for, in order."""
    groups: dict[Need, list[TrialConfig]] = {}
    for trial in trials:
        groups.setdefault(Need.of(trial, nodes), []).append(trial)
    return groups


def submit(
    submission: Submission, asked: SlurmOptions, need: Need, count: int, command: tuple[str, ...]
) -> list[Element]:
    """Submit an array of `count` jobs, each of which runs `command`; UserError says why Slurm takes none."""
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    executor = _executor(submission, asked, need, count)
    secret = None
    if need.nodes > 1:
        submission.place.mkdir(parents=True, exist_ok=True)
        write_secret(secret := submission.place / f"secret-{secrets.token_hex(8)}")
    said = io.StringIO()
    try:
        with _outside_a_job(), contextlib.redirect_stderr(said), executor.batch():
            jobs = [executor.submit(RunnerJob(command, secret)) for _ in range(count)]
    except (FailedJobError, FailedSubmissionError, OSError) as error:
        what = re.sub(r"sbatch: (error: )?", "", " ".join(str(error).split()))
        raise UserError(what, key="sbatch", fix="see --slurm") from error
    return [Element(str(job.job_id), job.paths.stdout) for job in jobs]


def _executor(submission: Submission, asked: SlurmOptions, need: Need, count: int) -> SlurmExecutor:
    from submitit import SlurmExecutor

    python = f"{shlex.quote(sys.executable)} -P"  # a user's queue.py is not Python's
    executor = SlurmExecutor(submission.place, max_num_timeout=asked.requeues, python=python)
    sbatch: dict[str, Any] = {"requeue": True, "job_name": f"harness-{submission.suite.name}"}
    if need.alone:
        sbatch |= {"exclusive": True, "mem": "0"}  # all memory of the node
    if need.cpus is not None:
        sbatch["cpus_per_task"] = need.cpus
    if need.gpus and not asked.sbatch.keys() & {"gres", "gpus", "gpus_per_task"}:
        sbatch["gpus_per_node"] = need.gpus
    sbatch |= asked.sbatch
    # A node that ends does not take the others with it; srun does not take over sbatch's --cpus-per-task.
    srun = ["--kill-on-bad-exit=0"]
    srun += [f"--cpus-per-task={sbatch['cpus_per_task']}"] if "cpus_per_task" in sbatch else []
    executor.update_parameters(
        time=asked.time_min or -(-int(submission.suite.timeouts.trial_s) // 60) + MARGIN_MIN,
        nodes=need.nodes,
        ntasks_per_node=1,
        array_parallelism=count,
        signal_delay_s=SIGNAL_S,
        stderr_to_stdout=True,
        srun_args=srun,
        additional_parameters=sbatch,
    )
    return executor


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


def watch(arrivals: Arrivals, elements: Sequence[Element], tell: Quietly) -> dict[str, str]:
    """Tell of records and jobs until there is nothing to wait for; return the states of the jobs, as seen last."""
    states = dict.fromkeys((element.id for element in elements), "PENDING")
    ended, due = 0, 0.0
    while True:
        if ended > 1:  # twice: a job that is put back in the queue ends for a moment
            arrivals.look_afresh()
            return states
        arrivals.look()
        if not arrivals.missing:
            return states
        if time.monotonic() >= due:
            reasons = look_at_jobs(states)
            tell(summary(states, reasons))
            ended = ended + 1 if ENDED.issuperset(states.values()) else 0
            due = time.monotonic() + STATES_S
        time.sleep(LOOK_S)


def look_at_jobs(states: dict[str, str]) -> Counter[str]:
    """Renew `states`, and return why jobs wait.

    Needs no accounting: a job that the controller has forgotten keeps the end that was seen, or is "GONE".
    """
    command = ("squeue", "--array", "--noheader", f"--user={os.getuid()}", "--states=all", "--format=%i|%T|%r")
    try:
        lines = [line.strip().split("|", 2) for line in _slurm(*command).splitlines()]
    except UserError:
        return Counter({"Slurm does not answer": len(states)})  # a controller that restarts is none of the jobs' end
    now = {id_: (state, reason) for id_, state, reason in lines if id_ in states}
    for id_, state in states.items():
        states[id_] = now[id_][0] if id_ in now else state if state in ENDED else "GONE"
    return Counter(reason for state, reason in now.values() if state == "PENDING")


def summary(states: Mapping[str, str], reasons: Counter[str]) -> str:
    """Return a line on the jobs: how many are in each state, and why some wait."""
    counts = ", ".join(f"{count} {state.lower()}" for state, count in sorted(Counter(states.values()).items()))
    why = f" ({', '.join(sorted(reasons))})" if reasons else ""
    return f"jobs: {counts}{why}"


def arrays_of(elements: Sequence[Element]) -> list[str]:
    """Return the ids of the arrays."""
    return list(dict.fromkeys(element.id.partition("_")[0] for element in elements))


def cancel(elements: Sequence[Element]) -> None:
    """Cancel jobs; those that have ended are no mistake."""
    if elements:
        with contextlib.suppress(UserError):
            _slurm("scancel", "--quiet", *(element.id for element in elements))


def lost(missing: Sequence[TrialConfig], elements: Sequence[Element], states: Mapping[str, str]) -> Iterator[str]:
    """Yield lines that name the trials without a record and the jobs, how they ended, and their logs."""
    yield f"{len(missing)} trials have no record; the same command goes on with them:"
    for trial in missing:
        yield f"    {trial.id}  {trial.label}"
    for element in elements:
        log = (
            element.log if element.log.exists() else f"no log at {element.log}: is that directory shared by the nodes?"
        )
        yield f"    job {element.id} {states[element.id].lower()}: {log}"


def capacity(asked: SlurmOptions, nodes: int) -> Capacity:
    """Return the memory of the nodes a job of `nodes` nodes can have: the smallest of the partition's largest.

    UserError if the partition has fewer nodes. The memory of GPUs is not known to Slurm.
    """
    partition = asked.sbatch.get("partition")
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
