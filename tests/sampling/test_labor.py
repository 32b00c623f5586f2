"""LABOR draws by one number of a source, with the chances of its equations; tests by chance err once in 10^5 runs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from scipy import stats
from scipy.optimize import brentq
from support.draws import DrawCase, as_matrix

from harness.graph.csr import Topology
from harness.runtime.cost_models import MemoryCase, PartSize
from harness.runtime.method import METHODS
from harness.sampling.labor import draw_labor, draw_labor_on_device, importances, solve_chance
from harness.sampling.neighbours import draw_neighbours
from harness.sampling.sample import GraphOnDevice, LayerSample, Tables

NODES, FANOUT, DRAWS, ERROR = 50, 3, 4000, 1e-5
ALL = np.arange(NODES)
ITERATIONS = [0, 1, 3]


class Case(DrawCase):
    def draw(self, targets: np.ndarray, seed: int, importance: int = 0, fanout: int = FANOUT) -> LayerSample:
        return draw_labor(self.topology, targets, fanout, seed, self.tables, importance=importance)

    def solved(self, targets: np.ndarray, importance: int, fanout: int = FANOUT) -> np.ndarray:
        """Return the kernel's chances of the edges into the targets, float64 [targets, N]."""
        table = np.full(NODES, -1, np.int32)
        chance, pi = importances(self.topology.indptr, self.topology.indices, targets, fanout, importance, table)
        of_node = np.where(table < 0, 0, pi[table])
        return np.minimum(1, chance[:, None] * of_node) * (self.matrix[targets] != 0)


def chances(edges: np.ndarray, fanout: int, importance: int) -> np.ndarray:
    """Return p_ts by the definition, c_s found by search, of edges bool [targets, N]."""
    pi, degree = np.ones(edges.shape[1]), edges.sum(1)
    for iteration in range(importance + 1):
        c = np.ones(len(edges))
        for s, row in enumerate(edges):
            if degree[s] > fanout:
                total, near = degree[s] ** 2 / fanout, pi[row]
                c[s] = brentq(
                    lambda c, near=near, total=total: (1 / np.minimum(1, c * near)).sum() - total,
                    1e-6, 1 / near.min(), xtol=1e-15, rtol=1e-14,
                )  # fmt: skip
        p = np.minimum(1, c[:, None] * pi) * edges
        if iteration < importance:
            pi = pi * np.where(edges, c[:, None], 0).max(0)
    return p


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "weighted"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(tmp_path_factory.mktemp("graph"), NODES, request.param)


def below_error(z: np.ndarray) -> bool:
    """Say whether none of some numbers, standard normal each, is further from 0 than one in 1 / ERROR such sets has."""
    return bool(abs(z).max() < stats.norm.isf(ERROR / 2 / z.size))


@pytest.mark.parametrize("importance", ITERATIONS)
def test_edges_are_drawn_with_their_chance_and_count_its_inverse(case: Case, importance: int) -> None:
    p = chances(case.matrix != 0, FANOUT, importance)
    often, total, squares = np.zeros((NODES, NODES)), np.zeros(NODES), np.zeros(NODES)
    x = np.random.default_rng(0).normal(size=NODES)
    for seed in range(DRAWS):
        matrix = as_matrix(case.draw(ALL, seed, importance), NODES)
        drawn = matrix != 0
        np.testing.assert_allclose(matrix[drawn], case.matrix[drawn] / p[drawn], rtol=1e-9)
        often += drawn
        total += matrix @ x
        squares += (matrix @ x) ** 2
    np.testing.assert_array_equal(often[p == 0], 0)
    np.testing.assert_array_equal(often[p == 1], DRAWS)
    some = (p > 0) & (p < 1)
    assert below_error((often - DRAWS * p)[some] / np.sqrt(DRAWS * p * (1 - p))[some])
    # Unbiased, with the variance of independent draws.
    inverse = np.divide(1, p, where=p > 0, out=np.ones_like(p))
    variance = ((inverse - 1) * (case.matrix * x) ** 2).sum(1)
    varies, mean = variance > 0, total / DRAWS
    np.testing.assert_allclose(mean[~varies], (case.matrix @ x)[~varies], rtol=1e-9, atol=1e-12)
    assert below_error((mean - case.matrix @ x)[varies] / np.sqrt(variance[varies] / DRAWS))
    found = squares / DRAWS - 2 * mean * (case.matrix @ x) + (case.matrix @ x) ** 2
    fourth = fourth_moments(p, case.matrix * x)
    spread = np.sqrt((fourth - variance**2)[varies] / DRAWS)
    assert below_error((found - variance)[varies] / spread)


def fourth_moments(p: np.ndarray, terms: np.ndarray) -> np.ndarray:
    """Return E[(sum_t terms_t (b_t / p_t - 1))^4] by row, b_t independent and 1 with chance p_t."""
    open_ = p > 0
    q = np.where(open_, p, 1)
    second = terms**2 * (1 / q - 1)
    fourth = terms**4 * (1 - q) * ((1 - q) ** 3 + q**3) / q**3
    return (np.where(open_, fourth - 3 * second**2, 0)).sum(1) + 3 * np.where(open_, second, 0).sum(1) ** 2


