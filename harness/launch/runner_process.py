"""A runner is a process: how it ends, and how others, of this machine or in a job of a cluster, start and end it.

It imports little: an engine imports it in each job, before that starts its runner.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from types import FrameType
OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130  # exit codes of `harness run`; another runner does not help with USAGE
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
