"""Usage: what a rank uses beside the trainer's thread: cores, threads, child processes; and whether it was given that.

Nothing here ends a trial: what a rank has too much of is a flag (docs/integrity.md).
"""

from __future__ import annotations

import os
import re
import resource
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from harness.deferred import torch
from harness.runtime.comm import Communicator

TASKS = Path("/proc/self/task")
MORE = 1.05  # times its cores that a rank may keep busy: clocks are read one after the other
LEAST_S = 0.05  # CPU seconds too few to flag
CHILDREN = 0.01  # share of a rank's CPU seconds that its child processes may have
BESIDE = 0.25  # share of an epoch's CPU seconds that a method's threads may have in an evaluation, on average
_OURS = ("parts-of-", "transfers", "meters")  # threads of the harness that compute products, move rows, and measure

Flag = Callable[[str, str], None]


@dataclass
class CpuTime:
    """CPU seconds of a rank's process by what used them.

    Attributes:
        main: the trainer's thread.
        libraries: threads that are none of Python's (gloo's, OpenMP's), and those that the harness has of its own.
        pools: of those the ones that compute: OpenMP's, numba's, BLAS's.
        method: Python threads that were started with the method or later, and threads that have ended.
        children: processes that it started, those that live included.
    """

    main: float = 0.0
    libraries: float = 0.0
    pools: float = 0.0
    method: float = 0.0
    children: float = 0.0

    def add(self, before: CpuTime, after: CpuTime) -> None:
        """Add what was used between two readings."""
        for name, start in vars(before).items():
            setattr(self, name, getattr(self, name) + getattr(after, name) - start)


@dataclass
class Used:
    """What a rank used in epochs and in evaluations.

    Attributes:
        wall_s: seconds of the epochs.
        cpu_s: CPU seconds of the epochs, the whole process.
        training: by what used them, between evaluations (`CpuTime`); evaluation: in evaluations.
    """

    wall_s: float = 0.0
    cpu_s: float = 0.0
    epochs: int = 0
    evaluations: int = 0
    training: CpuTime = field(default_factory=CpuTime)
    evaluation: CpuTime = field(default_factory=CpuTime)


