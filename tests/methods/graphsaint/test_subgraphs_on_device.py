"""Subgraphs by torch's operations: nodes, edges and what they count are those of the compiled kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from harness_methods.graphsaint.frontier import FrontierSampler
from harness_methods.graphsaint.node_samplers import EdgeEndsSampler, MultiWalkSampler, WalkSampler
from harness_methods.graphsaint.subgraphs import CountedChances, Counts, PresentMean
from scipy import stats
from support.tiers import tiered

from harness.check.graphs import random_graph
from harness.graph.block import MEAN, SYMMETRIC
from harness.graph.csr import Topology
from harness.sampling.sample import GraphOnDevice, Tables
from harness.sampling.subgraphs import (
    DeviceNodes,
    ImportanceSubgraphs,
    NodeSampler,
    Normaliser,
    Subgraphs,
    SubgraphsOnDevice,
)

NODES, CPU, ERROR = 90, torch.device("cpu"), 1e-6


def graph(weighted: bool, degree: float = 6) -> Topology:
    found = random_graph(17, NODES, degree=degree, weighted=weighted)
    return Topology(found.indptr, found.indices, found.weights)


def with_neighbours(topology: Topology) -> Topology:
    """The graph with a ring through all nodes that have no neighbours."""
    dense = np.zeros((NODES, NODES), bool)
    dense[np.repeat(np.arange(NODES), np.diff(topology.indptr)), topology.indices] = True
    alone = np.flatnonzero(~dense.any(1))
    dense[alone, (alone + 1) % NODES] = dense[(alone + 1) % NODES, alone] = True
    return Topology(np.concatenate([[0], dense.sum(1).cumsum()]), dense.nonzero()[1].astype(np.int32))


SAMPLERS: dict[str, Callable[[Topology], NodeSampler]] = {
    "rw": lambda topology: WalkSampler(topology, 40, length=3),
    "one root": lambda topology: WalkSampler(topology, 1, length=5),
    "no step": lambda topology: WalkSampler(topology, 30, length=0),
    "mrw": lambda topology: MultiWalkSampler(topology, 40, walkers=7),
    "one walker": lambda topology: MultiWalkSampler(topology, 12, walkers=1),
    "many walkers": lambda topology: MultiWalkSampler(topology, 12, walkers=200),
    "walkers to all": lambda topology: MultiWalkSampler(topology, NODES, walkers=3),
    "edge": lambda topology: EdgeEndsSampler(with_neighbours(topology), 30),
    "node": lambda topology: ImportanceSubgraphs(topology, MEAN, Tables(NODES), 25).sampler,
    "all": lambda topology: ImportanceSubgraphs(topology, MEAN, Tables(NODES), -1).sampler,
}


@pytest.mark.quick(5)
@pytest.mark.parametrize("name", tiered(SAMPLERS, SAMPLERS.keys() - {"walkers to all"}))
@pytest.mark.parametrize("degree", [0.5, 6])
def test_nodes_are_those_of_the_kernel(name: str, degree: float) -> None:
    topology = graph(False, degree)
    assert (np.diff(topology.indptr) == 0).any()
    sampler = SAMPLERS[name](topology)
    assert isinstance(sampler, DeviceNodes)
    copied = GraphOnDevice.of(with_neighbours(topology) if name == "edge" else topology, CPU)
    draw = sampler.draws_on_device(copied)
    for seed in (*range(20), 2**62 + 3):
        nodes = draw(seed)
        assert nodes.dtype == torch.int64
        np.testing.assert_array_equal(nodes.numpy(), sampler.sample(seed))


@pytest.mark.parametrize("walkers", tiered([1, 2, 50], [50]))
def test_walkers_that_meet_no_new_node_start_anew_as_on_the_host(walkers: int) -> None:
    """Pairs of nodes: a walker has seen all after a step; then any nodes fill up what is missing."""
    pairs = Topology(np.arange(NODES + 1), (np.arange(NODES) ^ 1).astype(np.int32))
    for size in (30, NODES):
        sampler = MultiWalkSampler(pairs, size, walkers=walkers)
        draw = sampler.draws_on_device(GraphOnDevice.of(pairs, CPU))
        for seed in range(20):
            np.testing.assert_array_equal(draw(seed).numpy(), sampler.sample(seed))


def test_edges_are_as_likely_where_some_nodes_have_no_neighbours() -> None:
    """Pairs by their chance: 1/deg of each end, over the nodes that have neighbours. Errs once in a million runs."""
    path = np.array([[0, 1], [1, 2], [1, 4], [4, 5]])
    dense = np.zeros((7, 7), bool)
    dense[path[:, 0], path[:, 1]] = dense[path[:, 1], path[:, 0]] = True
    topology = Topology(np.concatenate([[0], dense.sum(1).cumsum()]), dense.nonzero()[1].astype(np.int32))
    draw = EdgeEndsSampler(topology, 2).draws_on_device(GraphOnDevice.of(topology, CPU))
    seen, draws = Counter(tuple(draw(seed).tolist()) for seed in range(4000)), 4000
    assert set(seen) == {tuple(pair) for pair in path.tolist()}
    degree = dense.sum(1)
    chances = [(1 / degree[u] + 1 / degree[v]) / (degree > 0).sum() for u, v in path]
    pairs = [seen[tuple(pair)] for pair in path.tolist()]
    assert stats.chisquare(pairs, draws * np.array(chances)).pvalue > ERROR


def normalisers(topology: Topology) -> dict[str, Normaliser]:
    rng = np.random.default_rng(0)
    rows = np.repeat(np.arange(NODES), np.diff(topology.indptr))
    of_pairs = rng.integers(0, 5, (NODES, NODES), np.int32)
    of_edges = (of_pairs + of_pairs.T)[rows, topology.indices]  # both ends of an edge are in the same subgraphs
    counts = Counts(50, rng.integers(0, 9, NODES, np.int32), of_edges)
    known = ImportanceSubgraphs(topology, SYMMETRIC, Tables(NODES), 40)
    return {
        "counted": CountedChances(topology, counts), "present": PresentMean(topology), "known": known.normaliser,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["counted", "present", "known"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("drawn", ["frontier", "node"])
@pytest.mark.parametrize("degree", [0.5, 6])
def test_what_they_count_is_what_it_is_on_the_host(name: str, weighted: bool, drawn: str, degree: float) -> None:
    topology = graph(weighted, degree)
    normaliser = normalisers(topology)[name]
    known = ImportanceSubgraphs(topology, MEAN, Tables(NODES), 40)
    sampler = known.sampler if drawn == "node" else FrontierSampler(topology, 30, frontier=5)
    host = Subgraphs(topology, sampler, normaliser, Tables(NODES))
    for symmetric in (True, False):
        on_device = SubgraphsOnDevice(host, CPU, symmetric=symmetric)
        for seed in range(5):
            found, want = on_device.sample(seed), host.sample(seed)
            np.testing.assert_array_equal(found.layer.sources.numpy(), want.layer.sources)
            np.testing.assert_array_equal(found.layer.indptr.numpy(), want.layer.indptr)
            np.testing.assert_array_equal(found.layer.indices.numpy(), want.layer.indices)
            assert found.layer.symmetric == (symmetric and not weighted)
            assert (found.weights is None) == (want.weights is None)
            if want.weights is not None and found.weights is not None:
                np.testing.assert_array_equal(found.weights.numpy(), want.weights)
            blocks = [each.layer.block(topology, device=CPU, dtype=torch.float64) for each in (found, want)]
            rows = torch.rand(
                want.layer.sources.size, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
            )
            for norm in (MEAN, SYMMETRIC):
                both = [block.aggregate(rows.requires_grad_(), norm) for block in blocks]
                torch.testing.assert_close(*both, rtol=1e-12, atol=1e-14)
                grads = [torch.autograd.grad(out.square().sum(), rows)[0] for out in both]
                torch.testing.assert_close(*grads, rtol=1e-12, atol=1e-14)
