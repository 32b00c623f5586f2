"""Walks, against chances from all walks there are, and a walk in plain Python."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from harness_methods.graphsaint.node_samplers import MultiWalkSampler, WalkSampler
from support.node_draws import (
    Nodes,
    assert_alike,
    assert_chances,
    assert_seed_decides,
    drawn,
    neighbours,
    topology_of,
    unions,
)

from harness.graph.csr import Topology

# A hub with a tail, a triangle of its own, and a node without neighbours.
GRAPH = topology_of(9, [(0, 1), (0, 2), (0, 3), (1, 2), (3, 4), (5, 6), (6, 7), (5, 7)])
PAIRS = topology_of(400, [(node, node + 1) for node in range(0, 400, 2)])
DRAWS = 8_000


def walk_chances(topology: Topology, length: int) -> Counter[Nodes]:
    """The chance of each set of nodes of a walk from a uniform root, by going all walks."""
    chances: Counter[Nodes] = Counter()

    def go(node: int, seen: Nodes, steps: int, chance: float) -> None:
        if steps == 0:
            chances[seen] += chance  # type: ignore[assignment]
            return
        following = neighbours(topology, node) or [node]
        for other in following:
            go(other, seen | {other}, steps - 1, chance / len(following))

    for root in range(topology.num_nodes):
        go(root, frozenset([root]), length, 1 / topology.num_nodes)
    return chances


def naive_walks(topology: Topology, size: int, walkers: int, rng: random.Random) -> Nodes:
    """Walkers in turn, each a node and how often in a row it left one that was picked before."""
    picked: set[int] = set()
    at = [rng.randrange(topology.num_nodes) for _ in range(walkers)]
    idle = [0] * walkers
    while True:
        for i, node in enumerate(at):
            idle[i] = idle[i] + 1 if node in picked else 0
            picked.add(node)
            if len(picked) == size:
                return frozenset(picked)
            at[i] = rng.choice(neighbours(topology, node) or [-1])
            if at[i] < 0 or idle[i] == 32:
                at[i], idle[i] = rng.randrange(topology.num_nodes), 0


@pytest.mark.parametrize(("size", "length"), [(4, 3), (11, 3), (3, 0), (1, 2)])
def test_sets_of_short_walks_come_as_often_as_all_walks_there_are_say(size: int, length: int) -> None:
    chances = unions(walk_chances(GRAPH, length), max(size // (length + 1), 1))
    assert_chances(drawn(WalkSampler(GRAPH, size, length=length), DRAWS), chances)


@pytest.mark.quick(1)
@pytest.mark.parametrize(("size", "walkers"), [(4, 1), (4, 2), (5, 3), (2, 7)])
def test_sets_of_walkers_in_turn_come_as_often_as_in_plain_python(size: int, walkers: int) -> None:
    """Among them those that need a walker to leave the triangle, or the node without neighbours."""
    rng = random.Random(size)
    reference = Counter(naive_walks(GRAPH, size, walkers, rng) for _ in range(DRAWS))
    assert_alike(drawn(MultiWalkSampler(GRAPH, size, walkers=walkers), DRAWS), reference)


@pytest.mark.parametrize("walkers", [1, 30, 1000])
@pytest.mark.parametrize("size", [1, 60, 399, 400, 1000])
def test_walkers_pick_as_many_nodes_as_asked_for_where_no_walk_reaches_them(size: int, walkers: int) -> None:
    """Of pairs: so few steps between starts that, for 399 nodes, some are filled with any."""
    sampler = MultiWalkSampler(PAIRS, size, walkers=walkers)
    for seed in range(30):
        assert sampler.sample(seed).size == min(size, 400)


def test_a_walker_leaves_a_component_that_it_has_seen() -> None:
    """Of 100 uniform nodes a quarter would have their neighbour there; a walker has both of a pair."""
    sampler = MultiWalkSampler(PAIRS, 100, walkers=1)
    for seed in range(30):
        nodes = sampler.sample(seed)
        assert np.isin(nodes ^ 1, nodes).mean() > 0.9


@pytest.mark.parametrize("sampler", [WalkSampler(PAIRS, 100), MultiWalkSampler(PAIRS, 100, walkers=7)])
def test_a_seed_is_a_set_whatever_thread_picks_it(sampler: WalkSampler | MultiWalkSampler) -> None:
    assert_seed_decides(sampler)


@pytest.mark.parametrize("kind", [WalkSampler, MultiWalkSampler])
def test_a_graph_without_nodes_has_none_to_pick(kind: type[WalkSampler | MultiWalkSampler]) -> None:
    assert kind(topology_of(0, []), 8).sample(1).size == 0


def test_values_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="not 0 and 3"):
        WalkSampler(GRAPH, 0)
    with pytest.raises(ValueError, match="not 8 and -1"):
        WalkSampler(GRAPH, 8, length=-1)
    with pytest.raises(ValueError, match="not 8 and 0"):
        MultiWalkSampler(GRAPH, 8, walkers=0)
