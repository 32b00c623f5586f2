"""Traffic: payload bytes by purpose, layer, direction and peer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Literal

from harness.metrics import PURPOSES, Purpose

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
