"""Wire: what the kernel says that a rank sent, beside what its Communicator counted; and by what else it could have.

Nothing is put between ranks for it. Sums over the training, evaluations included, are compared once, at the end.
"""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from harness.deferred import torch
from harness.runtime.comm import Communicator
from harness.runtime.usage import Flag

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
