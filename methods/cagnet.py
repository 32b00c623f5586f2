"""CAGNET: row-block broadcasts, 1-D and 1.5-D."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any, ClassVar, TypedDict

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from harness import Bytes, BytesCase, FullGraphMethod, FullGraphOptions, Loss, MemoryCase, Step, UserError, Worker
from harness.graph import CSR, Block, Edges, Gradients, Partition, Sums, by_head, induce_columns, spread
from harness.metrics import Purpose
from harness.models import BlockSize
from harness.runtime import Communicator, Direction, PartSize


def entries_from(
    owner: int, partitions: Sequence[Partition], local_row: NDArray[np.int32], start: int, columns: int
) -> CSR:
    """Return the entries of all partitions' rows from nodes of `owner`, whose rows are columns from `start`."""
    counts, indices, values = [np.zeros(1, np.int64)], [], []
    for partition in partitions:
        whole, inner = partition.structure, partition.num_inner
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
        self._process_group: dist.ProcessGroup | None = None
        if replication > 1 and len(self.column) > 1:
            self._process_group = comm.divide(columns)

    def broadcast(self, x: Tensor, label: Label) -> Iterator[tuple[int, Tensor]]:
        """Broadcast the inner rows of the column's ranks in turn; yields each other rank and its rows.

        This rank's are in `x` [num_rows, width].
        """
        for root in self.column:
            is_own = root == self.comm.rank
            rows = x[self.own].contiguous() if is_own else x.new_empty((self.sizes[root], x.shape[1]))
            self.comm.broadcast(rows, root, self.column, self._process_group, **label)
            if not is_own:
                yield root, rows

    def scatter_sum(self, members: range, term: Callable[[int], Tensor], own: Tensor, label: Label) -> None:
        """Add to `own` [n_in, width] what the other members have for this rank; term(q) is what q gets.

        A reduce-scatter. (gloo's own reduce sends 1 + 1/P times as many bytes as needed.)
        """
        for block in self.scatter(members, term, own, label):
            own += block

    def scatter(self, members: range, term: Callable[[int], Tensor], like: Tensor, label: Label) -> Iterator[Tensor]:
        """Yield what each other member has for this rank, shaped as `like`; term(q) is what q gets.

        In step s a member sends to the s-th after it and receives from the s-th before it: all links are
        busy, and one block is in memory.
        """
        for to, source in self._steps(members):
            yield self._pass(term(to), like.new_empty(like.shape), to, source, label)

    def fetch(self, members: range, rank: int, rows: Tensor, label: Label) -> Tensor:
        """Return the `rows` of `rank`; at once every member asks the one that is as far after it."""
        at, count = members.index(self.comm.rank), len(members)
        asker = members[(2 * at - members.index(rank)) % count]
        return self._pass(rows, rows.new_empty((self.sizes[rank], rows.shape[1])), asker, rank, label)

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
        foreign: [num_rows, n_k] for each other rank k of the column.
        degree: float [num_rows], in-degrees in the full (training) graph.
    """

    communicates = True

    def __init__(
        self, mesh: Mesh, partitions: Sequence[Partition], local_row: NDArray[np.int32], *, engine: str
    ) -> None:
        parts = {}
        for owner in mesh.column:
            start, columns = (0, mesh.sizes[owner]) if owner != mesh.comm.rank else (mesh.own.start, mesh.num_rows)
            parts[owner] = entries_from(owner, partitions, local_row, start, columns).to(mesh.comm.device)
        degrees = [partition.full_block.degree[: partition.num_inner].to(mesh.comm.device) for partition in partitions]
        own = parts.pop(mesh.comm.rank)
        super().__init__(own, torch.cat(degrees), engine=engine, transposed=_transpose(own))
        self.mesh, self.foreign, self._layer = mesh, parts, -1
        self._foreign_transposed = {rank: _transpose(matrix) for rank, matrix in parts.items()}

    def at(self, layer: int) -> BroadcastBlock:
        """Return the same block, with its traffic counted as that of a graph layer."""
        other = copy.copy(self)
        other._layer = layer
        return other

    def multiply(self, x: Tensor) -> Tensor:
        """See `Block.multiply`; every rank must call."""
        mesh, label, total = self.mesh, self._label("forward"), self.engine.multiply(self.adjacency, x)
        for root, rows in mesh.broadcast(x, label):
            total += self.engine.multiply(self.foreign[root], rows)
        mesh.scatter_sum(mesh.group, lambda rank: total[mesh.rows[rank]], total[mesh.own], label)
        return mesh.replicate(total, label)

    def multiply_transposed(self, x: Tensor) -> Tensor:
        """See `Block.multiply_transposed`; every rank must call."""
        mesh, label = self.mesh, self._label("backward", "gradient")

        def term(rank: int) -> Tensor:
            return self.engine.multiply(self._foreign_transposed[rank], x)

        total = self.engine.multiply(self.transposed, x)
        mesh.scatter_sum(mesh.column, term, total[mesh.own], label)
        return mesh.replicate(total, label)

    def attention(self, z: Tensor, to_key: Tensor, query: Tensor) -> Sums:
        """See `Block.attention`; every rank must call. The group merges its ranks' sums, self loops once."""
        mesh, label, heads = self.mesh, self._label("forward"), to_key.shape[1]
        key, rows = z @ to_key, by_head(z, heads)
        sums = Sums.of_self_loops(rows, key, query, mesh.own)
        sums.add(Edges(self.adjacency), rows, key, query)
        for root, foreign in mesh.broadcast(z, label):
            sums.add(Edges(self.foreign[root]), by_head(foreign, heads), foreign @ to_key, query)
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
        queries = parts[2]

        def term(rank: int) -> Tensor:
            rows = mesh.fetch(mesh.column, rank, z[mesh.own], again)
            edges = Edges(self._foreign_transposed[rank])
            found = spread(edges, by_head(rows, heads), rows @ to_key, grad, state, slice(0, 0))
            queries.add_(found[2])
            return torch.cat([found[0].flatten(1), found[1]], 1)

        own = torch.cat([part[mesh.own].flatten(1) for part in parts[:2]], 1)
        mesh.scatter_sum(mesh.column, term, own, label)
        mesh.scatter_sum(mesh.group, lambda rank: queries[mesh.rows[rank]], queries[mesh.own], label)
        packed = z.new_empty((mesh.num_rows, width + 2 * heads))
        packed[mesh.own] = torch.cat([own, queries[mesh.own]], 1)
        mesh.replicate(packed, label)
        to_z, keys, to_queries = packed.split([width, heads, heads], 1)
        return to_z.contiguous(), keys.contiguous(), to_queries.contiguous()

    def _label(self, direction: Direction, purpose: Purpose | None = None) -> Label:
        rows: Purpose = "embedding" if self._layer else "feature"
        return Label(purpose=purpose or rows, layer=self._layer, direction=direction)


