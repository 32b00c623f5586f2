"""A rank is a process: how it starts and ends, and the files that it leaves.

A rank leads a session of its own, and is ended with all it started, in whatever session.
"""

from __future__ import annotations

import ipaddress
import os
import re
import resource
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import psutil
from pydantic import BaseModel, Field, StrictFloat, StrictInt, StrictStr, ValidationError

from harness.files import json_object
from harness.launch.hardware import cores
from harness.launch.namespaces import inside
from harness.results.leases import process_space, start_time
from harness.runtime import BRAND, branded
from harness.runtime.counters import HELD_BYTES, THRESHOLD

WORKER = "harness.runtime.rank"
LOG_BYTES = 32 * 1024
BRANDED_S = 5.0  # in which what ranks started has ended, once it was killed
LARGEST = 2**63 - 1  # what columns of `epochs.parquet` can hold
_SCRATCH = re.compile(r"harness-([0-9.]+)-([0-9]+)-([0-9]+)-.+")
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
DEFAULTS = {
    # By default glibc returns freed tensors to the kernel and faults them in again, 11,600 pages an epoch of
    # 25,000 nodes x 128; kept, it is 260, and a sixth less CPU time an epoch.
    "MALLOC_TRIM_THRESHOLD_": str(2**31),
    THRESHOLD: str(HELD_BYTES),
}
"""A rank's environment has these variables unless the user has set them."""
# By default torch's threads spin for a while when they are done. A rank that has its cores to itself is faster for it
# (docs/design/numerics.md); cores that others want, too, are given back at once.
SHARED_CORES = {"OMP_WAIT_POLICY": "passive"}


@dataclass(frozen=True)
class Placement:
    """Says which rank of a group a process on this machine is, and how it is started.

    It is the `rank` of all `world` ranks of the trial, and the `local_rank` of the `local_world` of its node. Its
    namespace, cores and GPUs are the runner's where they are None.
    """

    rank: int
    local_rank: int
    world: int
    local_world: int
    interface: str | None = None  # the network interface that its collectives use; None: the loopback
    namespace: int | None = None  # descriptor of the network namespace that it runs in
    cores: tuple[int, ...] | None = None  # numbers of the cores that it is pinned to
    gpus: tuple[str, ...] | None = None  # what CUDA_VISIBLE_DEVICES names for it


Fork = Callable[[str, dict[str, str], Placement, int, int], int]
"""Starts a rank by its argument, environment and placement, the descriptors of log and stdin; returns its id."""


def placements_of(block: range, world: int, interface: str | None = None) -> list[Placement]:
    """Return the placements of the ranks of `block`, all of which run on this machine, of `world` ranks."""
    return [Placement(rank, local, world, len(block), interface) for local, rank in enumerate(block)]


