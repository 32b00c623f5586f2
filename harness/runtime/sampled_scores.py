"""Scores of inference on a method's own samples, beside the exact evaluation that all methods share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from harness.graph.random import batch_seed
from harness.runtime.batches import SCORED
from harness.runtime.evaluate import inference, score_counts, scores_of_all

if TYPE_CHECKING:
    from harness.runtime.minibatch import MiniBatchMethod

SAMPLED_SPLITS = ("val", "test")


def sampled_scores(method: MiniBatchMethod[Any]) -> dict[str, float | None]:
    """Return the scores of validation and test nodes on blocks drawn for them; every rank must call.

    The nodes of a split are dealt like training nodes and drawn with the same seeds every time. Traffic is
    counted under the scope `eval`.
    """
    worker = method.worker
    with inference(worker.model, worker.comm):
        counts = [_counts(method, i) for i in range(len(SAMPLED_SPLITS))]
        return scores_of_all(SAMPLED_SPLITS, counts, worker.comm)


def _counts(method: MiniBatchMethod[Any], split: int) -> Tensor:
    """Return this rank's numerator and denominator of a split's score."""
    worker, view = method.worker, method.worker.eval_view
    source, sampler, store = method.evaluated
    rows = view.rows[SAMPLED_SPLITS[split]]
    size = method.options.batch_size or max(rows.numel(), 1)
    own = torch.tensor([-(-rows.numel() // size)], device=worker.device)
    steps = max(int(n) for n in worker.comm.all_gather(own))
    counts = torch.zeros(2, dtype=torch.float64, device=worker.device)
    for step in range(steps):
        chosen = rows[step * size : (step + 1) * size]
        nodes = np.asarray(view.partition.inner)[chosen.cpu().numpy()].astype(np.int64)
        seed = batch_seed(worker.job.config.seed, worker.rank, SCORED + split, step)
        sample = sampler.sample(nodes, seed)
        inputs = store.gather(sample.layers[0].sources)
        logits = worker.model(method.blocks(sample, source), inputs)
        counts += score_counts(logits[: nodes.size], view.labels[chosen])
    return counts
