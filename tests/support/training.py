"""What ranks of tests do beside training: watch graphs, inputs, waits and memory, and run whole trials."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
import tracemalloc
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.check.training import Case, RankOutcome, outcome
from harness.graph import devices
from harness.graph.block import Block
from harness.graph.csr import CSR
from harness.graph.devices import _arena
from harness.graph.partition import Partition
from harness.launch.process import DEFAULTS
from harness.models.layer import BlockSize
from harness.runtime.batches import Batch
from harness.runtime.counters import THRESHOLD, trim_heap
from harness.runtime.method import Method
from harness.runtime.minibatch import Drawn as DrawnBatch
from harness.runtime.minibatch import MiniBatchMethod
from harness.runtime.run_config import Rates
from harness.runtime.step import Step
from harness.runtime.trainer import Trainer


@dataclass
class Drawn:
    """The edges of a graph that a rank trained on: target and source nodes, and their weights a_ij / p_ij."""

    targets: NDArray[np.int64]
    sources: NDArray[np.int64]
    weights: NDArray[np.float64]


def train_and_watch(rank: int, world: int, cases: list[Case]) -> list[tuple[RankOutcome, list[Drawn]]]:
    """Train each case of a full-graph method; returns also the graph of each step."""
    return [_watch(rank, world, case) for case in cases]


AT_RATES = Rates(
    machine="",
    when=datetime(2026, 1, 1, tzinfo=UTC),
    ranks=2,
    measured={"copy": 1e9, "product float32": 1e7, "exchange": 1e6}
    | {f"{kind} {width}": rate for kind, rate in (("cached", 4e7), ("gather", 1e7)) for width in (16, 256)},
)

Computed = tuple[int, float, float]


def train_at_rates(
    rank: int, world: int, case: Case, rates: Rates
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[Computed]]:
    """Train without rates and with; of the latter's epochs also the rows read, and the seconds of their two passes."""
    unrated = outcome(case.trainer(rank, world)).rows
    trainer, epochs = case.trainer(rank, world), list[list[Computed]]()
    trainer.rates, model, make = rates, trainer.worker.model, trainer.method.steps

    def watched(epoch: int) -> Iterator[Step]:
        epochs.append([])
        for step in make(epoch):
            sizes = [BlockSize(each.num_dst, each.num_src, each.adjacency.nnz) for each in step.blocks]
            forward, backward = (rates.seconds(work) for work in model.work(sizes))
            epochs[-1].append((0 if step.nodes is None else len(step.nodes), forward, backward))
            yield step

    trainer.method.steps = watched  # type: ignore[method-assign]
    rated = outcome(trainer).rows
    sums = [tuple(map(sum, zip(*steps, strict=True))) for steps in epochs]
    return unrated, rated, sums  # type: ignore[return-value]


def train_all_rows(rank: int, world: int, cases: list[Case]) -> list[tuple[RankOutcome, int]]:
    """Train each case with all rows in the last layer, however few are learnt from; see `train_last_rows`."""
    with mock.patch("harness.runtime.cost_models.FEW_LEARNT", 0):
        return train_last_rows(rank, world, cases)


def train_last_rows(rank: int, world: int, cases: list[Case]) -> list[tuple[RankOutcome, int]]:
    """Train each case; returns also how many rows the last layer had in the last step."""
    found = []
    for case in cases:
        trainer, rows = case.trainer(rank, world), list[int]()
        make = trainer.method.steps

        def watched(epoch: int, make: Any = make, rows: list[int] = rows) -> Iterator[Step]:
            for step in make(epoch):
                rows.append(step.blocks[-1].num_dst)
                yield step

        trainer.method.steps = watched  # type: ignore[method-assign]
        found.append((outcome(trainer), rows[-1]))
    return found


def _watch(rank: int, world: int, case: Case) -> tuple[RankOutcome, list[Drawn]]:
    kept: dict[Block, NDArray[np.int64]] = {}
    make = Partition.sampled_block

    def remember(
        partition: Partition, adjacency: CSR, transposed: CSR | None, own: NDArray[np.int64], *scale: Tensor | None
    ) -> Block:
        block = make(partition, adjacency, transposed, own, *scale)
        kept[block] = own
        return block

    def watched(epoch: int) -> Iterator[Step]:
        for step in steps(epoch):
            drawn.append(_edges(worker.partition, step.blocks[0], kept))
            yield step

    drawn: list[Drawn] = []
    with mock.patch.object(Partition, "sampled_block", remember):
        trainer = case.trainer(rank, world)
        worker = trainer.worker
        steps = trainer.method.steps
        trainer.method.steps = watched  # type: ignore[method-assign]
        return outcome(trainer), drawn


