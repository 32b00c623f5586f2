"""Exact evaluation over all ranks: all edges, all boundary rows, some of them at a time."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from harness.deferred import torch
from harness.graph.attention import Edges, Sums, by_head
from harness.graph.block import Block
from harness.graph.csr import CSR
from harness.graph.partition import SPLITS, Halo, Partition, View
from harness.runtime.comm import Communicator
from harness.runtime.spec import EVALUATION_MIB

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
        del matrix, rows, found  # or they would be there beside the next piece's
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
    return dict(zip(splits, (_score(row) for row in summed.tolist()), strict=True))


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


def _score(counts: list[float]) -> float | None:
    numerator, denominator = counts
    return numerator / denominator if denominator else None