def _transpose(matrix: CSR) -> CSR:
    return matrix.to(torch.device("cpu")).transpose().to(matrix.indptr.device)


class CAGNETOptions(FullGraphOptions):
    """Options of CAGNET."""

    replication: int = Field(
        1, ge=1, description="copies c of each row of H (1: 1-D, more: 1.5-D); must divide the number of parts"
    )


class CAGNET(FullGraphMethod[CAGNETOptions]):
    """Full-graph training by broadcasts of whole row blocks (CAGNET, Tripathy et al., SC 2020).

    Exact. In every layer every rank's H is broadcast in turn and multiplied in, whoever needs which rows (the
    paper's 1-D algorithm, section IV; a baseline of BNS-GCN, section 4); one foreign block is in memory at a
    time. With c = `replication` > 1 (the 1.5-D algorithm) c consecutive ranks hold copies of their c
    partitions' rows, fetched once before the first epoch; the j-th of each group broadcasts its own
    partition's rows to the j-th of the other groups, and a group adds up what its ranks have. (The paper's
    rank broadcasts all rows of some groups instead: as many bytes, but c^2 must divide P.) All else a group's
    ranks do alike: they draw the same dropout masks, and each of them counts 1/c in the loss.

    Bytes of a layer that sends width d, over all ranks, of N nodes: forward (P/c - 1 + 2 (c - 1)) N d *
    itemsize, of which 2 (c - 1) N d are the groups' sums; backward, for all layers but the first, (P/c -
    1 + c - 1) N d * itemsize. d is the input width; with `transform_before_exchange`, where that is fewer
    bytes, the output width, in the first layer backward too. Set-up with c > 1: (c - 1) N F * itemsize
    for the features, and as much again with `precompute`, after which the first layer sends nothing.

    With gat, whose weights depend on H W of every row, that is sent, `transform_before_exchange` or not:
    w = heads * head width values a row. Its backward pass, in the first layer too, needs those rows
    again, which are sent again rather than kept. Forward (P/c - 1) N w + 2 (c - 1) N (w + 2 heads),
    backward (P/c - 1) N (2 w + heads) + (c - 1) N (w + 3 heads), times itemsize.
    """

    name = "cagnet"
    colour = "#882e72"
    Options = CAGNETOptions
    exact: ClassVar[dict[str, Any]] = {}

    def __init__(self, worker: Worker, options: CAGNETOptions) -> None:
        rank_groups(options.replication, worker.world)  # a user's mistake ends the trial before anything is sent
        super().__init__(worker, options)
        sizes = [row["inner"] for row in worker.partition.meta["table"][: worker.world]]
        job = worker.job
        mesh = Mesh(worker.comm, sizes, options.replication)
        spmm = job.config.train.spmm
        views = [worker.view if rank == worker.rank else worker.open_view(job.train_view, rank) for rank in mesh.group]
        partitions = [view.partition for view in views]
        block = BroadcastBlock(mesh, partitions, worker.view.local_row, engine=spmm)
        self._blocks = [block.at(layer) for layer in range(worker.model.depth)]
        rows = [view.rows["train"] + mesh.rows[view.partition.rank].start for view in views]
        labels = [view.labels[view.rows["train"]] for view in views]
        self._loss = Loss(torch.cat(rows), torch.cat(labels), options.replication * worker.train_total)
        with worker.traffic.during("setup"):
            self._inputs = mesh.spread(worker.features.inner)
            if self.aggregated is not None:
                self.aggregated = mesh.spread(self.aggregated)

    def steps(self, epoch: int) -> Iterator[Step]:
        """Yield one step on the rows of this rank's group."""
        worker, copies = self.worker, self.options.replication
        if copies > 1:  # a group's ranks draw the same random numbers in this epoch
            key = (worker.job.config.seed, worker.rank // copies, epoch)
            torch.manual_seed(int(np.random.SeedSequence(key).generate_state(1)[0]))
        yield Step(
            blocks=list(self._blocks),
            inputs=self._inputs,
            loss=self._loss,
            transform_first=self.options.transform_before_exchange,
            aggregated=self.aggregated,
        )

    @classmethod
    def memory(cls, options: CAGNETOptions, case: MemoryCase) -> dict[str, int]:
        """Return the components: c times the rank's inner rows, one foreign block for the boundary.

        Other partitions are taken to be as large as this one. "adjacency" has the rank's edges twice, since
        the columns of each partition are a matrix of their own and evaluations need the whole.
        """
        copies, part = options.replication, case.train
        groups = len(rank_groups(copies, case.parts))
        foreign = part.inner if groups > 1 else 0
        # Without entries the layers are reckoned as A H first, then W, which is how they are computed.
        rows = PartSize(copies * part.inner, foreign, 0, 0)
        group = replace(case, train=rows, train_nodes=copies * case.train_nodes)
        components = group.full_graph(**options.for_costs)
        own = part.inner * case.model.widths[0][0] * case.itemsize
        pointers = 8 * (groups - 1) * (rows.inner + 1)
        return components | {
            "input features": components["input features"] + (own if copies > 1 else 0),
            "adjacency": case.matrices(part.block, transposed=False)
            + case.matrices(BlockSize(rows.inner, groups * part.inner, part.edges))
            + pointers,
        }

    @classmethod
    def bytes_per_epoch(cls, options: CAGNETOptions, case: BytesCase) -> Bytes:
        """Return the bytes of the class's docstring: `columns` P/c - 1, `copies` c - 1."""
        copies = options.replication - 1
        columns = case.parts // options.replication - 1
        if not case.model.attends:
            return case.boundary_rows(
                (columns + 2 * copies) * case.nodes, backward=(columns + copies) * case.nodes, **options.for_costs
            )
        sent, heads = {"feature": 0, "embedding": 0, "gradient": 0}, case.model.spec.heads
        for block in range(case.model.depth):
            width = case.model.layer_of(block)[0].transformed
            rows = 2 * columns * width + 2 * copies * (width + 2 * heads)
            back = columns * (width + heads) + copies * (width + 3 * heads)
            sent["embedding" if block else "feature"] += rows * case.nodes * case.itemsize
            sent["gradient"] += back * case.nodes * case.itemsize
        return sent
