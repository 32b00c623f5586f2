"""BroadcastBlock: the edges of a group of ranks, over which rows are broadcast."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from harness import numpy as np
from harness import torch
from harness.graph import CSR, Block, Edges, Gradients, Partition, Sums, by_head, induce_columns, spread
from harness.metrics import Purpose
from harness.runtime import Direction

from .mesh import Label, Mesh, Sent

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor


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
    rows, and tells its group. Sums are made in one place and copied: copies are equal bit for bit. Attention
    does the same with the sums of a softmax; backward, the column's rows are sent again, not kept.

    Args:
        mesh: who holds what.
        partitions: those of the group's ranks.
        local_row: int32 [N], row of each node among its owner's inner nodes.
        engine: name of the SpMM engine.

    Attributes:
        foreign: [num_rows, n_k] for each other rank k of the column; of a sample, the columns that k sends.
        sent: what each rank of the column broadcasts.
        degree: float [num_rows], in-degrees in the full (training) graph.
    """

    communicates = True

    def __init__(
        self, mesh: Mesh, partitions: Sequence[Partition], local_row: NDArray[np.int32], *, engine: str
    ) -> None:
        parts, device = {}, mesh.comm.device
        structures = {partition: partition.read_structure() for partition in partitions}
        for owner in mesh.column:
            start, columns = (0, mesh.sizes[owner]) if owner != mesh.comm.rank else (mesh.own.start, mesh.num_rows)
            parts[owner] = entries_from(owner, structures, local_row, start, columns)
        degrees = [partition.inner_degree().to(device) for partition in partitions]
        own = parts.pop(mesh.comm.rank)
        super().__init__(own.to(device), torch.cat(degrees), engine=engine, transposed=own.transpose().to(device))
        self.mesh, self._layer, self.sent = mesh, -1, {rank: Sent(mesh.sizes[rank]) for rank in mesh.column}
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
            rows = mesh.fetch(mesh.column, rank, sent.of(z[mesh.own]), self.sent[rank].count, again)
            edges = Edges(self._foreign_transposed[rank], row_scale=self._scale(rank, z))
            found = spread(edges, by_head(rows, heads), rows @ to_key, grad, state, slice(0, 0))
            queries.add_(found[2])
            return torch.cat([found[0].flatten(1), found[1]], 1)

        own = torch.cat([part[mesh.own].flatten(1) for part in parts[:2]], 1)
        mesh.scatter_sum(mesh.column, term, own, label, sent)
        mesh.scatter_sum(mesh.group, lambda rank: queries[mesh.rows[rank]], queries[mesh.own], label)
        packed = z.new_empty((mesh.num_rows, width + 2 * heads))
        packed[mesh.own] = torch.cat([own, queries[mesh.own]], 1)
        mesh.replicate(packed, label)
        to_z, keys, to_queries = packed.split([width, heads, heads], 1)
        return to_z.contiguous(), keys.contiguous(), to_queries.contiguous()

    def _received(self, x: Tensor, label: Label) -> Iterator[tuple[int, Tensor]]:
        """Yield each other rank of the column and what it sends, as this one of `x` [num_rows, width]."""
        mesh, sent = self.mesh, self.sent
        own = sent[mesh.comm.rank].of(x[mesh.own])
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
