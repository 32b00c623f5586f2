"""Methods that would win unfairly, by will or by mistake: each is to be caught, by name."""

from __future__ import annotations

import dataclasses
import mmap
import os
import socket
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import psutil
import torch
import torch.distributed as dist
from harness_methods.full import Full
from harness_methods.graphsage import GraphSAGE
from torch import nn

from harness import FullGraphOptions, Step, Worker
from harness.graph.block import Block
from harness.graph.csr import CSR
from harness.graph.kernels import gather
from harness.runtime.batches import PRESAMPLED, Batch
from harness.runtime.clock import Clock
from harness.runtime.evaluation import evaluate
from harness.runtime.optimizers import light
from harness.runtime.step import Loss

STEPS = 5
EACH_S = 0.03  # CPU seconds of a thread


def train(worker: Worker, steps: Iterator[Step], optimizer: torch.optim.Optimizer) -> None:
    """Do steps of one's own."""
    for step in steps:
        logits = worker.model(step.blocks, step.inputs, step.exchange)
        nn.functional.cross_entropy(logits[step.loss.rows], step.loss.labels).backward()
        optimizer.step()


class _Cheat(Full):
    exact = None

    def __init__(self, worker: Worker, options: FullGraphOptions) -> None:
        super().__init__(worker, options)
        self.own = torch.optim.SGD(worker.model.parameters(), lr=0.1)


class AllNodes(_Cheat):
    """Trains on validation and test nodes, too."""

    def steps(self, epoch: int) -> Iterator[Step]:
        labels = self.worker.view.labels
        loss = Loss(torch.arange(labels.shape[0]), labels, labels.shape[0])
        for step in super().steps(epoch):
            yield dataclasses.replace(step, loss=loss)


class Narrower(_Cheat):
    """Replaces the model by a narrower one."""

    def __init__(self, worker: Worker, options: FullGraphOptions) -> None:
        super().__init__(worker, options)
        spec = worker.model.spec.model_copy(update={"hidden": 2})
        width, classes = worker.stored_features.shape[1], list(worker.model.parameters())[-1].shape[-1]
        worker.model = type(worker.model)(spec, width, classes, seed=0, dtype=worker.dtype)


class Ahead(_Cheat):
    """Trains in its set-up."""

    def __init__(self, worker: Worker, options: FullGraphOptions) -> None:
        super().__init__(worker, options)
        for _ in range(STEPS):
            train(worker, super().steps(0), self.own)


class WhileEvaluated(GraphSAGE):
    """Trains while it is asked for the scores of its sampler."""

    def __init__(self, worker: Worker, options: Any) -> None:
        super().__init__(worker, options)
        self.own = torch.optim.SGD(worker.model.parameters(), lr=0.1)

    def sampled_scores(self) -> dict[str, float | None]:
        train(self.worker, self.steps(0), self.own)
        return super().sampled_scores()


class WhenLookedAt(_Cheat):
    """Trains whenever its model is evaluated."""

    def __init__(self, worker: Worker, options: FullGraphOptions) -> None:
        super().__init__(worker, options)
        worker.model.register_forward_hook(self.after)

    def after(self, model: nn.Module, arguments: Any, logits: Any) -> None:
        if not model.training:
            with torch.enable_grad():
                model.train()
                train(self.worker, super().steps(0), self.own)
                model.eval()


class Twice(_Cheat):
    """Takes a step of its own beside each of the trainer's."""

    def steps(self, epoch: int) -> Iterator[Step]:
        for _ in range(2):
            yield from super().steps(epoch)
            train(self.worker, super().steps(epoch), self.own)


class BehindTheBack(_Cheat):
    """Writes to the weights in a way that torch does not count."""

    def steps(self, epoch: int) -> Iterator[Step]:
        for parameter in self.worker.model.parameters():
            parameter.data.mul_(0.9)
        yield from super().steps(epoch)


class OwnTensors(_Cheat):
    """Puts tensors of its own in the place of the weights."""

    def steps(self, epoch: int) -> Iterator[Step]:
        for parameter in self.worker.model.parameters():
            parameter.data = parameter.data.clone()
        yield from super().steps(epoch)


class LabelsAsFeatures(_Cheat):
    """Writes the labels of all nodes, read from the data set's files, into the features."""

    def __init__(self, worker: Worker, options: FullGraphOptions) -> None:
        super().__init__(worker, options)
        labels = np.load(worker.job.graph / "labels.npy")[worker.view.nodes[worker.partition.inner]]
        worker.features.inner[:, 0] = torch.from_numpy(labels)


