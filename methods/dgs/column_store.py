"""ColumnStore: input features of which every rank is sent columns of its own choice."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from harness.runtime import Communicator, FeatureStore, RowPlan, fresh, take, upload

# The upper half of a number of rows says which columns: those told before, all, or _NEW + n: n new ones.
_TOLD, _ALL, _NEW = 0, 1, 2

_HALF = 32


class ColumnStore(FeatureStore):
    """A `FeatureStore` whose `columns` may differ between ranks, in number too, and from call to call.

    The owners keep each rank's columns and are told them by the first call that has others than the one
    before; calls for all columns, which may come in between, tell nothing. Calls must come one at a time and
    in the same order on all ranks, from whichever thread. `columns` are distinct, on the store's device.

    Traffic: as for `RowStore.gather`, with the rank's own columns; and, where they are new, 4 bytes a column
    to each peer (control).
    """

    @cached_property
    def _told(self) -> list[Tensor | None]:
        """The columns that each rank has told, this one too."""
        return [None] * self.comm.world

    def _fetch(self, plan: RowPlan, columns: Tensor | None, comm: Communicator, out: Tensor | None) -> Tensor:
        news = self._news(columns) << _HALF
        received = comm.exchange_counts([count | news for count in plan.counts])
        wanted, said = [n & (1 << _HALF) - 1 for n in received], [n >> _HALF for n in received]
        if max(said) >= _NEW:  # what a rank says it says to all: they all are here, or none
            self._tell(columns, said, comm)
        chosen = [None if s == _ALL else told for s, told in zip(said, self._told, strict=True)]
        widths = [self.width if c is None else c.numel() for c in chosen]
        asked = comm.exchange_rows(upload(plan.asked, comm.device), plan.counts, wanted, purpose="control")
        if out is None:
            out = fresh(self.inner, sum(plan.counts), widths[comm.rank])
        # Rows of different ranks are not equally wide: they are sent value by value.
        sizes = [count * width for count, width in zip(wanted, widths, strict=True)]
        sent = fresh(self.inner, sum(sizes))
        parts = zip(asked.split(wanted), chosen, widths, sent.split(sizes), strict=True)
        for rows, theirs, width, part in parts:
            take(self.inner, rows, theirs, out=part.view(rows.numel(), width))
        self._move(sent, sizes, [count * out.shape[1] for count in plan.counts], comm, out.view(-1))
        return out

    def _news(self, columns: Tensor | None) -> int:
        if columns is None:
            return _ALL
        told = self._told[self.comm.rank]
        return _TOLD if told is not None and torch.equal(told, columns) else _NEW + columns.numel()

    def _tell(self, columns: Tensor | None, said: list[int], comm: Communicator) -> None:
        """Exchange the columns of the ranks that say they have new ones."""
        sizes = [max(s - _NEW, 0) for s in said]
        size = sizes[comm.rank]
        own = torch.empty(0, device=comm.device) if columns is None else columns[:size]
        received = comm.exchange_rows(own.int().repeat(comm.world), [size] * comm.world, sizes, purpose="control")
        for rank, new in enumerate(received.split(sizes)):
            if said[rank] >= _NEW:
                self._told[rank] = new.long()