class Usage:
    """Follows what a rank uses, from before its method is made.

    Threads are told apart before and after evaluations only. Linux tells them, and a process's cores; elsewhere, and
    in sandboxes that tell no thread's clock, the flags that need them are never raised, and `report` says None.

    Args:
        cores: that the rank may keep busy.
        flag: called with a key and a text, see `RankReport.flag`.
    """

    def __init__(self, cores: int, flag: Flag) -> None:
        self._cores, self._flag, self._threads = cores, flag, torch.get_num_threads()
        self._given = _affinity(0)
        self._harness = {thread.native_id for thread in threading.enumerate()}
        self._told = TASKS.is_dir() and _thread_seconds(threading.get_native_id()) is not None
        self._last: CpuTime | None = None
        self._seconds: dict[int, float] = {}  # of threads that are none of the method's, those that have ended too
        self._named: dict[int, bool] = {}  # of those, whether they have a name of their own
        self._method: set[int] = set()  # threads; one that has ended in Python may still be the system's
        self.used = Used()

    def begins(self) -> None:
        """Begin: set-up is over."""
        self._last = self._read()

    def epoch(self, wall_s: float, cpu_s: float) -> None:
        """Take in an epoch that has ended, of so many seconds and CPU seconds of this process."""
        used = self.used
        used.wall_s, used.cpu_s, used.epochs = used.wall_s + wall_s, used.cpu_s + cpu_s, used.epochs + 1
        if (now := torch.get_num_threads()) != self._threads:
            self._flag("cores", f"torch was given {now} threads in place of {self._threads}")
        self._look_at_cores(0)

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Take in an evaluation."""
        self._until_now(self.used.training)
        try:
            yield
        finally:
            self._until_now(self.used.evaluation)
            self.used.evaluations += 1

    @contextmanager
    def besides(self) -> Iterator[None]:
        """Take in nothing: what is enclosed is neither training nor evaluation."""
        self._until_now(self.used.training)
        try:
            yield
        finally:
            self._last = self._read()

    def state(self) -> dict[str, Any]:
        """Return what was used so far."""
        return asdict(self.used)

    def restore(self, state: dict[str, Any]) -> None:
        """Add to what another process had used, by its `state`."""
        parts = {name: CpuTime(**state[name]) for name in ("training", "evaluation")}
        self.used = Used(**state | parts)

    def ends(self) -> None:
        """Flag what the rank used and was not given; training is over."""
        self._until_now(self.used.training)
        used, cores = self.used, self._cores
        children = used.training.children + used.evaluation.children
        if children > CHILDREN * used.cpu_s + LEAST_S:
            self._flag("children", f"child processes worked {children:.3g} CPU seconds, the rank {used.cpu_s:.3g}")
        if not self._told:
            return
        # Threads that serve a device or a socket are every method's: gloo's work on another core, where there is one.
        serving = used.training.libraries - used.training.pools
        busy = used.cpu_s - serving + used.training.children
        if busy > MORE * cores * used.wall_s + LEAST_S:
            self._flag("cores", f"{busy / used.wall_s:.2f} cores were busy in epochs, the rank has {cores}")
        beside = used.evaluation.method
        if used.evaluations and used.epochs and beside > LEAST_S:
            share = beside / used.evaluations / (used.cpu_s / used.epochs)
            if share > BESIDE:
                text = f"the method's threads worked {beside:.3g} CPU seconds in {used.evaluations} evaluations"
                self._flag("beside-eval", f"{text}, {share:.0%} of an epoch's in each".replace("%", " %"))

    def report(self) -> dict[str, Any]:
        """Return what was used as JSON; CPU seconds by thread are None where the system does not tell them."""
        told, asked = self.used.training, self.used.evaluation
        by_thread: dict[str, float | None] = {
            "main_cpu_s": told.main,
            "library_cpu_s": told.libraries,
            "method_cpu_s": told.method,
            "eval_method_cpu_s": asked.method,
        }
        if not self._told:
            by_thread = dict.fromkeys(by_thread)
        children = {"children_cpu_s": told.children + asked.children}
        return {"cores": self._cores, "pinned_to": self._given and sorted(self._given), **by_thread, **children}

    def _until_now(self, part: CpuTime) -> None:
        now = self._read()
        if self._last is not None:
            part.add(self._last, now)
        self._last = now

    def _read(self) -> CpuTime:
        """Return what was used so far, by what."""
        python = {thread.native_id or 0: thread.name for thread in threading.enumerate()}
        own = threading.get_native_id()
        main, whole = time.thread_time(), time.process_time()
        found = CpuTime(main=main, children=_children())
        with suppress(OSError):
            for task in os.listdir(TASKS):
                tid = int(task)
                self._look_at_cores(tid)
                ours = tid in self._harness or python.get(tid, "").startswith(_OURS)
                if tid in python and not ours:
                    self._method.add(tid)
                if tid != own and tid not in self._method:
                    self._seconds[tid] = max(_thread_seconds(tid) or 0.0, self._seconds.get(tid, 0.0))
                    if tid not in self._named:
                        self._named[tid] = ours or _name(tid) not in [_name(maker) for maker in python]
        found.libraries = sum(self._seconds.values())
        found.pools = sum(seconds for tid, seconds in self._seconds.items() if not self._named.get(tid, True))
        found.method = whole - main - found.libraries  # those that have ended are in the whole alone
        return found

    def _look_at_cores(self, tid: int) -> None:
        now = _affinity(tid)
        if now is not None and self._given is not None and not now <= self._given:
            extra = sorted(now - self._given)
            self._flag("affinity", f"a thread may run on cores {extra} too, the rank was given {sorted(self._given)}")


def _affinity(tid: int) -> set[int] | None:
    """Return the cores that a thread (0: this one) may run on; None where the system does not tell, or it has ended."""
    with suppress(AttributeError, OSError):
        return os.sched_getaffinity(tid)
    return None


def _thread_seconds(tid: int) -> float | None:
    """Return the CPU seconds of a thread of this process (clock_getres(2), CPU-time clocks).

    None if it has just ended, or the system does not tell them.
    """
    with suppress(OSError):
        return time.clock_gettime((~tid << 3) | 6)  # a thread's clock of CPUCLOCK_SCHED: to the nanosecond
    return None


def _name(tid: int) -> str | None:
    """Return a thread's name: gloo, CUDA and nccl give theirs one, those of pools have that of who made them."""
    with suppress(OSError):
        return (TASKS / str(tid) / "comm").read_text()
    return None


