"""Subgraphs: how induction grows, subgraphs a second of all samplers, and what those of a frontier keep.

The samplers' graph is case233k, see `cases`. Run with `-s` to see the figures.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from benchmarks.cases import case_topology
from benchmarks.growth import SIZES, WARMUP, measure, rounds
from harness_methods.graphsaint.frontier import FrontierSampler
from harness_methods.graphsaint.node_samplers import EdgeEndsSampler, ForestFireSampler, MultiWalkSampler, WalkSampler
from scipy import stats

from harness.check.graphs import OnDisk
from harness.graph.block import MEAN
from harness.graph.csr import Topology
from harness.sampling.sample import Tables
from harness.sampling.subgraphs import ImportanceSubgraphs, NodeSampler, induced

ROUNDS = 50
BATCH, TURNS = 40, 8  # subgraphs drawn at a time, and how often, by each number of threads

# GraphSAINT's cython samplers on the same graph, subgraphs a second of one thread and of two.
PUBLIC = {"frontier": (113, 108), "rw": (223, 230), "edge": (251, 428), "node": (223, 322)}

NODE_SAMPLERS: dict[str, Callable[[Topology], NodeSampler]] = {
    "frontier": lambda topology: FrontierSampler(topology, 8000),
    "rw": lambda topology: WalkSampler(topology, 8000),
    "mrw": lambda topology: MultiWalkSampler(topology, 8000),
    "edge": lambda topology: EdgeEndsSampler(topology, 8000),
    "node": lambda topology: ImportanceSubgraphs(topology, MEAN, Tables(topology.num_nodes), 8000).sampler,
    "forest-fire": lambda topology: ForestFireSampler(topology, 8000),
}


def test_induction(benchmark: Any, planted: Callable[[int], OnDisk], edges: int) -> None:
    """On nodes that have so many edges, of the largest graph, other ones every time: or a cache has them."""
    topology = Topology.open(planted(SIZES[-1]).graph, weighted=False)
    tables, rng = Tables(topology.num_nodes), np.random.default_rng(0)
    count = topology.num_nodes * edges // SIZES[-1]
    drawn = [np.sort(rng.choice(topology.num_nodes, count, replace=False)) for _ in range(rounds(edges))]
    nodes = itertools.cycle(drawn)
    measure(benchmark, lambda: induced(topology, next(nodes), tables), "induce on so many edges", edges)


@pytest.mark.parametrize("places", [False, True], ids=["edges", "edges and their places"])
def test_induction_on_nodes_of_a_frontier(benchmark: Any, places: bool) -> None:
    topology = case_topology("case233k")
    tables, sampler = Tables(topology.num_nodes), FrontierSampler(topology, 8000)
    drawn = [sampler.sample(seed) for seed in range(ROUNDS)]
    scanned = np.mean([topology.degree(nodes).sum() for nodes in drawn])
    nodes = itertools.cycle(drawn)
    benchmark.pedantic(
        lambda: induced(topology, next(nodes), tables, places=places), rounds=ROUNDS, warmup_rounds=WARMUP
    )
    if benchmark.stats:
        print(f" {scanned / benchmark.stats.stats.median / 1e9:.2f} G entries/s", end="")


@pytest.mark.parametrize("name", NODE_SAMPLERS)
def test_node_samplers(benchmark: Any, name: str) -> None:
    """Nodes picked and their edges induced, by a thread and by two in turns (A B B A), beside public code.

    Rates are of the least time of a turn. CPU time tells whether two threads cost more than one, or whether
    others had the processors.
    """
    topology = case_topology("case233k")
    sampler, tables = NODE_SAMPLERS[name](topology), Tables(topology.num_nodes)

    def draw(seed: int) -> int:
        return induced(topology, sampler.sample(seed), tables).columns.size

    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(2) as two:
        work = {1: lambda: sum(one.map(draw, range(BATCH))), 2: lambda: sum(two.map(draw, range(BATCH)))}
        edges = work[1]() / BATCH
        taken = in_turns(work)
        benchmark.pedantic(lambda: draw(0), rounds=5, warmup_rounds=WARMUP)
    wall, cpu = ({threads: BATCH / least for threads, least in kind.items()} for kind in taken)
    picked = np.mean([sampler.sample(seed).size for seed in range(BATCH)])
    beside = "".join(
        f", {wall[threads] / public:.2f} of public code's {public} ({threads} thread{'s' * (threads > 1)})"
        for threads, public in zip((1, 2), PUBLIC.get(name, ()), strict=False)
    )
    print(
        f"\n{name}: {wall[1]:.0f} subgraphs/s of {picked:.0f} nodes and {edges:.0f} edges, two threads"
        f" {wall[2]:.0f} (x{wall[2] / wall[1]:.2f}); a CPU second makes {cpu[1]:.0f} and {cpu[2]:.0f}{beside}"
    )


def in_turns(work: dict[int, Callable[[], object]]) -> tuple[dict[int, float], dict[int, float]]:
    """Return the least seconds of each piece of work, and the least CPU seconds."""
    wall, cpu = dict.fromkeys(work, np.inf), dict.fromkeys(work, np.inf)
    for turn in range(TURNS):
        for threads in sorted(work, reverse=bool(turn % 2)):
            start, busy = time.perf_counter(), time.process_time()
            work[threads]()
            wall[threads] = min(wall[threads], time.perf_counter() - start)
            cpu[threads] = min(cpu[threads], time.process_time() - busy)
    return wall, cpu


def test_dgl_node_sampler(benchmark: Any) -> None:
    """DGL's, which draws 8000 nodes in proportion to their degrees, with replacement."""
    dgl = pytest.importorskip("dgl")
    topology = case_topology("case233k")
    graph = dgl.graph(("csc", (topology.indptr, topology.indices, [])))
    sampler = dgl.dataloading.SAINTSampler(mode="node", budget=8000)
    benchmark.pedantic(lambda: sampler.sample(graph, 0), rounds=ROUNDS, warmup_rounds=WARMUP)
    if benchmark.stats:
        print(f" {1 / benchmark.stats.stats.median:.0f} subgraphs/s", end="")


