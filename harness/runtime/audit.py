"""CPU and network accounting: what the kernel says that a rank used and sent, next to what the trainer counted.

In every trial only the trainer's CPU seconds are read. Threads, child processes, files and sockets are watched in
`harness check` and with `harness run --audit`. Nothing here ends a trial: an excess is a flag (docs/integrity.md).
"""

from __future__ import annotations

import hashlib
import os
import re
import resource
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from harness.deferred import torch
from harness.runtime.comm import Communicator
from harness.runtime.counters import known

TASKS = Path("/proc/self/task")
MORE = 1.05  # times its cores that a rank may keep busy: clocks are read one after the other
LEAST_S = 0.05  # CPU seconds too few to flag
CHILDREN = 0.01  # share of a rank's CPU seconds that its child processes may have
IN_EVALUATION = 0.25  # share of an epoch's CPU seconds that a method's threads may have in an evaluation, on average
_OURS = ("parts-of-", "transfers", "meters")  # threads of the harness that compute products, move rows, and measure

Flag = Callable[[str, str], None]


# What uses the CPU seconds of a rank's process:
PARTS = (
    "main",  # the trainer's thread
    "libraries",  # threads that are none of Python's (gloo's, OpenMP's), and those that the harness has of its own
    "pools",  # the part of `libraries` that computes: OpenMP's, numba's, BLAS's
    "method",  # Python threads that were started with the method or later, and threads that have ended
    "children",  # processes that it started, those that live included
)


def _nothing() -> dict[str, float]:
    return dict.fromkeys(PARTS, 0.0)


@dataclass
class Used:
    """Seconds and CPU seconds (whole process) of the epochs; CPU seconds of PARTS between evaluations and in them."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    epochs: int = 0
    evaluations: int = 0
    training: dict[str, float] = field(default_factory=_nothing)
    evaluation: dict[str, float] = field(default_factory=_nothing)


class CpuAccount:
    """Follows the CPU seconds of a rank with so many `cores`, from before its method is made.

    Linux gives the clocks of threads, which are read before and after evaluations only. Where it does not, and where
    nothing is `audited`, the flags (see `RankReport.flag`) that need them are never raised, and `report` has None.
    """

    def __init__(self, cores: int, flag: Flag, *, audited: bool = True) -> None:
        self._cores, self._flag, self._audited = cores, flag, audited
        self._given, self._threads = _affinity(0), torch.get_num_threads()
        self._environment = dict(os.environ)
        self._by_thread = audited and TASKS.is_dir() and _thread_seconds(threading.get_native_id()) is not None
        self._harness = {thread.native_id for thread in threading.enumerate()}
        self._last: dict[str, float] = {}
        self._seconds: dict[int, float] = {}  # of threads that are none of the method's, those that have ended too
        self._named: dict[int, bool] = {}  # of those, whether they have a name of their own
        self._method: set[int] = set()  # threads; one that has ended in Python may still be the system's
        self.used = Used()

    def imported(self) -> None:
        """Flag what the method's module, just imported, did to the environment: libraries may compute otherwise."""
        if names := sorted({name for name, _ in os.environ.items() ^ self._environment.items()}):
            self._flag("environment", f"changed when the method was imported: {', '.join(names)}")

    def begins(self) -> None:
        """Begin: set-up is over."""
        self._last = self._read()

    def epoch(self, wall_s: float, cpu_s: float) -> None:
        """Add an epoch that has ended: its seconds, and its CPU seconds of this process."""
        used = self.used
        used.wall_s, used.cpu_s, used.epochs = used.wall_s + wall_s, used.cpu_s + cpu_s, used.epochs + 1
        if not self._audited:
            return
        if (now := torch.get_num_threads()) != self._threads:
            self._flag("cores", f"torch was given {now} threads in place of {self._threads}")
        self._check_affinity(0)

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Add an evaluation."""
        self._add_until_now(self.used.training)
        try:
            yield
        finally:
            self._add_until_now(self.used.evaluation)
            self.used.evaluations += 1

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out what is neither training nor evaluation."""
        self._add_until_now(self.used.training)
        try:
            yield
        finally:
            self._last = self._read()

    def ends(self) -> None:
        """Flag what the rank used beyond its share; training is over."""
        self._add_until_now(self.used.training)
        used, cores = self.used, self._cores
        children = used.training["children"] + used.evaluation["children"]
        if self._audited and children > CHILDREN * used.cpu_s + LEAST_S:
            self._flag("children", f"child processes worked {children:.3g} CPU seconds, the rank {used.cpu_s:.3g}")
        if not self._by_thread:
            return
        # Threads that serve a device or a socket are every method's: gloo's work on another core, where there is one.
        serving = used.training["libraries"] - used.training["pools"]
        busy = used.cpu_s - serving + used.training["children"]
        if busy > MORE * cores * used.wall_s + LEAST_S:
            self._flag("cores", f"{busy / used.wall_s:.2f} cores were busy in epochs, the rank has {cores}")
        in_evaluation = used.evaluation["method"]
        if used.evaluations and used.epochs and in_evaluation > LEAST_S:
            share = in_evaluation / used.evaluations / (used.cpu_s / used.epochs)
            if share > IN_EVALUATION:
                text = f"the method's threads worked {in_evaluation:.3g} CPU seconds in {used.evaluations} evaluations"
                self._flag("beside-eval", f"{text}, {share:.0%} of an epoch's in each".replace("%", " %"))

    def report(self) -> dict[str, Any]:
        """Return what was used as JSON; CPU seconds of threads are None where they are not known."""
        training, evaluation = self.used.training, self.used.evaluation
        return {
            "cores": self._cores,
            "pinned_to": self._given and sorted(self._given),
            "main_cpu_s": training["main"],
            "library_cpu_s": training["libraries"] if self._by_thread else None,
            "method_cpu_s": training["method"] if self._by_thread else None,
            "eval_method_cpu_s": evaluation["method"] if self._by_thread else None,
            "children_cpu_s": training["children"] + evaluation["children"],
        }

    def _add_until_now(self, part: dict[str, float]) -> None:
        now = self._read()
        for name, start in self._last.items():
            part[name] += now[name] - start
        self._last = now

    def _read(self) -> dict[str, float]:
        """Return the CPU seconds so far of PARTS."""
        own, main, whole = threading.get_native_id(), time.thread_time(), time.process_time()
        found = _nothing() | {"main": main, "children": _children(living=self._audited)}
        if not self._audited:
            return found
        python = {thread.native_id or 0: thread.name for thread in threading.enumerate()}
        with suppress(OSError):
            for task in os.listdir(TASKS):
                tid = int(task)
                self._check_affinity(tid)
                ours = tid in self._harness or python.get(tid, "").startswith(_OURS)
                if tid in python and not ours:
                    self._method.add(tid)
                if tid != own and tid not in self._method:
                    self._seconds[tid] = max(_thread_seconds(tid) or 0.0, self._seconds.get(tid, 0.0))
                    # gloo, CUDA and nccl name theirs, those of pools have their maker's name
                    if tid not in self._named:
                        self._named[tid] = ours or _name(tid) not in [_name(maker) for maker in python]
        found["libraries"] = sum(self._seconds.values())
        found["pools"] = sum(seconds for tid, seconds in self._seconds.items() if not self._named.get(tid, True))
        found["method"] = whole - main - found["libraries"]  # those that have ended are in the whole alone
        return found

    def _check_affinity(self, tid: int) -> None:
        now = _affinity(tid)
        if now is not None and self._given is not None and not now <= self._given:
            extra = sorted(now - self._given)
            self._flag("affinity", f"a thread may run on cores {extra} too, the rank was given {sorted(self._given)}")


