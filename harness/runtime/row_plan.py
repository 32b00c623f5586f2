"""Plans of where the rows of a gather come from, and how they are copied: own ones, cached ones, received ones."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

from harness.deferred import numba, torch
from harness.deferred import numpy as np
from harness.graph.csr import on_host
from harness.graph.devices import fresh, upload

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
