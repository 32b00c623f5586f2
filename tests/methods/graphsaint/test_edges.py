"""Ends of random edges, against the chances of all edges."""

from __future__ import annotations

import numpy as np
import pytest
from harness_methods.graphsaint.node_samplers import EdgeEndsSampler
from support.node_draws import assert_chances, assert_seed_decides, drawn, neighbours, topology_of, unions

from harness.errors import UserError
from harness.graph.csr import Topology

# A hub with a tail, a pair, and nodes without neighbours: the first, the last and one between.
EDGES = [(1, 2), (1, 3), (1, 4), (2, 3), (4, 5), (7, 8)]
GRAPH = topology_of(10, EDGES)


@pytest.mark.quick(2)
@pytest.mark.parametrize("size", [1, 2, 3, 6, 9])
def test_ends_come_as_often_as_edges_of_their_chances(size: int) -> None:
    """p_uv ~ 1/deg_u + 1/deg_v over all edges, drawn size // 2 times with replacement, and once at least."""
    weight = [sum(1 / len(neighbours(GRAPH, node)) for node in edge) for edge in EDGES]
    chances = {frozenset(edge): w / sum(weight) for edge, w in zip(EDGES, weight, strict=True)}
    assert_chances(drawn(EdgeEndsSampler(GRAPH, size), 8_000), unions(chances, max(size // 2, 1)))


def test_many_edges_reach_all_nodes_that_have_one() -> None:
    assert EdgeEndsSampler(GRAPH, 1000).sample(0).tolist() == [1, 2, 3, 4, 5, 7, 8]


def test_a_seed_is_a_set_whatever_thread_picks_it() -> None:
    assert_seed_decides(EdgeEndsSampler(topology_of(400, [(k, 3 * k % 400) for k in range(1, 200)]), 60))


def test_values_out_of_range_and_graphs_without_edges_are_refused() -> None:
    with pytest.raises(ValueError, match="not 0"):
        EdgeEndsSampler(GRAPH, 0)
    with pytest.raises(UserError, match="no edges"):
        EdgeEndsSampler(Topology(np.zeros(6, np.int64), np.empty(0, np.int32)), 4)