class AllNodesFromFiles(_Cheat):
    """Trains on all nodes, with their labels from the data set's files."""

    def steps(self, epoch: int) -> Iterator[Step]:
        worker = self.worker
        labels = torch.from_numpy(np.load(worker.job.graph / "labels.npy")[worker.view.nodes[worker.partition.inner]])
        rows = torch.arange(labels.shape[0])[labels >= 0]
        for step in super().steps(epoch):
            yield dataclasses.replace(step, loss=Loss(rows, labels[rows], rows.shape[0]))


class OwnForward(_Cheat):
    """Answers what the model is asked with something else."""

    def __init__(self, worker: Worker, options: FullGraphOptions) -> None:
        super().__init__(worker, options)
        whole = worker.model.forward
        worker.model.forward = lambda *a, **k: whole(*a, **k) * 2


class Drawing(GraphSAGE):
    """Draws training's numbers while it is asked for the scores of its sampler."""

    def sampled_scores(self) -> dict[str, float | None]:
        torch.rand(3)
        np.random.rand(3)
        self.worker.rng.random(3)
        return super().sampled_scores()


class Scaled(GraphSAGE):
    """Scales the features that its batches read."""

    def steps(self, epoch: int) -> Iterator[Step]:
        for step in super().steps(epoch):
            yield dataclasses.replace(step, inputs=step.inputs * 1.5)


class OwnAggregation(_Cheat):
    """Changes what was aggregated before the training."""

    def __init__(self, worker: Worker, options: FullGraphOptions) -> None:
        super().__init__(worker, options.model_copy(update={"precompute": True}))
        assert self.aggregated is not None
        self.aggregated *= 1.5


def work(seconds: float) -> None:
    """Use a core for so many CPU seconds of this thread, without Python's lock."""
    start, text = time.thread_time(), bytes(2**20)
    while time.thread_time() - start < seconds:
        zlib.crc32(text)


class OwnThreads(_Cheat):
    """Works in many threads."""

    def steps(self, epoch: int) -> Iterator[Step]:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, [EACH_S] * 8))
        yield from super().steps(epoch)


class MoreThreads(_Cheat):
    """Gives torch more threads than the suite does."""

    def __init__(self, worker: Worker, options: FullGraphOptions) -> None:
        super().__init__(worker, options)
        torch.set_num_threads(torch.get_num_threads() + 1)


class OtherCores(_Cheat):
    """Leaves the cores that it is pinned to."""

    def __init__(self, worker: Worker, options: FullGraphOptions) -> None:
        super().__init__(worker, options)
        os.sched_setaffinity(0, range(os.cpu_count() or 1))


_WORK = "sum(i for i in range(2_000_000))"


class Child(_Cheat):
    """Works in a child process in each epoch."""

    def steps(self, epoch: int) -> Iterator[Step]:
        subprocess.run([sys.executable, "-S", "-c", _WORK], check=True)
        yield from super().steps(epoch)


class LivingChild(_Cheat):
    """Works in a child process that lives as long as the training."""

    def __init__(self, worker: Worker, options: FullGraphOptions) -> None:
        super().__init__(worker, options)
        self.child = subprocess.Popen([sys.executable, "-S", "-c", f"while True: {_WORK}"])

    def steps(self, epoch: int) -> Iterator[Step]:
        while sum(psutil.Process(self.child.pid).cpu_times()[:2]) < 0.1 * (epoch + 1):
            time.sleep(0.01)
        yield from super().steps(epoch)

    def close(self) -> None:
        self.child.kill()
        self.child.wait()


class BesideEvaluations(_Cheat):
    """Has a thread compute what the next epoch needs while it is evaluated."""

    def __init__(self, worker: Worker, options: FullGraphOptions) -> None:
        super().__init__(worker, options)
        self.pool = ThreadPoolExecutor(1)
        self.begun = time.process_time()
        worker.model.register_forward_hook(self.after)

    def steps(self, epoch: int) -> Iterator[Step]:
        self.begun = time.process_time()
        yield from super().steps(epoch)

    def after(self, model: nn.Module, arguments: Any, logits: Any) -> None:
        if not model.training:  # works as long as the epoch did: a first epoch may import for long
            self.pool.submit(work, max(0.08, time.process_time() - self.begun)).result()

    def close(self) -> None:
        self.pool.shutdown()


