"""Neighbour sampling: batches a second beside DGL's, growth with the edges drawn, and what weights cost.

Beside DGL's and in growth, blocks are included.
On the graph case233k, see `cases`. Run with `-s` to see the figures. DGL's two threads wait for each other by
spinning, so its rate collapses where other processes want the cores, unless OMP_WAIT_POLICY=passive.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.cases import case_topology
from benchmarks.growth import WARMUP, slope
from harness_methods.dgs.guided_sampling import GuidedSampler

from harness.graph.csr import Topology
from harness.graph.spmm import engine_problem
from harness.sampling.neighbours import draw_neighbours
from harness.sampling.sample import LayerSample, Tables

CPU = torch.device("cpu")
BATCH, BATCHES = 1024, 8  # targets of a batch; batches timed together
TURNS = 12

Draw = Callable[[list[np.ndarray]], int]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("fanouts", [(25, 10), (15, 10, 5)], ids=str)
def test_beside_dgl(benchmark: Any, fanouts: tuple[int, ...], threads: int) -> None:
    """In turn (A B B A) on the same targets; of two threads ours take a batch each, DGL's share one."""
    if problem := engine_problem("dgl"):
        pytest.skip(problem)
    topology = case_topology("case233k")
    rng = np.random.default_rng(0)
    with ThreadPoolExecutor(threads) as pool:
        ours, theirs = our_draw(topology, fanouts, pool), dgl_draw(topology, fanouts, threads)

        def turn(index: int) -> list[tuple[float, float, int]]:
            batches = [rng.choice(topology.num_nodes, BATCH, replace=False) for _ in range(BATCHES)]
            order = (ours, theirs) if index % 2 else (theirs, ours)
            done = {draw: timed(draw, batches) for draw in order}
            return [done[ours], done[theirs]]

        turns = benchmark.pedantic(lambda: [turn(i) for i in range(WARMUP + TURNS)], rounds=1)
    wall, cpu, edges = np.moveaxis(np.array(turns[WARMUP:]), -1, 0)  # each [turns, (ours, DGL's)]
    assert abs(edges[:, 0].sum() / edges[:, 1].sum() - 1) < 0.01  # the same work
    rate = BATCHES / np.median(wall, axis=0)
    low, ratio, high = np.percentile(wall[:, 1] / wall[:, 0], (10, 50, 90))
    print(
        f"\n{list(fanouts)}, {threads} thread(s): {rate[0]:.0f} batches/s, DGL {rate[1]:.0f}; median ratio of"
        f" turns {ratio:.2f} (80 % of them {low:.2f} to {high:.2f}),"
        f" of CPU time {np.median(cpu[:, 1] / cpu[:, 0]):.2f}"
    )


def test_growth(benchmark: Any) -> None:
    """CPU time by drawn edges, on one graph: from 256 targets to a seventh of the nodes."""
    topology = case_topology("case233k")
    tables, seeds = Tables(topology.num_nodes), itertools.count()
    rng = np.random.default_rng(0)

    def work() -> dict[int, float]:
        least: dict[int, float] = {}
        for size in 2 ** np.arange(8, 16):
            targets = [rng.choice(topology.num_nodes, size, replace=False) for _ in range(20)]
            done = [timed(lambda t: draw(topology, t, (10,), next(seeds), tables), t) for t in targets]
            least[int(np.mean([edges for _, _, edges in done]))] = min(cpu for _, cpu, _ in done)
        return least

    least = benchmark.pedantic(work, rounds=1, warmup_rounds=1)
    per_edge = ", ".join(f"{1e9 * seconds / edges:.1f} ns at {edges:,}" for edges, seconds in least.items())
    print(f"\ntime ~ (drawn edges)^{slope(least)}; an edge takes {per_edge}")


