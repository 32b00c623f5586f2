"""What ranks of the conformance tests do; importable, so that other processes can call it."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from support.graphs import OnDisk

from harness.graph.block import Block
from harness.graph.edge_sampling import EdgeSample
from harness.graph.partition import Partition
from harness.models.spec import ModelSpec
from harness.runtime.evaluate import evaluate
from harness.runtime.job import Job
from harness.runtime.registry import load_method
from harness.runtime.report import RankReport
from harness.runtime.spec import MethodSpec, RunConfig, TrainSpec
from harness.runtime.step import Step
from harness.runtime.trainer import Trainer
from harness.runtime.worker import Worker


@dataclass(frozen=True)
class Case:
    """One method on one graph."""

    data: OnDisk
    method: str
    options: dict[str, Any]
    model: ModelSpec
    train: TrainSpec = field(default_factory=lambda: TrainSpec(epochs=1, precision="float64", threads=1))
    seed: int = 0
    device: str = "cpu"

    def worker(self, rank: int, world: int) -> tuple[Worker, RankReport]:
        """Make the rank's worker."""
        config = RunConfig(
            model=self.model,
            train=self.train,
            method=MethodSpec(name=_class_path(self.method), options=self.options),
            seed=self.seed,
            device=self.device,
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
            attempt="test",
            threads=self.train.threads or 1,
        )
        return Worker(job, rank, world), RankReport(out, rank)


@functools.cache
def _class_path(name: str) -> str:
    """Return a method as `module:Class`: finding an installed one takes longer than to train it here."""
    method = load_method(name)
    return f"{method.__module__}:{method.__qualname__}"


@dataclass
class Outcome:
    """What a rank saw of a case."""

    before: dict[str, np.ndarray]
    gradients: dict[str, np.ndarray]
    rows: list[dict[str, Any]]
    traffic: list[dict[str, Any]]
    scores: dict[str, float | None]
    after: dict[str, np.ndarray]


def train(rank: int, world: int, cases: list[Case]) -> list[Outcome]:
    """Train each case for its epochs; the gradients are those of the last step."""
    return [_train(rank, world, case) for case in cases]


def _train(rank: int, world: int, case: Case) -> Outcome:
    return _outcome(*case.worker(rank, world))


def _outcome(worker: Worker, report: RankReport) -> Outcome:
    before = _weights(worker)
    trainer = Trainer(worker, report)
    rows = [trainer.train_epoch(epoch) for epoch in range(worker.job.config.train.epochs)]
    worker.method.close()
    gradients = {
        name: p.grad.cpu().numpy().copy() for name, p in worker.model.named_parameters() if p.grad is not None
    }
    scores = evaluate(worker.model, worker.eval_view, worker.comm)
    return Outcome(before, gradients, rows, worker.traffic.rows(), scores, _weights(worker))


@dataclass
class Drawn:
    """The edges of a graph that a rank trained on: target and source nodes, and their weights a_ij / p_ij."""

    targets: NDArray[np.int64]
    sources: NDArray[np.int64]
    weights: NDArray[np.float64]


def train_and_watch(rank: int, world: int, cases: list[Case]) -> list[tuple[Outcome, list[Drawn]]]:
    """Train each case of a full-graph method; returns also the graph of each step."""
    return [_watch(rank, world, case) for case in cases]


def _watch(rank: int, world: int, case: Case) -> tuple[Outcome, list[Drawn]]:
    kept: dict[Block, NDArray[np.int64]] = {}
    make = Partition.sampled_block

    def remember(partition: Partition, sample: EdgeSample) -> Block:
        block = make(partition, sample)
        kept[block] = sample.kept
        return block

    def watched(epoch: int) -> Iterator[Step]:
        for step in steps(epoch):
            drawn.append(_edges(worker.partition, step.blocks[0], kept))
            yield step

    drawn: list[Drawn] = []
    with mock.patch.object(Partition, "sampled_block", remember):
        worker, report = case.worker(rank, world)
        steps = worker.method.steps
        worker.method.steps = watched  # type: ignore[method-assign]
        return _outcome(worker, report), drawn


def _edges(partition: Partition, block: Block, kept: dict[Block, NDArray[np.int64]]) -> Drawn:
    boundary = partition.boundary[kept[block]] if block in kept else partition.boundary
    nodes, adjacency = np.concatenate([partition.inner, boundary]), block.adjacency
    values = torch.ones(adjacency.nnz) if adjacency.values is None else adjacency.values
    return Drawn(
        np.repeat(partition.inner, np.diff(adjacency.indptr.numpy())),
        nodes[adjacency.indices.numpy()],
        values.double().numpy(),
    )


