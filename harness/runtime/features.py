"""Stores of one row a node, sharded by owner: the only way to a remote feature."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from harness.deferred import numpy as np
from harness.deferred import torch
from harness.graph.csr import Places, on_host
from harness.graph.devices import fresh, kind_of, upload
from harness.graph.disk import RowsOnDisk
from harness.metrics import Purpose
from harness.runtime.comm import Communicator, Direction
from harness.runtime.row_plan import Plan, RowPlan, RowPlanOnDevice, take, write
from harness.sampling.sample import Tables

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor


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
        source, places = self._held(places, comm)
        rows = take(source, places, chosen) if self.disk is None or chosen is not None else source
        received = fresh(rows, len(plan.asked), *rows.shape[1:]) if out is None else out
        self._move(rows, wanted, plan.counts, comm, received)
        return received

    def _held(self, places: Tensor, comm: Communicator) -> tuple[Tensor, Tensor]:
        """Return a matrix and which of its rows are this rank's at `places`: of a file, all that is read of it."""
        if self.disk is None:
            return self.inner, places
        rows = fresh(self.inner, places.numel(), *self.inner.shape[1:])
        self._read_disk(on_host(places), rows, None, comm)
        return rows, torch.arange(places.numel(), dtype=places.dtype, device=places.device)

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