@dataclass
class RankProcess:
    """A rank was started; `code` is its exit code (negative: the signal that ended it) once it has ended.

    `popen` is how a rank that started cold is reaped; one that started warm is a child of this process too.
    """

    rank: int
    pid: int
    popen: subprocess.Popen[bytes] | None = None
    code: int | None = None
    order: int | None = None  # 0 = the first of its group to end
    asked: bool = False  # the launcher has asked it to end
    hung: str = ""  # how long and where it made no progress, if that is why it was ended

    def ended(self) -> bool:
        """Return whether the rank has ended; what it started is ended with it."""
        if self.code is None and os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            self.kill()
        return self.code is not None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the rank and to everything it started."""
        if self.code is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def kill(self) -> None:
        """End the rank now, with all that it started, and reap it."""
        if self.code is None:
            # It is reaped after its group is killed, so the id cannot have passed to someone else's process.
            self.signal(signal.SIGKILL)
            self.code = self.popen.wait() if self.popen else os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@dataclass(frozen=True)
class Brand:
    """Distinguishes what the ranks of one group started from all other processes, whatever its parent and session are.

    It is the soft limit of bytes in POSIX message queues, which nobody uses: fork and exec hand it on, and the kernel
    shows it. A random one; None where the system has no such limit. Ranks are given it as `runtime.BRAND`, to end what
    they started when they outlive the launcher.
    """

    limits: tuple[int, int] | None

    @classmethod
    def new(cls) -> Brand:
        """Return a brand that no other group has."""
        if sys.platform != "linux":
            return cls(None)
        hard = resource.getrlimit(resource.RLIMIT_MSGQUEUE)[1]
        most = 1 << 40 if hard == resource.RLIM_INFINITY else hard
        return cls((1 + secrets.randbelow(most - 1), hard) if most > 1 << 16 else None)

    def put_on(self, pid: int) -> None:
        """Brand a process that has just been started."""
        if self.limits and sys.platform == "linux":
            with suppress(OSError):  # it has ended
                resource.prlimit(pid, resource.RLIMIT_MSGQUEUE, self.limits)

    def end(self) -> int:
        """Kill the processes that have the brand, and those they start meanwhile; return how many there were."""
        killed, until = set[int](), time.monotonic() + BRANDED_S
        if found := self._found():
            time.sleep(0.05)  # what was in a rank's own session was killed with it, and is about to end
            found = self._found()
        while found and time.monotonic() < until:
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            killed |= found
            time.sleep(0.01)
            found = self._found()
        return len(killed)

    def _found(self) -> set[int]:
        return {pid for pid in branded(self.limits[0]) if start_time(pid)} if self.limits else set()


def wait_for_end(ranks: Sequence[RankProcess], timeout_s: float) -> None:
    """Wait until one of those ranks ends that have not, `timeout_s` at most; all of it without `pidfd_open`."""
    with ExitStack() as stack:
        poll = select.poll()
        # It is lacking on macOS, before Linux 5.3 and in some sandboxes: to poll nothing is to sleep.
        with suppress(AttributeError, OSError):
            for rank in ranks:
                if rank.code is None:
                    handle = os.pidfd_open(rank.pid)
                    stack.callback(os.close, handle)
                    poll.register(handle, select.POLLIN)
        poll.poll(timeout_s * 1000)


def start_rank(
    worker: str, job: Path, placement: Placement, threads: int, stdin: int, brand: Brand, fork: Fork | None = None
) -> RankProcess:
    """Start a rank, which ends when the pipe that `stdin` reads is closed at the other end."""
    env, own, pinned = rank_environment(placement, threads), placement.namespace, placement.cores
    env[BRAND] = str(brand.limits[0]) if brand.limits else ""
    before = os.sched_getaffinity(0) if pinned and hasattr(os, "sched_getaffinity") else None
    with log_path(job.parent, placement.rank).open("ab") as stream:
        if fork is not None:
            return RankProcess(placement.rank, fork(str(job), env, placement, stream.fileno(), stdin))
        try:
            # A child inherits the pins of the thread that starts it; between its start and its program nothing may run.
            if before and pinned:
                os.sched_setaffinity(0, pinned)
            # -P keeps the working directory off the module path: a `queue.py` there would be imported for Python's.
            popen = subprocess.Popen(
                [*(() if own is None else inside(own)), sys.executable, "-P", "-m", worker, str(job)],
                stdin=stdin,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=env,
                pass_fds=() if own is None else (own,),
                start_new_session=True,
            )
        finally:
            if before:
                os.sched_setaffinity(0, before)
    return RankProcess(placement.rank, popen.pid, popen)


def rank_environment(placement: Placement, threads: int) -> dict[str, str]:
    """Return the environment of a rank with torchrun's names, thread counts, and the interface of gloo and nccl."""
    here = cores()
    room = min(len(placement.cores or range(here)), here // placement.local_world)
    shared = {} if 1 < threads <= room else SHARED_CORES
    env = DEFAULTS | shared | os.environ | dict.fromkeys(THREAD_VARIABLES, str(threads))
    env.update(RANK=str(placement.rank), WORLD_SIZE=str(placement.world), PYTHONUNBUFFERED="1")
    env.update(LOCAL_RANK=str(placement.local_rank), LOCAL_WORLD_SIZE=str(placement.local_world))
    if placement.interface is None:
        if env.get("GLOO_SOCKET_IFNAME", "").partition(",")[0] not in psutil.net_if_addrs():  # a login node's, say
            env["GLOO_SOCKET_IFNAME"] = loopback()
    else:
        env["GLOO_SOCKET_IFNAME"] = placement.interface
        env.setdefault("NCCL_SOCKET_IFNAME", placement.interface)
    if placement.namespace is not None and placement.interface is not None:
        # The user's are not there. nccl distinguishes hosts by this name; between ranks it takes to share one it would
        # not use the network.
        host = f"harness-{placement.namespace}"
        env.update(NCCL_SOCKET_IFNAME=placement.interface, NCCL_HOSTID=host, NCCL_NET="Socket")
    if placement.gpus is not None:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(placement.gpus)
    return env


def loopback() -> str:
    """Return the name of the loopback interface (`lo` on Linux, `lo0` on macOS)."""
    interfaces = psutil.net_if_addrs().items()
    return next((name for name, found in interfaces if any(is_loopback(each.address) for each in found)), "lo")


def is_loopback(address: str) -> bool:
    """Return whether only this machine reaches `address`; False for what is no IP address."""
    with suppress(ValueError):
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    return False


class ProgressTail:
    """Reads the lines that were added to a JSON-lines file since the last look."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset, self._rest = path, 0, b""

    def new(self) -> list[dict[str, Any]]:
        """Return the new events, oldest first; a line still being written comes at a later call."""
        chunk = b""
        with suppress(FileNotFoundError), self._path.open("rb") as stream:
            stream.seek(self._offset)
            chunk = stream.read()
        self._offset += len(chunk)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return [event for line in lines if (event := json_object(line)) is not None]


@dataclass
class Latest:
    """The values seen last of a trial; evaluations are rarer than epochs."""

    epoch: int = 0
    epochs: int = 0
    values: dict[str, float] = field(default_factory=dict)
    stage: str = ""

    def take(self, event: dict[str, Any]) -> None:
        """Take over an event's values; a stage lasts until another event."""
        self.stage = str(event.get("text", "")) if event.get("event") == "stage" else ""
        others = None  # of the ranks that have ended this epoch
        if event.get("event") == "epoch":
            before, self.epoch = self.epoch, int(event.get("epoch", 0)) + 1
            others = self.values.get("s_per_epoch") if self.epoch == before else None
        self.epochs = int(event.get("epochs") or self.epochs)
        for key in ("loss", "val", "s_per_epoch"):
            if isinstance(event.get(key), int | float):
                self.values[key] = float(event[key])
        if others is not None:
            self.values["s_per_epoch"] = max(self.values["s_per_epoch"], others)

    def text(self) -> str:
        """Return loss, validation score and seconds per epoch, those that are known."""
        shown = {"loss": "loss {:.4f}", "val": "val {:.4f}", "s_per_epoch": "{:.3g} s/epoch"}
        return "  ".join(shown[key].format(self.values[key]) for key in shown if key in self.values)

    def line(self) -> str:
        """Return how far the trial is: the stage, or the epoch; "" before there is either."""
        if self.stage or not self.epoch:
            return self.stage
        return f"epoch {self.epoch}/{self.epochs}  {self.text()}"


def read_rank(out: Path, rank: int) -> dict[str, Any] | None:
    """Return what `rank` wrote at its end, or None if it wrote nothing readable."""
    with suppress(OSError):
        written = json_object((out / f"rank{rank}.json").read_bytes())
        return written if written is not None and isinstance(written.get("status"), str) else None
    return None


def read_ended_epochs(out: Path, rank: int) -> list[dict[str, Any]]:
    """Return the rows of the epochs that `rank`, which wrote no report, had kept; no line that a record cannot have."""
    rows = []
    with suppress(OSError):
        for row in filter(None, map(json_object, (out / f"epochs-{rank}.jsonl").read_bytes().splitlines())):
            with suppress(ValidationError):
                _Epoch.model_validate(row)
                rows += [row] if odd_number(row) is None else []
    return rows


def log_path(out: Path, rank: int) -> Path:
    """Return the file that the output of `rank` goes to."""
    return out / f"log-{rank}.txt"


def log_tail(out: Path, rank: int, limit: int = LOG_BYTES) -> str:
    """Return at most the last `limit` bytes of a rank's output, from the start of a line."""
    with suppress(OSError), log_path(out, rank).open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(0, size - limit))
        if size > limit:
            stream.readline()
        return stream.read().decode("utf-8", errors="replace")
    return ""


