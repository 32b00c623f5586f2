"""Communicator: every byte between ranks passes here, is counted, and can be held against the kernel's counters.

Traffic is payload by purpose, layer, direction and peer.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, fields, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from harness.deferred import dist, torch
from harness.graph.devices import fresh, kind_of, upload
from harness.metrics import PURPOSES, WITHIN, Phase, Purpose
from harness.runtime.clock import Clock
from harness.runtime.job import ProgressBeacon

if TYPE_CHECKING:
    from torch import Tensor

    from harness.runtime.codec import Codec

Direction = Literal["forward", "backward", "none"]
Scope = Literal["setup", "compile", "epoch", "eval"]

CODED: tuple[Purpose, ...] = ("feature", "embedding", "gradient")  # whose rows a codec packs


@dataclass(frozen=True)
class Channel:
    """What a transfer was for; `layer` is -1 where none applies, `peer` is -1 for an all-reduce and a swap.

    `overlapped`: it went on while the trainer computed.
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

    def add(self, other: Volume) -> None:
        """Add what went another time."""
        self.sent_bytes += other.sent_bytes
        self.received_bytes += other.received_bytes
        self.calls += other.calls


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
    ) -> None:
        """Add a transfer of so many bytes."""
        self._volumes[Channel(self.scope, purpose, layer, direction, peer, overlapped)].add(Volume(sent, received, 1))

    def sent(self, scope: Scope = "epoch") -> dict[str, int]:
        """Bytes sent by this rank so far in `scope`, by purpose; what stays on its machine is counted both ways."""
        totals = dict.fromkeys(PURPOSES, 0)
        for channel, volume in self._volumes.items():
            if channel.scope == scope:
                totals[channel.purpose] += volume.sent_bytes
                if channel.purpose in WITHIN:  # no peer counts the way back
                    totals[channel.purpose] += volume.received_bytes
        return totals

    def total(self, scope: Scope = "epoch") -> Volume:
        """Bytes between this rank and others so far in `scope`, and calls; not what stays on its machine."""
        total = Volume()
        for channel, volume in self._volumes.items():
            if channel.scope == scope and channel.purpose not in WITHIN:
                total.add(volume)
        return total

    def absorb(self, other: Traffic) -> None:
        """Add what `other` counted, in the present scope and as overlapped."""
        for channel, volume in other._volumes.items():
            self._volumes[replace(channel, scope=self.scope, overlapped=True)].add(volume)

    def rows(self) -> list[dict[str, Any]]:
        """One row a channel, for the record."""
        return [asdict(channel) | asdict(volume) for channel, volume in self._volumes.items()]

    def restore(self, rows: list[dict[str, Any]]) -> None:
        """Go on from what another process had counted, by its `rows`; what was counted here is forgotten."""
        self._volumes.clear()
        of_volume = [field.name for field in fields(Volume)]
        for row in rows:
            channel = {name: value for name, value in row.items() if name not in of_volume}
            self._volumes[Channel(**channel)] = Volume(**{name: row[name] for name in of_volume})

    @contextmanager
    def during(self, scope: Scope) -> Iterator[None]:
        """Count what is enclosed under `scope`; within `compile` all is that."""
        before = self.scope
        self.scope = before if before == "compile" else scope
        try:
            yield
        finally:
            self.scope = before


class OrderedWork:
    """Work in another thread than the trainer's, with its position in a rank's order of collectives.

    `over`: it exchanges no more.
    """

    def __init__(self) -> None:
        self.over = False


class CollectiveOrder:
    """Starts collectives of several threads of a rank in an order that is the same on all ranks.

    A work's come after those that the trainer had started when it admitted the work, before the trainer's next ones,
    and behind those of works that were admitted before. The trainer admits at the same points of its program on all
    ranks, whatever their speeds, so that nothing need be agreed on (docs/design/exchange.md).
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._admitted: deque[OrderedWork] = deque()

    def admit(self, work: OrderedWork) -> None:
        """Give a work its position, from the trainer's thread; a second call, or one after its end, does nothing."""
        with self._changed:
            if not work.over and work not in self._admitted:
                self._admitted.append(work)
                self._changed.notify_all()

    def take(self, work: OrderedWork | None) -> None:
        """Wait until the work's next collective is to be started; None: until the trainer's is."""
        with self._changed:
            self._changed.wait_for(lambda: next(iter(self._admitted), None) is work)

    def end(self, work: OrderedWork) -> None:
        """Note that a work has started its last collective, or failed."""
        with self._changed:
            work.over = True
            if work in self._admitted:
                self._admitted.remove(work)
            self._changed.notify_all()


