"""Frontier sampling against a list in plain Python, and what its subgraphs keep of a graph."""

from __future__ import annotations

import random
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from harness_methods.graphsaint.frontier import FrontierSampler
from scipy import sparse, stats
from support.node_draws import Nodes, assert_alike, assert_chances, assert_seed_decides, drawn, neighbours, topology_of

from harness.graph.csr import Topology
from harness.sampling.sample import Tables
from harness.sampling.subgraphs import induced

# A hub with a tail, a triangle of its own, and a node without neighbours.
GRAPH = topology_of(9, [(0, 1), (0, 2), (0, 3), (1, 2), (3, 4), (5, 6), (6, 7), (5, 7)])
HUB = topology_of(13, [(0, leaf) for leaf in range(1, 12)])
PAIRS = topology_of(400, [(node, node + 1) for node in range(0, 400, 2)])
DRAWS = 4_000


def pins(topology: Topology, cap: int | None) -> np.ndarray:
    return np.clip(np.diff(topology.indptr), 1, cap)


def naive_frontier(
    topology: Topology, size: int, frontier: int, cap: int | None, rng: random.Random, rule: str = "roots"
) -> Nodes:
    """A list of the frontier, and the chances of all of it anew for each pop."""
    weights, nodes = pins(topology, cap), range(topology.num_nodes)
    at = rng.choices(nodes, k=frontier)
    taken = [] if rule == "popped" else at.copy()
    for _ in range(16 * size):
        if len(set(taken)) >= size:
            break
        (i,) = rng.choices(range(frontier), weights=[weights[node] for node in at])
        popped, at[i] = at[i], rng.choice(neighbours(topology, at[i]) or nodes)
        taken.append(at[i] if rule == "entered" else popped)
    picked = list(dict.fromkeys(taken))[:size]
    picked += rng.sample([node for node in nodes if node not in picked], size - len(picked))
    return frozenset(picked)


RULES: dict[str, dict[str, bool]] = {"roots": {}, "popped": {"roots": False}, "entered": {"entered": True}}


@pytest.mark.slow
@pytest.mark.parametrize("cap", [None, 2])
def test_the_first_node_is_popped_in_proportion_to_degrees_in_the_frontier(cap: int | None) -> None:
    """All pairs of uniform nodes."""
    weights = pins(GRAPH, cap)
    chances: Counter[Nodes] = Counter()
    for u in range(9):
        for v in range(9):
            for node in (u, v):
                chances[frozenset([node])] += weights[node] / (weights[u] + weights[v]) / 81
    assert_chances(drawn(FrontierSampler(GRAPH, 1, frontier=2, roots=False, cap=cap), DRAWS), chances)


def test_roots_are_drawn_before_any_is_popped() -> None:
    """Of two roots that are equal one more node is needed, whatever it is; else they are all."""
    sampler = FrontierSampler(PAIRS, 2, frontier=2)
    sets = [set(sampler.sample(seed).tolist()) for seed in range(2000)]
    partners = sum(max(nodes) - min(nodes) == 1 and min(nodes) % 2 == 0 for nodes in sets)
    # Two distinct uniform nodes are partners with a chance of 1 / 399; where they are equal the pair is what is found.
    chance = (1 - 1 / 400) / 399 + 1 / 400
    assert stats.binomtest(partners, len(sets), chance).pvalue > 1e-3
    popped = FrontierSampler(PAIRS, 2, frontier=2, roots=False)
    sets = [set(popped.sample(seed).tolist()) for seed in range(2000)]
    partners = sum(max(nodes) - min(nodes) == 1 and min(nodes) % 2 == 0 for nodes in sets)
    assert partners > 800  # the node popped second is half of the times the first one's neighbour


def test_roots_are_of_nodes_that_are_hardly_ever_popped_too() -> None:
    """Of pairs beside a clique, whose nodes have nearly all pins: without roots a pair is popped in none but a few."""
    core, nodes, draws, size, frontier = 30, 270, 600, 20, 15
    edges = [*combinations(range(core), 2), *((node, node + 1) for node in range(core, nodes, 2))]
    topology, seldom = topology_of(nodes, edges), {}
    for rule in RULES:
        sampler, rng = FrontierSampler(topology, size, frontier=frontier, **RULES[rule]), random.Random(3)
        picked = {
            "sampler": [sampler.sample(seed).tolist() for seed in range(draws)],
            "naive": [naive_frontier(topology, size, frontier, None, rng, rule) for _ in range(draws)],
        }
        for name, sets in picked.items():
            times = np.bincount([node for one in sets for node in one], minlength=nodes)
            # A node is a root in draws (1 - (1 - 1/N)^m) = 32 subgraphs.
            seldom[name, rule] = float(np.mean(times < draws * (1 - (1 - 1 / nodes) ** frontier) / 2))
        assert seldom["sampler", rule] == pytest.approx(seldom["naive", rule], abs=0.06)
    assert seldom["sampler", "popped"] > 0.2
    assert max(seldom["sampler", rule] for rule in ("roots", "entered")) < 0.02


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("topology", "size", "frontier", "enlargement", "cap"),
    [
        (GRAPH, 4, 3, 3.0, None),
        (GRAPH, 4, 3, 1.001, None),  # a clean-up nearly every pop
        (GRAPH, 4, 3, 50.0, None),  # tiles are used up before the pins
        (GRAPH, 4, 3, 1.5, 2),
        (GRAPH, 4, 1, 3.0, None),  # one in the triangle cannot leave it: what is missing is any
        (GRAPH, 3, 25, 2.0, None),  # more in the frontier than in the graph
        (HUB, 4, 6, 1.2, None),  # the hub's pins want more room than there is at first
        (HUB, 4, 6, 3.0, 3),
    ],
)
@pytest.mark.parametrize("rule", RULES)
def test_sets_come_as_often_as_in_plain_python(
    topology: Topology, size: int, frontier: int, enlargement: float, cap: int | None, rule: str
) -> None:
    rng = random.Random(size)
    reference = Counter(naive_frontier(topology, size, frontier, cap, rng, rule) for _ in range(DRAWS))
    sampler = FrontierSampler(topology, size, frontier=frontier, enlargement=enlargement, cap=cap, **RULES[rule])
    assert_alike(drawn(sampler, DRAWS), reference)