def test_what_subgraphs_keep(benchmark: Any) -> None:
    """Degrees and clustering inside subgraphs, beside the graph's (its clustering: of 4000 of its nodes).

    The distances are of Kolmogorov and Smirnov, between degrees as they are and between degrees over their
    mean. A node's clustering is the share of pairs of its neighbours that are neighbours, 0 without a pair.
    """
    topology, rng = case_topology("case233k"), np.random.default_rng(0)
    tables, degrees = Tables(topology.num_nodes), np.diff(topology.indptr)
    some = rng.choice(topology.num_nodes, 4000, replace=False)
    print(f"\nthe graph: mean degree {degrees.mean():.1f}, clustering {clustering(topology, some, tables):.3f}")
    samplers = {name: NODE_SAMPLERS[name](topology).sample for name in ("frontier", "rw", "edge", "node")}
    samplers["uniform nodes"] = lambda seed: np.sort(
        np.random.default_rng(seed).choice(topology.num_nodes, 8000, replace=False)
    )
    for name, sample in samplers.items():
        found = [induced(topology, sample(seed), tables) for seed in range(5)]
        subgraphs = [Topology(one.indptr, one.columns) for one in found]
        inside = np.concatenate([np.diff(one.indptr) for one in found])
        plain = stats.ks_2samp(inside, degrees).statistic
        scaled = stats.ks_2samp(inside / inside.mean(), degrees / degrees.mean()).statistic
        closed = np.mean([clustering(g, np.arange(g.num_nodes), Tables(g.num_nodes)) for g in subgraphs])
        print(
            f"{name}: mean degree {inside.mean():.1f}, distance {plain:.3f}, over the mean {scaled:.3f};"
            f" clustering {closed:.3f}"
        )
    benchmark.pedantic(lambda: samplers["frontier"](0), rounds=5, warmup_rounds=WARMUP)


def clustering(topology: Topology, nodes: np.ndarray, tables: Tables) -> float:
    """Return the mean clustering coefficient of `nodes`."""
    shares = np.zeros(nodes.size)
    for i, node in enumerate(nodes):
        around = topology.indices[topology.indptr[node] : topology.indptr[node + 1]].astype(np.int64)
        if around.size > 1:
            closed = induced(topology, around, tables).columns.size
            shares[i] = closed / (around.size * (around.size - 1))
    return float(shares.mean())
