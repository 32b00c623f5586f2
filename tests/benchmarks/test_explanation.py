"""Explanations: seconds a step by remote nodes, and what one beside the training costs it (run with `-s`)."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from harness_methods.dgs.explanations import ExplanationGraph, MaskOptions, explain, star

from harness.data.generated.twin import make
from harness.data.graph import GraphData
from harness.graph.block import Block
from harness.graph.csr import CSR, Topology
from harness.models.gnn import GNN
from harness.models.layer import ModelSpec
from harness.sampling.neighbours import draw_neighbours
from harness.sampling.sample import Tables

WIDTH, CLASSES, LOCAL = 602, 41, 1000  # reddit's
STEPS = 5
TURNS, TURN = 8, 8  # turns with and without an explanation, and training steps in each


def random_graph(remote: int, depth: int = 2) -> ExplanationGraph:
    """Return an explanation graph of random features, with few local nodes."""
    generator = torch.Generator().manual_seed(0)
    features, local = (torch.randn(n, WIDTH, generator=generator) for n in (1 + remote, LOCAL))
    ring = CSR(torch.arange(LOCAL + 1), torch.arange(LOCAL, dtype=torch.int32).roll(1), LOCAL)
    block, blocks = Block(ring, torch.ones(LOCAL)), star(remote, depth, torch.float32)
    return ExplanationGraph(np.arange(remote), features, local, block, blocks, False)


@pytest.mark.parametrize("name", ["sage", "gcn", "gat"])
@pytest.mark.parametrize("remote", [20_000, 60_000, 180_000])
def test_steps(benchmark: Any, name: str, remote: int) -> None:
    """Some steps, and the inference of few local nodes; wall time a step, and CPU time of this thread."""
    graph, spec = random_graph(remote), MaskOptions(threshold=0, explain_steps=STEPS)
    model = GNN(ModelSpec(name=name, hidden=16), WIDTH, CLASSES, seed=0, dtype=torch.float32)
    used = []

    def work() -> None:
        start = time.thread_time()
        explain(model, graph, spec)
        used.append(time.thread_time() - start)

    benchmark.pedantic(work, rounds=3, warmup_rounds=1)
    if benchmark.stats:
        wall = benchmark.stats.stats.min
        print(f" {wall / STEPS:.3f} s a step, {min(used) / STEPS:.3f} s of one core", end="")


def training(data: GraphData, width: int) -> Callable[[], None]:
    """Return a training step of 1024 targets, fan-outs (64, 64), on a graph in this process."""
    topology = Topology(data.indptr, data.indices)
    tables, seeds = Tables(topology.num_nodes), itertools.count(1)
    x, y = torch.from_numpy(data.features), torch.from_numpy(data.labels)
    model = GNN(ModelSpec(name="sage", hidden=width), WIDTH, CLASSES, seed=0, dtype=torch.float32)
    optimizer = torch.optim.Adam(model.parameters())
    train = np.flatnonzero(data.train_mask)
    rng, cpu = np.random.default_rng(0), torch.device("cpu")

    def step() -> None:
        layers, targets = [], rng.choice(train, 1024, replace=False)
        for _ in range(2):
            layers.insert(0, draw_neighbours(topology, targets, 64, next(seeds), tables))
            targets = layers[0].sources
        blocks = [layer.block(topology, device=cpu, dtype=torch.float32) for layer in layers]
        logits = model(blocks, x[torch.from_numpy(targets)])
        loss = torch.nn.functional.cross_entropy(logits, y[torch.from_numpy(layers[-1].destinations)])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


@contextmanager
def explaining(graph: ExplanationGraph) -> Iterator[None]:
    """Explain over and over in a thread."""
    over = threading.Event()
    model = GNN(ModelSpec(name="sage", hidden=16), WIDTH, CLASSES, seed=0, dtype=torch.float32)

    def work() -> None:
        while not over.is_set():
            explain(model, graph, MaskOptions(), stop=over.is_set)

    thread = threading.Thread(target=work)
    thread.start()
    yield
    over.set()
    thread.join()


@pytest.mark.parametrize("width", [16, 256])
def test_beside_training(benchmark: Any, width: int) -> None:
    """One torch thread, turn by turn without and with explanations that never pause; wants two cores."""
    data = make(of="reddit", scale=0.05)
    step, graph = training(data, width), random_graph(20_000)
    model = GNN(ModelSpec(hidden=16), WIDTH, CLASSES, seed=0, dtype=torch.float32)
    explain(model, graph, MaskOptions(threshold=0, explain_steps=1))

    def turn() -> float:
        times = []
        for _ in range(TURN):
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
        return float(np.median(times))

    def turns() -> np.ndarray:
        pairs = []
        for _ in range(TURNS):
            alone = turn()
            with explaining(graph):
                pairs.append((alone, turn()))
        return np.array(pairs)

    turn()
    alone, beside = benchmark.pedantic(turns, rounds=1).T
    ratio = np.median(beside / alone)
    print(f" {1e3 * np.median(alone):.1f} ms a step alone, {ratio:.3f} times that beside an explanation", end="")
