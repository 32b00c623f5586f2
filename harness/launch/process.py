"""One rank as a process: started in a session of its own, ended with all it started."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

from harness.launch.place import Place

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


@dataclass
class RankProcess:
    """A started rank; `code` is its exit code (negative: the signal that ended it) once it has ended."""

    rank: int
    popen: subprocess.Popen[bytes]
    code: int | None = None
    order: int | None = None  # 0 = the first of its group to end
    told: bool = False  # the launcher has asked it to end

    def ended(self) -> bool:
        """Look whether the rank has ended; what it started is ended with it."""
        if self.code is None and _is_zombie(self.popen.pid):
            # Not reaped before its group is killed, so the id cannot have passed to someone else's process.
            self.signal(signal.SIGKILL)
            self.code = self.popen.wait()
        return self.code is not None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the rank and to everything it started."""
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.popen.pid, number)

    def kill(self) -> None:
        """End the rank now and reap it."""
        if self.code is None:
            self.signal(signal.SIGKILL)
            self.code = self.popen.wait()


def start_rank(worker: str, job: Path, place: Place, threads: int, log: Path, stdin: int) -> RankProcess:
    """Start `python -P -m worker job` at `place`, its output going to `log`.

    -P keeps the working directory off the module path: a user's `queue.py` there would be imported for Python's.
    `stdin` is the read end of a pipe; the rank ends when the other end, which it must not inherit, is closed.
    """
    with log.open("ab") as stream:
        popen = subprocess.Popen(
            [*place.prefix, sys.executable, "-P", "-m", worker, str(job)],
            stdin=stdin,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=rank_environment(place, threads),
            start_new_session=True,
        )
    return RankProcess(place.rank, popen)


DEFAULTS = {
    # By default glibc returns freed tensors to the kernel and faults them in again, 11,600 pages an epoch of
    # 25,000 nodes x 128; kept, it is 260, and a sixth less CPU time an epoch.
    "MALLOC_TRIM_THRESHOLD_": str(2**31),
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    # By default torch's threads spin for a while when they are done, on cores that the threads of our own
    # kernels and other ranks want: products with sparse matrices then take up to 1.6 times as long.
    "OMP_WAIT_POLICY": "passive",
}
"""Variables of a rank's environment that the user's own take the place of."""


def rank_environment(place: Place, threads: int) -> dict[str, str]:
    """Return the environment of a rank: torchrun's names, thread counts, interface of gloo and nccl."""
    env = dict(os.environ)
    env.update(RANK=str(place.rank), WORLD_SIZE=str(place.world))
    env.update(LOCAL_RANK=str(place.local_rank), LOCAL_WORLD_SIZE=str(place.local_world))
    env.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))
    if place.interface is None:
        env.setdefault("GLOO_SOCKET_IFNAME", loopback())
    else:
        env.update(GLOO_SOCKET_IFNAME=place.interface, NCCL_SOCKET_IFNAME=place.interface)
    for name, value in DEFAULTS.items():
        env.setdefault(name, value)
    env["PYTHONUNBUFFERED"] = "1"
    return env


def loopback() -> str:
    """Return the name of the loopback interface (`lo` on Linux, `lo0` on macOS)."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(is_loopback(address.address) for address in addresses):
            return name
    return "lo"


def is_loopback(address: str) -> bool:
    """Return whether only this machine reaches `address`; False for what is no IP address."""
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _is_zombie(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
