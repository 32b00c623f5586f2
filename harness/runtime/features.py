"""Stores of one row a node, sharded by owner, and plans of where rows come from: the only way to a remote feature."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

from harness.deferred import numba, torch
from harness.deferred import numpy as np
from harness.graph.csr import Places, on_host
from harness.graph.devices import kind_of, upload
from harness.graph.disk import RowsOnDisk
from harness.metrics import Purpose
from harness.runtime.comm import Communicator, Direction
from harness.sampling.sample import Tables

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

CHUNK = 4096  # rows copied at a time, where a matrix of them all would be fresh memory to clear


@dataclass(frozen=True, eq=False)
class RowPlan:
    """Where the rows of some nodes come from.

    Positions are those among the nodes that were asked for, whose order the rows of the result follow.
    """

    own: NDArray[np.int32]  # int32 [nodes], rows of this rank; 0 for nodes of others
    # first, end: own nodes are at positions in this range only
    first: int
    end: int
    counts: list[int]  # different nodes to ask each rank for; 0 for this one
    # asked, asked_at: int32 and int64 [sum(counts)], their rows at their owners and their first positions, grouped by
    # owner in rank order, ascending positions within an owner
    asked: NDArray[np.int32]
    asked_at: NDArray[np.int64]
    # cached, cached_at: int32 and int64, rows in the cache and first positions of different cached nodes
    cached: NDArray[np.int32]
    cached_at: NDArray[np.int64]
    # again, again_at: int64, positions of nodes of other ranks that were met before, and where that was
    again: NDArray[np.int64]
    again_at: NDArray[np.int64]

    @classmethod
    def of(
        cls,
        nodes: NDArray[np.int64],
        owner: NDArray[np.int32],
        row: NDArray[np.int32],
        slot: NDArray[np.int32],
        table: NDArray[np.int32],
        *,
        rank: int,
        world: int,
    ) -> RowPlan:
        """Make the plan, in time linear in the nodes.

        Args:
            nodes: int64, may repeat.
            owner, row: int32 [N], a node's owner and its row there.
            slot: int32 [N], a node's row in the cache or -1; or empty: nothing is cached.
            table: int32 [N] of -1, lent.
            rank, world: this rank, and the number of all.
        """
        own, first, end, counts, asked, asked_at, *others = _classify(nodes, owner, row, slot, table, rank, world)
        return cls(own, first, end, counts.tolist(), asked, asked_at, *others)

    def own_rows(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the own rows, and their positions."""
        others = np.zeros(self.own.size, np.bool_)
        for at in (self.asked_at, self.cached_at, self.again_at):
            others[at] = True
        at = np.flatnonzero(~others)
        return self.own[at], at

    def copy_own(self, inner: Tensor, result: Tensor) -> None:
        """Copy the own rows; what is between them is overwritten later: cheaper than to step over it."""
        if self.first < self.end:
            rows = upload(self.own[self.first : self.end], inner.device)
            torch.index_select(inner, 0, rows, out=result[self.first : self.end])

    def copy_cached(self, rows: Tensor, result: Tensor, columns: Tensor | None) -> None:
        """Copy the cached rows, all but `columns` of them 0, as if they had been sent."""
        if not self.cached.size:
            return
        at, source = upload(self.cached_at, rows.device), upload(self.cached, rows.device)
        for places, chunk in zip(at.split(CHUNK), source.split(CHUNK), strict=True):
            write(result, places, take(rows, chunk, columns), columns)

    def landing(self, result: Tensor) -> Tensor | None:
        """Return the part of `result` that the asked rows can be received in, None if they are spread."""
        at = self.asked_at
        if at.size and (at[-1] - at[0] + 1 != at.size or np.any(np.diff(at) != 1)):
            return None
        start = int(at[0]) if at.size else 0
        return result[start : start + at.size]

    def spread(self, received: Tensor, result: Tensor, columns: Tensor | None) -> None:
        """Copy the asked rows, or `columns` of them, to their positions; the other columns are 0."""
        write(result, upload(self.asked_at, result.device), received, columns)

    def copy_repeated(self, result: Tensor) -> None:
        """Copy the rows of nodes that were met before, once these are there."""
        if self.again.size:
            at, source = upload(self.again_at, result.device), upload(self.again, result.device)
            result.index_copy_(0, at, result.index_select(0, source))


