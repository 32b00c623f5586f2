"""Where the rows of nodes come from that are known on a device alone."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from harness.deferred import torch
from harness.runtime.row_plan import take, write

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class RowPlanOnDevice:
    """A `RowPlan` of distinct nodes, whose numbers are on a device.

    Attributes:
        own: int32 [nodes], rows of this rank; 0 for nodes of others.
        owned: how many are this rank's.
        counts: nodes to ask each rank for; 0 for this one.
        asked, asked_at: int32 and int64 [sum(counts)], their rows at their owners and their positions, grouped by
            owner in rank order, ascending positions within an owner.
        cached, cached_at: int32 and int64, rows in the cache and positions of cached nodes.
    """

    own: Tensor
    owned: int
    counts: list[int]
    asked: Tensor
    asked_at: Tensor
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

    def copy_own(self, inner: Tensor, result: Tensor) -> None:
        """See `RowPlan.copy_own`."""
        if self.owned:
            torch.index_select(inner, 0, self.own, out=result)

    def copy_cached(self, rows: Tensor, result: Tensor, columns: Tensor | None) -> None:
        """See `RowPlan.copy_cached`."""
        if self.cached.numel():
            write(result, self.cached_at, take(rows, self.cached, columns), columns)

    def landing(self, result: Tensor) -> Tensor | None:
        """See `RowPlan.landing`: nobody knows whether they lie together."""
        return None

    def spread(self, received: Tensor, result: Tensor, columns: Tensor | None) -> None:
        """See `RowPlan.spread`."""
        write(result, self.asked_at, received, columns)

    def copy_repeated(self, result: Tensor) -> None:
        """See `RowPlan.copy_repeated`: no node is met twice."""
