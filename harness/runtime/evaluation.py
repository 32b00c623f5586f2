"""Exact evaluation over all ranks: all edges, all boundary rows, some of them at a time.

Where the device holds neither a rank's features nor its edges, or where `train.eval_memory` bounds it, it is a chunked
evaluation: some rows of a layer at a time (docs/design/partitions.md).
"""

from __future__ import annotations

import copy
import errno
import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from harness.deferred import numpy as np
from harness.deferred import torch
from harness.errors import UserError
from harness.files import size_text
from harness.graph.attention import Edges, Sums, by_head
from harness.graph.block import Block
from harness.graph.csr import CSR, Ints
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


def columns_at_once(width: int, rows: int, itemsize: int, most: int | None) -> int:
    """Return how many columns of A^k X are propagated at once: all, or as many as `most` bytes have room for.

    A hop takes `rows`, a part's inner and boundary nodes, before and behind it, scaled, and with those of other ranks.
    """
    found = width if most is None else min(width, most // (4 * rows * itemsize))
    return max(1, found if found == width else found // 16 * 16 or found)  # 16: a line of a processor's cache


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
    """All in-edges of some inner nodes in a row, whose source rows wait in the host's memory or in a file.

    Aggregations are given the rows of these nodes alone, as a `WholeBlock`'s are those of all inner nodes.

    Args:
        degree: float [rows], on the host.
        tiles: the edges into the rows by pieces of the columns, on the host, and each piece's first column.
        sources: [inner and boundary nodes, width], on the host, what all chunks' aggregations were given; None: it is
            not known yet, and an aggregation raises `Asked`.
    """

    communicates = True

    def __init__(
        self, degree: Tensor, tiles: Sequence[tuple[CSR, int]], sources: Tensor | None, *,
        device: torch.device, engine: str,
    ) -> None:  # fmt: skip
        nothing = CSR(
            torch.zeros(degree.numel() + 1, dtype=torch.int64, device=device),
            torch.empty(0, dtype=torch.int32, device=device),
            0,
        )
        self._tiles, self._sources, self._device = tiles, sources, device
        super().__init__(nothing, upload(degree, device), engine=engine)

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
        """Yield each tile and its source rows, on the device."""
        if self._sources is None:
            raise Asked(given)
        for matrix, first in self._tiles:
            yield matrix.to(self._device), upload(self._sources[first : first + matrix.num_cols], self._device)


class ChunkedEvaluation:
    """Chunks in which a device computes a rank's rows of a layer, which wait on the host for the next one.

    A chunk's rows, its edges in a tile, and a tile's source rows take at most `limit_mib` each, but for a node
    with more edges than that; so do the boundary rows that a rank receives at once. Every rank must make one.

    Args:
        model: the replica.
        view: the rank's part of the graph; edges and features are read from its memory-mapped files by chunk.
        comm: the ranks' communicator.
        limit_mib: see above.
        files: where the rows of layers wait in files without a name; None: in memory.
    """

    def __init__(self, model: GNN, view: View, comm: Communicator, limit_mib: float, files: Path | None = None) -> None:
        self._model, self._view, self._comm, self._files = model, view, comm, files
        partition = view.partition
        limit, value = limit_mib * 2**20, view.dtype.itemsize
        width = max(model.widest_evaluated, *map(max, (*model.widths, *model.linear_widths)))
        edge = 4 + (value if partition.meta["weighted"] else 0)
        self._bounds = bounds(partition.pointers, int(limit / (width * value)), int(limit / edge))
        columns = max(1, int(limit / (model.widest_evaluated * value)))
        self._tiles = Tiles(partition.num_inner + partition.num_boundary, columns)
        boundary = max(row["boundary"] for row in partition.meta["table"][: partition.parts])
        self._shares = partition.shares(pieces(boundary, model.widest_evaluated * value, limit_mib))

    def logits(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield chunks of inner rows and their logits [rows, classes], on the device; every rank must call."""
        model, x, layers = self._model, None, self._model.spec.layers + self._model.spec.linear_layers
        for index in range(layers):
            sources: list[Tensor] = []
            while index < model.spec.layers and len(sources) < model.hops:
                sources.append(self._sources(index, x, sources))
            chunks = ((rows, self._run(index, x, rows, sources)) for rows in self._bounds)
            if index == layers - 1:
                yield from chunks
            else:
                x = self._kept(chunks, self._view.partition.num_inner)

    def _kept(self, chunks: Iterator[tuple[slice, Tensor]], count: int) -> Tensor:
        """Return `count` rows on the host, with the chunks at theirs."""
        found: Tensor | None = None
        for rows, given in chunks:
            if found is None:
                found = waiting(count, given, self._files)
            found[rows] = given.cpu()
            del given
        assert found is not None
        return found

    def _sources(self, index: int, x: Tensor | None, known: Sequence[Tensor]) -> Tensor:
        """Return what the aggregations of the hop behind those `known` read; every rank must call."""
        partition = self._view.partition
        asked = ((rows, self._asked(index, x, rows, known)) for rows in self._bounds)
        found = self._kept(asked, partition.num_inner + partition.num_boundary)
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

    def _asked(self, index: int, x: Tensor | None, rows: slice, known: Sequence[Tensor]) -> Tensor:
        """Return what a chunk's layer gives to the aggregation of the hop behind those `known`."""
        try:
            self._run(index, x, rows, [*known, None])
        except Asked as asked:
            return asked.rows
        raise RuntimeError(f"{self._model.spec.name}: a layer has not aggregated on the block of a hop")

    def _run(self, index: int, x: Tensor | None, rows: slice, sources: Sequence[Tensor | None]) -> Tensor:
        partition, device = self._view.partition, self._comm.device
        own = self._view.features_of(rows) if x is None else x[rows]
        missing = [None] * (self._model.hops - len(sources)) if index < self._model.spec.layers else []
        read = [each for each in sources if each is not None]
        edges = self._tiles.of(partition.edges_of(rows)) if read else []
        degree = partition.degree_of(rows)
        blocks = [
            RowChunk(degree, edges, each, device=device, engine=partition.engine) for each in [*sources, *missing]
        ]
        return self._model.behind(index, upload(own, device), blocks, transform_first=True)


def waiting(count: int, like: Tensor, files: Path | None) -> Tensor:
    """Return so many rows as wide as those of `like`, on the host, in a file without a name if it has a directory.

    Raises:
        UserError: the disk is full.
    """
    if files is None:
        return torch.empty((count, like.shape[1]), dtype=like.dtype)
    size = max(1, count * like.shape[1]) * like.itemsize
    with tempfile.TemporaryFile(dir=files) as file:
        try:
            if hasattr(os, "posix_fallocate"):  # to write to a full disk's page would end the process
                os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            what = f"has no {size_text(size)} free for the rows of a layer in an evaluation"
            raise UserError(what, file=files, fix="set TMPDIR to a directory on a larger disk") from None
        mapped = np.memmap(file, np.uint8, "r+", shape=(size,))
    return torch.from_numpy(mapped).view(like.dtype)[: count * like.shape[1]].view(count, like.shape[1])


def bounds(pointers: Ints, most_rows: int, most_edges: int) -> list[slice]:
    """Return rows in chunks of so many rows and edges at most, but of one row at least; an empty one of no rows."""
    found, start = list[slice](), 0
    last = pointers.size - 1
    while start < last or not found:
        by_edges = int(np.searchsorted(pointers, pointers[start] + most_edges, side="right")) - 1
        stop = min(last, max(start + 1, min(start + most_rows, by_edges)))
        found.append(slice(start, stop))
        start = stop
    return found


class Tiles:
    """Pieces of `num_cols` columns, of so many at most, into which the rows of a matrix are split."""

    def __init__(self, num_cols: int, columns: int) -> None:
        self.firsts = range(0, max(num_cols, 1), columns)
        every = np.arange(num_cols if len(self.firsts) > 1 else 0, dtype=np.int32)
        widths = [min(columns, num_cols - first) for first in self.firsts]
        self._split = every // columns, every % columns, widths

    def of(self, structure: CSR) -> list[tuple[CSR, int]]:
        """Return the pieces of a matrix of as many columns, and the first column of each."""
        if len(self.firsts) == 1:
            return [(structure, 0)]
        return list(zip(structure.split_columns(*self._split), self.firsts, strict=True))


def evaluate_in_chunks(
    model: GNN, view: View, comm: Communicator, limit_mib: float = EVALUATION_MIB, splits: Sequence[str] = SPLITS,
    files: Path | None = None,
) -> dict[str, float | None]:  # fmt: skip
    """Return the scores of `evaluate`, within rounding; rows of layers wait on the host, or in `files`.

    The same bytes are sent. Every rank must call.
    """
    with inference(model, comm):
        counts: dict[str, Tensor] = {}
        labels = view.scored_labels()
        for chunk, logits in ChunkedEvaluation(model, view, comm, limit_mib, files).logits():
            for split in splits:
                rows = view.rows[split]
                first, last = torch.searchsorted(rows, rows.new_tensor([chunk.start, chunk.stop])).tolist()
                own = score_counts(logits[rows[first:last] - chunk.start], labels[split][first:last])
                counts[split] = counts[split] + own if split in counts else own
            del logits
        return scores_of_all(splits, [counts[split] for split in splits], comm)
