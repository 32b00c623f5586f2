"""The promises of a graph are checked, each with a planted fault."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.data.graph import GraphData, check_csr, check_graph, csr_from_edges, is_symmetric
from harness.errors import DataError


def make_graph(nodes: int = 6, features: int = 3, name: str = "tiny") -> GraphData:
    """A ring with a chord; nodes 0-1 train, 2 validate, 3 test, the last unlabelled."""
    ring = np.arange(nodes)
    adjacency = sp.coo_matrix((np.ones(nodes), (ring, (ring + 1) % nodes)), shape=(nodes, nodes)).tolil()
    adjacency[0, 3] = 1
    csr = (adjacency + adjacency.T).tocsr()
    csr.sort_indices()
    labels = ring % 2
    labels[-1] = -1
    return GraphData(
        name=name,
        indptr=csr.indptr.astype(np.int64),
        indices=csr.indices.astype(np.int32),
        features=np.arange(nodes * features, dtype=np.float32).reshape(nodes, features),
        labels=labels.astype(np.int64),
        train_mask=ring < 2,
        val_mask=ring == 2,
        test_mask=ring == 3,
        num_classes=2,
        multilabel=False,
    )


edge_lists = st.integers(1, 12).flatmap(
    lambda n: st.tuples(
        st.just(n), st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=40), st.booleans()
    )
)


@given(edge_lists)
@settings(max_examples=200, deadline=None)
def test_csr_from_edges_equals_scipy(case: tuple[int, list[tuple[int, int]], bool]) -> None:
    nodes, edges, symmetrise = case
    pairs = np.array(edges, dtype=np.int64).reshape(-1, 2)
    chunks = [(pairs[k : k + 7, 0], pairs[k : k + 7, 1]) for k in range(0, len(pairs), 7)]
    indptr, indices = csr_from_edges(lambda: iter(chunks), nodes, symmetrise=symmetrise)

    dense = np.zeros((nodes, nodes), dtype=bool)
    dense[pairs[:, 1], pairs[:, 0]] = True
    if symmetrise:
        dense |= dense.T
    np.fill_diagonal(dense, False)
    expected = sp.csr_matrix(dense)
    expected.sort_indices()
    np.testing.assert_array_equal(indptr, expected.indptr)
    np.testing.assert_array_equal(indices, expected.indices)
    assert indptr.dtype == np.int64
    assert indices.dtype == np.int32
    assert check_csr(indptr, indices) is None
    assert is_symmetric(indptr, indices) == bool((dense == dense.T).all())


@pytest.mark.parametrize("bad", [-1, 5, 2**31, -(2**40)])
def test_edge_out_of_range_is_refused(bad: int) -> None:
    edges = (np.array([0, bad]), np.array([1, 2]))
    with pytest.raises(ValueError, match=r"outside 0\.\.4"):
        csr_from_edges(lambda: iter([edges]), 5, symmetrise=False)


def test_a_good_graph_passes() -> None:
    graph = make_graph()
    check_graph(graph, "tiny", symmetric=True)
    assert (graph.nodes, graph.edges) == (6, 14)


def _with(index: int, value: int, array: np.ndarray) -> np.ndarray:
    changed = array.copy()
    changed[index] = value
    return changed


BASE = make_graph()
FAULTS = {
    "indices is int64": {"indices": BASE.indices.astype(np.int64)},
    "indptr is int32": {"indptr": BASE.indptr.astype(np.int32)},
    "features is float64": {"features": BASE.features.astype(np.float64)},
    "features is float32 [5, 3]": {"features": BASE.features[:-1]},
    "labels is int64 [6, 1]": {"labels": BASE.labels[:, None]},
    "train_mask is uint8": {"train_mask": BASE.train_mask.astype(np.uint8)},
    "indptr spans 1": {"indptr": BASE.indptr + 1},
    "not monotone": {"indptr": _with(2, 0, BASE.indptr)},
    "neighbour outside": {"indices": _with(2, 6, BASE.indices)},
    "negative": {"indices": _with(2, -1, BASE.indices), "match": "outside"},
    "self-loop": {"indices": _with(0, 0, BASE.indices)},
    "unsorted or twice": {"indices": _with(1, 1, BASE.indices)},
    "not symmetric": {"indices": _with(2, 4, BASE.indices)},
    "labels span -2..1": {"labels": _with(0, -2, BASE.labels)},
    "labels span -1..2": {"labels": _with(0, 2, BASE.labels)},
    "overlap": {"val_mask": BASE.train_mask},
    "no label": {"test_mask": np.arange(6) == 5},
    "multi-label labels hold 2": {"multilabel": True, "labels": np.full((6, 2), 2, dtype=np.uint8)},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_broken_promise_is_named(fault: str) -> None:
    changes = dict(FAULTS[fault])
    match = changes.pop("match", fault)
    graph = dataclasses.replace(BASE, **changes)
    with pytest.raises(DataError) as error:
        check_graph(graph, "some-file.npz", symmetric=True)
    assert match in str(error.value)
    assert "some-file.npz" in str(error.value)


def test_no_nodes_is_refused() -> None:
    empty = np.zeros(0, dtype=bool)
    graph = dataclasses.replace(
        BASE,
        indptr=np.zeros(1, dtype=np.int64),
        indices=np.zeros(0, dtype=np.int32),
        features=np.zeros((0, 3), dtype=np.float32),
        labels=np.zeros(0, dtype=np.int64),
        train_mask=empty,
        val_mask=empty,
        test_mask=empty,
    )
    with pytest.raises(DataError, match="no nodes"):
        check_graph(graph, "x")