def group_log(out: Path, ranks: Sequence[int]) -> str:
    """Return the end of every rank's output, under a header a rank."""
    texts = {rank: log_tail(out, rank) for rank in ranks}
    ends = {rank: "\n" if text and not text.endswith("\n") else "" for rank, text in texts.items()}
    return "".join(f"==== rank {rank} ====\n{text}{ends[rank]}" for rank, text in texts.items())


class _Epoch(BaseModel, extra="allow"):
    epoch: Annotated[StrictInt, Field(ge=0)]
    rank: Annotated[StrictInt, Field(ge=0)] | None = None
    epoch_time_s: StrictInt | StrictFloat | None = None
    stats: dict[str, Any] | None = None


class _Report(BaseModel, extra="allow"):
    """What is read of `rank{r}.json` before its metrics are, see `harness.runtime.report`."""

    rank: Annotated[StrictInt, Field(ge=0)]
    status: StrictStr
    reason: StrictStr | None = None
    summary: dict[str, Any] | None = None
    flags: list[tuple[StrictStr, StrictStr]] = []
    meters: dict[str, Any] | None = None
    epochs: list[_Epoch] = []


def what_is_odd(report: dict[str, Any], rank: int) -> str | None:
    """Return what is wrong with the report of a rank, in words; None if nothing is."""
    try:
        _Report.model_validate(report)
    except ValidationError as error:
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}, found {_short(first['input'])}"
    if report["rank"] != rank:
        return f"rank: is {report['rank']}"
    return odd_number(report)