def _weights(worker: Worker) -> dict[str, np.ndarray]:
    return {name: p.detach().cpu().numpy().copy() for name, p in worker.model.named_parameters()}


def read_inputs(rank: int, world: int, cases: list[Case]) -> list[list[tuple[np.ndarray, np.ndarray]]]:
    """Return, for each case and step of the first epoch, the data set's nodes [n] and what is read [n, F]."""
    return [_read_inputs(rank, world, case) for case in cases]


def _read_inputs(rank: int, world: int, case: Case) -> list[tuple[np.ndarray, np.ndarray]]:
    worker, _ = case.worker(rank, world)
    steps = list(worker.method.steps(0))
    worker.method.close()
    return [(worker.view.nodes[step.nodes], step.inputs.numpy()) for step in steps]  # type: ignore[union-attr]


def aggregations(rank: int, world: int, cases: list[tuple[Case, int]]) -> list[dict[str, np.ndarray]]:
    """Aggregate the input features once for each draw of each one-layer method, so many draws.

    Returns the mean and variance over draws [N, F] of each node's aggregation and the number of draws that it
    was a destination of.
    """
    return [_aggregations(rank, world, case, draws) for case, draws in cases]


def _aggregations(rank: int, world: int, case: Case, draws: int) -> dict[str, np.ndarray]:
    worker, _ = case.worker(rank, world)
    nodes, width = worker.view.topology.num_nodes, worker.features.inner.shape[1]
    total, square = np.zeros((nodes, width)), np.zeros((nodes, width))
    times = np.zeros(nodes)
    for epoch in range(draws):
        for step in worker.method.steps(epoch):
            reached, values = _aggregate(worker, step)
            total[reached] += values
            square[reached] += values**2
            times[reached] += 1
    worker.method.close()
    mean = total / np.maximum(times, 1)[:, None]
    variance = square / np.maximum(times, 1)[:, None] - mean**2
    return {"mean": mean, "variance": variance, "times": times}


def _aggregate(worker: Worker, step: Step) -> tuple[np.ndarray, np.ndarray]:
    """Return the destinations and the aggregation of their neighbours' features."""
    (block,) = step.blocks
    nodes = np.asarray(worker.partition.inner) if step.nodes is None else step.nodes
    h = step.inputs
    assert isinstance(h, torch.Tensor)
    if step.exchange is not None:
        h = step.exchange(h, 0)
    return nodes[: block.num_dst], block.aggregate(h, worker.model.propagation).numpy()


def unsynchronised_epochs(rank: int, world: int, case: Case) -> list[float]:
    """Train on a GPU; in an epoch every wait of the host for the device is an error. Returns the losses."""
    worker, report = case.worker(rank, world)
    trainer = Trainer(worker, report)
    losses = [trainer.train_epoch(0)["loss"]]  # transposes are built and moved in the first epoch

    def strict(epoch: int) -> Iterator[Step]:
        torch.cuda.set_sync_debug_mode("error")
        yield from steps(epoch)
        torch.cuda.set_sync_debug_mode("default")

    steps = worker.method.steps
    worker.method.steps = strict  # type: ignore[method-assign]
    losses += [trainer.train_epoch(epoch)["loss"] for epoch in (1, 2)]
    return losses


def run_to_the_end(rank: int, world: int, case: Case) -> dict[str, Any]:
    """Run a whole trial; returns the rank's report."""
    worker, report = case.worker(rank, world)
    with report.settle():
        report.setup(worker, 0.0)
        Trainer(worker, report).run()
    found: dict[str, Any] = json.loads((worker.job.out / f"rank{rank}.json").read_text())
    return found


def run_all_to_the_end(rank: int, world: int, cases: list[Case]) -> list[dict[str, Any]]:
    """Run whole trials, one after the other; returns the rank's reports."""
    return [run_to_the_end(rank, world, case) for case in cases]


def memory_peaks(rank: int, world: int, cases: list[Case]) -> list[tuple[int, int]]:
    """Train one case after the other; returns the process's peak so far and the case's model, in bytes.

    The peak is of the resident set, mapped files left out; the case's own if it is the largest yet.
    """
    peaks = []
    for case in cases:
        worker, report = case.worker(rank, world)
        trainer = Trainer(worker, report)
        for epoch in range(case.train.epochs):
            trainer.train_epoch(epoch)
        found = _resident()
        peaks.append((found["VmHWM"] - found["RssFile"], sum(worker.method.memory_components().values())))
    return peaks


def _resident() -> dict[str, int]:
    lines = Path("/proc/self/status").read_text().splitlines()
    return {
        line.split(":")[0]: int(line.split()[1]) * 1024
        for line in lines
        if line.startswith(("VmHWM", "RssFile"))
    }
