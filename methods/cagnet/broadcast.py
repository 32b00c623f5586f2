"""Broadcasts of row blocks: which ranks hold and send which rows, and a block that is aggregated over them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, TypedDict

from harness import UserError, torch
from harness import numpy as np
from harness.plugin import (
    CSR,
    Block,
    Communicator,
    Direction,
    Edges,
    Gradients,
    Partition,
    Purpose,
    Sums,
    by_head,
    fresh,
    induce_columns,
    spread,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray
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
            rows = own if is_own else fresh(own, counts[root], *own.shape[1:])
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
            yield self._pass(term(to), fresh(like, *like.shape), to, source, label)

    def fetch(self, members: range, rank: int, rows: Tensor, count: int, label: Label) -> Tensor:
        """Return the `count` rows that `rank` has for this one, which has `rows` for another.

        At once every member asks the one that is as far after it.
        """
        asker = members[(2 * members.index(self.comm.rank) - members.index(rank)) % len(members)]
        return self._pass(rows, fresh(rows, count, rows.shape[1]), asker, rank, label)

    def replicate(self, x: Tensor, label: Label) -> Tensor:
        """Fill in the rows of the group's other ranks in `x` [num_rows, width], which has this rank's."""
        for to, source in self._steps(self.group):
            self._pass(x[self.own], x[self.rows[source]], to, source, label)
        return x

    def spread(self, own: Tensor) -> Tensor:
        """Return the group's rows [num_rows, width] of which this rank has `own`; input features."""
        if len(self.group) == 1:
            return own
        x = fresh(own, self.num_rows, own.shape[1])
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


