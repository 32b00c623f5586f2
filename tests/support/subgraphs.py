"""Training on subgraphs, and what each step was made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.check.training import Case
from harness.runtime.step import Step
from harness.runtime.trainer import Trainer


@dataclass
class Taken:
    """A rank's step: the subgraph's nodes, those that the loss reads, their weights, and what divides it."""

    nodes: NDArray[np.int64]
    learnt: NDArray[np.int64]
    weights: NDArray[np.float64] | None
    total: int


@dataclass
class Run:
    """A rank's rows of the record by epoch, its steps by epoch, and the last step's gradients."""

    rows: list[dict[str, Any]]
    epochs: list[list[Taken]]
    gradients: dict[str, NDArray[np.float64]]


def run_subgraphs(rank: int, world: int, cases: list[Case]) -> list[Run]:
    """Train each case for its epochs."""
    return [_run(case.trainer(rank, world)) for case in cases]


def _run(trainer: Trainer) -> Run:
    worker = trainer.worker

    def watched(epoch: int) -> Iterator[Step]:
        epochs.append([])
        for step in steps(epoch):
            if step.nodes is not None:  # a full-graph method's have none
                epochs[-1].append(_taken(step))
            yield step

    epochs: list[list[Taken]] = []
    steps, trainer.method.steps = trainer.method.steps, watched
    rows = [trainer.train_epoch(epoch) for epoch in range(worker.job.config.train.epochs)]
    trainer.method.close()
    named = worker.model.named_parameters()
    return Run(rows, epochs, {name: p.grad.numpy().copy() for name, p in named})


def _taken(step: Step) -> Taken:
    assert step.nodes is not None
    loss = step.loss
    weights = None if loss.weights is None else loss.weights.double().numpy()
    return Taken(step.nodes, step.nodes[loss.rows.numpy()], weights, loss.total)


def assert_same_training(full: Run, found: Run) -> None:
    """Hold losses, and the gradients of the last step, against those of full-graph training."""
    losses = [row["loss"] for row in full.rows]
    np.testing.assert_allclose([row["loss"] for row in found.rows], losses, rtol=1e-9)
    for key, gradient in full.gradients.items():
        np.testing.assert_allclose(found.gradients[key], gradient, rtol=1e-9, atol=1e-12)


def assert_bytes(ranks: list[Run], epoch: int, *, remote: int, peers: int, row: int, label: int) -> None:
    """Hold an epoch's bytes against the closed form.

    `remote` nodes of subgraphs are of other ranks than theirs; `peers` is what counts of rows cost in an
    epoch, once for features and once for labels; `row` and `label` the bytes of a node's features and labels.
    """
    total = {
        purpose: sum(run.rows[epoch][f"bytes_{purpose}"] for run in ranks)
        for purpose in ("feature", "control", "embedding", "gradient", "swap")
    }
    assert total == {
        "feature": remote * row,
        "control": (4 * remote + peers) + ((4 + label) * remote + peers),
        "embedding": 0,
        "gradient": 0,
        "swap": 0,
    }
