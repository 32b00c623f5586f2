"""Subgraphs: induced against slices of scipy's matrices, METIS clusters."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from scipy import sparse
from support.draws import square

from harness.check.graphs import dense_adjacency, random_graph
from harness.errors import UserError
from harness.graph.csr import Topology
from harness.sampling import subgraphs as subgraph
from harness.sampling.sample import Tables
from harness.sampling.subgraphs import clusters, induce

NODES = 60
GRAPHS = {weighted: random_graph(71, NODES, degree=8, weighted=weighted) for weighted in (False, True)}
TOPOLOGIES = {key: Topology(graph.indptr, graph.indices, graph.weights) for key, graph in GRAPHS.items()}
LOCAL = np.random.default_rng(3).random(NODES) < 0.4
DRAWS = 4000


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ascending", [False, True])
def test_induced_edges_are_those_of_a_sliced_matrix(weighted: bool, ascending: bool) -> None:
    """Weights differ by direction; the table that was lent comes back clean; blocks know their transpose."""
    rng = np.random.default_rng(0)
    whole = sparse.random_array((90, 90), density=0.05, format="csr", rng=rng, dtype=np.float32)
    whole = sparse.csr_array(whole + 2 * whole.T)
    whole.sort_indices()
    indptr, indices = whole.indptr.astype(np.int64), whole.indices.astype(np.int32)
    topology = Topology(indptr, indices, whole.data if weighted else None)
    reference = whole.astype(np.float64) if weighted else (whole != 0).astype(np.float64)
    tables = Tables(90)
    for count in (0, 1, 7, 40, 90):
        nodes = rng.permutation(90)[:count]
        nodes = np.sort(nodes) if ascending else nodes
        layer = induce(topology, nodes, tables)
        expected = reference[nodes][:, nodes].toarray()
        np.testing.assert_array_equal(square(layer), expected)
        np.testing.assert_array_equal(layer.sources, nodes)
        assert layer.num_dst == count
        assert layer.indices.size == np.count_nonzero(expected)
        assert (layer.values is None) == (not weighted)
        block = layer.block(topology, device=torch.device("cpu"), dtype=torch.float64)
        x = rng.normal(size=(count, 2))
        np.testing.assert_allclose(block.multiply_transposed(torch.from_numpy(x)), expected.T @ x, atol=1e-12)
        assert (block.transposed is block.adjacency) == (not weighted)
        with tables.borrow() as table:
            assert (table == -1).all()


def test_a_node_that_is_given_twice_is_refused_and_leaves_nothing_behind() -> None:
    tables, nodes = Tables(NODES), np.arange(30)
    with pytest.raises(ValueError, match="given twice"):
        induce(TOPOLOGIES[False], np.array([3, 8, 3]), tables)
    expected = dense_adjacency(GRAPHS[False])[:30, :30]
    np.testing.assert_array_equal(square(induce(TOPOLOGIES[False], nodes, tables)), expected)


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


def test_clusters_of_another_partitioner_are_kept_apart(tmp_path: Path) -> None:
    topology = rings(12, 20)
    by_metis = clusters(topology, 12, 0, keep=tmp_path)
    streamed = clusters(topology, 12, 0, keep=tmp_path, method="stream")
    assert np.unique(streamed).size == 12
    assert (streamed != by_metis).any()
    np.testing.assert_array_equal(streamed, clusters(topology, 12, 0, method="stream"))