class History:
    """What the ranks of a column broadcast last in each layer, and whether this one does again (SANCUS).

    It skips a layer's broadcast while its rows differ from those that it sent last by at most `drift` times the
    latter's Frobenius norm, `staleness` times in a row at most.

    Attributes:
        rows: by layer, [n_k, width] of each rank k of the column.
        skipped: by layer, the broadcasts that this rank has skipped in a row.
        sent: metrics of a step, the rows that this rank broadcast in each layer.
        least: the least relative difference that was seen.
    """

    def __init__(self, drift: float, staleness: int) -> None:
        self._drift, self._staleness = drift, staleness
        self.rows: dict[int, dict[int, Tensor]] = {}
        self.skipped, self.sent = dict[int, int](), dict[str, int]()
        self.least = math.inf

    def broadcast(self, mesh: Mesh, own: Tensor, label: Label) -> Iterator[tuple[int, Tensor]]:
        """Yield each other rank of the column and its last rows; this one has `own` now. Every rank must call.

        Traffic (control): 8 bytes a peer, for who broadcasts.
        """
        layer, comm, now = label["layer"], mesh.comm, own.detach()
        rows = self.rows.setdefault(layer, {})
        skips = self._skips(now, rows.get(comm.rank), self.skipped.get(layer, 0))
        self.skipped[layer] = self.skipped.get(layer, 0) + 1 if skips else 0
        if skips:
            now = now[:0]
        else:
            rows[comm.rank] = now.clone()
        self.sent[f"broadcast_rows_layer{layer}"] = len(now)
        counts = comm.exchange_counts([len(now)] * comm.world)
        for root, received in mesh.broadcast(now, dict(enumerate(counts)), label):
            if len(received) or root not in rows:
                rows[root] = received
            yield root, rows[root]

    def _skips(self, now: Tensor, last: Tensor | None, skipped: int) -> bool:
        if last is None:
            return False
        norm = torch.linalg.vector_norm
        change = float(norm(now - last) / norm(last).clamp_min(torch.finfo(last.dtype).tiny))
        self.least = min(self.least, change)
        return skipped < self._staleness and change <= self._drift

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of it."""
        return {"rows": self.rows, "skipped": self.skipped, "least": self.least}

    def restore(self, state: dict[str, Any], device: torch.device) -> None:
        """Go on from such a state."""
        self.rows = {layer: {k: rows.to(device) for k, rows in each.items()} for layer, each in state["rows"].items()}
        self.skipped, self.least = state["skipped"], state["least"]


def entries_from(
    owner: int, partitions: Mapping[Partition, CSR], local_row: NDArray[np.int32], start: int, columns: int
) -> CSR:
    """Return the entries of all partitions' rows from nodes of `owner`, whose rows are columns from `start`.

    `partitions`: with the structure of each.
    """
    counts, indices, values = [np.zeros(1, np.int64)], [], []
    for partition, whole in partitions.items():
        inner = partition.num_inner
        column = np.full(whole.num_cols, -1, np.int32)
        if owner == partition.rank:
            column[:inner] = np.arange(start, start + inner, dtype=np.int32)
        else:
            segment = slice(*partition.boundary_ptr[owner : owner + 2])
            column[inner:][segment] = start + local_row[partition.boundary[segment]]
        indptr, found, order = induce_columns(
            whole.indptr.numpy(), whole.indices.numpy(), 0, column, whole.values is not None
        )
        counts.append(np.diff(indptr))
        indices.append(found)
        if whole.values is not None:
            values.append(whole.values[torch.from_numpy(order)])
    pointers = torch.from_numpy(np.concatenate(counts).cumsum())
    return CSR(pointers, torch.from_numpy(np.concatenate(indices)), columns, torch.cat(values) if values else None)


class BroadcastBlock(Block):
    """All in-edges of a group's rows; aggregating broadcasts every row, one partition's at a time.

    Sources and destinations are the group's rows. Of the edges a rank has those that start in the partitions
    of its column: `adjacency` [num_rows, num_rows] those from its own, `foreign` the others.

    Forward, each rank of a column broadcasts its rows to the column in turn, everyone multiplies them in, and
    the group adds its ranks' sums. Backward, each rank adds up the gradients that its column has for its
    rows, and sends them to its group. Sums are made in one place and copied: copies are equal bit for bit. Attention
    does the same with the sums of a softmax; backward, the column's rows are sent again, not kept.

    With a `history` rows that are not broadcast again are those that were last. Their gradients are sent as if they
    were today's.

    Args:
        mesh: who holds what.
        partitions: those of the group's ranks.
        local_row: int32 [N], row of each node among its owner's inner nodes.
        engine: name of the SpMM engine.
        history: of what was broadcast; None: all is, each time.

    Attributes:
        foreign: [num_rows, n_k] for each other rank k of the column; of a sample, the columns that k sends.
        sent: what each rank of the column broadcasts.
        degree: float [num_rows], in-degrees in the full (training) graph.
    """

    communicates = True

    def __init__(
        self,
        mesh: Mesh,
        partitions: Sequence[Partition],
        local_row: NDArray[np.int32],
        *,
        engine: str,
        history: History | None = None,
    ) -> None:
        parts, device = {}, mesh.comm.device
        structures = {partition: partition.read_structure() for partition in partitions}
        for owner in mesh.column:
            start, columns = (0, mesh.sizes[owner]) if owner != mesh.comm.rank else (mesh.own.start, mesh.num_rows)
            parts[owner] = entries_from(owner, structures, local_row, start, columns)
        degrees = [partition.inner_degree().to(device) for partition in partitions]
        own = parts.pop(mesh.comm.rank)
        super().__init__(own.to(device), torch.cat(degrees), engine=engine, transposed=own.transpose().to(device))
        self.mesh, self.history, self._layer, self.sent = (
            mesh,
            history,
            -1,
            {rank: Sent(mesh.sizes[rank]) for rank in mesh.column},
        )
        self.foreign = {rank: matrix.to(device) for rank, matrix in parts.items()}
        self._foreign_transposed = {rank: matrix.transpose().to(device) for rank, matrix in parts.items()}

    def sample(self, sent: Mapping[int, Sent]) -> BroadcastBlock:
        """Return the block over whose edges those of the column's ranks' rows count that are `sent`."""
        other = copy.copy(self)
        other.sent, other.foreign, other._foreign_transposed = dict(sent), {}, {}
        for rank, matrix in self.foreign.items():
            rows = sent[rank].rows
            assert rows is not None
            kept = rows.numpy() if rows.device.type == "cpu" else rows
            part, whole = matrix.select_columns(0, kept), self._foreign_transposed[rank]
            back = part.transpose() if part.values is not None else whole.select_rows(0, kept, part.nnz)
            other.foreign[rank], other._foreign_transposed[rank] = part, back
        return other

    def at(self, layer: int) -> BroadcastBlock:
        """Return the same block, with its traffic counted as that of a graph layer."""
        other = copy.copy(self)
        other._layer = layer
        return other

    @property
    def entries(self) -> int:
        """See `Block.entries`: those of other ranks' rows, too."""
        return self.adjacency.nnz + sum(matrix.nnz for matrix in self.foreign.values())

    def multiply(self, x: Tensor) -> Tensor:
        """See `Block.multiply`; every rank must call."""
        mesh, label, total = self.mesh, self._label("forward"), self.engine.multiply(self.adjacency, x)
        for root, rows in self._received(x, label):
            total += self._counted(root, self.engine.multiply(self.foreign[root], rows))
        mesh.scatter_sum(mesh.group, lambda rank: total[mesh.rows[rank]], total[mesh.own], label)
        return mesh.replicate(total, label)

    def multiply_transposed(self, x: Tensor) -> Tensor:
        """See `Block.multiply_transposed`; every rank must call."""
        mesh, label = self.mesh, self._label("backward", "gradient")

        def term(rank: int) -> Tensor:
            return self._counted(rank, self.engine.multiply(self._foreign_transposed[rank], x))

        total = self.engine.multiply(self.transposed, x)
        mesh.scatter_sum(mesh.column, term, total[mesh.own], label, self.sent[mesh.comm.rank])
        return mesh.replicate(total, label)

    def attention(self, z: Tensor, to_key: Tensor, query: Tensor) -> Sums:
        """See `Block.attention`; every rank must call. The group merges its ranks' sums, self loops once."""
        mesh, label, heads = self.mesh, self._label("forward"), to_key.shape[1]
        key, rows = z @ to_key, by_head(z, heads)
        sums = Sums.of_self_loops(rows, key, query, mesh.own)
        sums.add(Edges(self.adjacency), rows, key, query)
        for root, foreign in self._received(z, label):
            edges = Edges(self.foreign[root], column_scale=self._scale(root, z))
            sums.add(edges, by_head(foreign, heads), foreign @ to_key, query)
        if len(mesh.group) == 1:
            return sums
        packed = sums.packed()
        own = Sums.unpacked(packed[mesh.own], heads)
        for block in mesh.scatter(mesh.group, lambda rank: packed[mesh.rows[rank]], packed[mesh.own], label):
            own.merge(Sums.unpacked(block, heads))
        packed[mesh.own] = own.packed()
        return Sums.unpacked(mesh.replicate(packed, label), heads)

    def attention_backward(self, z: Tensor, to_key: Tensor, grad: Tensor, state: Tensor) -> Gradients:
        """See `Block.attention_backward`; every rank must call."""
        mesh, label, heads = self.mesh, self._label("backward", "gradient"), to_key.shape[1]
        again, width = self._label("backward"), z.shape[1]
        parts = spread(Edges(self.transposed), by_head(z, heads), z @ to_key, grad, state, mesh.own)
        queries, sent = parts[2], self.sent[mesh.comm.rank]

        def term(rank: int) -> Tensor:
            if self.history is None:
                rows = mesh.fetch(mesh.column, rank, sent.of(z[mesh.own]), self.sent[rank].count, again)
            else:
                rows = self.history.rows[self._layer][rank]
            edges = Edges(self._foreign_transposed[rank], row_scale=self._scale(rank, z))
            found = spread(edges, by_head(rows, heads), rows @ to_key, grad, state, slice(0, 0))
            queries.add_(found[2])
            return torch.cat([found[0].flatten(1), found[1]], 1)

        own = torch.cat([part[mesh.own].flatten(1) for part in parts[:2]], 1)
        mesh.scatter_sum(mesh.column, term, own, label, sent)
        mesh.scatter_sum(mesh.group, lambda rank: queries[mesh.rows[rank]], queries[mesh.own], label)
        packed = fresh(z, mesh.num_rows, width + 2 * heads)
        packed[mesh.own] = torch.cat([own, queries[mesh.own]], 1)
        mesh.replicate(packed, label)
        to_z, keys, to_queries = packed.split([width, heads, heads], 1)
        return to_z.contiguous(), keys.contiguous(), to_queries.contiguous()

    def _received(self, x: Tensor, label: Label) -> Iterator[tuple[int, Tensor]]:
        """Yield each other rank of the column and what it sends, as this one of `x` [num_rows, width]."""
        mesh, sent = self.mesh, self.sent
        own = sent[mesh.comm.rank].of(x[mesh.own])
        if self.history is not None:
            yield from self.history.broadcast(mesh, own, label)
            return
        yield from mesh.broadcast(own, {rank: each.count for rank, each in sent.items()}, label)

    def _counted(self, rank: int, rows: Tensor) -> Tensor:
        """Multiply sums over the rows of `rank`, or their gradients, by what each row counts, in place."""
        factor = self.sent[rank].factor
        return rows if factor == 1 else rows.mul_(factor)

    def _scale(self, rank: int, like: Tensor) -> Tensor | None:
        """Return what each row that `rank` sends counts, [count]; None where that is 1."""
        sent = self.sent[rank]
        return None if sent.factor == 1 else like.new_full((sent.count,), sent.factor)

    def _label(self, direction: Direction, purpose: Purpose | None = None) -> Label:
        rows: Purpose = "embedding" if self._layer else "feature"
        return Label(purpose=purpose or rows, layer=self._layer, direction=direction)
