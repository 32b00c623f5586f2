"""Communicator: every byte between ranks passes here, is counted, and can be held against the kernel's counters.

Traffic is payload by purpose, layer, direction and peer.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from harness.metrics import PURPOSES, Phase, Purpose
from harness.runtime.clock import Clock

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


class Communicator:
    """A thin face on torch.distributed, gloo or nccl.

    With gloo and a GPU (several ranks on one device) tensors are staged through the host.
    A group of one rank needs no process group and moves nothing. `group` is a process group of all ranks;
    None: the one that they joined first. `timeout_s`: how long exchanges in groups made later wait for peers.
    """

    def __init__(
        self,
        rank: int,
        world: int,
        device: torch.device,
        clock: Clock,
        traffic: Traffic,
        group: dist.ProcessGroup | None = None,
        timeout_s: float = 300,
    ) -> None:
        self.rank, self.world, self.device = rank, world, device
        self._timeout = timedelta(seconds=timeout_s)
        self.clock, self.traffic, self._group = clock, traffic, group
        self._gloo = world > 1 and dist.get_backend() == "gloo"
        self._staged = device.type == "cuda" and self._gloo

    def exchange_rows(
        self,
        rows: Tensor,
        send_counts: Sequence[int],
        recv_counts: Sequence[int],
        *,
        purpose: Purpose,
        layer: int = -1,
        direction: Direction = "none",
        out: Tensor | None = None,
    ) -> Tensor:
        """Send `send_counts[q]` rows to each rank q and receive `recv_counts[q]` from it.

        Args:
            rows: [sum(send_counts), ...], grouped by receiver in rank order.
            send_counts: rows for each rank; what a rank sends itself is moved but not counted.
            recv_counts: rows from each rank.
            purpose: what the bytes are counted as.
            layer: graph layer, -1 where none applies.
            direction: forward or backward pass.
            out: [sum(recv_counts), ...], contiguous: where to receive; allocated if None.

        Returns:
            `out`, grouped by sender in rank order.
        """
        if out is None:
            out = rows.new_empty((sum(recv_counts), *rows.shape[1:]))
        if self.world == 1:
            return out.copy_(rows)
        self.count_rows(rows, send_counts, recv_counts, purpose, layer, direction)
        self._align()
        with self.clock.phase("comm"):
            self._move_rows(rows, send_counts, recv_counts, out)
        return out

    def count_rows(
        self,
        rows: Tensor,
        send_counts: Sequence[int],
        recv_counts: Sequence[int],
        purpose: Purpose,
        layer: int,
        direction: Direction,
        *,
        overlapped: bool = False,
    ) -> None:
        """Count what `exchange_rows` of these arguments moves."""
        width = rows.element_size() * math.prod(rows.shape[1:])
        for peer in range(self.world):
            if peer != self.rank and (send_counts[peer] or recv_counts[peer]):
                sent, received = send_counts[peer] * width, recv_counts[peer] * width
                self.traffic.count(purpose, layer, direction, peer, sent, received, overlapped=overlapped)

    def _move_rows(self, rows: Tensor, send_counts: Sequence[int], recv_counts: Sequence[int], out: Tensor) -> None:
        source, target = rows.contiguous(), out
        if self._staged:
            source, target = source.cpu(), torch.empty(out.shape, dtype=out.dtype)
        if self._gloo:
            self._swap(target.split(list(recv_counts)), source.split(list(send_counts)))
        else:
            dist.all_to_all_single(target, source, list(recv_counts), list(send_counts), group=self._group)
        if self._staged:
            out.copy_(target)

    def _swap(self, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
        """Send and receive at once; gloo's own all-to-all may send all before it lets the peer send.

        A send waits for the peer's word that it is ready to receive, and that word must not queue behind the
        peer's own data: so every receive is posted before any send (docs/design/networks.md).
        """
        peers = [(self.rank + shift) % self.world for shift in range(1, self.world)]
        work = [dist.irecv(targets[peer], peer, self._group) for peer in peers if len(targets[peer])]
        work += [dist.isend(sources[peer], peer, self._group) for peer in peers if len(sources[peer])]
        targets[self.rank].copy_(sources[self.rank])
        for transfer in work:
            if transfer is not None:
                transfer.wait()

    def aside(self, clock: Clock) -> Communicator:
        """Return a communicator of the same ranks whose exchanges cannot be mixed up with this one's.

        Its traffic is its own. Every rank must call, at the same moment.
        """
        group = dist.new_group(timeout=self._timeout) if self.world > 1 else None
        return Communicator(self.rank, self.world, self.device, clock, Traffic(), group)

    def divide(self, members: Sequence[Sequence[int]]) -> dist.ProcessGroup:
        """Divide the ranks into groups; return that of this rank. Every rank must call with the same ones."""
        group: dist.ProcessGroup
        group, _ = dist.new_subgroups_by_enumeration([list(m) for m in members], timeout=self._timeout)
        return group

    def barrier(self) -> None:
        """Wait for all ranks; not counted as traffic."""
        if self.world == 1:
            return
        if self.device.type == "cuda" and not self._staged:
            # On the stream, like the transfers it precedes; dist.barrier would hold up the host.
            dist.all_reduce(torch.zeros(1, device=self.device), group=self._group)
            return
        if self._staged:
            torch.cuda.current_stream().synchronize()  # the work before is not waiting for peers
        dist.barrier(self._group)

    def _align(self) -> None:
        """In an aligned epoch, wait until all ranks are here, so that the transfer is only a transfer."""
        if self.clock.aligned:
            with self.clock.phase("wait"):
                self.barrier()
            self.clock.met()

    def exchange_counts(self, counts: Sequence[int]) -> list[int]:
        """Tell every rank q the number `counts[q]`; return what each told this one (8 bytes a peer)."""
        ones = [1] * self.world
        received = self.exchange_rows(
            torch.tensor(counts, dtype=torch.int64, device=self.device), ones, ones, purpose="control"
        )
        return [int(c) for c in received.tolist()]

    def all_reduce(self, tensor: Tensor, *, purpose: Purpose, phase: Phase = "reduce") -> Tensor:
        """Sum `tensor` over all ranks, in place.

        Counted as what a bandwidth-optimal all-reduce sends, 2 (P-1)/P of the tensor for each rank, the
        remainder of the division given to the first ranks, so that all ranks together count 2 (P-1) tensors.
        """
        if self.world == 1:
            return tensor
        total = 2 * (self.world - 1) * tensor.numel() * tensor.element_size()
        share = total // self.world + (self.rank < total % self.world)
        self.traffic.count(purpose, -1, "none", -1, share, share)
        self._align()
        with self.clock.phase(phase):
            if self._staged:
                staged = tensor.cpu()
                dist.all_reduce(staged, group=self._group)
                return tensor.copy_(staged)
            dist.all_reduce(tensor, group=self._group)
        return tensor

    def all_gather(self, values: Tensor, *, purpose: Purpose = "control") -> list[Tensor]:
        """Return the tensors `values`, equal in shape, of all ranks; each is sent to every peer."""
        if self.world == 1:
            return [values]
        copies = values.reshape(1, -1).repeat(self.world, 1)
        ones = [1] * self.world
        return list(self.exchange_rows(copies, ones, ones, purpose=purpose).reshape(self.world, *values.shape))

    def broadcast(
        self,
        rows: Tensor,
        root: int,
        members: Sequence[int],
        group: dist.ProcessGroup | None = None,
        *,
        purpose: Purpose,
        layer: int = -1,
        direction: Direction = "none",
    ) -> Tensor:
        """Copy rank `root`'s `rows` [n, ...] to the other `members`, in place; `group` is theirs, None: all.

        Counted as sent by the root to each peer: a tree has others forward some of it, but all ranks together
        send as much. Every rank of the world must call, each with its own, equally many, `members`.
        """
        if len(members) == 1:
            return rows
        size = rows.numel() * rows.element_size()
        for peer in set(members) - {self.rank} if self.rank == root else [root]:
            sent, received = (size, 0) if self.rank == root else (0, size)
            self.traffic.count(purpose, layer, direction, peer, sent, received)
        self._align()
        with self.clock.phase("comm"):
            if size:
                moved = rows.cpu() if self._staged else rows
                dist.broadcast(moved, root, group or self._group)
                if moved is not rows:
                    rows.copy_(moved)
        return rows


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