def _edges(partition: Partition, block: Block, kept: dict[Block, NDArray[np.int64]]) -> Drawn:
    boundary = partition.boundary[kept[block]] if block in kept else partition.boundary
    nodes, adjacency = np.concatenate([partition.inner, boundary]), block.adjacency
    values = torch.ones(adjacency.nnz) if adjacency.values is None else adjacency.values
    return Drawn(
        np.repeat(partition.inner, np.diff(adjacency.indptr.numpy())),
        nodes[adjacency.indices.numpy()],
        values.double().numpy(),
    )


def read_inputs(rank: int, world: int, cases: list[Case]) -> list[list[tuple[np.ndarray, np.ndarray]]]:
    """Return, for each case and step of the first epoch, the data set's nodes [n] and what is read [n, F]."""
    return [_read_inputs(rank, world, case) for case in cases]


def _read_inputs(rank: int, world: int, case: Case) -> list[tuple[np.ndarray, np.ndarray]]:
    trainer = case.trainer(rank, world)
    worker = trainer.worker
    steps = list(trainer.method.steps(0))
    trainer.method.close()
    return [(worker.view.nodes[step.nodes], step.inputs.numpy()) for step in steps]  # type: ignore[union-attr]


def run_to_the_end(rank: int, world: int, case: Case, *, rehearsed: bool = False) -> dict[str, Any]:
    """Run a whole trial; returns the rank's report."""
    trainer = case.trainer(rank, world, rehearsed=rehearsed)
    with trainer.report.concluding():
        trainer.report.setup(trainer.worker, trainer.method, {}, {})
        trainer.run()
    found: dict[str, Any] = json.loads((trainer.worker.job.out / f"rank{rank}.json").read_text())
    return found


def run_all_to_the_end(rank: int, world: int, cases: list[Case]) -> list[dict[str, Any]]:
    """Run whole trials, one after the other; returns the rank's reports."""
    return [run_to_the_end(rank, world, case) for case in cases]


def own_cores(rank: int, world: int) -> set[int]:
    """Return the cores that the rank may run on."""
    return os.sched_getaffinity(0)


def unsynchronised_epochs(rank: int, world: int, case: Case) -> list[float]:
    """Train on a GPU; in an epoch every wait of the host for the device is an error. Returns the losses."""
    trainer = case.trainer(rank, world)
    losses = [trainer.train_epoch(0)["loss"]]  # transposes are built and moved in the first epoch

    def strict(epoch: int) -> Iterator[Step]:
        torch.cuda.set_sync_debug_mode("error")
        yield from steps(epoch)
        torch.cuda.set_sync_debug_mode("default")

    steps = trainer.method.steps
    trainer.method.steps = strict  # type: ignore[method-assign]
    losses += [trainer.train_epoch(epoch)["loss"] for epoch in (1, 2)]
    return losses


def memory_peaks(rank: int, world: int, cases: list[Case], threshold: int) -> list[tuple[int, int]]:
    """Train one case after the other; returns by how much the process grew in each, and the case's model, in bytes.

    Told are the kernel's peak of the resident set and what it was before, mapped files left out of both. The heap is
    a trial's (`harness.launch.process.DEFAULTS`) but for blocks of `threshold` bytes and more, each of which goes back
    to the kernel; where those are smaller than a trial's, large matrices are such blocks, too, and not in the arena.
    The C library reads variables when a process starts, and this one was forked: it is told.
    """
    if threshold < int(DEFAULTS[THRESHOLD]):
        devices.HELD_FROM = sys.maxsize
    mallopt = ctypes.CDLL(None).mallopt
    assert mallopt(-1, 2**31 - 1) == mallopt(-3, threshold) == 1  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
    os.environ[THRESHOLD] = str(threshold)
    return [_growth(rank, world, case) for case in cases]


def arena_by_epoch(rank: int, world: int, case: Case) -> list[int]:
    """Train the case; returns how much of the process's arena is resident behind each epoch, in bytes."""
    arena, trainer = _arena(os.getpid()), case.trainer(rank, world)
    assert arena is not None
    place = f"{arena._bytes.ctypes.data:x}-"
    found = []
    for epoch in range(case.train.epochs):
        trainer.train_epoch(epoch)
        lines = Path("/proc/self/smaps").read_text().splitlines()
        rss = next(line for line in lines[[line.startswith(place) for line in lines].index(True) :] if "Rss:" in line)
        found.append(int(rss.split()[1]) * 1024)
    trainer.method.close()
    return found