@dataclass(frozen=True, eq=False)
class RowPlanOnDevice:
    """A `RowPlan` of distinct nodes, whose numbers are on a device."""

    own: Tensor  # int32 [nodes], rows of this rank; 0 for nodes of others
    owned: int  # how many are this rank's
    counts: list[int]  # nodes to ask each rank for; 0 for this one
    # asked, asked_at: int32 and int64 [sum(counts)], their rows at their owners and their positions, grouped by owner
    # in rank order, ascending positions within an owner
    asked: Tensor
    asked_at: Tensor
    # cached, cached_at: int32 and int64, rows in the cache and positions of cached nodes
    cached: Tensor
    cached_at: Tensor

    @classmethod
    def of(
        cls, nodes: Tensor, owner: Tensor, row: Tensor, slot: Tensor | None, *, rank: int, world: int
    ) -> RowPlanOnDevice:
        """Make the plan; arguments as for `RowPlan.of`, of the device, and `slot` None where nothing is cached.

        With other ranks the host waits for the counts.
        """
        rows = row[nodes]
        if world == 1:
            return cls(rows, nodes.numel(), [0], rows[:0], nodes[:0], rows[:0], nodes[:0])
        owners, slots = owner[nodes], None if slot is None else slot[nodes]
        # The groups: what each rank is asked for, what is cached, what is here.
        is_own = owners == rank
        group = owners if slots is None else torch.where(slots >= 0, world, owners)
        ordered, order = torch.where(is_own, world + 1, group).sort(stable=True)
        starts = torch.searchsorted(ordered, torch.arange(world + 2, dtype=ordered.dtype, device=ordered.device))
        ends = starts.tolist()
        asked_at, cached_at = order[: ends[world]], order[ends[world] : ends[world + 1]]
        return cls(
            torch.where(is_own, rows, 0), nodes.numel() - ends[-1], [b - a for a, b in pairwise(ends[: world + 1])],
            rows[asked_at], asked_at, rows[:0] if slots is None else slots[cached_at], cached_at,
        )  # fmt: skip

    def own_rows(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """See `RowPlan.own_rows`."""
        others = torch.zeros(self.own.numel(), dtype=torch.bool, device=self.own.device)
        others[self.asked_at] = others[self.cached_at] = True
        at = (~others).nonzero().squeeze(1)
        return on_host(self.own[at]), on_host(at)

    def copy_own(self, inner: Tensor, result: Tensor) -> None:
        """See `RowPlan.copy_own`."""
        if self.owned:
            torch.index_select(inner, 0, self.own, out=result)

    def copy_cached(self, rows: Tensor, result: Tensor, columns: Tensor | None) -> None:
        """See `RowPlan.copy_cached`."""
        if self.cached.numel():
            write(result, self.cached_at, take(rows, self.cached, columns), columns)

    def landing(self, result: Tensor) -> Tensor | None:
        """See `RowPlan.landing`: whether they lie together is not known."""
        return None

    def spread(self, received: Tensor, result: Tensor, columns: Tensor | None) -> None:
        """See `RowPlan.spread`."""
        write(result, self.asked_at, received, columns)

    def copy_repeated(self, result: Tensor) -> None:
        """See `RowPlan.copy_repeated`: no node is met twice."""


def fresh(like: Tensor, *shape: int) -> Tensor:
    """Return memory of the dtype and on the device of `like`, as it comes."""
    # On a CPU it is numpy's, which asks for huge pages where that is 4 MiB or more; to clear small ones, which
    # torch gets, takes several times as long as to copy rows there.
    if like.device.type != "cpu":
        return like.new_empty(shape)
    return torch.from_numpy(np.empty(shape, like[:0].numpy().dtype))


def take(rows: Tensor, at: Tensor, columns: Tensor | None, out: Tensor | None = None) -> Tensor:
    """Return the rows `at` (int32 or int64), or `columns` (int64) of them, in `out` if it is given.

    Raises:
        IndexError: there is no such row or column.
    """
    width = rows.shape[1:] if columns is None else columns.shape
    if out is None:
        out = fresh(rows, at.numel(), *width)
    if columns is None:
        torch.index_select(rows, 0, at, out=out)
    elif rows.device.type == "cpu":
        _take(rows.numpy(), _places(at, rows.shape[0]), _places(columns, rows.shape[1]), out.numpy())
    else:
        torch.index_select(rows.index_select(0, at), 1, columns, out=out)
    return out


def write(result: Tensor, at: Tensor, rows: Tensor, columns: Tensor | None) -> None:
    """Write `rows`, or `columns` (int64) and 0 elsewhere, to the rows `at` of `result`."""
    if columns is None:
        result.index_copy_(0, at, rows)
    elif result.device.type == "cpu":
        places = _places(at, result.shape[0]), _places(columns, result.shape[1])
        _put(result.numpy(), *places, rows.numpy())
    else:
        result.index_fill_(0, at, 0).index_put_((at.unsqueeze(1), columns), rows)


def _places(index: Tensor, size: int) -> NDArray[np.uint64]:
    """Return an index that kernels may use as it is; unsigned, so that they need not count from the end."""
    found = index.numpy()
    if found.size and not 0 <= found.min() <= found.max() < size:
        raise IndexError(f"an index is not in [0, {size})")
    return found.astype(np.uint64)


@numba.njit(cache=True, nogil=True)
def _take(rows, at, columns, out):  # type: ignore[no-untyped-def]
    # Whole rows first, a few together: to wait for each value where it lies takes twice as long.
    near = np.empty((4, rows.shape[1]), rows.dtype)
    for start in range(0, at.size, 4):
        end = min(start + 4, at.size)
        for i in range(start, end):
            row = rows[at[i]]
            for j in range(row.size):  # an assignment of slices takes longer than all the rest
                near[i - start, j] = row[j]
        for i in range(start, end):
            row, to = near[i - start], out[i]
            for j in range(columns.size):
                to[j] = row[columns[j]]


@numba.njit(cache=True, nogil=True)
def _put(result, at, columns, rows):  # type: ignore[no-untyped-def]
    for i in range(at.size):
        to = result[at[i]]
        to[:] = 0
        for j in range(columns.size):
            to[columns[j]] = rows[i, j]


@numba.njit(cache=True, nogil=True)
def _classify(nodes, owner, row, slot, table, rank, world):  # type: ignore[no-untyped-def]
    """Return the fields of `RowPlan`; `table` is given back as it came."""
    own = np.zeros(nodes.size, np.int32)
    first, end, met, again, hits = nodes.size, 0, 0, 0, 0
    met_at, met_home = np.empty(nodes.size, np.int64), np.empty(nodes.size, np.int32)
    again_at, again_of = np.empty(nodes.size, np.int64), np.empty(nodes.size, np.int64)
    cached, cached_at = np.empty(nodes.size, np.int32), np.empty(nodes.size, np.int64)
    start = np.zeros(world + 1, np.int64)
    for k in range(nodes.size):
        node = nodes[k]
        home = owner[node]
        if home == rank:
            own[k] = row[node]
            first, end = min(first, k), k + 1
        elif table[node] >= 0:
            again_at[again], again_of[again] = k, table[node]
            again += 1
        else:
            table[node] = k
            if slot.size > 0 and slot[node] >= 0:
                cached[hits], cached_at[hits] = slot[node], k
                hits += 1
            else:
                met_at[met], met_home[met] = k, home
                met += 1
                start[home + 1] += 1
    for p in range(world):
        start[p + 1] += start[p]
    counts = np.diff(start)
    asked, asked_at = np.empty(met, np.int32), np.empty(met, np.int64)
    for i in range(met):
        node, entry = nodes[met_at[i]], start[met_home[i]]
        asked[entry], asked_at[entry] = row[node], met_at[i]
        start[met_home[i]] += 1
        table[node] = -1
    for k in cached_at[:hits]:
        table[nodes[k]] = -1
    return (
        own, first, end, counts, asked, asked_at,
        cached[:hits], cached_at[:hits], again_of[:again], again_at[:again],
    )  # fmt: skip


Plan: TypeAlias = RowPlan | RowPlanOnDevice


class RowStore:
    """One row for each node, kept by the node's owner.

    Args:
        comm: the ranks' communicator.
        inner: [n_in, ...], the rows of this rank's inner nodes.
        owner: int32 [N], the rank that owns each node (memory-mapped, one copy a host).
        row: int32 [N], a node's row among its owner's inner nodes (memory-mapped).
        purpose, layer, direction: what the bytes of rows are counted as.
        tables: tables of the N nodes, if there are some already.
        disk: the file that this rank's rows are read from; `inner` is then [0, F], of the dtype and device of what is
            returned, and nothing can be put.
    """

    def __init__(
        self,
        comm: Communicator,
        inner: Tensor,
        owner: NDArray[np.int32],
        row: NDArray[np.int32],
        *,
        purpose: Purpose = "feature",
        layer: int = 0,
        direction: Direction = "forward",
        tables: Tables | None = None,
        disk: RowsOnDisk | None = None,
    ) -> None:
        self.comm, self.inner, self.owner, self.row, self.disk = comm, inner, owner, row, disk
        self.purpose, self.layer, self.direction = purpose, layer, direction
        self.tables = Tables(owner.size) if tables is None else tables
        # A cached node's place in the cached rows or -1; empty if none is cached.
        self._slot, self._cached = np.empty(0, np.int32), inner[:0]

    @cached_property
    def placed(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """`owner`, `row` and each node's place in the cache, if there is one, on the device; copied there once."""
        slot = torch.from_numpy(self._slot).to(self.inner.device) if self._slot.size else None
        owner, row = (torch.from_numpy(np.array(each)).to(self.inner.device) for each in (self.owner, self.row))
        return owner, row, slot

    def gather(self, ids: Places, columns: Tensor | None = None, comm: Communicator | None = None) -> Tensor:
        """Return the rows [len(ids), ...] of the nodes `ids`; every rank must call, if with no ids.

        Own rows are copied, and a remote one comes once, however often its node is in `ids`.

        Args:
            ids: int64, nodes in any order, which may repeat; distinct if they are on a device.
            columns: int64 on the host, the same distinct ones on all ranks: the only columns of remote rows that
                travel, the others are 0. None: all.
            comm: an aside communicator, for work during the training; None: the store's own.

        Traffic: 8 bytes a peer and 4 for each different remote node (control), and its row, or the columns
        of it, as the store's purpose; of rows on a disk each that this rank reads there, for itself or its peers
        (disk).
        """
        return self.read(ids, columns, comm)[0]

    def read(
        self, ids: Places, columns: Tensor | None = None, comm: Communicator | None = None
    ) -> tuple[Tensor, dict[str, int]]:
        """Return what `gather` returns, and its metrics, as they are recorded; every rank must call.

        "input_nodes": len(ids); "remote_nodes": the different remote nodes among them; "cached_nodes": those
        of the latter that are cached; "disk_nodes": of rows on a disk those that were read there.
        """
        comm = comm or self.comm
        before = self.disk.count if self.disk else 0
        with comm.clock.phase("fetch"):
            plan = self._plan(ids, self._slot if isinstance(ids, np.ndarray) else self.placed[2])
            asked, cached = len(plan.asked), len(plan.cached)
            metrics = {"input_nodes": len(ids), "remote_nodes": asked + cached, "cached_nodes": cached}
            rows = self._collect(plan, columns, comm)
            return rows, metrics | ({"disk_nodes": self.disk.count - before} if self.disk else {})

    # `RankRows` replaces this hook, DGS' store of each rank's own columns the next one.
    def _collect(self, plan: Plan, columns: Tensor | None, comm: Communicator) -> Tensor:
        """Return the rows of a plan, its own, cached and asked ones."""
        result = fresh(self.inner, len(plan.own), *self.inner.shape[1:])
        self._copy_own(plan, result, comm)
        if comm.world == 1:
            return result
        # Asked rows are received where they are to be, if they lie together there.
        landing = plan.landing(result) if columns is None else None
        received = self._fetch(plan, columns, comm, landing)
        columns = None if columns is None else upload(columns, result.device)
        if landing is None:
            plan.spread(received, result, columns)
        plan.copy_cached(self._cached, result, columns)
        plan.copy_repeated(result)
        return result

    def _fetch(self, plan: Plan, columns: Tensor | None, comm: Communicator, out: Tensor | None) -> Tensor:
        """Ask the owners for rows, or their columns, and return them in the order of asking, in `out` if given."""
        wanted, places = self._ask(plan, comm)
        chosen = None if columns is None else upload(columns, self.inner.device)
        if self.disk is None:
            rows = take(self.inner, places, chosen)
        else:
            rows = fresh(self.inner, places.numel(), *self.inner.shape[1:])
            self._read_disk(on_host(places), rows, None, comm)
            rows = rows if chosen is None else rows.index_select(1, chosen)
        received = fresh(rows, len(plan.asked), *rows.shape[1:]) if out is None else out
        self._move(rows, wanted, plan.counts, comm, received)
        return received

    def _copy_own(self, plan: Plan, result: Tensor, comm: Communicator) -> None:
        """Write this rank's rows of a plan to `result`."""
        if self.disk is None:
            plan.copy_own(self.inner, result)
        else:
            rows, at = plan.own_rows()
            self._read_disk(rows, result, at, comm)

    def _read_disk(self, rows: NDArray[Any], result: Tensor, at: NDArray[Any] | None, comm: Communicator) -> None:
        assert self.disk is not None
        comm.traffic.count("disk", 0, "none", -1, 0, self.disk.read(rows, result, at) * self.disk.row_bytes)

    def put(self, ids: Places, rows: Tensor, comm: Communicator | None = None) -> None:
        """Write `rows` [len(ids), ...] to the owners of the nodes `ids`; every rank must call, if with none.

        Where several ranks write to a node, the row of the highest rank stays. Caches stay as they are.

        Args:
            ids: int64, distinct nodes, on the host or the device.
            rows: the rows to write; gradients are not followed.
            comm: as for `gather`.

        Raises:
            ValueError: a remote node is among `ids` twice, on the host.

        Traffic: 8 bytes a peer and 4 for each remote node (control), and its row as the store's purpose.
        """
        comm, rows = comm or self.comm, rows.detach()
        with comm.clock.phase("fetch"):
            if isinstance(ids, np.ndarray):
                at: Places = np.flatnonzero(self.owner[ids] == comm.rank)
                own = upload(self.row[ids[at]], rows.device)
            else:
                at = (self.placed[0][ids] == comm.rank).nonzero().squeeze(1)
                own = self.placed[1][ids[at]]
            kept = rows if len(at) == len(ids) else rows.index_select(0, upload(at, rows.device))
            written = self._send(ids, rows, comm) if comm.world > 1 else [(own, kept)]
            written[comm.rank] = own, kept
            for places, values in written:  # rank by rank: within one call the order would be open
                self.inner.index_copy_(0, places.long(), values)

    def _send(self, ids: Places, rows: Tensor, comm: Communicator) -> list[tuple[Tensor, Tensor]]:
        """Send what is put to remote nodes; return the rows that each rank writes here, and their values."""
        plan = self._plan(ids, np.empty(0, np.int32) if isinstance(ids, np.ndarray) else None)
        if isinstance(plan, RowPlan) and plan.again.size:
            raise ValueError("a node is put twice")
        wanted, places = self._ask(plan, comm)
        sent = rows.index_select(0, upload(plan.asked_at, rows.device))
        values = self._move(sent, plan.counts, wanted, comm)
        return list(zip(places.split(wanted), values.split(wanted), strict=True))

    def _plan(self, ids: Places, slot: Any) -> Plan:
        """Return where the rows of `ids` come from; `slot`: the cache's, where the ids are."""
        rank, world = self.comm.rank, self.comm.world
        if not isinstance(ids, np.ndarray):
            return RowPlanOnDevice.of(ids, *self.placed[:2], slot, rank=rank, world=world)
        with self.tables.borrow() as table:
            return RowPlan.of(ids, self.owner, self.row, slot, table, rank=rank, world=world)

    def _ask(self, plan: Plan, comm: Communicator) -> tuple[list[int], Tensor]:
        """Ask the owners; return how many rows each rank asks of this one, and which (int32)."""
        wanted = comm.exchange_counts(plan.counts)
        return wanted, comm.exchange_rows(upload(plan.asked, comm.device), plan.counts, wanted, purpose="control")

    def _move(
        self, rows: Tensor, send: list[int], receive: list[int], comm: Communicator, out: Tensor | None = None
    ) -> Tensor:
        return comm.exchange_rows(
            rows, send, receive,
            purpose=self.purpose, layer=self.layer, direction=self.direction, out=out,
        )  # fmt: skip


class FeatureStore(RowStore):
    """Input features sharded by owner, with a cache of remote ones; arguments as for `RowStore`."""

    @property
    def width(self) -> int:
        """Columns of a row."""
        return self.inner.shape[1]

    def fill(self, nodes: NDArray[np.int64]) -> None:
        """Cache the features of `nodes` (int64, distinct) and of no others; every rank must call.

        Own nodes among them are left out. Cached rows are not asked for; what `gather` returns is the same,
        bit for bit. Traffic: that of `gather`, for those nodes that were not cached before.
        """
        remote = nodes[self.owner[nodes] != self.comm.rank]
        rows = self.gather(remote)
        slot = np.full(self.owner.size, -1, np.int32)
        slot[remote] = np.arange(remote.size, dtype=np.int32)
        self._slot, self._cached = slot, rows
        if "placed" in vars(self):  # here, not in a step
            self.placed = *self.placed[:2], torch.from_numpy(slot).to(self.inner.device)

    def hold(self, nodes: NDArray[np.int64]) -> None:
        """Hold in the host's memory the rows of a file that are of this rank's own among `nodes` (int64, distinct).

        What was held before is let go. Traffic: a row for each (disk).
        """
        assert self.disk is not None
        own = np.asarray(self.row[nodes[self.owner[nodes] == self.comm.rank]])
        read = self.disk.hold(own, self.inner.dtype) * self.disk.row_bytes
        self.comm.traffic.count("disk", 0, "none", -1, 0, read)


class RankRows(FeatureStore):
    """A rank's own rows, which it reads without asking another; all columns but those asked for are 0."""

    @classmethod
    def of(cls, store: FeatureStore) -> RankRows:
        """Return the store of a rank's own rows in `store`."""
        return cls(store.comm, store.inner, store.owner, store.row, tables=store.tables, disk=store.disk)

    def _collect(self, plan: Plan, columns: Tensor | None, comm: Communicator) -> Tensor:
        rows = fresh(self.inner, len(plan.own), self.width)
        self._copy_own(plan, rows, comm)
        if columns is None:
            return rows
        return rows * rows.new_zeros(self.width).index_fill_(0, upload(columns, rows.device), 1)


class HostStore:
    """Input features of all nodes in the host's memory, whose rows are copied to the device, with a cache there.

    On a CPU that is a copy within memory, and counted all the same: it is what a GPU would be sent. On a GPU rows go
    through pinned memory on the stream of the thread that asks: with `prefetch` another than the training's.

    Args:
        comm: says on which device and counts.
        features: float32 [nodes of the data set, F], memory-mapped, one copy a host.
        nodes: int64 [N], the data set's number of each node.
        dtype: of the features on the device.
    """

    def __init__(
        self, comm: Communicator, features: NDArray[np.float32], nodes: NDArray[np.int64], *, dtype: torch.dtype
    ) -> None:
        self.comm, self._features, self._nodes, self._dtype = comm, features, nodes, dtype
        self.width: int = features.shape[1]
        # As of a `RowStore`.
        self._slot = np.empty(0, np.int32)
        self._cached = torch.empty((0, self.width), dtype=dtype, device=comm.device)

    def gather(self, ids: Places, columns: Tensor | None = None, comm: Communicator | None = None) -> Tensor:
        """Return the features [len(ids), F] of the nodes `ids`; a rank may call by itself.

        Arguments as for `RowStore.gather`; `columns` are the only ones copied, of whatever node. The host waits for
        ids on a device.
        Traffic: a row, or its columns, for each of the ids that is not cached (swap, layer 0).
        """
        return self.read(ids, columns, comm)[0]

    def read(
        self, ids: Places, columns: Tensor | None = None, comm: Communicator | None = None
    ) -> tuple[Tensor, dict[str, int]]:
        """Return what `gather` returns, and the metrics of `FeatureStore.read`: no row is another rank's.

        "cached_nodes": the nodes that were found in the cache.
        """
        comm = comm or self.comm
        with comm.clock.phase("swap"):
            ids = on_host(ids)
            slot = self._slot[ids] if self._slot.size else np.full(ids.size, -1, np.int32)
            missing, found = np.flatnonzero(slot < 0), np.flatnonzero(slot >= 0)
            host = kind_of(comm.device).pinned(missing.size, self.width, dtype=torch.float32)
            # mode: numpy would copy once more to be able to raise.
            np.take(self._features, self._nodes[ids[missing]], axis=0, out=host.numpy(), mode="clip")
            host = host.to(self._dtype)
            copied = upload(host if columns is None else host.index_select(1, columns), comm.device)
            comm.traffic.count("swap", 0, "none", -1, 0, copied.nbytes)
            columns = None if columns is None else upload(columns, copied.device)
            if columns is None and not found.size:
                rows = copied
            else:
                rows = copied.new_empty((ids.size, self.width))
                write(rows, upload(missing, rows.device), copied, columns)
            if found.size:
                cached = take(self._cached, upload(slot[found], rows.device), columns)
                write(rows, upload(found, rows.device), cached, columns)
        return rows, {"input_nodes": ids.size, "remote_nodes": 0, "cached_nodes": found.size}

    def fill(self, nodes: NDArray[np.int64]) -> None:
        """Keep the features of `nodes` (int64, distinct), and of no others, on the device.

        What `gather` returns is the same, bit for bit. Traffic: that of `gather`.
        """
        rows = self.gather(nodes)
        slot = np.full(self._nodes.size, -1, np.int32)
        slot[nodes] = np.arange(nodes.size, dtype=np.int32)
        self._slot, self._cached = slot, rows


def choose(policy: str, capacity: int, score: NDArray[Any], rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the cached nodes: int64, ascending positions among those that may be cached.

    Args:
        policy: `none`; `random`, drawn by `rng`; else those of the highest score. Among equals the first positions are
            taken.
        capacity: number of nodes, not negative; all are cached if there are fewer.
        score: [n], of each node: its out-degree (PaGraph), or its chance to be in a sampled graph.
        rng: only `random` draws from it.
    """
    size = 0 if policy == "none" else min(capacity, score.size)
    if size == 0:
        return np.empty(0, np.int64)
    if policy == "random":
        return np.sort(rng.choice(score.size, size, replace=False))
    least = np.partition(score, score.size - size)[score.size - size]  # in linear time
    taken = score > least
    taken[np.flatnonzero(score == least)[: size - np.count_nonzero(taken)]] = True
    return np.flatnonzero(taken)