@pytest.mark.parametrize("importance", ITERATIONS)
def test_one_number_of_a_source_decides_on_all_its_edges(case: Case, importance: int) -> None:
    p = chances(case.matrix != 0, FANOUT, importance)
    parted = 0
    for seed in range(200):
        drawn = as_matrix(case.draw(ALL, seed, importance), NODES) != 0
        least = np.where(drawn, 1, p).min(0, where=p > 0, initial=1)
        most_left_out = np.where(drawn, 0, p).max(0)
        least_drawn = np.where(drawn, p, 1).min(0)
        assert (most_left_out <= least_drawn * (1 + 1e-9)).all()
        assert (least <= 1).all()
        parted += int(((drawn.sum(0) > 0) & (most_left_out > 0)).sum())
    assert parted > 1000


@pytest.mark.parametrize("importance", [0, 1, 2, 10])
@pytest.mark.parametrize("fanout", [1, 4])
def test_chances_solve_their_equations(case: Case, fanout: int, importance: int) -> None:
    targets = np.random.default_rng(fanout).permutation(NODES)[:30]
    edges = case.matrix[targets] != 0
    p, degree = case.solved(targets, importance, fanout), edges.sum(1)
    np.testing.assert_allclose(p, chances(edges, fanout, importance), rtol=1e-9)
    inverse = np.divide(1, p, where=edges, out=np.zeros_like(p)).sum(1)
    np.testing.assert_allclose(inverse, degree**2 / np.minimum(degree, fanout).clip(min=1), rtol=1e-9)


def test_iterations_leave_no_more_nodes_expected(case: Case) -> None:
    targets = np.random.default_rng(8).permutation(NODES)[:25]
    expected = [case.solved(targets, importance).max(0).sum() for importance in range(40)]
    assert (np.diff(expected) <= 1e-9).all()
    assert expected[-1] < 0.99 * expected[0]


@pytest.mark.parametrize("seed", range(20))
def test_a_chance_is_solved_for_whatever_importances_are(seed: int) -> None:
    rng = np.random.default_rng(seed)
    inverse = rng.lognormal(0, [0, 1, 8][seed % 3], rng.integers(2, 40))
    inverse[rng.random(inverse.size) < 0.3] = inverse[0]
    fanout = rng.integers(1, inverse.size)
    total = inverse.size**2 / fanout
    c = solve_chance(inverse, total)
    assert np.maximum(1, inverse / c).sum() == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize("importance", ITERATIONS)
def test_all_neighbours_are_exact(case: Case, importance: int) -> None:
    for fanout in (-1, NODES):
        np.testing.assert_array_equal(as_matrix(case.draw(ALL, 5, importance, fanout), NODES), case.matrix)


def test_a_draw_depends_on_its_seed_and_node_alone(case: Case) -> None:
    whole = as_matrix(case.draw(ALL, 11), NODES)
    order = np.random.default_rng(1).permutation(NODES)[:30]
    case.draw(order, 12, 2)
    np.testing.assert_array_equal(as_matrix(case.draw(order, 11), NODES), whole[order])
    assert (as_matrix(case.draw(ALL, 12), NODES) != whole).any()


@pytest.mark.parametrize("importance", ITERATIONS)
def test_threads_draw_what_one_draws(case: Case, importance: int) -> None:
    def work(seed: int) -> list[np.ndarray]:
        targets = np.random.default_rng(seed).permutation(NODES)[: seed % NODES]
        sample = case.draw(targets, seed, importance)
        assert np.unique(sample.sources).size == sample.sources.size
        np.testing.assert_array_equal(sample.destinations, targets)
        return [sample.sources, sample.indptr, sample.indices, as_matrix(sample, NODES)]

    serial = [work(seed) for seed in range(200)]
    with ThreadPoolExecutor(4) as pool:
        for one, other in zip(serial, pool.map(work, range(200)), strict=True):
            for a, b in zip(one, other, strict=True):
                np.testing.assert_array_equal(a, b)
    with case.tables.borrow() as table:
        assert (table == -1).all()