class Communicator:
    """A thin face on torch.distributed, gloo or nccl.

    With gloo and a GPU (several ranks on one device) tensors are staged through the host.
    A group of one rank needs no process group and moves nothing.

    Args:
        rank, world: this rank, and the number of ranks.
        device: of the tensors.
        clock, traffic: what time is charged to, and what counts bytes.
        group: process group of all ranks; None: the one that they joined first.
        timeout_s: seconds that exchanges in groups made later wait for peers.
        beacon: notes when a collective begins and ends.
        order: of the communicator that this one was made from (`aside`).

    Attributes:
        by_sockets: whether all that passes here passes TCP sockets of this process.
        order: the order in which this rank's threads start collectives; None where that is no matter, as with gloo.
        codec: what packs the rows that `exchange_rows` sends; None: they are sent as they are.
        work: the work whose position in it this communicator's exchanges have; None: the trainer's.
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
        beacon: ProgressBeacon | None = None,
        order: CollectiveOrder | None = None,
    ) -> None:
        self.rank, self.world, self.device, self._beacon = rank, world, device, beacon
        self.codec: Codec | None = None
        self._timeout = timedelta(seconds=timeout_s)
        self.clock, self.traffic, self._group = clock, traffic, group
        self._gloo = self.by_sockets = world > 1 and dist.get_backend() == "gloo"
        self._kind = kind_of(device)
        self._staged = self._gloo and not self._kind.gloo_reads
        # Two of NCCL's communicators may wait for each other for ever, and so may ranks that disagree on an order.
        self.order = order or (CollectiveOrder() if world > 1 and not self._gloo else None)
        self.work: OrderedWork | None = None
        self._spare: list[dist.ProcessGroup] = []
        self._divided: dict[str, dist.ProcessGroup] = {}

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
        exact: bool = False,
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
            exact: rows are sent as they are, not packed by the codec.

        Returns:
            `out`, grouped by sender in rank order.
        """
        if out is None:
            out = fresh(rows, sum(recv_counts), *rows.shape[1:])
        if self.world == 1:
            return out.copy_(rows)
        packed = None if exact else self.pack(rows, purpose, layer, direction)
        if packed is not None:
            arrived = self.exchange_rows(
                packed, send_counts, recv_counts, purpose=purpose, layer=layer, direction=direction, exact=True
            )
            return self.unpack(arrived, out)
        self.count_rows(rows, send_counts, recv_counts, purpose, layer, direction)
        self._align()
        with self.clock.phase("comm"), self._collective():
            source, target = rows.contiguous(), out
            if self._staged:
                source, target = self._on_host(source), self._kind.pinned(*out.shape, dtype=out.dtype)
            self._take_turn()
            if self._gloo:
                self._swap(target.split(list(recv_counts)), source.split(list(send_counts)))
            else:
                dist.all_to_all_single(target, source, list(recv_counts), list(send_counts), group=self._group)
            return out if target is out else out.copy_(target, non_blocking=True)

    def _on_host(self, rows: Tensor) -> Tensor:
        """Return a copy in the host's pinned memory, for gloo; waits for this thread's stream alone."""
        host = self._kind.pinned(*rows.shape, dtype=rows.dtype).copy_(rows, non_blocking=True)
        self._kind.current_stream().synchronize()
        return host

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
        """Count what `exchange_rows` of these arguments moves, as they are."""
        width = rows.element_size() * math.prod(rows.shape[1:])
        for peer in range(self.world):
            if peer != self.rank and (send_counts[peer] or recv_counts[peer]):
                sent, received = send_counts[peer] * width, recv_counts[peer] * width
                self.traffic.count(purpose, layer, direction, peer, sent, received, overlapped=overlapped)

    def pack(self, rows: Tensor, purpose: Purpose, layer: int, direction: Direction) -> Tensor | None:
        """Return what rows with this purpose are sent as, uint8 [n, bytes]; None where they are not packed."""
        if self.codec is None or purpose not in CODED or self.world == 1 or not rows.is_floating_point():
            return None
        with self.clock.phase("compress"):
            return self.codec.encode(rows, purpose, layer, direction)

    def unpack(self, packed: Tensor, out: Tensor) -> Tensor:
        """Return `out`, filled with the rows that arrived packed."""
        assert self.codec is not None
        with self.clock.phase("compress"):
            return self.codec.decode(packed, out)

    def _swap(self, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
        """Send and receive at once; gloo's own all-to-all may send all before it lets the peer send."""
        # A send waits for the peer's word that it is ready to receive, and that word must not queue behind the
        # peer's own data: so every receive is posted before any send (docs/design/networks.md).
        peers = [(self.rank + shift) % self.world for shift in range(1, self.world)]
        work = [dist.irecv(targets[peer], peer, self._group) for peer in peers if len(targets[peer])]
        work += [dist.isend(sources[peer], peer, self._group) for peer in peers if len(sources[peer])]
        targets[self.rank].copy_(sources[self.rank])
        for transfer in work:
            if transfer is not None:
                transfer.wait()

    def aside(self, clock: Clock) -> Communicator:
        """Return a communicator of the same ranks whose exchanges cannot be mixed up with this one's.

        Its traffic is its own. Every rank must call, at the same moment. A group that was given back is taken
        again: its connections are made. With an `order` it is this one's group, and that keeps exchanges apart.
        """
        group = self._group
        if self.world > 1 and self.order is None:
            group = self._spare.pop(0) if self._spare else dist.new_group(timeout=self._timeout)
        return Communicator(
            self.rank, self.world, self.device, clock, Traffic(), group,
            beacon=self._beacon, order=self.order,
        )  # fmt: skip

    def give_back(self, aside: Communicator) -> None:
        """Take back what `aside` returned, whose exchanges are over; every rank must call in the same order."""
        if aside._group is not None and self.order is None:
            self._spare.append(aside._group)
            aside._group = None

    def divide(self, members: Sequence[Sequence[int]]) -> dist.ProcessGroup:
        """Divide the ranks into groups; return that of this rank. Every rank must call with the same ones."""
        groups = [list(m) for m in members]
        if str(groups) not in self._divided:
            self._divided[str(groups)], _ = dist.new_subgroups_by_enumeration(groups, timeout=self._timeout)
        return self._divided[str(groups)]

    def barrier(self) -> None:
        """Wait for all ranks; not counted as traffic."""
        if self.world == 1:
            return
        self._take_turn()
        if self._kind.has_streams and not self._gloo:
            # On the stream, like the transfers it precedes; dist.barrier would hold up the host.
            dist.all_reduce(torch.zeros(1, device=self.device), group=self._group)
            return
        if self._staged:
            self._kind.current_stream().synchronize()  # the work before is not waiting for peers
        with self._collective():
            dist.barrier(self._group)

    def _collective(self) -> AbstractContextManager[None]:
        return nullcontext() if self._beacon is None else self._beacon.collective()

    def _take_turn(self) -> None:
        if self.order is not None:
            self.order.take(self.work)

    def _align(self) -> None:
        """In an aligned epoch, wait until all ranks are here, so that the transfer is only a transfer."""
        if self.clock.aligned:
            with self.clock.phase("wait"):
                self.barrier()
            self.clock.met()

    def exchange_counts(self, counts: Sequence[int]) -> list[int]:
        """Send every rank q the number `counts[q]`; return the numbers that this one gets (8 bytes a peer)."""
        ones = [1] * self.world
        sent = upload(torch.tensor(counts, dtype=torch.int64), self.device)
        received: list[int] = self.exchange_rows(sent, ones, ones, purpose="control").tolist()
        return received

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
        with self.clock.phase(phase), self._collective():
            moved = self._on_host(tensor) if self._staged else tensor
            self._take_turn()
            dist.all_reduce(moved, group=self._group)
            return tensor.copy_(moved, non_blocking=True) if self._staged else tensor

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
        with self.clock.phase("comm"), self._collective():
            if size:
                moved = self._on_host(rows) if self._staged else rows
                self._take_turn()
                dist.broadcast(moved, root, group or self._group)
                if moved is not rows:
                    rows.copy_(moved, non_blocking=True)
        return rows