def _affinity(tid: int) -> set[int] | None:
    """Return the cores that a thread (0: this one) may run on."""
    return known(lambda: os.sched_getaffinity(tid))


def _thread_seconds(tid: int) -> float | None:
    # A thread's clock of CPUCLOCK_SCHED, to the nanosecond: clock_getres(2), CPU-time clocks.
    return known(lambda: time.clock_gettime((~tid << 3) | 6))


def _name(tid: int) -> str | None:
    return known((TASKS / str(tid) / "comm").read_text)


def _children(*, living: bool) -> float:
    """Return the CPU seconds of the processes that this one started and waited for, or that are still `living`."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = ended.ru_utime + ended.ru_stime
    if not living:
        return seconds
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


class NetworkAccount:
    """Follows what leaves an audited rank, from the end of its set-up.

    On Linux and gloo; of nccl, whose bytes pass no socket, and elsewhere nothing is known or flagged. Sums over the
    training, evaluations included, are compared once, at the end. `interface`: a network interface that carries this
    rank's traffic alone, or None; `proc`: the kernel's files of this process.
    """

    def __init__(self, comm: Communicator, interface: str | None = None, proc: Path = PROC) -> None:
        self._comm, self._interface, self._proc = comm, interface, proc
        self._known: set[str] = set()
        self._last: dict[str, int] = {}  # bytes by socket
        self._base: dict[str, int | None] = {}  # what readings have that was not sent since `begins`, nor before it
        self._earlier: dict[str, int | None] = {}
        self._opened: dict[str, None] = {}

    def begins(self) -> None:
        """Begin: set-up is over."""
        self._known = {name for name, _ in self._open()} | self._shared()
        self.look()
        self._base = {name: _difference(now, self._earlier.get(name, 0)) for name, now in self._read().items()}

    def look(self) -> None:
        """Read the sockets: what one that is closed before the next look sends after this one is not seen."""
        for name, fd in self._open():
            if name not in self._known:
                self._opened[_kind(name)] = None
            if name.startswith("socket:") and (sent := _acknowledged(fd)) is not None:
                self._last[name] = sent

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out what is written to files meanwhile: it is the harness's own."""
        before = self._written()
        try:
            yield
        finally:
            if (base := self._base["file_bytes"]) is not None:
                self._base["file_bytes"] = base + (_difference(self._written(), before) or 0)

    def state(self) -> dict[str, Any]:
        """Return what was sent since `begins`, and before it by other processes."""
        self.look()
        return {"sent": self._sent(), "opened": list(self._opened)}

    def restore(self, state: dict[str, Any]) -> None:
        """Add to what another process had sent, by its `state`; before `begins`."""
        self._earlier, self._opened = state["sent"], dict.fromkeys(state["opened"])

    def ends(self, flag: Flag, *, epochs: int, rehearsed: bool) -> dict[str, Any]:
        """Flag what was sent and not counted; every rank must call. Returns the report's part, bytes since the set-up.

        `socket_bytes`: sent over TCP; `interface_bytes`: by the interface, headers included; `file_bytes`: written to
        files; `counted_bytes`: by the communicator. `epochs`: number of epochs that were trained; `rehearsed`: False
        where kernels are compiled into files, and a GPU's driver opens files, while it trains.
        """
        self.look()
        self._opened |= dict.fromkeys(_kind(name) for name in self._shared() - self._known)
        found: dict[str, Any] = self._sent()
        sockets, by_sockets, alone = found["socket_bytes"], self._comm.by_sockets, self._comm.world == 1
        if sockets is None and not alone:  # what was written to sockets cannot be taken off
            found["file_bytes"] = None
        elif found["file_bytes"] is not None:
            found["file_bytes"] = max(0, found["file_bytes"] - (sockets or 0))
        # nccl opens what it needs when it needs it.
        if self._opened and (by_sockets or alone) and (rehearsed or self._comm.device.type == "cpu"):
            flag("bytes", f"opened while it trained: {', '.join(sorted(self._opened))}")
        files = found["file_bytes"]
        most = max(FILE_BYTES, OFF * found["counted_bytes"]) + EPOCH_FILE_BYTES * epochs
        if files is not None and rehearsed and files > most:
            flag("bytes", f"{files:,} bytes were written to files")
        names = ("counted_bytes", "calls", "socket_bytes", "interface_bytes")
        own = torch.tensor([-1 if found[name] is None else found[name] for name in names], device=self._comm.device)
        with self._comm.traffic.during("eval"):
            gathered = torch.stack(self._comm.all_gather(own))
        known = [bool((column >= 0).all()) for column in gathered.T]
        counted, calls, *seen = gathered.sum(0).tolist()
        if self._comm.rank == 0 and not alone:
            for name, sent, there in zip(("sockets", "interfaces"), seen, known[2:], strict=True):
                if there and by_sockets and (what := _unlike(name, sent, counted, calls * self._comm.world)):
                    flag("bytes", what)
        return found

    def _sent(self) -> dict[str, int | None]:
        now = self._read()
        sent = {name: _difference(now[name], base) for name, base in self._base.items()}
        if not (self._comm.by_sockets and any(self._last.values())):  # some kernels say 0 of every socket
            sent["socket_bytes"] = None
        return sent

    def _read(self) -> dict[str, int | None]:
        counted = [self._comm.traffic.total(scope) for scope in ("setup", "epoch", "eval")]
        interface = None if self._interface is None else _interface_bytes(self._interface)
        return {
            "counted_bytes": sum(volume.sent_bytes for volume in counted),
            "calls": sum(volume.calls for volume in counted),
            "interface_bytes": None if interface is None else interface[0],
            "file_bytes": self._written(),
            "socket_bytes": sum(self._last.values()),
        }

    def _written(self) -> int | None:
        # To files, pipes and sockets, by `write` and `writev`.
        found = re.search(r"^wchar: (\d+)$", known((self._proc / "io").read_text) or "", re.MULTILINE)
        return None if found is None else int(found[1])

    def _open(self) -> Iterator[tuple[str, int]]:
        """Yield what is open and could move rows, and its descriptor: sockets, pipes and shared memory."""
        folder = f"{self._proc}/fd"  # of hundreds; joining paths would take most of the time
        with suppress(OSError):
            for number in os.listdir(folder):
                with suppress(OSError):
                    name = os.readlink(f"{folder}/{number}")
                    if name.startswith(("socket:", "pipe:", "/dev/shm/", "/memfd:")):
                        yield name, int(number)

    def _shared(self) -> set[str]:
        """Return the files whose pages this process shares and may write to."""
        maps = known((self._proc / "maps").read_text) or ""
        return set(re.findall(r"^\S+ rw-s \S+ \S+ [1-9]\d* +(\S.*)$", maps, re.MULTILINE))