class AroundTheCommunicator(_Cheat):
    """Sends rows by torch itself."""

    def steps(self, epoch: int) -> Iterator[Step]:
        rows = torch.ones(self.worker.world, 10_000)
        dist.all_gather(list(rows), torch.ones(10_000))
        yield from super().steps(epoch)


class OwnSocket(_Cheat):
    """Sends rows through a socket of its own."""

    def steps(self, epoch: int) -> Iterator[Step]:
        if epoch == 0:
            self.ends = socket.socketpair()
        self.ends[0].send(b"0")
        yield from super().steps(epoch)


class OwnFile(_Cheat):
    """Writes rows to a file."""

    def steps(self, epoch: int) -> Iterator[Step]:
        with tempfile.TemporaryFile() as file:
            file.write(bytes(2**20))
        yield from super().steps(epoch)


class OwnMemory(_Cheat):
    """Writes rows to memory that it shares."""

    def steps(self, epoch: int) -> Iterator[Step]:
        if epoch == 0:
            with tempfile.TemporaryFile() as file:
                file.truncate(mmap.PAGESIZE)
                self.shared = mmap.mmap(file.fileno(), 0)
        self.shared[:1] = b"0"
        yield from super().steps(epoch)


class LateKernel(_Cheat):
    """Calls a compiled kernel in an epoch that it has not called in its rehearsal."""

    def rehearsal(self) -> Iterator[Step]:
        yield from super().steps(0)

    def steps(self, epoch: int) -> Iterator[Step]:
        if epoch == 2:
            gather(np.zeros(3, np.int8), np.zeros(1, np.int64))
        yield from super().steps(epoch)


class Honest(_Cheat):
    """Scores itself on training nodes while it trains, and changes nothing."""

    def steps(self, epoch: int) -> Iterator[Step]:
        yield from super().steps(epoch)
        evaluate(self.worker.model, self.worker.eval_view, self.worker.comm)


class OwnClass(_Cheat):
    """Gives the model a class that answers evaluations with the labels of all nodes."""

    def __init__(self, worker: Worker, options: FullGraphOptions) -> None:
        super().__init__(worker, options)
        labels = torch.from_numpy(_labels(worker))

        class Knowing(type(worker.model)):  # type: ignore[misc]
            def forward(self, *arguments: Any, **others: Any) -> torch.Tensor:
                logits = super().forward(*arguments, **others)
                known = nn.functional.one_hot(labels.clamp(min=0), logits.shape[1]).to(logits)
                return logits if self.training else known

        worker.model.__class__ = Knowing


class OwnLayerClass(_Cheat):
    """Gives the last layer a class of its own."""

    def __init__(self, worker: Worker, options: FullGraphOptions) -> None:
        super().__init__(worker, options)
        layer = worker.model.graph_layers[-1]
        layer.__class__ = type(
            "Twice", (type(layer),), {"run": lambda self, *a, **k: 2 * super(self.__class__, self).run(*a, **k)}
        )


class BeforeTheClock(GraphSAGE):
    """Draws and fetches an epoch's batches when the model is set to train, before the epoch's time begins."""

    def __init__(self, worker: Worker, options: Any) -> None:
        super().__init__(worker, options)
        self.epoch, self.ready, self.switch = 0, list[Step](), worker.model.train
        worker.model.train = self.prepare

    def prepare(self, mode: bool = True) -> nn.Module:
        if mode and not self.ready:
            self.ready = list(super().steps(self.epoch))
        return self.switch(mode)

    def steps(self, epoch: int) -> Iterator[Step]:
        yield from self.ready
        self.epoch, self.ready = epoch + 1, []


