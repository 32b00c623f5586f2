"""Subgraphs: how induction grows, and subgraphs a second of the node sampler; run with `-s` to see those."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.cases import case_topology
from benchmarks.growth import SIZES, WARMUP, measure, rounds
from support.graphs import OnDisk

from harness.graph.layer_sample import Tables
from harness.graph.subgraph import NodeSampler, induce
from harness.graph.topology import Topology

ROUNDS = 50


def test_induction(benchmark: Any, planted: Callable[[int], OnDisk], edges: int) -> None:
    """On nodes that have so many edges, of the largest graph, other ones every time: or a cache has them."""
    topology = Topology.open(planted(SIZES[-1]).graph, weighted=False)
    tables, rng = Tables(topology.num_nodes), np.random.default_rng(0)
    count = topology.num_nodes * edges // SIZES[-1]
    drawn = [np.sort(rng.choice(topology.num_nodes, count, replace=False)) for _ in range(rounds(edges))]
    nodes = itertools.cycle(drawn)
    measure(benchmark, lambda: induce(topology, next(nodes), tables), "induce on so many edges", edges)


@pytest.mark.parametrize("blocks", [False, True], ids=["drawn", "with block and transpose"])
@pytest.mark.parametrize("size", [4500, 8000])
def test_node_sampler(benchmark: Any, size: int, blocks: bool) -> None:
    """One thread. GraphSAINT's cython sampler of 8000 nodes: 223 a second, edges and nodes only."""
    topology = case_topology("case233k")
    sampler = NodeSampler(topology, "mean", Tables(topology.num_nodes), size)
    seeds = itertools.count()

    def draw() -> None:
        layer = sampler.sample(next(seeds)).layer
        if blocks:
            assert layer.block(topology, device=torch.device("cpu"), dtype=torch.float32).transposed.nnz

    benchmark.pedantic(draw, rounds=ROUNDS, warmup_rounds=WARMUP)
    if benchmark.stats:
        print(f" {1 / benchmark.stats.stats.median:.0f} subgraphs/s", end="")


def test_dgl_node_sampler(benchmark: Any) -> None:
    """DGL's, which draws 8000 nodes in proportion to their degrees, with replacement."""
    dgl = pytest.importorskip("dgl")
    topology = case_topology("case233k")
    graph = dgl.graph(("csc", (topology.indptr, topology.indices, [])))
    sampler = dgl.dataloading.SAINTSampler(mode="node", budget=8000)
    benchmark.pedantic(lambda: sampler.sample(graph, 0), rounds=ROUNDS, warmup_rounds=WARMUP)
    if benchmark.stats:
        print(f" {1 / benchmark.stats.stats.median:.0f} subgraphs/s", end="")
