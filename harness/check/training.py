"""Training of a method on a tiny graph by a group of ranks, real processes with a hard limit of time."""

from __future__ import annotations

import faulthandler
import functools
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributed import FileStore  # type: ignore[attr-defined]

from harness.check.graphs import OnDisk
from harness.data.partition.cached import ensure_rows, row_type
from harness.models.layer import MODELS, ModelSpec
from harness.runtime.checkpoint import CheckpointPlace
from harness.runtime.integrity import EVALUATION
from harness.runtime.job import Job, patient_threads
from harness.runtime.method import METHODS
from harness.runtime.report import RankReport
from harness.runtime.run_config import MethodSpec, RunConfig, Timing, TrainSpec, TuningRun
from harness.runtime.trainer import Trainer, set_up
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
    timing: Timing = "plain"
    tuning: TuningRun | None = None
    plugin: PluginSource | None = None
    plugins: dict[str, PluginSource] = field(default_factory=dict)
    checkpoints: CheckpointPlace | None = None

    def trainer(self, rank: int, world: int, *, rehearsed: bool = False) -> Trainer:
        """Make the rank's trainer, with its worker and its method; `rehearsed`: as a trial does it, by `set_up`."""
        out = Path(tempfile.mkdtemp())
        return (set_up if rehearsed else Trainer)(Worker(self.job(out), rank, world), RankReport(out, rank))

    @property
    def _name(self) -> str:
        return self.method if self.plugin is not None else _class_path(self.method)

    @property
    def trained(self) -> ModelSpec:
        """The model that the method trains."""
        method = METHODS.load(self._name, self.plugin)
        return method.model_of(method.Options(**self.options), self.model) or self.model

    def job(self, out: Path) -> Job:
        """Return the job of its ranks, which write to `out`."""
        own = {"method": MethodSpec(name=self._name, options=self.options), "model": self.trained}
        config = RunConfig.model_validate(vars(self) | own)
        graph, parts, inductive = self.data.graph, self.data.parts, self.data.inductive
        dtype = row_type(config.method.options)
        return Job(
            config=config, graph=graph, train_view=parts.train, full_view=parts.full, inductive=inductive,
            rows=dtype and ensure_rows(graph, parts, dtype),
            store=out / "store", out=out, attempt="check", threads=self.train.threads or 1,
            checkpoints=self.checkpoints, audit=True,
        )  # fmt: skip


@functools.cache
def _class_path(name: str) -> str:
    """Return a method as `module:Class`: finding an installed one takes longer than to train it here."""
    method = METHODS.find(name).value
    return f"{method.__module__}:{method.__qualname__}"


@dataclass
class RankOutcome:
    """What a rank saw of a case.

    `before`, `after`: the weights by name; `gradients`: of the last step; `rows`: of the record, by epoch;
    `traffic`: bytes by scope, purpose, layer, direction and peer; `scores`: of the exact evaluation, by split;
    `broken`: see `Integrity`; `flags`: see `RankReport.flag`.
    """

    before: Weights
    gradients: Weights
    rows: list[dict[str, Any]]
    traffic: list[dict[str, Any]]
    scores: dict[str, float | None]
    after: Weights
    broken: str | None = None
    flags: tuple[tuple[str, str], ...] = ()


def train(rank: int, world: int, cases: list[Case]) -> list[RankOutcome]:
    """Train each case for its epochs."""
    return [outcome(case.trainer(rank, world)) for case in cases]


def resumed(rank: int, world: int, case: Case, cut: int) -> list[RankOutcome]:
    """Train for `cut` epochs, and then with another trainer, from a checkpoint, to the end."""
    first = case.trainer(rank, world)
    first.begin()
    for epoch in range(cut):
        first.report.epochs.append(first.train_epoch(epoch))
    assert first.checkpoints is not None
    first.keep(first.checkpoints, cut)
    first.method.close()
    second = case.trainer(rank, world)
    second.resume()
    return [outcome(second)]


def outcome(trainer: Trainer) -> RankOutcome:
    """Train for all epochs, or for those that are left."""
    worker, rows = trainer.worker, trainer.report.epochs
    before = _weights(worker)
    trainer.begin()
    for epoch in range(len(rows), worker.job.config.train.epochs):
        rows.append(trainer.train_epoch(epoch))
    gradients = {name: p.grad.cpu().numpy().copy() for name, p in worker.model.named_parameters() if p.grad is not None}
    with trainer.account.evaluation():
        scores = trainer.scores()
    trainer.integrity.unchanged(worker.model, EVALUATION)
    trainer.method.close()
    broken, traffic = trainer.integrity.broken, worker.traffic.rows()
    trainer.end()
    return RankOutcome(before, gradients, rows, traffic, scores, _weights(worker), broken, tuple(trainer.report.flags))


def _weights(worker: Worker) -> Weights:
    return {name: p.detach().cpu().numpy().copy() for name, p in worker.model.named_parameters()}


@dataclass
class Moments:
    """Mean and variance over draws [N, F] of each node's aggregation, and how often it was a destination."""

    mean: NDArray[np.float64]
    variance: NDArray[np.float64]
    times: NDArray[np.float64]


