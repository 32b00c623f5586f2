"""A pool of GraphSAINT's subgraphs filled by one thread and by two, in turns (Algorithm 8 of Zeng et al., JPDC 2021).

It wants two cores that do nothing else. Run with `-s` to see the figures.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.check.graphs import OnDisk
from harness.check.training import Case
from harness.data.partition.cached import ensure_partitioned
from harness.data.registry import prepare
from harness.models.layer import ModelSpec
from harness.runtime.batches import Loader
from harness.runtime.run_config import TrainSpec
from harness.runtime.trainer import Trainer
from harness.spec import DatasetSpec, PartitionSpec

POOL, TURNS = 40, 15  # subgraphs of a pool, and how often each number of threads fills it
FASTER = 1.7
MODEL = ModelSpec(name="sage", layers=2, hidden=16, dropout=0, norm="none")
SAINT: dict[str, Any] = {"size": 8000, "frontier": 1000, "steps": POOL, "pool": POOL}
SAMPLERS: dict[str, dict[str, Any]] = {
    **{name: {"sampler": name, "normalise": False} for name in ("frontier", "rw", "edge", "mrw", "forest-fire")},
    "node": {"sampler": "node"},
    "frontier, normalised": {"sampler": "frontier", "coverage": 2},
}


@pytest.fixture(scope="module")
def kronecker(tmp_path_factory: pytest.TempPathFactory) -> OnDisk:
    """An R-MAT graph of 2^18 nodes and mean degree 30, in one part."""
    cache: Path = tmp_path_factory.getbasetemp() / "cache"
    options = {"scale": 18, "edge_factor": 16, "features": 16, "classes": 2, "a": 0.45, "b": 0.25, "c": 0.25}
    graph = prepare(DatasetSpec(name="kronecker", options=options), cache=cache)
    return OnDisk(graph, ensure_partitioned(graph, PartitionSpec(parts=1), inductive=False, cache=cache), False)


@pytest.fixture
def torch_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("torch_threads")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SAMPLERS)
def test_two_threads_fill_a_pool_faster(kronecker: OnDisk, name: str) -> None:
    """Seconds of wall and of CPU, medians of turns A B B A ...; blocks and their transposes are part of it.

    CPU seconds tell what two threads cost beside the sampling, whoever else has the cores: twice the ratio of one
    thread's to two threads' is the speed-up that is left where both never wait.
    """
    spec = TrainSpec(epochs=1, threads=2)
    trainer: Trainer = Case(kronecker, "graphsaint", SAINT | SAMPLERS[name], MODEL, spec).trainer(0, 1)
    method = trainer.method
    batches, loaders = method.batches(0), dict[int, Loader[Any, Any]]()
    for threads in (1, 2):
        torch.set_num_threads(threads)  # as a rank does; a thread that begins has as many
        loaders[threads] = Loader(
            trainer.worker.comm, lambda batch, _: method.draw(batch), method.fetch, depth=0, threads=threads, pool=POOL
        )
        loaders[threads].fill(batches)
    wall: dict[int, list[float]] = {1: [], 2: []}
    cpu: dict[int, list[float]] = {1: [], 2: []}
    for turn in range(TURNS):
        for threads in (1, 2) if turn % 2 else (2, 1):
            start, busy = time.perf_counter(), time.process_time()
            loaders[threads].fill(batches)
            wall[threads].append(time.perf_counter() - start)
            cpu[threads].append(time.process_time() - busy)
    for loader in (*loaders.values(), method):
        loader.close()
    ratios = [one / two for one, two in zip(wall[1], wall[2], strict=True)]
    rates = {threads: POOL / statistics.median(own) for threads, own in wall.items()}
    dearer = statistics.median(cpu[2]) / statistics.median(cpu[1])
    print(
        f"\n{name}: {rates[1]:.0f} subgraphs/s by a thread, {rates[2]:.0f} by two: {statistics.median(ratios):.2f}"
        f" times as fast ({min(ratios):.2f} to {max(ratios):.2f} a turn); two take {dearer:.2f} times the CPU time"
    )
    assert statistics.median(ratios) >= FASTER
