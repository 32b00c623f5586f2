"""Mesh: who holds and sends which rows in CAGNET."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, TypedDict

from harness import UserError, torch
from harness.metrics import Purpose
from harness.runtime import Communicator, Direction

if TYPE_CHECKING:
    from torch import Tensor


def rank_groups(replication: int, parts: int) -> list[range]:
    """Return the groups of `replication` consecutive ranks out of `parts`.

    UserError if they would not be of equal size.
    """
    if parts % replication:
        fix = "use one of " + ", ".join(str(c) for c in range(1, parts + 1) if parts % c == 0)
        raise UserError(f"{replication} copies cannot be spread evenly over {parts} parts", key="replication", fix=fix)
    return [range(start, start + replication) for start in range(0, parts, replication)]


class Label(TypedDict):
    """What a transfer is counted as."""

    purpose: Purpose
    layer: int
    direction: Direction


@dataclass(frozen=True)
class Sent:
    """What of its inner rows a rank broadcasts.

    Attributes:
        count: their number.
        rows: int64 [count], which ones, ascending; None: all.
        factor: what each of them counts.
    """

    count: int
    rows: Tensor | None = None
    factor: float = 1.0

    def of(self, own: Tensor) -> Tensor:
        """Return those of the rank's rows `own`."""
        return own.contiguous() if self.rows is None else own.index_select(0, self.rows)


class Mesh:
    """P ranks as P/c groups of c that hold the same rows, and c columns with a rank of each group.

    Rank r is in group r // c and in column r mod c. Its group holds the rows of the partitions of all its
    ranks, in rank order, each rank as a copy. Of the communicator's ranks each must make a mesh at the same moment;
    `sizes` are the inner nodes of each, `replication` is c.

    Attributes:
        group: ranks of this rank's group.
        column: ranks of its column.
        rows: where each of the group's ranks has its inner nodes among the group's rows.
        own: where this rank has them.
        num_rows: rows that the group holds.
    """

    def __init__(self, comm: Communicator, sizes: Sequence[int], replication: int) -> None:
        groups = rank_groups(replication, comm.world)
        columns = [range(first, comm.world, replication) for first in range(replication)]
        self.comm, self.sizes = comm, list(sizes)
        self.group, self.column = groups[comm.rank // replication], columns[comm.rank % replication]
        ends = [0, *accumulate(self.sizes[rank] for rank in self.group)]
        self.rows = {rank: slice(*between) for rank, between in zip(self.group, pairwise(ends), strict=True)}
        self.own, self.num_rows = self.rows[comm.rank], ends[-1]
        self._process_group: torch.distributed.ProcessGroup | None = None
        if replication > 1 and len(self.column) > 1:
            self._process_group = comm.divide(columns)

    def broadcast(self, own: Tensor, counts: Mapping[int, int], label: Label) -> Iterator[tuple[int, Tensor]]:
        """Broadcast rows of the column's ranks in turn; yields each other rank and its rows.

        This rank's are `own` [n, ...]; `counts`: how many each of them sends.
        """
        for root in self.column:
            is_own = root == self.comm.rank
            rows = own if is_own else own.new_empty((counts[root], *own.shape[1:]))
            self.comm.broadcast(rows, root, self.column, self._process_group, **label)
            if not is_own:
                yield root, rows

    def scatter_sum(
        self, members: range, term: Callable[[int], Tensor], own: Tensor, label: Label, sent: Sent | None = None
    ) -> None:
        """Add to `own` [n_in, width] what the other members have for this rank; term(q) is what q gets.

        With `sent` that is something for these rows only. A reduce-scatter. (gloo's own reduce sends 1 + 1/P times as
        many bytes as needed.)
        """
        rows = None if sent is None else sent.rows
        for block in self.scatter(members, term, own if rows is None else own[: len(rows)], label):
            if rows is None:
                own += block
            else:
                own.index_add_(0, rows, block)

    def scatter(self, members: range, term: Callable[[int], Tensor], like: Tensor, label: Label) -> Iterator[Tensor]:
        """Yield what each other member has for this rank, shaped as `like`; term(q) is what q gets.

        In step s a member sends to the s-th after it and receives from the s-th before it: all links are
        busy, and one block is in memory.
        """
        for to, source in self._steps(members):
            yield self._pass(term(to), like.new_empty(like.shape), to, source, label)

    def fetch(self, members: range, rank: int, rows: Tensor, count: int, label: Label) -> Tensor:
        """Return the `count` rows that `rank` has for this one, which has `rows` for another.

        At once every member asks the one that is as far after it.
        """
        asker = members[(2 * members.index(self.comm.rank) - members.index(rank)) % len(members)]
        return self._pass(rows, rows.new_empty((count, rows.shape[1])), asker, rank, label)

    def replicate(self, x: Tensor, label: Label) -> Tensor:
        """Fill in the rows of the group's other ranks in `x` [num_rows, width], which has this rank's."""
        for to, source in self._steps(self.group):
            self._pass(x[self.own], x[self.rows[source]], to, source, label)
        return x

    def spread(self, own: Tensor) -> Tensor:
        """Return the group's rows [num_rows, width] of which this rank has `own`; input features."""
        if len(self.group) == 1:
            return own
        x = own.new_empty((self.num_rows, own.shape[1]))
        x[self.own] = own
        return self.replicate(x, Label(purpose="feature", layer=0, direction="forward"))

    def _steps(self, members: range) -> list[tuple[int, int]]:
        """Return (receiver, sender) of this rank in each step of a pairwise exchange among `members`."""
        at, count = members.index(self.comm.rank), len(members)
        return [(members[(at + s) % count], members[(at - s) % count]) for s in range(1, count)]

    def _pass(self, rows: Tensor, out: Tensor, to: int, source: int, label: Label) -> Tensor:
        sent, received = [0] * self.comm.world, [0] * self.comm.world
        sent[to], received[source] = len(rows), len(out)
        return self.comm.exchange_rows(rows, sent, received, out=out, **label)
