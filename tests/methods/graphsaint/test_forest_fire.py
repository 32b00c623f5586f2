"""Forest fires, against one in plain Python."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from harness_methods.graphsaint.node_samplers import ForestFireSampler
from support.node_draws import Nodes, assert_alike, assert_chances, assert_seed_decides, drawn, neighbours, topology_of

from harness.graph.csr import Topology

# A fan, a triangle of its own, and a node without neighbours.
EDGES = [(0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (2, 3), (3, 4), (5, 6), (6, 7), (5, 7)]
GRAPH = topology_of(9, EDGES)
# A clique, of which node 0 has three neighbours more: when it burns, most of its neighbours have burnt.
CLIQUE = topology_of(16, [(a, b) for a in range(13) for b in range(a)] + [(0, 13), (0, 14), (0, 15)])
DRAWS = 8_000


def naive_fire(topology: Topology, size: int, burn: float, rng: random.Random) -> Nodes:
    caught: list[int] = []
    queue: list[int] = []
    while True:
        if not queue:
            queue = [rng.choice([node for node in range(topology.num_nodes) if node not in caught])]
            caught += queue
        if len(caught) == size:
            return frozenset(caught)
        left = [other for other in neighbours(topology, queue.pop(0)) if other not in caught]
        wanted = 0
        while rng.random() < burn:
            wanted += 1
        new = rng.sample(left, min(wanted, len(left), size - len(caught)))
        caught += new
        queue += new


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("graph", "size", "burn"),
    [(GRAPH, 3, 0.7), (GRAPH, 4, 0.4), (GRAPH, 5, 0.95), (CLIQUE, 15, 0.9), (CLIQUE, 14, 0.98)],
    ids=lambda value: None if isinstance(value, Topology) else str(value),
)
def test_sets_come_as_often_as_those_of_a_fire_in_plain_python(graph: Topology, size: int, burn: float) -> None:
    rng = random.Random(size)
    reference = Counter(naive_fire(graph, size, burn, rng) for _ in range(DRAWS))
    assert_alike(drawn(ForestFireSampler(graph, size, burn=burn), DRAWS), reference)


def test_a_fire_that_never_spreads_picks_uniform_nodes() -> None:
    """Of one node each: that all sets of two are as likely also says that starts are distinct."""
    chances = {frozenset([a, b]): 1 / 36 for a in range(9) for b in range(a)}
    assert_chances(drawn(ForestFireSampler(GRAPH, 2, burn=0), DRAWS), chances)


@pytest.mark.parametrize("burn", [0, 0.5, 0.999])
def test_as_many_nodes_as_asked_for_or_all(burn: float) -> None:
    for size in (1, 8, 9, 10, 1000):
        sampler = ForestFireSampler(GRAPH, size, burn=burn)
        for seed in range(100):
            assert sampler.sample(seed).size == min(size, 9)


def test_a_graph_without_nodes_has_none_to_pick() -> None:
    assert ForestFireSampler(topology_of(0, []), 8).sample(1).size == 0


def test_a_seed_is_a_set_whatever_thread_picks_it() -> None:
    assert_seed_decides(ForestFireSampler(topology_of(400, [(k, 7 * k % 400) for k in range(1, 400)]), 50))


@pytest.mark.parametrize(("size", "burn"), [(0, 0.7), (5, 1), (5, -0.1)])
def test_values_out_of_range_are_refused(size: int, burn: float) -> None:
    with pytest.raises(ValueError, match=f"not {size} and {burn}"):
        ForestFireSampler(GRAPH, size, burn=burn)
