"""Exact evaluation: distributed, layer by layer, over all boundary nodes; the same for every method."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from harness.graph.partition import SPLITS, View
from harness.models.gnn import GNN
from harness.runtime.comm import Communicator
from harness.runtime.step import SyncExchange


def evaluate(model: GNN, view: View, comm: Communicator) -> dict[str, float | None]:
    """Return the score of each split: accuracy, or micro-F1 if multi-label; None for an empty split.

    Traffic is counted under the scope `eval`, apart from the epochs'. Every rank must call.
    """
    with inference(model, comm):
        block = view.partition.full_block
        exchange = SyncExchange(comm, view.partition.full_halo)
        logits = model([block] * model.depth, view.features(), exchange)
        counts = [score_counts(logits[rows], view.labels[rows]) for rows in _rows(view)]
        return scores_of_all(SPLITS, counts, comm)


@contextmanager
def inference(model: GNN, comm: Communicator) -> Iterator[None]:
    """Let the model infer, without dropout and gradients; traffic is counted under the scope `eval`."""
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


def _rows(view: View) -> list[Tensor]:
    return [view.rows[split] for split in SPLITS]


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