@pytest.mark.parametrize("importance", ITERATIONS)
def test_targets_without_neighbours_and_no_targets(case: Case, importance: int) -> None:
    sample = case.draw(np.array([NODES // 2]), 0, importance)
    assert (sample.sources.tolist(), sample.indptr.tolist()) == ([NODES // 2], [0, 0])
    none = case.draw(np.empty(0, np.int64), 0, importance)
    assert none.sources.size == none.indices.size == none.num_dst == 0


@pytest.mark.parametrize("fanout", [1, 3, 100, -1])
@pytest.mark.parametrize("size", [0, 1, 20, NODES])
def test_a_draw_by_torch_is_the_kernels(case: Case, fanout: int, size: int) -> None:
    graph = GraphOnDevice.of(case.topology, torch.device("cpu"))
    for seed in (0, 5, 2**62 + 1):
        targets = np.random.default_rng(seed).permutation(NODES)[:size]
        layer = draw_labor_on_device(graph, torch.from_numpy(targets), fanout, seed)
        host = case.draw(targets, seed, 0, fanout)
        for name in ("sources", "indptr", "indices", "dst_scale", "values"):
            found, want = getattr(layer, name), getattr(host, name)
            assert (found is None) == (want is None)
            if want is not None:
                assert name == "values" or found.numpy().dtype == want.dtype
                np.testing.assert_array_equal(found.numpy(), want)
        np.testing.assert_array_equal(layer.degree.numpy(), case.topology.degree(host.sources))


def test_of_options_those_that_labor_has_no_use_for_are_refused() -> None:
    options = METHODS.load("graphsage").Options
    for given, what in (
        ({"sampler": "labor", "weights": "propagation"}, "weights: sampler 'labor' has chances of its own"),
        ({"importance": 1}, "importance: only sampler 'labor' iterates"),
        ({"sampler": "labor", "importance": -1}, "importance"),
    ):
        with pytest.raises(ValidationError, match=what):
            options(**given)
    assert not {"sampler", "importance"} & set(options().model_dump())
    assert options(sampler="labor").model_dump()["sampler"] == "labor"


@pytest.mark.parametrize("importance", ITERATIONS)
def test_batches_are_within_the_bounds_of_the_memory_model(importance: int) -> None:
    """Of a graph whose nodes share 20 neighbours of many, which come to all of them or to none."""
    hubs, nodes, rng = 20, 2000, np.random.default_rng(0)
    edges = np.zeros((nodes, nodes), bool)
    edges[:, :hubs] = rng.random((nodes, hubs)) < 0.9
    edges[np.arange(nodes), rng.integers(0, nodes, (30, nodes))] = True
    edges = (edges | edges.T) & ~np.eye(nodes, dtype=bool)
    indptr, indices = np.concatenate([[0], edges.sum(1).cumsum()]), np.nonzero(edges)[1].astype(np.int32)
    topology, tables = Topology(indptr, indices), Tables(nodes)
    model, part = SimpleNamespace(depth=1), PartSize(nodes, 0, indices.size, 0)
    case = MemoryCase(part, None, nodes, nodes, indices.size, model, most_edges=topology.most_edges)
    drawn: Any = {"each": True, "edges": "any" if importance else "expected"}
    for targets in (rng.permutation(nodes)[:size] for size in (1, 50, 300)):
        (bound,) = case.largest_blocks(targets.size, [FANOUT], **drawn)
        layers = [draw_labor(topology, targets, FANOUT, seed, tables, importance=importance) for seed in range(200)]
        assert max(layer.edges for layer in layers) <= bound.edges
        assert max(layer.sources.size for layer in layers) <= bound.src
        mean = np.mean([layer.edges for layer in layers]) / targets.size
        assert mean > 0.7 * FANOUT
        assert importance or mean < 1.3 * FANOUT


BATCH, BATCHES = 1000, 40


@pytest.mark.data
@pytest.mark.quick(1)
@pytest.mark.parametrize("name", ["flickr", "ogbn_arxiv"])
def test_of_a_real_graph_as_many_nodes_are_read_as_in_a_simulation_and_fewer_than_by_neighbours(
    data_dir: Path, name: str
) -> None:
    """Of two layers of fan-out 10; simulated by a number of each node, drawn by numpy."""
    with np.load(data_dir / f"{name}.npz") as graph:
        topology, train = Topology(graph["indptr"], graph["indices"]), np.flatnonzero(graph["train_mask"])
    tables, rng, counts = Tables(topology.num_nodes), np.random.default_rng(1), np.empty((3, BATCHES))
    for batch in range(BATCHES):
        targets = np.random.default_rng(batch).choice(train, BATCH, replace=False)
        for row, draw in enumerate((draw_labor, draw_neighbours)):
            nodes = targets
            for depth in range(2):
                nodes = draw(topology, nodes, 10, 2 * batch + depth, tables).sources
            counts[row, batch] = nodes.size
        nodes = targets
        for _ in range(2):
            nodes = simulated(topology, nodes, 10, rng.random(topology.num_nodes))
        counts[2, batch] = nodes.size
    mean, error = counts.mean(1), counts.std(1, ddof=1) / np.sqrt(BATCHES)
    assert abs(mean[0] - mean[2]) < stats.norm.isf(ERROR / 2) * np.hypot(error[0], error[2])
    assert mean[0] + stats.norm.isf(ERROR) * np.hypot(error[0], error[1]) < mean[1]


def simulated(topology: Topology, targets: np.ndarray, fanout: int, r: np.ndarray) -> np.ndarray:
    """Return the targets and the neighbours t of a target s with r_t <= fanout / d_s."""
    degree = topology.indptr[targets + 1] - topology.indptr[targets]
    near = [topology.indices[topology.indptr[s] : topology.indptr[s + 1]] for s in targets]
    kept = r[np.concatenate(near)] * np.repeat(degree, degree) <= fanout
    return np.union1d(targets, np.concatenate(near)[kept])