class QuarterOfBatches(GraphSAGE):
    """Calls a quarter of the batches an epoch."""

    def batches(self, epoch: int) -> list[Batch]:
        every = super().batches(epoch)
        return every[: max(1, len(every) // 4)]


class QuarterOfRows(_Cheat):
    """Learns from a quarter of the training nodes, and says that they are all."""

    def steps(self, epoch: int) -> Iterator[Step]:
        for step in super().steps(epoch):
            yield dataclasses.replace(step, loss=Loss(step.loss.rows[::4], step.loss.labels[::4], step.loss.total))


class SameSteps(GraphSAGE):
    """Draws the batches of the first epoch alone."""

    def __init__(self, worker: Worker, options: Any) -> None:
        super().__init__(worker, options)
        self.kept = list[Step]()

    def steps(self, epoch: int) -> Iterator[Step]:
        self.kept = self.kept or list(super().steps(epoch))
        yield from self.kept


class OneRow(_Cheat):
    """Learns from one node in all epochs but the first."""

    def steps(self, epoch: int) -> Iterator[Step]:
        for step in super().steps(epoch):
            rows = slice(None) if epoch == 0 else slice(1)
            loss = Loss(step.loss.rows[rows], step.loss.labels[rows], step.loss.rows[rows].numel())
            yield dataclasses.replace(step, loss=loss)


class OneRowOften(_Cheat):
    """Learns from one node as often as there are training nodes."""

    def steps(self, epoch: int) -> Iterator[Step]:
        for step in super().steps(epoch):
            first = torch.zeros_like(step.loss.rows)
            loss = Loss(step.loss.rows[first], step.loss.labels[first], step.loss.total)
            yield dataclasses.replace(step, loss=loss)


class EverySecondSum(_Cheat):
    """Leaves out every second sum of the gradients, on all ranks."""

    def __init__(self, worker: Worker, options: FullGraphOptions) -> None:
        super().__init__(worker, options)
        self.calls, self.whole = 0, worker.comm.all_reduce
        worker.comm.all_reduce = self.reduce

    def reduce(self, tensor: torch.Tensor, *, purpose: Any, **others: Any) -> torch.Tensor:
        self.calls += purpose == "model"
        if purpose == "model" and self.calls % 2:
            tensor[:-1] = 0
            return tensor
        return self.whole(tensor, purpose=purpose, **others)


class OneClass(_Cheat):
    """Has the test nodes of one class scored."""

    def __init__(self, worker: Worker, options: FullGraphOptions) -> None:
        super().__init__(worker, options)
        rows = worker.eval_view.rows["test"]
        worker.eval_view.rows["test"] = rows[torch.from_numpy(_labels(worker))[rows] == 0]


class OwnTime(_Cheat):
    """Has the clock run ten times as slow."""

    def __init__(self, worker: Worker, options: FullGraphOptions) -> None:
        super().__init__(worker, options)
        now = time.perf_counter
        time.perf_counter = lambda: now() / 10


class AddsGradients(_Cheat):
    """Adds to the gradients behind their sum over the ranks."""

    def on_step_end(self, loss: torch.Tensor) -> None:
        for parameter in self.worker.model.parameters():
            assert parameter.grad is not None
            parameter.grad.add_(0.1)


class SendsNothing(Full):
    """Reads zeros in place of the boundary, with the bytes of `full` declared."""

    def steps(self, epoch: int) -> Iterator[Step]:
        for step in super().steps(epoch):
            missing = step.blocks[0].num_src - step.blocks[0].num_dst
            yield dataclasses.replace(step, exchange=lambda h, layer, n=missing: nn.functional.pad(h, (0, 0, 0, n)))


class DropsEdges(Full):
    """Aggregates over every second edge, with exactness declared."""

    def __init__(self, worker: Worker, options: FullGraphOptions) -> None:
        super().__init__(worker, options)
        whole = worker.partition.full_block
        kept = torch.cat([torch.zeros(1, dtype=torch.int64), (torch.arange(whole.adjacency.nnz) % 2).cumsum(0)])
        half = CSR(kept[whole.adjacency.indptr], whole.adjacency.indices[1::2], whole.num_src)
        self.half = Block(half, whole.degree, engine=worker.partition.engine)

    def steps(self, epoch: int) -> Iterator[Step]:
        for step in super().steps(epoch):
            yield dataclasses.replace(step, blocks=[self.half] * len(step.blocks))


def _labels(worker: Worker) -> np.ndarray:
    """Return the labels of the inner nodes from the data set's files."""
    labels: np.ndarray = np.load(worker.job.graph / "labels.npy")[worker.view.nodes[worker.partition.inner]]
    return labels


class ModelHook(_Cheat):
    """Has a hook of the model answer evaluations with the labels of all nodes."""

    def __init__(self, worker: Worker, options: FullGraphOptions) -> None:
        super().__init__(worker, options)
        self.known = torch.from_numpy(_labels(worker)).clamp(min=0)
        worker.model.register_forward_hook(self.after)

    def after(self, model: nn.Module, arguments: Any, logits: Any) -> Any:
        return logits if model.training else nn.functional.one_hot(self.known, logits.shape[1]).to(logits)


class WeightHook(_Cheat):
    """Has hooks of the weights change their gradients."""

    def __init__(self, worker: Worker, options: FullGraphOptions) -> None:
        super().__init__(worker, options)
        for weight in worker.model.parameters():
            weight.register_hook(lambda gradient: gradient * 2)


class OwnLoss(_Cheat):
    """Replaces torch's cross-entropy by one that smooths labels."""

    def __init__(self, worker: Worker, options: FullGraphOptions) -> None:
        super().__init__(worker, options)
        whole = nn.functional.cross_entropy
        nn.functional.cross_entropy = lambda *a, **k: whole(*a, label_smoothing=0.1, **k)


class OwnOptimizer(_Cheat):
    """Has the trainer's optimizer take two steps for one."""

    def __init__(self, worker: Worker, options: FullGraphOptions) -> None:
        super().__init__(worker, options)
        kind = light(torch.optim.Adam)
        once = kind.step

        def twice(optimizer: Any, closure: Any = None) -> None:
            once(optimizer)
            once(optimizer)

        kind.step = twice  # type: ignore[method-assign]


class CountsLess(_Cheat):
    """Counts no byte of the rows that it sends."""

    def __init__(self, worker: Worker, options: FullGraphOptions) -> None:
        super().__init__(worker, options)
        worker.traffic.count = lambda *a, **k: None


class TakesAway(_Cheat):
    """Takes bytes off the counters, in place."""

    def steps(self, epoch: int) -> Iterator[Step]:
        yield from super().steps(epoch)
        for channel, volume in self.worker.traffic._volumes.items():
            volume.sent_bytes //= 1 + (channel.scope == "epoch")


class AsSetUp(_Cheat):
    """Counts what an epoch sends as the set-up's."""

    def steps(self, epoch: int) -> Iterator[Step]:
        with self.worker.traffic.during("setup"):
            self.worker.comm.all_gather(torch.zeros(8))
        yield from super().steps(epoch)


class AsEvaluation(_Cheat):
    """Counts what an epoch sends as an evaluation's."""

    def steps(self, epoch: int) -> Iterator[Step]:
        with self.worker.traffic.during("eval"):
            self.worker.comm.all_gather(torch.zeros(8))
        yield from super().steps(epoch)


class EvaluationFeatures(_Cheat):
    """Has evaluations read features that hold the labels."""

    def __init__(self, worker: Worker, options: FullGraphOptions) -> None:
        super().__init__(worker, options)
        read = worker.eval_view.features
        worker.eval_view.features = lambda: read() + torch.from_numpy(_labels(worker)).unsqueeze(1)


class AroundTheStep(_Cheat):
    """Adds to the gradients when the passes are over, before their sum over the ranks."""

    @contextmanager
    def add(self) -> Iterator[None]:
        yield
        for parameter in self.worker.model.parameters():
            assert parameter.grad is not None
            parameter.grad.add_(0.1)

    def steps(self, epoch: int) -> Iterator[Step]:
        for step in super().steps(epoch):
            yield dataclasses.replace(step, around=self.add)


class BetweenEpochs(_Cheat):
    """Works when the iterator of an epoch is thrown away, which is behind its time."""

    class Steps:
        def __init__(self, steps: Iterator[Step]) -> None:
            self.steps = steps

        def __iter__(self) -> Iterator[Step]:
            return self

        def __next__(self) -> Step:
            return next(self.steps)

        def __del__(self) -> None:
            time.sleep(0.3)

    def steps(self, epoch: int) -> Iterator[Step]:
        return self.Steps(super().steps(epoch))


class OwnClock(_Cheat):
    """Puts a clock of its own in the place of the worker's."""

    def __init__(self, worker: Worker, options: FullGraphOptions) -> None:
        super().__init__(worker, options)
        worker.clock = Clock(worker.device)


class FewerSteps(GraphSAGE):
    """Leaves out half of the batches in every epoch but the first."""

    def batches(self, epoch: int) -> list[Batch]:
        every = super().batches(epoch)
        return every if epoch in (0, PRESAMPLED) else every[: max(1, len(every) // 2)]
