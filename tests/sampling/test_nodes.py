"""Nodes drawn by importance: chances against dense matrices, draws and their weights against the chances."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from harness_methods.skewed import Skew
from scipy import stats
from support.draws import square, sums_over

from harness.check.graphs import dense_adjacency, random_graph
from harness.graph.block import MEAN, SYMMETRIC, Propagation
from harness.graph.csr import Topology
from harness.sampling.sample import Tables
from harness.sampling.subgraphs import ImportanceSubgraphs

NODES = 60
GRAPHS = {weighted: random_graph(71, NODES, degree=8, weighted=weighted) for weighted in (False, True)}
TOPOLOGIES = {key: Topology(graph.indptr, graph.indices, graph.weights) for key, graph in GRAPHS.items()}
LOCAL = np.random.default_rng(3).random(NODES) < 0.4
DRAWS = 4000


def sampler(size: int, *, weighted: bool = False, norm: Propagation = MEAN, **options) -> ImportanceSubgraphs:
    return ImportanceSubgraphs(TOPOLOGIES[weighted], norm, Tables(NODES), size, **options)


def importance(weighted: bool, norm: Propagation) -> np.ndarray:
    """Column sums of the squared propagation matrix without its self loops, from dense matrices."""
    adjacency = dense_adjacency(GRAPHS[weighted])
    degree = adjacency.sum(1)
    left, right = 1 / np.maximum(degree, 1e-9), np.ones(NODES)
    if norm == SYMMETRIC:
        left = right = 1 / np.sqrt(degree + 1)
    q = ((left[:, None] * adjacency * right) ** 2).sum(0)
    q[q == 0] = q[q > 0].min()
    return q


@pytest.mark.parametrize("norm", [MEAN, SYMMETRIC])
@pytest.mark.parametrize("weighted", [False, True])
def test_probabilities_are_in_proportion_to_the_columns_up_to_one(norm: Propagation, weighted: bool) -> None:
    q = importance(weighted, norm)
    for size in (1, 20, 55):
        p = sampler(size, weighted=weighted, norm=norm).probabilities
        assert p.sum() == pytest.approx(size)
        assert (p > 0).all()
        ratio = p / q
        np.testing.assert_allclose(ratio[p < 1], ratio[p < 1][0])
        assert (ratio[p == 1] <= ratio[p < 1][0] * (1 + 1e-9)).all()
    assert (p == 1).any()


def test_every_node_is_drawn_as_often_as_its_chance_and_independently_of_the_others() -> None:
    nodes = sampler(35)
    p = nodes.probabilities
    drawn = np.zeros((DRAWS, NODES), bool)
    for seed in range(DRAWS):
        found = nodes.sample(seed).layer.sources
        assert (np.diff(found) > 0).all()
        drawn[seed, found] = True
    sure = p == 1
    assert sure.any()
    assert drawn[:, sure].all()
    variance = p * (1 - p)
    z2 = (drawn.sum(0) - DRAWS * p)[~sure] ** 2 / (DRAWS * variance[~sure])
    assert 1e-3 < stats.chi2.sf(z2.sum(), z2.size) < 1 - 1e-3
    # Were two nodes' draws to depend on one another, the number of nodes would vary by more, or by less.
    spread = drawn.sum(1).var() * DRAWS / variance.sum()
    assert 1e-3 < stats.chi2.sf(spread, DRAWS - 1) < 1 - 1e-3


@pytest.mark.parametrize("skew", [None, Skew("fixed", alpha=4)])
def test_aggregation_of_what_is_there_and_loss_have_the_full_ones_as_expectation(skew: Skew | None) -> None:
    """z-scores of the sums over in-neighbours, given the destination, and of the weighted sum over nodes."""
    nodes = sampler(25, weighted=True, norm=SYMMETRIC, local=LOCAL, skew=skew)
    x = np.random.default_rng(4).normal(2, 1, NODES)
    mean, variance, times, losses = sums_over(nodes, x, DRAWS)
    deviation = np.sqrt(variance / times)
    error = mean - dense_adjacency(GRAPHS[True]) @ x
    fixed = deviation < 1e-9
    np.testing.assert_allclose(error[fixed], 0, atol=1e-9)
    z = error[~fixed] / deviation[~fixed]
    assert z.size > 50
    assert 0.5 < np.mean(z**2) < 1.6
    assert np.abs(z).max() < 4.5
    assert abs(np.mean(losses) - x.sum()) < 4 * np.std(losses) / np.sqrt(DRAWS)


@pytest.mark.parametrize("size", [-1, NODES, 10 * NODES])
@pytest.mark.parametrize("weighted", [False, True])
def test_all_nodes_are_the_whole_graph(size: int, weighted: bool) -> None:
    batch = sampler(size, weighted=weighted, local=LOCAL, skew=Skew(distortion=8)).sample(5)
    np.testing.assert_array_equal(batch.layer.sources, np.arange(NODES))
    np.testing.assert_array_equal(square(batch.layer), dense_adjacency(GRAPHS[weighted]))
    np.testing.assert_array_equal(batch.weights, 1)


def test_a_skewed_sampler_multiplies_the_local_weights_by_formula_12() -> None:
    plain = sampler(12, local=LOCAL)
    skewed = sampler(12, local=LOCAL, skew=Skew(distortion=4))
    alpha = 4 + 3 * (LOCAL.sum() - 12) / (~LOCAL).sum()
    assert plain.alpha == 1
    assert skewed.alpha == pytest.approx(alpha)
    q = importance(False, MEAN)
    p, weights = skewed.probabilities, q * np.where(LOCAL, alpha, 1)
    np.testing.assert_allclose((p / weights)[p < 1], (p / weights)[p < 1][0])
    assert p.sum() == pytest.approx(12)
    assert p[~LOCAL].sum() < plain.probabilities[~LOCAL].sum()


def test_local_only_never_draws_a_remote_node() -> None:
    nodes = sampler(12, local=LOCAL, local_only=True)
    assert nodes.probabilities.sum() == pytest.approx(12)
    assert not nodes.probabilities[~LOCAL].any()
    for seed in range(50):
        assert LOCAL[nodes.sample(seed).layer.sources].all()
    everything = sampler(-1, local=LOCAL, local_only=True).sample(0)
    np.testing.assert_array_equal(everything.layer.sources, np.flatnonzero(LOCAL))


@pytest.mark.parametrize("options", [{"local_only": True}, {"skew": Skew(distortion=2)}])
def test_what_is_local_must_be_known(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="which are local"):
        sampler(12, **options)


def test_a_graph_without_edges_is_drawn_evenly() -> None:
    topology = Topology(np.zeros(11, np.int64), np.empty(0, np.int32))
    batch = ImportanceSubgraphs(topology, SYMMETRIC, Tables(10), 5)
    np.testing.assert_allclose(batch.probabilities, 0.5)
    assert batch.sample(1).layer.indices.size == 0


def test_a_seed_is_a_subgraph_whatever_thread_draws_it() -> None:
    nodes = sampler(25, weighted=True)
    alone = [nodes.sample(seed).layer for seed in range(200)]
    with ThreadPoolExecutor(4) as pool:
        together = [batch.layer for batch in pool.map(nodes.sample, range(200))]
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one.sources, other.sources)
        np.testing.assert_array_equal(square(one), square(other))
    assert len({layer.sources.tobytes() for layer in alone}) > 190