def _kind(name: str) -> str:
    return "a " + name.partition(":")[0] if name.startswith(("socket:", "pipe:")) else name


def _difference(end: int | None, start: int | None) -> int | None:
    return None if end is None or start is None else end - start


def _acknowledged(fd: int) -> int | None:
    """Return the payload bytes that the peer of a TCP socket of this process has acknowledged; None of other ones."""
    with suppress(OSError):
        own = socket.socket(fileno=os.dup(fd))
        with own:
            if own.type == socket.SOCK_STREAM and own.family in (socket.AF_INET, socket.AF_INET6):
                info = own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKED + 8)
                return struct.unpack_from("=Q", info, _ACKED)[0] if len(info) >= _ACKED + 8 else None
    return None


def _unlike(name: str, sent: int, counted: int, calls: int) -> str:
    """Return how bytes that were seen differ from those counted in `calls` transfers times ranks; "" if they do not."""
    headers = calls * CALL_BYTES + SLACK_BYTES
    if name == "interfaces":
        headers += FRAME * (calls + 2 * counted // SEGMENT)  # of full frames, and of their acknowledgements
    if (1 - OFF) * counted - SLACK_BYTES <= sent <= (1 + OFF) * counted + headers:
        return ""
    return f"{name} sent {sent:,} bytes, {counted:,} were counted"


class TrafficCheck:
    """Holds the counted bytes of the training epochs against the kernel's (`traffic: verify`).

    On the loopback the interface carries every rank's traffic, and that of other programs; in a network
    namespace of its own (`shaped`) it carries this rank's alone, and nccl takes it too.
    """

    def __init__(self, comm: Communicator, interface: str, *, shaped: bool = False) -> None:
        self._comm, self._interface = comm, interface
        self.why_not: str | None = None  # why nothing is compared
        if comm.world > 1 and not comm.by_sockets and not shaped:
            what = "what nccl moves (NVLink, shared memory) passes no interface"
            self.why_not = f"traffic: verify is not available: {what}"
        self.sums: dict[str, int | None] = dict.fromkeys(
            ("sent_bytes", "received_bytes", "counted_sent_bytes", "counted_received_bytes"), 0
        )

    @contextmanager
    def epoch(self) -> Iterator[None]:
        """Add what is enclosed."""
        if self.why_not is not None:
            self.sums |= dict.fromkeys(("sent_bytes", "received_bytes"))
            yield
            return
        before = self._read()
        yield
        after = self._read()
        for name, total in self.sums.items():
            more = _difference(after[name], before[name])
            self.sums[name] = None if total is None or more is None else total + more

    def report(self) -> dict[str, Any]:
        """Return the record's rows: bytes that the kernel and that the trial counted, and the interface."""
        return {**describe(self._interface), **self.sums, "why_not": self.why_not}

    def _read(self) -> dict[str, int | None]:
        """Return the interface's bytes, link-layer headers included, None if the kernel has none; and the counted."""
        # Barriers keep set-up and evaluations of other ranks out of it; they are outside the epoch's time.
        self._comm.barrier()
        sent, received = _interface_bytes(self._interface) or (None, None)
        self._comm.barrier()
        counted = self._comm.traffic.total()
        values = sent, received, counted.sent_bytes, counted.received_bytes
        return dict(zip(self.sums, values, strict=True))


def _interface_bytes(interface: str) -> tuple[int, int] | None:
    found = known(lambda: psutil.net_io_counters(pernic=True, nowrap=False).get(interface))
    return found and (found.bytes_sent, found.bytes_recv)


def describe(interface: str) -> dict[str, Any]:
    """Return the record's fields of an interface; `network` differs between interfaces of different namespaces."""
    boot, folder = known(Path("/proc/sys/kernel/random/boot_id").read_bytes), Path("/sys/class/net", interface)
    namespace, network = known(lambda: os.readlink("/proc/self/ns/net").encode()), None
    if boot is not None and namespace is not None:
        # A name for this network namespace that no other machine's has, and that reveals nothing of it.
        network = hashlib.blake2b(boot + namespace, digest_size=4).hexdigest()
    flags = known(lambda: int((folder / "flags").read_text(), 0))
    return {
        "interface": interface,
        "network": network,
        "loopback": bool((flags or 0) & 0x8),  # IFF_LOOPBACK
        "mtu": known(lambda: int((folder / "mtu").read_text(), 0)),
    }