def aggregations(rank: int, world: int, case: Case, draws: int) -> Moments:
    """Aggregate the input features of a method of one layer, in every step of so many epochs."""
    trainer = case.trainer(rank, world)
    worker = trainer.worker
    nodes, width = worker.view.topology.num_nodes, worker.features.inner.shape[1]
    # What it outputs is what it aggregates: all weights but these are 0.
    summing = MODELS.load(case.model.name).as_module().build(case.model, width, width, last=False, products="auto")
    torch.nn.init.eye_(summing.to(worker.dtype).weight)
    total, square = np.zeros((nodes, width)), np.zeros((nodes, width))
    times = np.zeros(nodes)
    for epoch in range(draws):
        for step in trainer.method.steps(epoch):
            (block,) = step.blocks
            reached = np.asarray(worker.partition.inner)[: block.num_dst] if step.outputs is None else step.outputs
            h = step.inputs if isinstance(step.inputs, torch.Tensor) else step.inputs()
            h = h if step.exchange is None else step.exchange(h, 0)
            if step.first is None:
                values = block.aggregate(h, worker.model.propagation).numpy()
            else:
                values = step.first(summing, step.blocks, h).detach().numpy()
            total[reached] += values
            square[reached] += values**2
            times[reached] += 1
    trainer.method.close()
    mean = total / np.maximum(times, 1)[:, None]
    return Moments(mean, square / np.maximum(times, 1)[:, None] - mean**2, times)


START_S = 120  # on a busy machine imports alone take half a minute
END_S = 2


class RankError(Exception):
    """A rank raised, died or did not return in time.

    `reason`: one line; `output`: of all ranks; of one that raised its traceback, of those that did not return
    where they were.
    """

    def __init__(self, reason: str, output: str) -> None:
        super().__init__(f"{reason}\n{output}")
        self.reason, self.output = reason, output


@contextmanager
def rank_group(world: int) -> Iterator[RankGroup]:
    """Start ranks 0 to `world` - 1; they end with the context, and their temporary files with them.

    RankError if one did not start.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["harness.check.preload"])
    first = random.randrange(2**16)  # groups that run at the same time are to have different cores
    with tempfile.TemporaryDirectory() as folder:
        pipes = [context.Pipe() for _ in range(world)]
        processes: list[BaseProcess] = [
            context.Process(target=_rank, args=(rank, world, Path(folder), theirs, first + rank), daemon=True)
            for rank, (_, theirs) in enumerate(pipes)
        ]
        for process in processes:
            process.start()
        for _, theirs in pipes:
            theirs.close()
        group = RankGroup([ours for ours, _ in pipes], processes, Path(folder))
        try:
            group.results(START_S)
            yield group
        finally:
            for ours, _ in pipes:
                ours.close()  # a rank that waits for a call ends
            for process in processes:
                process.join(0 if group.failed else END_S)
                if process.is_alive():
                    process.kill()
                    process.join()


class RankGroup:
    """Ranks that wait for calls; see `rank_group`. `failed`: a call raised `RankError`; it is of no use any more."""

    def __init__(self, pipes: list[Connection], processes: list[BaseProcess], folder: Path) -> None:
        self._pipes, self._processes, self._folder = pipes, processes, folder
        self.failed = False

    def call(self, function: Callable[..., Any], *arguments: Any, timeout_s: float = 120, **options: Any) -> list[Any]:
        """Call `function(rank, world, *arguments, **options)` on every rank; results by rank.

        `function` must be importable. RankError if a rank raised, died, or took more than `timeout_s` seconds.
        """
        for pipe in self._pipes:
            pipe.send((function, arguments, options))
        return self.results(timeout_s)

    def results(self, timeout_s: float) -> list[Any]:
        """Return what the ranks send next, by rank; raises as `call` does."""
        waiting = {pipe: rank for rank, pipe in enumerate(self._pipes)}
        results: list[Any] = [None] * len(waiting)
        deadline = time.monotonic() + timeout_s
        while waiting:
            ready = wait(list(waiting), max(0, deadline - time.monotonic()))
            if not ready:
                for rank in waiting.values():  # each writes its stack, innermost call first
                    os.kill(self._processes[rank].pid or 0, signal.SIGUSR1)
                time.sleep(0.5)
                self._fail(f"ranks {sorted(waiting.values())} did not return within {timeout_s:g} s")
            for pipe in ready:
                assert isinstance(pipe, Connection)
                rank = waiting.pop(pipe)
                try:
                    ok, results[rank] = pipe.recv()
                except (EOFError, ConnectionResetError):
                    self._fail(f"rank {rank} died")
                if not ok:
                    self._fail(f"rank {rank}: {results[rank]}")
        return results

    def _fail(self, reason: str) -> NoReturn:
        self.failed = True
        logs = sorted(self._folder.glob("rank*.log"))
        raise RankError(reason, "\n".join(f"--- {log.stem}\n{log.read_text()}" for log in logs))


def _rank(rank: int, world: int, folder: Path, pipe: Connection, turn: int) -> None:
    """Run as a rank: start, then do what is asked for, until nobody asks any more.

    Where there is a core for each rank it is pinned to one, as in a trial: `turn` says which of those there are.
    """
    log = os.open(folder / f"rank{rank}.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1)
    sys.stderr = os.fdopen(2, "w", buffering=1)
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    tempfile.tempdir = str(folder)
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity") and world <= len(cores := sorted(os.sched_getaffinity(0))):
        os.sched_setaffinity(0, [cores[turn % len(cores)]])
    if world > 1:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        store, timeout = FileStore(str(folder / "store"), world), timedelta(seconds=60)
        with patient_threads():
            torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timeout)
    result: tuple[bool, Any] = True, None
    while result[0]:
        pipe.send(result)
        try:
            function, arguments, options = pipe.recv()
        except EOFError:
            os._exit(0)
        try:
            result = True, function(rank, world, *arguments, **options)
        except BaseException as error:
            traceback.print_exc()
            result = False, f"{type(error).__name__}: {error}"
    pipe.send(result)
    os._exit(0)