def test_guided(benchmark: Any) -> None:
    """A batch with fan-outs [25, 10]: uniform, by node weight, and guided, a quarter of the nodes local."""
    topology = case_topology("case233k")
    rng = np.random.default_rng(0)
    tables, nodes = Tables(topology.num_nodes), topology.num_nodes
    local, importance = np.arange(nodes) < nodes // 4, rng.random(nodes).astype(np.float32)
    weights = np.where(local, 1, importance).astype(np.float64)
    source: Any = SimpleNamespace(topology=topology, tables=tables, local=local)

    def guided(targets: np.ndarray, fanout: int, seed: int, **how: Any) -> LayerSample:
        return GuidedSampler(source, [], importance, **how).draw(targets, fanout, seed)

    forms: dict[str, Callable[[np.ndarray, int, int], LayerSample]] = {
        "uniform": lambda t, k, seed: draw_neighbours(topology, t, k, seed, tables),
        "by weight": lambda t, k, seed: draw_neighbours(topology, t, k, seed, tables, node_weights=weights),
        "guided": guided,
        "guided, deviation 0.1": functools.partial(guided, deviation=0.1),
        "the same, unbiased": functools.partial(guided, deviation=0.1, unbiased=True),
    }

    def batch(form: str, targets: np.ndarray, seed: int) -> int:
        """Draw two layers; returns the degrees of all that neighbours were drawn for."""
        entries = 0.0
        for layer, fanout in enumerate((10, 25)):
            entries += topology.degree(targets).sum()
            targets = forms[form](targets, fanout, 2 * seed + layer).sources
        return int(entries)

    def turn(seed: int) -> list[tuple[float, float, int]]:
        targets = rng.choice(nodes, BATCH, replace=False)
        order = list(forms)[:: 1 if seed % 2 else -1]
        done = {form: timed(lambda t, form=form: batch(form, t, seed), targets) for form in order}
        return [done[form] for form in forms]

    turns = benchmark.pedantic(lambda: [turn(i) for i in range(WARMUP + TURNS)], rounds=1)
    _, cpu, entries = np.moveaxis(np.array(turns[WARMUP:]), -1, 0)  # each [turns, forms]
    for form, column, of_form in zip(forms, cpu.T, entries.T, strict=True):
        print(
            f"\n{form}: {1e3 * np.median(column):.1f} ms a batch, {np.median(column / of_form) * 1e9:.1f} ns"
            f" by degree; median ratio to draws by weight {np.median(column / cpu[:, 1]):.2f}",
            end="",
        )


def timed(work: Callable[[Any], int], argument: Any) -> tuple[float, float, int]:
    """Return the seconds and CPU seconds that `work` takes, and what it returns."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = work(argument)
    return time.perf_counter() - wall, time.process_time() - cpu, result


def draw(topology: Topology, nodes: np.ndarray, fanouts: tuple[int, ...], seed: int, tables: Tables) -> int:
    """Draw a batch and make its blocks; returns the number of edges."""
    edges = 0
    for layer, fanout in enumerate(reversed(fanouts)):
        sample = draw_neighbours(topology, nodes, fanout, len(fanouts) * seed + layer, tables)
        edges += sample.block(topology, device=CPU, dtype=torch.float32).adjacency.nnz
        nodes = sample.sources
    return edges


def our_draw(topology: Topology, fanouts: tuple[int, ...], pool: ThreadPoolExecutor) -> Draw:
    """Return what draws batches in the threads of `pool`."""
    tables, seeds = Tables(topology.num_nodes), itertools.count()
    return lambda batches: sum(
        pool.map(lambda nodes, seed: draw(topology, nodes, fanouts, seed, tables), batches, seeds)
    )


def dgl_draw(topology: Topology, fanouts: tuple[int, ...], threads: int) -> Draw:
    """Return what draws batches one after the other with DGL's threads."""
    import dgl
    from dgl.utils import set_num_threads

    # With 32-bit ids the sampler of 1.1.3 returns fewer and fewer edges, so ids are 64 bits wide.
    indices = torch.from_numpy(topology.indices.astype(np.int64))
    graph = dgl.graph(("csc", (torch.from_numpy(topology.indptr), indices, torch.empty(0, dtype=torch.int64))))
    sampler = dgl.dataloading.NeighborSampler(list(fanouts))

    def work(batches: list[np.ndarray]) -> int:
        set_num_threads(threads)
        blocks = (sampler.sample_blocks(graph, torch.from_numpy(batch))[2] for batch in batches)
        return sum(block.num_edges() for of_batch in blocks for block in of_batch)

    return work
