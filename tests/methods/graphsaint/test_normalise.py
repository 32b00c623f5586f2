"""What edges and losses of subgraphs count: by hand, and in expectation against dense matrices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from harness_methods.graphsaint.frontier import FrontierSampler
from harness_methods.graphsaint.node_samplers import EdgeEndsSampler, ForestFireSampler, MultiWalkSampler, WalkSampler
from harness_methods.graphsaint.subgraphs import CountedChances, Counts, PresentMean, count
from numpy.typing import NDArray
from support.draws import square, sums_over

from harness.check.graphs import random_graph
from harness.graph.block import MEAN, SYMMETRIC, Propagation
from harness.graph.csr import Topology
from harness.sampling.sample import Tables
from harness.sampling.subgraphs import Induced, NodeSampler, Normaliser, SubgraphBatch, Subgraphs, induced

NODES = 30
GRAPH = random_graph(91, NODES, degree=5)
ROWS = np.repeat(np.arange(NODES), np.diff(GRAPH.indptr))
# Weights of the two directions of an edge differ: a matrix that is transposed is another one.
WEIGHTS = np.random.default_rng(1).uniform(0.5, 2, GRAPH.indices.size).astype(np.float32)
TOPOLOGIES = {False: Topology(GRAPH.indptr, GRAPH.indices), True: Topology(GRAPH.indptr, GRAPH.indices, WEIGHTS)}


def dense(values: NDArray[np.generic]) -> NDArray[np.float64]:
    """The graph's matrix [N, N] with these values."""
    matrix = np.zeros((NODES, NODES))
    matrix[ROWS, GRAPH.indices] = values
    return matrix


MATRICES = {False: dense(np.ones(ROWS.size)), True: dense(WEIGHTS)}


def weigh(normaliser: Normaliser, nodes: NDArray[np.int64]):
    found = induced(normaliser.topology, nodes, Tables(NODES), places=normaliser.needs_places)
    return normaliser.weigh(nodes, found)


@pytest.mark.parametrize("weighted", [False, True])
def test_edges_and_losses_are_divided_by_the_shares_of_draws_that_have_them(weighted: bool) -> None:
    rng = np.random.default_rng(0)
    of_nodes, of_edges = rng.integers(0, 9, NODES), rng.integers(0, 5, ROWS.size)
    of_nodes[[3, 4]] = 0
    counts = Counts(50, of_nodes.astype(np.int32), of_edges.astype(np.int32))
    nodes = np.unique([3, 4, *rng.choice(NODES, 20)])
    batch = weigh(CountedChances(TOPOLOGIES[weighted], counts), nodes)
    times, together = np.maximum(of_nodes, 1), np.maximum(dense(of_edges), 1)
    expected = MATRICES[weighted] * times[:, None] / together
    np.testing.assert_allclose(square(batch.layer), expected[np.ix_(nodes, nodes)], rtol=1e-12)
    np.testing.assert_allclose(batch.weights, 50 / times[nodes], rtol=1e-12)
    np.testing.assert_array_equal(batch.layer.sources, nodes)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("norm", [MEAN, SYMMETRIC])
