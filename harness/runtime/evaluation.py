"""Exact evaluation over all ranks: all edges, all boundary rows, some of them at a time.

Where the device holds neither a rank's features nor its edges it is a chunked evaluation: some rows of a layer at a
time (docs/design/partitions.md).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from harness.deferred import numpy as np
from harness.deferred import torch
from harness.graph.attention import Edges, Sums, by_head
from harness.graph.block import Block
from harness.graph.csr import CSR
from harness.graph.devices import upload
from harness.graph.partition import SPLITS, Halo, Partition, View
from harness.runtime.comm import Communicator
from harness.runtime.run_config import EVALUATION_MIB

if TYPE_CHECKING:
    from torch import Tensor

    from harness.models.gnn import GNN


class WholeBlock(Block):
    """All in-edges of a rank's inner nodes, whose aggregations receive boundary rows piece by piece.

    Sources and destinations are the inner nodes. Nothing of it is kept by the partition, and of a layer's boundary
    rows a piece at a time is in memory: each rank receives at once at most `limit_mib` of rows of so many values
    (`width`) as are exchanged. In one piece sums are those of `Partition.full_block`, bit for bit; in several each
    element is the sum of the pieces' sums. It has no backward pass. Every rank must make one, of the same width and
    limit, at the same moment.
    """

    communicates = True

    def __init__(self, comm: Communicator, partition: Partition, width: int, limit_mib: float) -> None:
        degree = partition.inner_degree()
        rows = max(row["boundary"] for row in partition.meta["table"][: partition.parts])
        (first, halo), *others = partition.pieces(pieces(rows, width * degree.itemsize, limit_mib))
        first = first.to(comm.device)
        # The others' matrices wait on the host.
        self._comm, self._layer, self._pieces = comm, 0, [(first, halo), *others]
        super().__init__(first, degree.to(comm.device), engine=partition.engine)

    @property
    def num_src(self) -> int:
        """Number of rows that aggregations are given, the inner nodes."""
        return self.num_dst

    def at(self, layer: int) -> WholeBlock:
        """Return the same block, with its traffic counted as that of a graph layer."""
        other = copy.copy(self)
        other._layer = layer
        return other

    def multiply(self, x: Tensor) -> Tensor:
        """See `Block.multiply`; every rank must call."""
        return summed(self, self._received(x))

    def attention(self, z: Tensor, to_key: Tensor, query: Tensor) -> Sums:
        """See `Block.attention`; every rank must call."""
        sums: Sums | None = None
        for matrix, rows in self._received(z):
            key, found = rows @ to_key, by_head(rows, to_key.shape[1])
            if sums is None:
                sums = Sums.of_self_loops(found, key, query, slice(0, self.num_dst))
            sums.add(Edges(matrix), found, key, query)
            del matrix, rows, key, found
        assert sums is not None
        return sums

    def _received(self, x: Tensor) -> Iterator[tuple[CSR, Tensor]]:
        """Yield each piece's matrix and its source rows; those of the first one are the inner rows, too."""
        for k, (matrix, halo) in enumerate(self._pieces):
            rows = x if self._comm.world == 1 else self._sources(x, matrix.num_cols, halo, first=k == 0)
            yield matrix.to(x.device), rows
            del rows

    def _sources(self, x: Tensor, count: int, halo: Halo, *, first: bool) -> Tensor:
        inner = self.num_dst if first else 0
        rows = x.new_empty((count, x.shape[1]))
        rows[:inner] = x[:inner]
        self._comm.exchange_rows(
            x.index_select(0, halo.send_index),
            halo.send_counts,
            halo.recv_counts,
            purpose="embedding" if self._layer else "feature",
            layer=self._layer,
            direction="forward",
            out=rows[inner:],
            exact=True,
        )
        return rows


def summed(block: Block, received: Iterator[tuple[CSR, Tensor]]) -> Tensor:
    """Return the sum of a block's products of pieces, each a matrix and its source rows; one is there at a time."""
    total: Tensor | None = None
    for matrix, rows in received:
        found = block.engine.multiply(matrix, rows)
        total = found if total is None else total.add_(found)
        del matrix, rows, found  # or they would be there together with the next piece's
    assert total is not None
    return total


def pieces(rows: int, row_bytes: int, limit_mib: float) -> int:
    """Return in how many pieces so many rows are received, if a piece is to have `limit_mib` at most."""
    return min(max(1, math.ceil(rows * row_bytes / (limit_mib * 2**20))), max(1, rows))


def evaluate(
    model: GNN, view: View, comm: Communicator, limit_mib: float = EVALUATION_MIB, splits: Sequence[str] = SPLITS
) -> dict[str, float | None]:
    """Return the score of each of the splits: accuracy, or micro-F1 if multi-label; None for an empty split.

    `limit_mib` is that of a `WholeBlock`. Nothing but the scores is there afterwards. Traffic is counted under the
    scope `eval`, apart from the epochs'. Every rank must call.
    """
    with inference(model, comm):
        block = WholeBlock(comm, view.partition, model.widest_evaluated, limit_mib)
        blocks = [block.at(layer) for layer in range(model.depth)]
        logits, labels = model(blocks, view.features, transform_first=True), view.scored_labels()
        counts = [score_counts(logits[view.rows[split]], labels[split]) for split in splits]
        return scores_of_all(splits, counts, comm)