@pytest.mark.parametrize("enlargement", [1.001, 1.5, 3.0])
@pytest.mark.parametrize("cap", [None, 2])
def test_the_pins_of_all_nodes_in_the_frontier_point_to_them(enlargement: float, cap: int | None) -> None:
    """As the last pop leaves the board, with one node fewer; the pins of historical nodes may be anything."""
    for topology, frontier in ((GRAPH, 4), (HUB, 6)):
        sampler = FrontierSampler(topology, 5, frontier=frontier, enlargement=enlargement, roots=False, cap=cap)
        for seed in range(100):
            sampler.sample(seed)
            with sampler._boards.borrow() as board:
                live = np.flatnonzero(board.tiles.live)[: frontier - 1]
                starts, stops = board.tiles.starts[live], board.tiles.starts[live + 1]
                np.testing.assert_array_equal(stops - starts, pins(topology, cap)[board.tiles.nodes[live]])
                for tile, start, stop in zip(live, starts, stops, strict=True):
                    assert (board.pins[start:stop] == tile).all()


@pytest.mark.parametrize("frontier", [1, 30, 20_000])
@pytest.mark.parametrize("size", [1, 60, 399, 400, 1000])
def test_as_many_nodes_are_picked_as_asked_for_where_no_path_reaches_them(size: int, frontier: int) -> None:
    """Of pairs: one that is popped is replaced by the other; one node in the frontier reaches two."""
    sampler = FrontierSampler(PAIRS, size, frontier=frontier)
    for seed in range(20):
        assert sampler.sample(seed).size == min(size, 400)


@pytest.mark.parametrize("topology", [HUB, PAIRS], ids=["grows", "does not grow"])
def test_a_seed_is_a_set_whatever_thread_picks_it(topology: Topology) -> None:
    assert_seed_decides(FrontierSampler(topology, 6, frontier=9, enlargement=1.2))


def test_a_graph_without_nodes_or_without_edges() -> None:
    assert FrontierSampler(topology_of(0, []), 8).sample(1).size == 0
    alone = FrontierSampler(topology_of(6, []), 3, frontier=2)
    triples = map(frozenset, combinations(range(6), 3))
    assert_chances(drawn(alone, 2000), dict.fromkeys(triples, 1 / 20))


def test_values_out_of_range_are_refused() -> None:
    for options in ({"frontier": 0}, {"enlargement": 1.0}, {"enlargement": float("nan")}, {"cap": 0}):
        with pytest.raises(ValueError, match=f"not 8.*{next(iter(options.values()))}"):
            FrontierSampler(GRAPH, 8, **options)
    with pytest.raises(ValueError, match="not 0, 1000"):
        FrontierSampler(GRAPH, 0)


def clustered_graph(nodes: int, links: int, seed: int) -> Topology:
    """Holme and Kim (2002): links go to nodes by their degrees, most to a friend of the one before."""
    rng = random.Random(seed)
    friends = [set(range(links + 1)) - {node} for node in range(links + 1)]
    ends = [node for node, of in enumerate(friends) for _ in of]
    for node in range(links + 1, nodes):
        mine: list[int] = []
        while len(mine) < links:
            near = sorted(friends[mine[-1]].difference(mine, [node])) if mine and rng.random() < 0.8 else ends
            if (other := rng.choice(near)) not in mine:
                mine.append(other)
        friends.append(set(mine))
        for other in mine:
            friends[other].add(node)
        ends += mine + [node] * links
    return topology_of(nodes, [(node, other) for node, of in enumerate(friends) for other in of])


def degrees_and_clustering(indptr: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray, float]:
    """Degrees, and the mean share of pairs of neighbours that are neighbours; 0 where there is no pair."""
    matrix = sparse.csr_array((np.ones(indices.size), indices, indptr), (indptr.size - 1,) * 2)
    degree = np.diff(indptr)
    closed = (matrix @ matrix * matrix).sum(1)
    return degree, float(np.mean(closed / np.maximum(degree * (degree - 1), 1)))


def test_subgraphs_are_more_like_the_graph_than_those_of_uniform_nodes() -> None:
    """Degrees are those inside the subgraph, as they are and over their mean: what its nodes aggregate over.

    By their degrees in the whole graph uniform nodes are like it, and hardly any two of them are neighbours.
    """
    topology = clustered_graph(3000, 6, seed=0)
    degree, clustering = degrees_and_clustering(topology.indptr, topology.indices)
    sampler, tables = FrontierSampler(topology, 300, frontier=30), Tables(3000)

    def unlike(nodes: np.ndarray) -> tuple[float, float, float]:
        found = induced(topology, nodes, tables)
        inside, closed = degrees_and_clustering(found.indptr, found.columns)
        scaled = stats.ks_2samp(inside / inside.mean(), degree / degree.mean()).statistic
        return stats.ks_2samp(inside, degree).statistic, scaled, abs(closed - clustering)

    rng = np.random.default_rng(0)
    frontier = np.mean([unlike(sampler.sample(seed)) for seed in range(20)], axis=0)
    uniform = np.mean([unlike(rng.choice(3000, 300, replace=False)) for _ in range(20)], axis=0)
    assert (frontier < [0.85, 0.85, 0.3] * uniform).all()
