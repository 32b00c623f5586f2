"""Training of a method on a tiny graph, as ranks of a group do it."""

from __future__ import annotations

import functools
import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from harness.check.graphs import OnDisk
from harness.models.spec import ModelSpec
from harness.runtime.evaluate import evaluate
from harness.runtime.job import Job
from harness.runtime.method import METHODS
from harness.runtime.report import RankReport
from harness.runtime.spec import MethodSpec, RunConfig, TrainSpec
from harness.runtime.step import Step
from harness.runtime.trainer import Trainer
from harness.runtime.worker import Worker
from harness.spec import PluginSource

Weights = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Case:
    """One method on one graph; `plugin` and `plugins` say where code is that is not installed."""

    data: OnDisk
    method: str
    options: dict[str, Any]
    model: ModelSpec
    train: TrainSpec = field(default_factory=lambda: TrainSpec(epochs=1, precision="float64", threads=1))
    seed: int = 0
    device: str = "cpu"
    plugin: PluginSource | None = None
    plugins: dict[str, PluginSource] = field(default_factory=dict)

    def trainer(self, rank: int, world: int) -> Trainer:
        """Make the rank's trainer, with its worker and its method."""
        config = RunConfig.model_validate(
            {
                "model": self.model,
                "train": self.train,
                "method": MethodSpec(name=self._name, options=self.options),
                "plugin": self.plugin,
                "plugins": self.plugins,
                "seed": self.seed,
                "device": self.device,
            }
        )
        out = Path(tempfile.mkdtemp())
        job = Job(
            config=config,
            graph=self.data.graph,
            train_view=self.data.parts.train,
            full_view=self.data.parts.full,
            inductive=self.data.inductive,
            store=out / "store",
            out=out,
            attempt="check",
            threads=self.train.threads or 1,
        )
        return Trainer(Worker(job, rank, world), RankReport(out, rank))

    @property
    def _name(self) -> str:
        return self.method if self.plugin is not None else _class_path(self.method)


@functools.cache
def _class_path(name: str) -> str:
    """Return a method as `module:Class`: finding an installed one takes longer than to train it here."""
    method = METHODS.find(name).value
    return f"{method.__module__}:{method.__qualname__}"


@dataclass
class RankOutcome:
    """What a rank saw of a case.

    Attributes:
        before, after: the weights by name.
        gradients: of the last step.
        rows: of the record, by epoch.
        traffic: bytes by scope, purpose, layer, direction and peer.
        scores: of the exact evaluation, by split.
    """

    before: Weights
    gradients: Weights
    rows: list[dict[str, Any]]
    traffic: list[dict[str, Any]]
    scores: dict[str, float | None]
    after: Weights


def train(rank: int, world: int, cases: list[Case]) -> list[RankOutcome]:
    """Train each case for its epochs; the gradients are those of the last step."""
    return [outcome(case.trainer(rank, world)) for case in cases]


def outcome(trainer: Trainer) -> RankOutcome:
    """Train for all epochs."""
    worker = trainer.worker
    before = _weights(worker)
    rows = [trainer.train_epoch(epoch) for epoch in range(worker.job.config.train.epochs)]
    trainer.method.close()
    gradients = {name: p.grad.cpu().numpy().copy() for name, p in worker.model.named_parameters() if p.grad is not None}
    scores = evaluate(worker.model, worker.eval_view, worker.comm)
    return RankOutcome(before, gradients, rows, worker.traffic.rows(), scores, _weights(worker))


def _weights(worker: Worker) -> Weights:
    return {name: p.detach().cpu().numpy().copy() for name, p in worker.model.named_parameters()}


@dataclass
class Moments:
    """Mean and variance over draws [N, F] of each node's aggregation, and how often it was a destination."""

    mean: NDArray[np.float64]
    variance: NDArray[np.float64]
    times: NDArray[np.float64]


def aggregations(rank: int, world: int, cases: list[tuple[Case, int]]) -> list[Moments]:
    """Aggregate the input features once for each draw of each one-layer method, so many draws."""
    return [_aggregations(rank, world, case, draws) for case, draws in cases]


def _aggregations(rank: int, world: int, case: Case, draws: int) -> Moments:
    trainer = case.trainer(rank, world)
    worker = trainer.worker
    nodes, width = worker.view.topology.num_nodes, worker.features.inner.shape[1]
    total, square = np.zeros((nodes, width)), np.zeros((nodes, width))
    times = np.zeros(nodes)
    for epoch in range(draws):
        for step in trainer.method.steps(epoch):
            reached, values = _aggregate(worker, step)
            total[reached] += values
            square[reached] += values**2
            times[reached] += 1
    trainer.method.close()
    mean = total / np.maximum(times, 1)[:, None]
    return Moments(mean, square / np.maximum(times, 1)[:, None] - mean**2, times)


def _aggregate(worker: Worker, step: Step) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the destinations and the aggregation of their neighbours' features."""
    (block,) = step.blocks
    nodes = np.asarray(worker.partition.inner) if step.nodes is None else step.nodes
    h = step.inputs if isinstance(step.inputs, torch.Tensor) else step.inputs()
    if step.exchange is not None:
        h = step.exchange(h, 0)
    return nodes[: block.num_dst], block.aggregate(h, worker.model.propagation).numpy()


def run_to_the_end(rank: int, world: int, case: Case) -> dict[str, Any]:
    """Run a whole trial; returns the rank's report."""
    trainer = case.trainer(rank, world)
    with trainer.report.concluding():
        trainer.report.setup(trainer.worker, trainer.method, 0.0)
        trainer.run()
    found: dict[str, Any] = json.loads((trainer.worker.job.out / f"rank{rank}.json").read_text())
    return found


def run_all_to_the_end(rank: int, world: int, cases: list[Case]) -> list[dict[str, Any]]:
    """Run whole trials, one after the other; returns the rank's reports."""
    return [run_to_the_end(rank, world, case) for case in cases]