@contextmanager
def inference(model: GNN, comm: Communicator) -> Iterator[None]:
    """Run the model without dropout and gradients; its traffic is counted under the scope `eval`."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), comm.traffic.during("eval"):
            yield
    finally:
        model.train(was_training)


def scores_of_all(splits: Sequence[str], counts: Sequence[Tensor], comm: Communicator) -> dict[str, float | None]:
    """Return the score of each split, given this rank's `score_counts` of each; every rank must call."""
    summed = comm.all_reduce(torch.stack(list(counts)), purpose="control")
    scores = (numerator / denominator if denominator else None for numerator, denominator in summed.tolist())
    return dict(zip(splits, scores, strict=True))


def score_counts(logits: Tensor, labels: Tensor) -> Tensor:
    """Return (numerator, denominator) of the score as float64, which add up over ranks.

    Micro-F1 is 2 TP / (2 TP + FP + FN); accuracy is right / all.
    """
    if labels.dim() == 1:
        right = (logits.argmax(1) == labels).sum()
        return torch.stack([right, torch.tensor(labels.numel(), device=right.device)]).double()
    predicted, true = logits > 0, labels > 0.5
    hits = 2 * (predicted & true).sum()
    return torch.stack([hits, predicted.sum() + true.sum()]).double()


class Asked(Exception):  # noqa: N818 - no error: it ends the run of a layer whose sources are not known yet
    """The rows of a chunk that a layer gave to its aggregation; other chunks' aggregations read them."""

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        self.rows = rows


class RowChunk(Block):
    """All in-edges of some inner nodes in a row, whose source rows wait in the host's memory.

    Aggregations are given the rows of these nodes alone, as a `WholeBlock`'s are those of all inner nodes.

    Args:
        rows: the inner nodes.
        degree: float [inner nodes], on the host.
        tiles: the edges into all inner nodes by pieces of the columns, on the host, and each piece's first column.
        sources: [inner and boundary nodes, width], on the host, what all chunks' aggregations were given; None: it is
            not known yet, and an aggregation raises `Asked`.
    """

    communicates = True

    def __init__(
        self, rows: slice, degree: Tensor, tiles: Sequence[tuple[CSR, int]], sources: Tensor | None, *,
        device: torch.device, engine: str,
    ) -> None:  # fmt: skip
        nothing = CSR(
            torch.zeros(rows.stop - rows.start + 1, dtype=torch.int64, device=device),
            torch.empty(0, dtype=torch.int32, device=device),
            0,
        )
        self._rows, self._tiles, self._sources, self._device = rows, tiles, sources, device
        super().__init__(nothing, upload(degree[rows], device), engine=engine)

    @property
    def num_src(self) -> int:
        """Number of rows that aggregations are given, the chunk's."""
        return self.num_dst

    def multiply(self, x: Tensor) -> Tensor:
        """See `Block.multiply`."""
        return summed(self, self._read(x))

    def attention(self, z: Tensor, to_key: Tensor, query: Tensor) -> Sums:
        """See `Block.attention`."""
        sums: Sums | None = None
        for matrix, rows in self._read(z):
            if sums is None:
                sums = Sums.of_self_loops(by_head(z, to_key.shape[1]), z @ to_key, query, slice(0, self.num_dst))
            sums.add(Edges(matrix), by_head(rows, to_key.shape[1]), rows @ to_key, query)
            del matrix, rows
        assert sums is not None
        return sums

    def _read(self, given: Tensor) -> Iterator[tuple[CSR, Tensor]]:
        """Yield the chunk's part of each tile and the tile's source rows, on the device."""
        if self._sources is None:
            raise Asked(given)
        for matrix, first in self._tiles:
            start, stop = (int(matrix.indptr[at]) for at in (self._rows.start, self._rows.stop))
            own = CSR(
                matrix.indptr[self._rows.start : self._rows.stop + 1] - start,
                matrix.indices[start:stop],
                matrix.num_cols,
                None if matrix.values is None else matrix.values[start:stop],
            )
            yield own.to(self._device), upload(self._sources[first : first + matrix.num_cols], self._device)