def test_the_aggregation_of_a_subgraph_without_chances_is_a_mean_of_who_is_there(
    weighted: bool, norm: Propagation
) -> None:
    topology, whole = TOPOLOGIES[weighted], MATRICES[weighted]
    nodes = np.sort(np.random.default_rng(2).choice(NODES, 9, replace=False))
    batch = weigh(PresentMean(topology), nodes)
    assert batch.weights is None
    x = np.random.default_rng(3).normal(size=(9, 2))
    degree, there = whole.sum(1)[nodes], whole[np.ix_(nodes, nodes)]
    assert (there.sum(1) == 0).any()  # who has none of its neighbours there gets a sum of none
    scaled = there * (degree / np.where(there.sum(1) > 0, there.sum(1), 1))[:, None]
    if norm == MEAN:
        expected = scaled / np.maximum(degree, 1e-9)[:, None]
        np.testing.assert_allclose(expected.sum(1)[there.sum(1) > 0], 1)
    else:
        root = 1 / np.sqrt(degree + 1)
        expected = root[:, None] * scaled * root + np.diag(root**2)
    block = batch.layer.block(topology, device=torch.device("cpu"), dtype=torch.float64)
    found = block.aggregate(torch.from_numpy(x), norm)
    np.testing.assert_allclose(found.numpy(), expected @ x, rtol=1e-6)  # weights are of float32


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("counted", [False, True])
def test_a_blocks_gradient_is_by_the_transpose_of_what_its_aggregation_is_by(weighted: bool, counted: bool) -> None:
    topology = TOPOLOGIES[weighted]
    pick = Skewed()
    counts = count(topology, pick, Tables(NODES), 50, 0, 1)
    normaliser = CountedChances(topology, counts) if counted else PresentMean(topology)
    layer = Subgraphs(topology, pick, normaliser, Tables(NODES)).sample(7).layer
    assert layer.symmetric == ("structure" if weighted else "values")
    block = layer.block(topology, device=torch.device("cpu"), dtype=torch.float64)
    identity = torch.eye(layer.num_dst, dtype=torch.float64)
    x = torch.zeros_like(identity).requires_grad_()
    forward = block.aggregate(identity, SYMMETRIC)
    (backward,) = torch.autograd.grad(block.aggregate(x, SYMMETRIC), x, identity)
    assert forward.count_nonzero() > 3 * layer.num_dst
    np.testing.assert_allclose(backward.numpy(), forward.numpy().T, rtol=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
def test_with_all_nodes_nothing_is_scaled(weighted: bool) -> None:
    topology = TOPOLOGIES[weighted]
    counts = count(topology, Everything(), Tables(NODES), 3, 0, 1)
    for normaliser in (PresentMean(topology), CountedChances(topology, counts)):
        batch = Subgraphs(topology, Everything(), normaliser, Tables(NODES)).sample(0)
        np.testing.assert_allclose(square(batch.layer), MATRICES[weighted], rtol=1e-15)
        assert batch.weights is None or (batch.weights == 1).all()
    exact = weigh(PresentMean(topology), np.arange(NODES)).layer
    np.testing.assert_array_equal(exact.dst_scale, 1)


class Everything:
    """Picks all nodes."""

    def sample(self, seed: int) -> NDArray[np.int64]:
        return np.arange(NODES)


class Skewed:
    """Picks ends of random edges, and pairs of nodes: far from independent, and some nodes much rarer."""

    def sample(self, seed: int) -> NDArray[np.int64]:
        rng = np.random.default_rng(seed)
        edges = (rng.random(4) ** 3 * ROWS.size).astype(np.int64)
        others = rng.integers(0, NODES, 3)
        return np.unique([*ROWS[edges], *GRAPH.indices[edges], *others, *(others + 1) % NODES])


NODE_SAMPLERS: dict[str, Callable[[Topology], NodeSampler]] = {
    "skewed": lambda topology: Skewed(),
    "frontier": lambda topology: FrontierSampler(topology, 12, frontier=4),
    "rw": lambda topology: WalkSampler(topology, 12, length=2),
    "mrw": lambda topology: MultiWalkSampler(topology, 12, walkers=4),
    "edge": lambda topology: EdgeEndsSampler(topology, 12),
    "forest-fire": lambda topology: ForestFireSampler(topology, 12, burn=0.4),
}
COUNTED, DRAWS = 8000, 4000
X = np.random.default_rng(4).normal(2, 1, NODES)


def scores(sampler: Subgraphs, weighted: bool) -> tuple[NDArray[np.float64], float]:
    """Return z-scores of the aggregations of all nodes that can be drawn, and of the weighted sum over them.

    Both err by the draws here and, as much a draw, by those that were counted.
    """
    mean, variance, times, losses = sums_over(sampler, X, DRAWS)
    seen = times > 0
    assert seen.sum() >= NODES - 1  # some samplers never draw a node without neighbours
    both = 1 / times[seen] * (1 + DRAWS / COUNTED)
    deviation = np.sqrt(np.maximum(variance[seen], 0) * both)
    error = mean[seen] - (MATRICES[weighted] @ X)[seen]
    varies = deviation > 1e-9
    np.testing.assert_allclose(error[~varies], 0, atol=1e-9)
    spread = losses.std() * np.sqrt(1 / DRAWS + 1 / COUNTED)
    return error[varies] / deviation[varies], float((losses.mean() - X[seen].sum()) / spread)


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", NODE_SAMPLERS)
def test_counted_chances_make_aggregation_and_loss_unbiased(name: str) -> None:
    weighted = name == "skewed"
    topology, tables = TOPOLOGIES[weighted], Tables(NODES)
    pick = NODE_SAMPLERS[name](topology)
    counts = count(topology, pick, tables, COUNTED, 3, 1)
    z, loss = scores(Subgraphs(topology, pick, CountedChances(topology, counts), tables), weighted)
    assert z.size > 20
    assert 0.4 < np.mean(z**2) < 2
    assert np.abs(z).max() < 4.5
    assert abs(loss) < 4


class Transposed(CountedChances):
    """Divides by C_ij / C_j."""

    def weigh(self, nodes: NDArray[np.int64], found: Induced) -> SubgraphBatch:
        batch = super().weigh(nodes, found)
        layer = replace(batch.layer, dst_scale=None, src_scale=batch.layer.dst_scale)
        return replace(batch, layer=layer)


@pytest.mark.slow
def test_the_z_test_sees_chances_that_are_left_out_or_another_nodes() -> None:
    topology, tables, pick = TOPOLOGIES[True], Tables(NODES), Skewed()
    counts = count(topology, pick, tables, COUNTED, 3, 1)
    ones = Counts(1, np.ones_like(counts.nodes), np.ones_like(counts.edges))
    for normaliser in (CountedChances(topology, ones), Transposed(topology, counts)):
        z, loss = scores(Subgraphs(topology, pick, normaliser, tables), True)
        assert np.abs(z).max() > 10
        assert (abs(loss) > 10) == (normaliser.counts is ones)
