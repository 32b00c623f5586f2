"""Traffic: payload bytes by purpose, layer, direction and peer."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from harness.metrics import PURPOSES, Purpose
from harness.runtime.comm import Communicator

Direction = Literal["forward", "backward", "none"]
Scope = Literal["setup", "epoch", "eval"]


@dataclass(frozen=True)
class Channel:
    """What a transfer was for; `layer` is -1 where none applies, `peer` is -1 for an all-reduce and a swap.

    `overlapped`: it went on beside the trainer.
    """

    scope: Scope
    purpose: Purpose
    layer: int
    direction: Direction
    peer: int
    overlapped: bool = False


@dataclass
class Volume:
    """Payload bytes over one channel, and the number of calls."""

    sent_bytes: int = 0
    received_bytes: int = 0
    calls: int = 0


class Traffic:
    """Counts payload bytes by channel. What a rank keeps for itself is not traffic."""

    def __init__(self) -> None:
        self.scope: Scope = "setup"
        self._volumes: dict[Channel, Volume] = defaultdict(Volume)

    def count(
        self,
        purpose: Purpose,
        layer: int,
        direction: Direction,
        peer: int,
        sent: int,
        received: int,
        *,
        overlapped: bool = False,
        calls: int = 1,
    ) -> None:
        """Add transfers of so many bytes."""
        volume = self._volumes[Channel(self.scope, purpose, layer, direction, peer, overlapped)]
        volume.sent_bytes += sent
        volume.received_bytes += received
        volume.calls += calls

    def sent(self, scope: Scope = "epoch") -> dict[str, int]:
        """Bytes sent by this rank so far in `scope`, by purpose; swaps are counted both ways."""
        totals = dict.fromkeys(PURPOSES, 0)
        for channel, volume in self._volumes.items():
            if channel.scope == scope:
                totals[channel.purpose] += volume.sent_bytes
                if channel.purpose == "swap":  # no peer counts the way back
                    totals["swap"] += volume.received_bytes
        return totals

    def total(self, scope: Scope = "epoch") -> Volume:
        """Bytes between this rank and others so far in `scope`, and calls; swaps stay on the machine."""
        volumes = [
            volume for channel, volume in self._volumes.items() if channel.scope == scope and channel.purpose != "swap"
        ]
        return Volume(
            sum(v.sent_bytes for v in volumes), sum(v.received_bytes for v in volumes), sum(v.calls for v in volumes)
        )

    def absorb(self, other: Traffic) -> None:
        """Add what `other` counted, in the present scope and as overlapped."""
        for channel, volume in other._volumes.items():
            self.count(
                channel.purpose,
                channel.layer,
                channel.direction,
                channel.peer,
                volume.sent_bytes,
                volume.received_bytes,
                overlapped=True,
                calls=volume.calls,
            )

    def rows(self) -> list[dict[str, Any]]:
        """One row a channel, for the record."""
        return [asdict(channel) | asdict(volume) for channel, volume in self._volumes.items()]

    @contextmanager
    def during(self, scope: Scope) -> Iterator[None]:
        """Count what is enclosed under `scope`."""
        before, self.scope = self.scope, scope
        try:
            yield
        finally:
            self.scope = before


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
