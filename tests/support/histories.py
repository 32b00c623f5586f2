"""What ranks of the tests of historical activations do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from harness_methods.vrgcn import VRGCN, HistorySample
from numpy.typing import NDArray

from harness.check.training import Case

Nodes = NDArray[np.int64]


@dataclass
class Read:
    """What a step of a rank reads and writes: nodes of the first layer, and of the histories by layer."""

    inputs: Nodes
    read: dict[int, Nodes]
    written: dict[int, Nodes]


@dataclass
class Remembered:
    """An epoch: its row of the record, its steps, and the histories [n_in, width] by layer after it."""

    row: dict[str, object]
    steps: list[Read]
    histories: dict[int, NDArray[np.float64]]
    gradients: dict[str, NDArray[np.float64]]


def remember(rank: int, world: int, cases: list[Case]) -> list[list[Remembered]]:
    """Train each case, of whatever method; returns its epochs."""
    return [_remember(rank, world, case) for case in cases]


def _remember(rank: int, world: int, case: Case) -> list[Remembered]:
    trainer = case.trainer(rank, world)
    worker = trainer.worker
    method, epochs = trainer.method, []
    for epoch in range(case.train.epochs):
        steps = _steps(method, epoch) if isinstance(method, VRGCN) else []
        row = trainer.train_epoch(epoch)
        stores = method.histories if isinstance(method, VRGCN) else {}
        histories = {layer: store.inner.numpy().copy() for layer, store in stores.items()}
        gradients = {name: p.grad.numpy().copy() for name, p in worker.model.named_parameters()}
        epochs.append(Remembered(row, steps, histories, gradients))
    method.close()
    return epochs


def _steps(method: VRGCN, epoch: int) -> list[Read]:
    steps = []
    for batch in method.batches(epoch):
        layers = method.sampler.sample(batch.targets, batch.seed).layers
        recalled = {i: layer for i, layer in enumerate(layers) if isinstance(layer, HistorySample)}
        read = {i: layer.historical for i, layer in recalled.items()}
        written = {i: layer.sources[: layer.fresh] for i, layer in recalled.items()}
        steps.append(Read(layers[0].sources, read, written))
    return steps
