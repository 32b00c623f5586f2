"""Induction against slices of scipy's matrices: entries, their order and places, and what scratch is left."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy import sparse

from harness.graph.csr import Topology
from harness.sampling.sample import Tables
from harness.sampling.subgraphs import FILTER_BITS, Induced, induced


def graph(rows: np.ndarray, columns: np.ndarray, nodes: int) -> tuple[Topology, sparse.csr_array]:
    """Return a directed graph, and its matrix whose values are 1 + where an entry is."""
    matrix = sparse.csr_array((np.ones(rows.size), (rows, columns)), (nodes, nodes))
    matrix.sort_indices()
    matrix.data = 1.0 + np.arange(matrix.nnz)
    return Topology(matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32)), matrix


def random_pairs(nodes: np.ndarray, count: int) -> np.ndarray:
    return np.random.default_rng(5).choice(nodes, (2, count))


def assert_slice(found: Induced, matrix: sparse.csr_array, nodes: np.ndarray) -> None:
    expected = matrix[nodes][:, nodes]
    expected.sort_indices()
    assert found.places is not None
    assert (found.indptr.dtype, found.columns.dtype, found.places.dtype) == (np.int64, np.int32, np.int64)
    rows = sparse.csr_array((1.0 + found.places, found.columns, found.indptr), expected.shape)
    rows.sort_indices()
    for name in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(rows, name), getattr(expected, name))


def test_the_entries_are_those_of_a_sliced_matrix_in_any_order_of_nodes() -> None:
    topology, matrix = graph(*random_pairs(np.arange(300), 6000), 400)  # the last 100 nodes have no neighbour
    tables, rng = Tables(400), np.random.default_rng(0)
    for count in (0, 1, 7, 50, 51, 150, 400):  # up to 50 they are few enough for the filter
        nodes = rng.permutation(400)[:count]
        found = induced(topology, nodes, tables, places=True)
        assert_slice(found, matrix, nodes)
        bare = induced(topology, nodes, tables)
        assert bare.places is None
        np.testing.assert_array_equal(bare.indptr, found.indptr)
        np.testing.assert_array_equal(bare.columns, found.columns)
        with tables.borrow() as table:
            assert (table == -1).all()


@pytest.mark.parametrize("count", [500, FILTER_BITS // 8], ids=["few nodes", "more than the filter is for"])
def test_neighbours_that_the_filter_takes_for_nodes_are_left_out(count: int) -> None:
    """Ids of a node's neighbours end in the same digits as given nodes' do, or in others."""
    size = 3 * FILTER_BITS
    ends = np.arange(FILTER_BITS - count, FILTER_BITS)
    ids = np.concatenate([ends, ends + FILTER_BITS, ends + 2 * FILTER_BITS, np.arange(count)])
    topology, matrix = graph(*random_pairs(ids, 20 * count), size)
    nodes = np.sort(np.concatenate([ends[::2] + FILTER_BITS, ends[1::2]]))
    found = induced(topology, nodes, Tables(size), places=True)
    assert found.columns.size > count
    assert_slice(found, matrix, nodes)
    rows = np.repeat(np.arange(nodes.size), np.diff(found.indptr))
    assert (np.diff(found.columns)[rows[1:] == rows[:-1]] > 0).all()  # ascending, as nodes and columns do


def test_a_node_that_is_given_twice_is_refused_and_leaves_nothing_behind() -> None:
    topology, matrix = graph(*random_pairs(np.arange(60), 500), 60)
    tables, nodes = Tables(60), np.arange(30)
    with pytest.raises(ValueError, match="given twice"):
        induced(topology, np.array([3, 8, 3]), tables)
    assert_slice(induced(topology, nodes, tables, places=True), matrix, nodes)


def test_threads_may_call_at_once() -> None:
    topology, matrix = graph(*random_pairs(np.arange(2000), 60_000), 2000)
    tables, rng = Tables(2000), np.random.default_rng(1)
    drawn = [rng.permutation(2000)[:800] for _ in range(40)]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda nodes: induced(topology, nodes, tables, places=True), drawn))
    for nodes, subgraph in zip(drawn, found, strict=True):
        assert_slice(subgraph, matrix, nodes)
