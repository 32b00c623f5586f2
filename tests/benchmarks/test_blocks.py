"""Building blocks: a boundary sample's block with its transpose, and neighbour sampling."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.conftest import edges_of
from benchmarks.growth import measure

from harness.check.graphs import OnDisk
from harness.graph.csr import Topology
from harness.graph.partition import Partition
from harness.sampling.neighbours import draw_neighbours
from harness.sampling.sample import Tables

CPU = torch.device("cpu")


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_sampled_block(benchmark: Any, planted: Callable[[int], OnDisk], rate: float, edges: int) -> None:
    view = planted(edges).parts.train
    partition = Partition(view, 0, engine="auto", device=CPU, dtype=torch.float32)
    rng = np.random.default_rng(0)
    partition.block(np.arange(1))  # reads the part and reverses it, once a trial

    def build() -> None:
        partition.block(np.flatnonzero(rng.random(partition.num_boundary) < rate))

    measure(benchmark, build, f"block of a boundary sample, p={rate}", edges)


@pytest.mark.parametrize("fanout", [5, 15])
def test_neighbour_sampling(benchmark: Any, planted: Callable[[int], OnDisk], fanout: int, edges: int) -> None:
    """A tenth of the nodes as targets, so that the drawn edges grow with the graph; the block included."""
    planted_graph = planted(edges)
    topology = Topology.open(planted_graph.graph, weighted=False)
    assert edges_of(planted_graph.parts.train) == topology.indices.size
    tables, rng, seeds = Tables(topology.num_nodes), np.random.default_rng(0), itertools.count()

    def sample() -> None:
        targets = rng.choice(topology.num_nodes, topology.num_nodes // 10, replace=False)
        drawn = draw_neighbours(topology, targets, fanout, next(seeds), tables)
        drawn.block(topology, device=CPU, dtype=torch.float32)

    measure(benchmark, sample, f"sample {fanout} neighbours of N/10", edges)
