"""A runner is a process: how it ends, and how others, of this machine or in a job of a cluster, start and end it.

It imports little: an engine imports it in each job, before that starts its runner.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from types import FrameType

    from submitit.core.utils import DelayedSubmission

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130  # exit codes of `harness run`; another runner does not help with USAGE
RUNNERS = 3  # that a job starts, if they are killed
AGAIN_S = 0.01  # after an interrupt was dropped
STOP_S = 30.0  # a runner that was asked to end has so long
_LIBC = ctypes.CDLL(None)  # loaded here: between fork and exec nothing may be


def end_when_asked() -> None:
    """Have SIGTERM, and SIGHUP unless `nohup` said otherwise, end this process as Ctrl-C does.

    Once: the kernel may report a starter's death more than once, and a cluster repeats itself. An interrupt that
    strikes in a finalizer, where Python prints and drops it, strikes again a moment later.
    """

    def end(number: int, frame: FrameType | None) -> NoReturn:
        for each in asked:
            signal.signal(each, lambda *_: None)  # not SIG_IGN, which what is started now would inherit
        raise KeyboardInterrupt

    asked = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is not signal.SIG_IGN]
    for each in asked:
        signal.signal(each, end)

    def again(lost: sys.UnraisableHookArgs) -> None:
        if lost.exc_type is KeyboardInterrupt:
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
        else:
            others(lost)

    others, sys.unraisablehook = sys.unraisablehook, again


def start_runner(command: Sequence[str], **options: object) -> subprocess.Popen[bytes]:
    """Start a runner in a job; it ends with this process, and SIGUSR2, which Slurm sends to all of a job, spares it."""
    return subprocess.Popen(command, preexec_fn=_prepare, **options)  # type: ignore[call-overload, no-any-return]


def _prepare() -> None:
    """Run in the child before it becomes the runner."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    if sys.platform == "linux":
        _LIBC.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def stop_runner(pid: int) -> None:
    """Ask a runner, a child of this process, to end, and wait for that; what it does not end in time is killed.

    It is left to be reaped. May be called by a signal handler while `Popen.poll` waits for its lock.
    """
    deadline = time.monotonic() + STOP_S
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGTERM)
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)


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


@dataclass(frozen=True)
class NodeJob:
    """What a task runs on its node: `command`, its output to `log`, with `variables` of the submitter's.

    `cpus` of the node's cores are the trial's; the runner chooses which, next to the runners that are there.
    The runner of a node that does not read `token` in the file `shared` is not started.
    """

    command: tuple[str, ...]
    cpus: int
    log: Path
    shared: Path
    token: str
    variables: Mapping[str, str]


@dataclass(frozen=True)
class NodeEnd:
    """Says how a runner ended; `code` None: the node does not see the results directory."""

    host: str
    code: int | None


def run_on_node(job: NodeJob) -> NodeEnd:
    """Run in a Ray task: start the runner and wait for it; when the task is cancelled it ends the runner."""
    from ray import get_runtime_context

    from harness.launch.hardware import cores

    host, node = socket.gethostname(), get_runtime_context().get_node_id()
    try:
        shared = job.shared.read_text() == job.token
    except OSError:
        shared = False
    if not shared:
        return NodeEnd(host, None)
    with job.log.open("ab") as log:
        env = {**os.environ, **job.variables, "HARNESS_JOB": f"ray node {node[:8]}"}
        share = ("--share", str(max(1, cores() // job.cpus)))
        child = start_runner([*job.command, *share], stdout=log, stderr=log, env=env)
    try:
        while (code := child.poll()) is None:
            time.sleep(0.1)
    except BaseException:  # KeyboardInterrupt is how Ray cancels
        stop_runner(child.pid)
        raise
    finally:
        child.poll()
    return NodeEnd(host, code)


def endpoint() -> str:
    """Run in a Ray task: return HOST:PORT of this node, the port free a moment ago."""
    from ray.util import get_node_ip_address

    with socket.socket() as probe:
        probe.bind(("", 0))
        return f"{get_node_ip_address()}:{probe.getsockname()[1]}"
