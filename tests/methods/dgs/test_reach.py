"""Nodes within some hops, against powers of a dense matrix."""

from __future__ import annotations

import numpy as np
import pytest
from harness_methods.dgs.explanations import within_hops
from numpy.testing import assert_array_equal
from scipy import sparse

from harness.graph.csr import Topology

NODES = 80


@pytest.mark.parametrize("hops", [0, 1, 2, 5, NODES])
@pytest.mark.parametrize("start", [[], [7], [31, 3, 31, 50], range(NODES)])
def test_within_hops(hops: int, start: list[int]) -> None:
    """In-edges of a directed graph with loops; start nodes in any order, twice too."""
    edges = sparse.random_array((NODES, NODES), density=0.02, format="csr", rng=np.random.default_rng(1))
    topology = Topology(edges.indptr.astype(np.int64), edges.indices.astype(np.int32))
    looped = np.linalg.matrix_power((edges.toarray() != 0) + np.eye(NODES), hops)
    nodes = np.array(start, np.int64)
    found = within_hops(topology, nodes, hops)
    assert found.dtype == np.int64
    assert_array_equal(found, np.flatnonzero(looped[nodes].sum(0)))