def _growth(rank: int, world: int, case: Case) -> tuple[int, int]:
    gc.collect()  # what is left of other cases
    trim_heap()
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what there is
    before = _resident()
    trainer = case.trainer(rank, world, rehearsed=True)
    for epoch in range(case.train.epochs):
        trainer.train_epoch(epoch)
    after, modelled = _resident(), sum(trainer.method.memory_components().values())
    trainer.method.close()
    return (after["VmHWM"] - after["RssFile"]) - (before["VmHWM"] - before["RssFile"]), modelled


def modules_after(rank: int, world: int, cases: list[Case]) -> set[str]:
    """Train each case as a trial does; returns the names of all modules that are imported then."""
    for case in cases:
        outcome(case.trainer(rank, world, rehearsed=True))
    return set(sys.modules)


def living_methods(rank: int, world: int, cases: list[Case]) -> list[int]:
    """Return how many methods there are when each case is set up, garbage that nobody has collected yet included."""
    found = []
    for case in cases:
        gc.collect()
        trainer = case.trainer(rank, world, rehearsed=True)
        found.append(sum(isinstance(each, Method) for each in gc.get_objects()))
        trainer.method.close()
        del trainer
    return found


def live_bytes(rank: int, world: int, cases: list[Case], kept: int) -> list[list[int]]:
    """Train each case; returns after each of its epochs the bytes of all tensors and arrays there are.

    `kept`: values of a tensor that each step adds, for as long as the case is trained.
    """
    return [_alive(case.trainer(rank, world, rehearsed=True), case.train.epochs, kept) for case in cases]


def _alive(trainer: Trainer, epochs: int, values: int) -> list[int]:
    found, kept = [], list[Tensor]()
    if values:
        trainer.method.on_step_end = lambda loss: kept.append(torch.zeros(values))  # type: ignore[method-assign]
    tracemalloc.start()
    for epoch in range(epochs):
        trainer.train_epoch(epoch)
        trainer.method.synchronize()
        gc.collect()
        storages = [each.untyped_storage() for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
        tensors = sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
        del storages
        arrays = tracemalloc.take_snapshot().filter_traces([tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)])
        found.append(tensors + sum(trace.size for trace in arrays.traces))
    tracemalloc.stop()
    trainer.method.close()
    return found


def batches_beside(rank: int, world: int, cases: list[Case]) -> list[int]:
    """Train each case of a mini-batch method; returns how many batches at most were still there when one was drawn."""
    return [_beside(case.trainer(rank, world)) for case in cases]


def _beside(trainer: Trainer) -> int:
    method, blocks, most = trainer.method, list[weakref.ref[Block]](), 0
    assert isinstance(method, MiniBatchMethod)
    draw = method.draw

    def watched(batch: Batch) -> DrawnBatch:
        nonlocal most
        most = max(most, sum(block() is not None for block in blocks))
        drawn = draw(batch)
        blocks.append(weakref.ref(drawn.blocks[0]))
        return drawn

    method.draw = watched  # type: ignore[method-assign]
    for epoch in range(trainer.spec.epochs):
        trainer.train_epoch(epoch)
    assert len(blocks) > trainer.spec.epochs, "an epoch of one batch shows nothing"
    method.close()
    return most


def _resident() -> dict[str, int]:
    lines = Path("/proc/self/status").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.startswith(("VmHWM", "RssFile"))}


def called_in_no_phase(rank: int, world: int, cases: list[Case]) -> list[set[str]]:
    """Train each case for three epochs; returns by case the functions that were called in an epoch, but in no phase.

    Without the clock's own, and of those that a function calls only itself.
    """
    return [_called_in_no_phase(rank, world, case) for case in cases]


def _called_in_no_phase(rank: int, world: int, case: Case) -> set[str]:
    trainer, found = case.trainer(rank, world), set[str]()
    clock = trainer.worker.clock

    def look(frame: FrameType, event: str, function: Any) -> None:
        if event not in ("call", "c_call") or clock.current != "other":
            return
        frames = [frame, frame.f_back] if event == "call" else [frame]
        if not any(each.f_code.co_filename.endswith(CLOCK) for each in frames if each is not None):
            found.add(frame.f_code.co_qualname if event == "call" else function.__qualname__)

    gc.disable()  # what it finalises may be anywhere
    for epoch in range(3):
        sys.setprofile(look)  # of this thread alone
        trainer.train_epoch(epoch)
        sys.setprofile(None)
    gc.enable()
    trainer.method.close()
    return found


CLOCK = ("harness/runtime/clock.py", "contextlib.py")