def _children() -> float:
    """Return the CPU seconds of all processes that this one started, as far as they still live or were waited for."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = ended.ru_utime + ended.ru_stime
    if hasattr(os, "waitid"):  # not on macOS before Python 3.13
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # raises where there is none: microseconds
        except ChildProcessError:
            return seconds
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            times = child.cpu_times()
            seconds += times.user + times.system
    return seconds


PROC = Path("/proc/self")
_ACKED = 120  # offset of `tcpi_bytes_acked` in Linux's struct tcp_info, a u64: linux/tcp.h
OFF = 0.05  # share of the counted bytes that may be missing or too many
CALL_BYTES = 512  # of each rank: gloo's headers and words of a transfer; measured are 48 to 390
SLACK_BYTES = 64 * 1024  # barriers, checksums, what a group says when it is made
FILE_BYTES, EPOCH_FILE_BYTES = 2**20, 256  # logs, whatever they are of; a line of progress is some 130 bytes
FRAME, SEGMENT = 66, 1448  # bytes of Ethernet's, IP's and TCP's headers, and of the payload between


class Wire:
    """Follows what leaves a rank, from the end of its set-up.

    On Linux and gloo. Elsewhere, or with nccl, whose bytes pass no socket, nothing is told or flagged.

    Args:
        comm: the rank's communicator.
        interface: a network interface that carries this rank's traffic and nobody else's; None: there is none.
        proc: the kernel's files of this process.
    """

    def __init__(self, comm: Communicator, interface: str | None = None, proc: Path = PROC) -> None:
        self._comm, self._interface, self._proc = comm, interface, proc
        self._known: set[str] = set()
        self._first: dict[str, int] = {}
        self._last: dict[str, int] = {}
        self._start: dict[str, int | None] = {}
        self._besides = 0  # bytes
        self._earlier: dict[str, int | None] = {}
        self.opened: dict[str, None] = {}

    def begins(self) -> None:
        """Begin: set-up is over."""
        self._known = {name for name, _ in self._open()} | self._shared()
        self.look()
        self._first = dict(self._last)
        self._start = self._read()

    def look(self) -> None:
        """Read the sockets: what one that is closed before the next look sends after this one is not seen."""
        for name, fd in self._open():
            if name not in self._known:
                self.opened[_kind(name)] = None
            if name.startswith("socket:") and (sent := _acknowledged(fd)) is not None:
                self._last[name] = sent

    @contextmanager
    def besides(self) -> Iterator[None]:
        """Leave what is written to files meanwhile out: it is the harness's own."""
        before = self._written()
        try:
            yield
        finally:
            self._besides += _difference(self._written(), before) or 0

    def state(self) -> dict[str, Any]:
        """Return what was sent since `begins`, and before it by other processes."""
        self.look()
        return {"told": self._told(), "opened": list(self.opened)}

    def restore(self, state: dict[str, Any]) -> None:
        """Add to what another process had sent, by its `state`; before `begins`."""
        self._earlier, self.opened = state["told"], dict.fromkeys(state["opened"])

    def _told(self) -> dict[str, int | None]:
        end = self._read()
        told = {name: _difference(end[name], start) for name, start in self._start.items()}
        if told["file_bytes"] is not None:
            told["file_bytes"] = max(0, told["file_bytes"] - self._besides)
        told["socket_bytes"] = self._sockets()
        earlier = self._earlier or dict.fromkeys(told, 0)
        return {name: _sum(earlier[name], now) for name, now in told.items()}

    def ends(self, flag: Flag, *, epochs: int, rehearsed: bool) -> dict[str, Any]:
        """Flag what was sent and not counted; every rank must call. Returns what a report says of it.

        `epochs`: that were trained. What was not `rehearsed` compiles kernels into files, and a GPU's driver opens
        files of its own.

        `socket_bytes`: sent over TCP; `interface_bytes`: by the interface, headers included; `file_bytes`: written
        to files; `counted_bytes`: by the communicator; all since the set-up.
        """
        self.look()
        self.opened |= dict.fromkeys(_kind(name) for name in self._shared() - self._known)
        told: dict[str, Any] = self._told()
        sockets = told["socket_bytes"]
        by_sockets = self._comm.by_sockets
        if sockets is None and self._comm.world > 1:  # what was written to sockets cannot be told from it
            told["file_bytes"] = None
        elif told["file_bytes"] is not None:
            told["file_bytes"] = max(0, told["file_bytes"] - (sockets or 0))
        own_ways = by_sockets or self._comm.world == 1  # nccl opens what it needs when it needs it
        if self.opened and own_ways and (rehearsed or self._comm.device.type == "cpu"):
            flag("bytes", f"opened while it trained: {', '.join(sorted(self.opened))}")
        files = told["file_bytes"]
        most = max(FILE_BYTES, OFF * told["counted_bytes"]) + EPOCH_FILE_BYTES * epochs
        if files is not None and rehearsed and files > most:
            flag("bytes", f"{files:,} bytes were written to files")
        names = ("counted_bytes", "calls", "socket_bytes", "interface_bytes")
        own = torch.tensor([-1 if told[name] is None else told[name] for name in names], device=self._comm.device)
        with self._comm.traffic.during("eval"):
            gathered = torch.stack(self._comm.all_gather(own))
        known = [bool((column >= 0).all()) for column in gathered.T]
        counted, calls, *seen = gathered.sum(0).tolist()
        if self._comm.rank == 0 and self._comm.world > 1:
            for name, sent, there in zip(("sockets", "interfaces"), seen, known[2:], strict=True):
                if there and by_sockets and (what := _unlike(name, sent, counted, calls * self._comm.world)):
                    flag("bytes", what)
        return told

    def _sockets(self) -> int | None:
        if not self._comm.by_sockets or not any(self._last.values()):  # some kernels tell 0 of every socket
            return None
        return sum(sent - self._first.get(name, 0) for name, sent in self._last.items())

    def _read(self) -> dict[str, int | None]:
        counted = [self._comm.traffic.total(scope) for scope in ("setup", "epoch", "eval")]
        interface = None
        if self._interface is not None:
            with suppress(OSError):
                seen = psutil.net_io_counters(pernic=True, nowrap=False).get(self._interface)
                interface = None if seen is None else seen.bytes_sent
        return {
            "counted_bytes": sum(volume.sent_bytes for volume in counted),
            "calls": sum(volume.calls for volume in counted),
            "interface_bytes": interface,
            "file_bytes": self._written(),
        }

    def _written(self) -> int | None:
        """Return the bytes that this process wrote to files, pipes and sockets, by `write` and `writev`."""
        with suppress(OSError, ValueError):
            (told,) = re.findall(r"^wchar: (\d+)$", (self._proc / "io").read_text(), re.MULTILINE)
            return int(told)
        return None

    def _open(self) -> Iterator[tuple[str, int]]:
        """Yield what is open and could move rows, and its descriptor: sockets, pipes and shared memory."""
        with suppress(OSError):
            for number in os.listdir(self._proc / "fd"):
                with suppress(OSError):
                    name = os.readlink(self._proc / "fd" / number)
                    if name.startswith(("socket:", "pipe:", "/dev/shm/", "/memfd:")):
                        yield name, int(number)

    def _shared(self) -> set[str]:
        """Return the files whose pages this process shares and may write to."""
        with suppress(OSError):
            maps = (self._proc / "maps").read_text()
            return set(re.findall(r"^\S+ rw-s \S+ \S+ [1-9]\d* +(\S.*)$", maps, re.MULTILINE))
        return set()