def odd_number(value: Any, *where: str | int) -> str | None:
    """Return the first integer of JSON-like `value` that needs more than 64 bits, and where it is; else None."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        found = (odd_number(item, *where, key) for key, item in items)
        return next((odd for odd in found if odd is not None), None)
    if isinstance(value, int) and abs(value) > LARGEST:
        return f"{'.'.join(map(str, where))}: {_short(value)} needs more than 64 bits"
    return None


def _short(value: Any) -> str:
    # A number of many digits takes Python minutes to write, and it refuses.
    text = f"a number of {value.bit_length()} bits" if isinstance(value, int) and abs(value) > LARGEST else repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


@contextmanager
def scratch() -> Iterator[Path]:
    """Yield an empty directory of this user below TMPDIR; if this process is killed, the next run removes it."""
    own = os.getpid()
    with tempfile.TemporaryDirectory(prefix=f"harness-{process_space()}-{own}-{start_time(own) or 0}-") as directory:
        yield Path(directory)


def clean_scratch() -> None:
    """Remove what killed processes of this user left, those that are seen from here, and no others'."""
    for path in Path(tempfile.gettempdir()).glob("harness-*"):
        found = _SCRATCH.fullmatch(path.name)
        if found and found[1] == process_space() and start_time(int(found[2])) != int(found[3]):
            with suppress(OSError):
                if path.lstat().st_uid == os.getuid():
                    shutil.rmtree(path)