class ChunkedEvaluation:
    """A rank's rows of a layer, on the host, and the chunks in which a device computes the next ones.

    A chunk's rows, its edges in a tile, and a tile's source rows take at most `limit_mib` each, but for a node
    with more edges than that; so do the boundary rows that a rank receives at once. Every rank must make one.
    """

    def __init__(self, model: GNN, view: View, comm: Communicator, limit_mib: float) -> None:
        self._model, self._view, self._comm = model, view, comm
        partition = view.partition
        self._structure, self._degree = partition.read_structure(), partition.inner_degree()
        limit, value = limit_mib * 2**20, self._degree.itemsize
        width = max(model.widest_evaluated, *map(max, (*model.widths, *model.linear_widths)))
        edge = 4 + (0 if self._structure.values is None else value)
        self._bounds = bounds(self._structure.indptr, int(limit / (width * value)), int(limit / edge))
        self._tiles = tiles(self._structure, max(1, int(limit / (model.widest_evaluated * value))))
        boundary = max(row["boundary"] for row in partition.meta["table"][: partition.parts])
        self._shares = partition.shares(pieces(boundary, model.widest_evaluated * value, limit_mib))

    def logits(self) -> Tensor:
        """Return the logits [inner nodes, classes], on the host; every rank must call."""
        model, x = self._model, None
        for index in range(model.spec.layers):
            sources = [self._sources(index, x, [])]
            while len(sources) < model.hops:
                sources.append(self._sources(index, x, sources))
            x = self._layer(index, x, sources)
        for index in range(model.spec.layers, model.spec.layers + model.spec.linear_layers):
            x = self._layer(index, x, [])
        assert x is not None
        return x

    def _layer(self, index: int, x: Tensor | None, sources: Sequence[Tensor]) -> Tensor:
        """Return the rows behind the layer `index`, of its input and of what each hop's aggregation reads."""
        return torch.cat([self._run(index, x, rows, sources).cpu() for rows in self._bounds])

    def _sources(self, index: int, x: Tensor | None, known: Sequence[Tensor]) -> Tensor:
        """Return what the aggregations of the hop behind those `known` read; every rank must call."""
        partition, found = self._view.partition, None
        for rows in self._bounds:
            try:
                self._run(index, x, rows, [*known, None])
            except Asked as asked:
                given = asked.rows.cpu()
            else:
                raise RuntimeError(f"{self._model.spec.name}: a layer has not aggregated on the block of a hop")
            if found is None:
                found = given.new_empty((partition.num_inner + partition.num_boundary, given.shape[1]))
            found[rows] = given
        assert found is not None
        comm, block = self._comm, index * self._model.hops + len(known)
        for positions, halo in self._shares if comm.world > 1 else ():
            rows_received = comm.exchange_rows(
                upload(found.index_select(0, halo.send_index.cpu()), comm.device),
                halo.send_counts,
                halo.recv_counts,
                purpose="embedding" if block else "feature",
                layer=block,
                direction="forward",
                exact=True,
            )
            found[partition.num_inner + torch.from_numpy(positions)] = rows_received.cpu()
        return found

    def _run(self, index: int, x: Tensor | None, rows: slice, sources: Sequence[Tensor | None]) -> Tensor:
        device, engine = self._comm.device, self._view.partition.engine
        own = self._view.features_of(rows) if x is None else x[rows]
        missing = [None] * (self._model.hops - len(sources)) if index < self._model.spec.layers else []
        blocks = [
            RowChunk(rows, self._degree, self._tiles, each, device=device, engine=engine)
            for each in [*sources, *missing]
        ]
        return self._model.behind(index, upload(own, device), blocks, transform_first=True)


def bounds(indptr: Tensor, most_rows: int, most_edges: int) -> list[slice]:
    """Return rows in chunks of so many rows and edges at most, but of one row at least; an empty one of no rows."""
    pointers, found, start = indptr.numpy(), list[slice](), 0
    last = pointers.size - 1
    while start < last or not found:
        by_edges = int(np.searchsorted(pointers, pointers[start] + most_edges, side="right")) - 1
        stop = min(last, max(start + 1, min(start + most_rows, by_edges)))
        found.append(slice(start, stop))
        start = stop
    return found


def tiles(structure: CSR, columns: int) -> list[tuple[CSR, int]]:
    """Return the matrix in pieces of so many columns at most, and the first column of each."""
    firsts = range(0, max(structure.num_cols, 1), columns)
    if len(firsts) == 1:
        return [(structure, 0)]
    every = np.arange(structure.num_cols, dtype=np.int32)
    widths = [min(columns, structure.num_cols - first) for first in firsts]
    return list(zip(structure.split_columns(every // columns, every % columns, widths), firsts, strict=True))


def evaluate_in_chunks(
    model: GNN, view: View, comm: Communicator, limit_mib: float = EVALUATION_MIB, splits: Sequence[str] = SPLITS
) -> dict[str, float | None]:
    """Return the scores of `evaluate`, within rounding; features, edges and rows of layers wait on the host.

    The same bytes are sent. Every rank must call.
    """
    with inference(model, comm):
        logits, labels = ChunkedEvaluation(model, view, comm, limit_mib).logits(), view.scored_labels()
        counts = [score_counts(logits[view.rows[split].cpu()], labels[split].cpu()) for split in splits]
        return scores_of_all(splits, [upload(each, comm.device) for each in counts], comm)