def _kind(name: str) -> str:
    return "a " + name.partition(":")[0] if name.startswith(("socket:", "pipe:")) else name


def _difference(end: int | None, start: int | None) -> int | None:
    return None if end is None or start is None else end - start


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _acknowledged(fd: int) -> int | None:
    """Return the payload that the peer of a TCP socket of this process has acknowledged; None of other sockets."""
    with suppress(OSError):
        own = socket.socket(fileno=os.dup(fd))
        with own:
            if own.type == socket.SOCK_STREAM and own.family in (socket.AF_INET, socket.AF_INET6):
                told = own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKED + 8)
                return struct.unpack_from("=Q", told, _ACKED)[0] if len(told) >= _ACKED + 8 else None
    return None


def _unlike(name: str, sent: int, counted: int, calls: int) -> str:
    """Return how bytes that were seen differ from those that were counted; "" if they do not.

    `calls`: transfers that were counted, times ranks.
    """
    headers = calls * CALL_BYTES + SLACK_BYTES
    if name == "interfaces":
        headers += FRAME * (calls + 2 * counted // SEGMENT)  # of full frames, and of words that they came
    if (1 - OFF) * counted - SLACK_BYTES <= sent <= (1 + OFF) * counted + headers:
        return ""
    return f"{name} sent {sent:,} bytes, {counted:,} were counted"
