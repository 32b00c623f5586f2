"""What the kernel counts on the network interface that the ranks talk over."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.runtime.comm import Communicator


@dataclass(frozen=True)
class Counters:
    """Bytes an interface has received and sent, link-layer headers included."""

    received: int
    sent: int


def read_counters(interface: str, proc: Path = Path("/proc")) -> Counters | None:
    """Return the counters of an interface of this network namespace; None if the kernel tells none."""
    try:
        lines = (proc / "self/net/dev").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, colon, numbers = line.partition(":")
        if colon and name.strip() == interface:
            fields = numbers.split()
            return Counters(int(fields[0]), int(fields[8]))
    return None


class TrafficCheck:
    """Holds the counted bytes of the training epochs against the kernel's (`traffic: verify`).

    On the loopback the interface carries every rank's traffic, and that of other programs; in a network
    namespace of its own it carries this rank's alone. Barriers before and after each epoch keep set-up and
    evaluations out of it; they are outside the epoch's time.
    """

    def __init__(self, comm: Communicator, interface: str) -> None:
        self._comm, self._interface = comm, interface
        self._seen, self._counted, self._missing = Counters(0, 0), Counters(0, 0), False

    @contextmanager
    def epoch(self) -> Iterator[None]:
        """Add what is enclosed."""
        before, counted = self._read(), self._comm.traffic.total()
        yield
        after, total = self._read(), self._comm.traffic.total()
        self._counted = Counters(
            self._counted.received + total.received_bytes - counted.received_bytes,
            self._counted.sent + total.sent_bytes - counted.sent_bytes,
        )
        if before is None or after is None:
            self._missing = True
            return
        self._seen = Counters(
            self._seen.received + after.received - before.received, self._seen.sent + after.sent - before.sent
        )

    def report(self) -> dict[str, Any]:
        """Return the record's rows: bytes that the kernel and that the trial counted, and the interface."""
        return {
            **describe(self._interface),
            "sent_bytes": None if self._missing else self._seen.sent,
            "received_bytes": None if self._missing else self._seen.received,
            "counted_sent_bytes": self._counted.sent,
            "counted_received_bytes": self._counted.received,
        }

    def _read(self) -> Counters | None:
        self._comm.barrier()
        found = read_counters(self._interface)
        self._comm.barrier()
        return found


def describe(interface: str) -> dict[str, Any]:
    """Return what a record says of an interface; `network` tells those of different namespaces apart."""
    return {
        "interface": interface,
        "network": _network(),
        "loopback": _is_loopback(interface),
        "mtu": _sysfs(interface, "mtu"),
    }


def _network() -> str | None:
    """Return a name for this network namespace that no other machine's has, and that tells nothing of it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
        namespace = os.readlink("/proc/self/ns/net").encode()
    except OSError:
        return None
    return hashlib.blake2b(boot + namespace, digest_size=4).hexdigest()


def _sysfs(interface: str, name: str) -> int | None:
    try:
        return int(Path("/sys/class/net", interface, name).read_text(), 0)
    except (OSError, ValueError):
        return None


def _is_loopback(interface: str) -> bool:
    loopback = 0x8  # IFF_LOOPBACK
    return bool((_sysfs(interface, "flags") or 0) & loopback)
