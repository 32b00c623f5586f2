"""Subgraphs: induced against slices of scipy's matrices, draws against exact chances, METIS clusters."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from scipy import sparse, stats
from support.graphs import dense_adjacency, random_graph

from harness.errors import UserError
from harness.graph import subgraph
from harness.graph.block import Norm
from harness.graph.layer_sample import LayerSample, Tables
from harness.graph.skew import Skew
from harness.graph.subgraph import NodeSampler, clusters, induce
from harness.graph.topology import Topology

NODES = 60
GRAPHS = {weighted: random_graph(71, NODES, degree=8, weighted=weighted) for weighted in (False, True)}
TOPOLOGIES = {key: Topology(graph.indptr, graph.indices, graph.weights) for key, graph in GRAPHS.items()}
LOCAL = np.random.default_rng(3).random(NODES) < 0.4
DRAWS = 4000


def sampler(size: int, *, weighted: bool = False, norm: Norm = "mean", **options) -> NodeSampler:
    return NodeSampler(TOPOLOGIES[weighted], norm, Tables(NODES), size, **options)


def dense(layer: LayerSample) -> np.ndarray:
    values = np.ones(layer.indices.size) if layer.values is None else layer.values
    shape = (layer.num_dst, layer.sources.size)
    return sparse.csr_array((values, layer.indices, layer.indptr), shape).toarray()


def importance(weighted: bool, norm: Norm) -> np.ndarray:
    """Column sums of the squared propagation matrix without its self loops, from dense matrices."""
    adjacency = dense_adjacency(GRAPHS[weighted])
    degree = adjacency.sum(1)
    left, right = 1 / np.maximum(degree, 1e-9), np.ones(NODES)
    if norm == "sym":
        left = right = 1 / np.sqrt(degree + 1)
    q = ((left[:, None] * adjacency * right) ** 2).sum(0)
    q[q == 0] = q[q > 0].min()
    return q


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
def test_induced_edges_are_those_of_a_sliced_matrix(weighted: bool, scaled: bool) -> None:
    """On a directed graph, with nodes in any order; the table that was lent comes back clean."""
    rng = np.random.default_rng(0)
    whole = sparse.random_array((90, 90), density=0.1, format="csr", rng=rng, dtype=np.float32)
    indptr, indices = whole.indptr.astype(np.int64), whole.indices.astype(np.int32)
    topology = Topology(indptr, indices, whole.data if weighted else None)
    reference = whole.astype(np.float64) if weighted else (whole != 0).astype(np.float64)
    tables = Tables(90)
    for count in (0, 1, 7, 40, 90):
        nodes = rng.permutation(90)[:count]
        inverse = rng.uniform(1, 9, count) if scaled else None
        layer = induce(topology, nodes, tables, inverse=inverse)
        expected = reference[nodes][:, nodes].toarray() * (1 if inverse is None else inverse)
        np.testing.assert_array_equal(dense(layer), expected)
        np.testing.assert_array_equal(layer.sources, nodes)
        assert layer.num_dst == count
        assert layer.indices.size == np.count_nonzero(expected)
        assert (layer.values is None) == (not weighted and not scaled)
        with tables.borrow() as table:
            assert (table == -1).all()


def test_a_node_that_is_given_twice_is_refused_and_leaves_nothing_behind() -> None:
    tables, nodes = Tables(NODES), np.arange(30)
    with pytest.raises(ValueError, match="given twice"):
        induce(TOPOLOGIES[False], np.array([3, 8, 3]), tables)
    expected = dense_adjacency(GRAPHS[False])[:30, :30]
    np.testing.assert_array_equal(dense(induce(TOPOLOGIES[False], nodes, tables)), expected)


@pytest.mark.parametrize("norm", ["mean", "sym"])
@pytest.mark.parametrize("weighted", [False, True])
def test_probabilities_are_in_proportion_to_the_columns_up_to_one(norm: Norm, weighted: bool) -> None:
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
    nodes = sampler(25, weighted=True, norm="sym", local=LOCAL, skew=skew)
    x = np.random.default_rng(4).normal(2, 1, NODES)
    total, square, times = np.zeros((3, NODES))
    losses = []
    for seed in range(DRAWS):
        batch = nodes.sample(seed)
        there = batch.layer.destinations
        found = dense(batch.layer) @ x[there]
        total[there] += found
        square[there] += found**2
        times[there] += 1
        losses.append(batch.weights @ x[there])
    mean = total / times
    deviation = np.sqrt((square / times - mean**2) / times)
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
    np.testing.assert_array_equal(dense(batch.layer), dense_adjacency(GRAPHS[weighted]))
    np.testing.assert_array_equal(batch.weights, 1)


def test_a_skewed_sampler_multiplies_the_local_weights_by_formula_12() -> None:
    plain = sampler(12, local=LOCAL)
    skewed = sampler(12, local=LOCAL, skew=Skew(distortion=4))
    alpha = 4 + 3 * (LOCAL.sum() - 12) / (~LOCAL).sum()
    assert plain.alpha == 1
    assert skewed.alpha == pytest.approx(alpha)
    q = importance(False, "mean")
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
    batch = NodeSampler(topology, "sym", Tables(10), 5)
    np.testing.assert_allclose(batch.probabilities, 0.5)
    assert batch.sample(1).layer.indices.size == 0


def test_a_seed_is_a_subgraph_whatever_thread_draws_it() -> None:
    nodes = sampler(25, weighted=True)
    alone = [nodes.sample(seed).layer for seed in range(200)]
    with ThreadPoolExecutor(4) as pool:
        together = [batch.layer for batch in pool.map(nodes.sample, range(200))]
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one.sources, other.sources)
        np.testing.assert_array_equal(dense(one), dense(other))
    assert len({layer.sources.tobytes() for layer in alone}) > 190


def rings(cliques: int, size: int) -> Topology:
    """Cliques, each joined to the next by one edge, their nodes shuffled."""
    block = np.kron(np.eye(cliques), np.ones((size, size))) - np.eye(cliques * size)
    first = np.arange(cliques) * size
    block[first, np.roll(first, 1) + 1] = block[np.roll(first, 1) + 1, first] = 1
    order = np.random.default_rng(0).permutation(cliques * size)
    matrix = sparse.csr_array(block[np.ix_(order, order)])
    matrix.sort_indices()
    return Topology(matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32))


def test_clusters_cover_the_nodes_are_of_one_size_and_cut_few_edges() -> None:
    topology = rings(12, 20)
    found = clusters(topology, 12, 0)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(np.bincount(found), 20)
    rows = np.repeat(np.arange(240), np.diff(topology.indptr))
    assert (found[rows] != found[topology.indices]).sum() == 2 * 12
    graph = random_graph(72, 1000, degree=6)
    sizes = np.bincount(clusters(Topology(graph.indptr, graph.indices), 8, 0))
    assert sizes.size == 8
    assert sizes.sum() == 1000
    assert sizes.max() <= 1.04 * 125
    np.testing.assert_array_equal(clusters(topology, 1, 0), 0)
    np.testing.assert_array_equal(np.sort(clusters(topology, 240, 0)), np.arange(240))
    with pytest.raises(UserError, match="241 parts of a graph with 240 nodes"):
        clusters(topology, 241, 0)


def test_clusters_that_are_kept_are_found_once_and_mapped(tmp_path: Path) -> None:
    topology = rings(5, 6)
    first = clusters(topology, 5, 0, keep=tmp_path)
    with mock.patch.object(subgraph, "partition_nodes", side_effect=AssertionError("found again")):
        again = clusters(topology, 5, 0, keep=tmp_path)
    assert isinstance(again, np.memmap)
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first, clusters(topology, 5, 0))
    assert clusters(topology, 3, 0, keep=tmp_path).max() == 2
