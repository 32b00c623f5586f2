from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import combinations

import numpy as np
import pytest
from scipy import stats
from support.draws import DrawCase, as_matrix, inclusion

from harness.sampling.neighbours import draw_neighbours
from harness.sampling.sample import LayerSample

NODES = 50
NODE_WEIGHTS = np.random.default_rng(3).lognormal(0, 1.5, NODES)
NODE_WEIGHTS[::7] = 0
ALL = np.arange(NODES)


class Case(DrawCase):
    def draw(self, targets: np.ndarray, fanout: int, seed: int, node_weights: np.ndarray | None = None) -> LayerSample:
        return draw_neighbours(self.topology, targets, fanout, seed, self.tables, node_weights=node_weights)


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "weighted"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(tmp_path_factory.mktemp("graph"), NODES, request.param)


@pytest.mark.parametrize("fanout", [0, 1, 3, 100, -1])
@pytest.mark.parametrize("node_weights", [None, NODE_WEIGHTS], ids=["uniform", "by weight"])
def test_a_sample_holds_neighbours_of_the_right_number(
    case: Case, fanout: int, node_weights: np.ndarray | None
) -> None:
    candidates = (case.matrix != 0) & (True if node_weights is None else node_weights > 0)
    for seed in range(10):
        targets = np.random.default_rng(seed).permutation(NODES)[:20]
        sample = case.draw(targets, fanout, seed, node_weights)
        number = candidates[targets].sum(1)
        np.testing.assert_array_equal(sample.destinations, targets)
        assert np.unique(sample.sources).size == sample.sources.size
        assert set(range(20, sample.sources.size)) <= set(sample.indices)
        drawn = as_matrix(sample, NODES) != 0
        assert not (drawn & ~candidates[targets]).any()
        np.testing.assert_array_equal(np.diff(sample.indptr), number if fanout < 0 else number.clip(max=fanout))
        np.testing.assert_array_equal(drawn.sum(1), np.diff(sample.indptr))
        assert (sample.values is None) == (node_weights is None and case.topology.weights is None)


@pytest.mark.parametrize("node_weights", [None, np.ones(NODES)], ids=["uniform", "by weight"])
def test_all_neighbours_are_exact(case: Case, node_weights: np.ndarray | None) -> None:
    for fanout in (-1, NODES):
        np.testing.assert_array_equal(as_matrix(case.draw(ALL, fanout, 5, node_weights), NODES), case.matrix)


def test_every_subset_of_neighbours_is_drawn_equally_often(case: Case) -> None:
    degree = np.count_nonzero(case.matrix, axis=1)
    node = int(np.flatnonzero((degree >= 6) & (degree <= 8))[0])
    subsets = dict.fromkeys(combinations(np.flatnonzero(case.matrix[node]), 3), 0)
    for seed in range(60 * len(subsets)):
        sample = case.draw(np.array([node]), 3, seed)
        subsets[tuple(np.sort(sample.sources[1:]))] += 1
    assert stats.chisquare(list(subsets.values())).pvalue > 1e-4


def test_draws_of_two_targets_are_independent(case: Case) -> None:
    pair = np.argsort(np.count_nonzero(case.matrix, axis=1))[-2:]
    counts = np.zeros((2, NODES, NODES))
    for seed in range(4000):
        for form, node_weights in enumerate((None, np.ones(NODES))):
            first, second = (row.argmax() for row in as_matrix(case.draw(pair, 1, seed, node_weights), NODES) != 0)
            counts[form, first, second] += 1
    for table in counts:
        seen = table[table.any(1)][:, table.any(0)]
        assert seen.shape == tuple(np.count_nonzero(case.matrix[pair], axis=1))
        assert stats.chi2_contingency(seen).pvalue > 1e-4


@pytest.mark.quick(1)
@pytest.mark.parametrize("fanout", [1, 4])
def test_weighted_inclusion_is_exact_and_counts_its_inverse(case: Case, fanout: int) -> None:
    p = inclusion(abs(case.matrix) * NODE_WEIGHTS, fanout)
    assert fanout == 1 or (p == 1).sum() > (np.count_nonzero(p, axis=1) <= fanout).sum()  # some are clipped
    often, draws = np.zeros((NODES, NODES)), 3000
    for seed in range(draws):
        matrix = as_matrix(case.draw(ALL, fanout, seed, NODE_WEIGHTS), NODES)
        drawn = matrix != 0
        np.testing.assert_allclose(matrix[drawn], (case.matrix[drawn] / p[drawn]), rtol=1e-9)
        often += drawn
    np.testing.assert_array_equal(often[p == 0], 0)
    np.testing.assert_array_equal(often[p == 1], draws)
    open_ = (p > 0) & (p < 1)
    z = (often - draws * p)[open_] / np.sqrt(draws * p * (1 - p))[open_]
    assert abs(z).max() < stats.norm.isf(1e-5 / z.size)


@pytest.mark.parametrize("node_weights", [None, NODE_WEIGHTS + 0.1], ids=["uniform", "by weight"])
def test_sums_are_unbiased(case: Case, node_weights: np.ndarray | None) -> None:
    h = np.random.default_rng(0).normal(size=NODES)
    sums = np.array([as_matrix(case.draw(ALL, 2, seed, node_weights), NODES) @ h for seed in range(3000)])
    error = sums.mean(0) - case.matrix @ h
    deviation = sums.std(0, ddof=1) / np.sqrt(len(sums))
    varies = deviation > 1e-9
    np.testing.assert_allclose(error[~varies], 0, atol=1e-9)
    assert varies.sum() > NODES / 2
    assert abs(error[varies] / deviation[varies]).max() < stats.norm.isf(1e-6)


@pytest.mark.parametrize("node_weights", [None, NODE_WEIGHTS], ids=["uniform", "by weight"])
def test_a_draw_depends_on_its_seed_and_node_alone(case: Case, node_weights: np.ndarray | None) -> None:
    whole = as_matrix(case.draw(ALL, 3, 11, node_weights), NODES)
    order = np.random.default_rng(1).permutation(NODES)[:30]
    case.draw(order, 5, 12, node_weights)
    np.testing.assert_array_equal(as_matrix(case.draw(order, 3, 11, node_weights), NODES), whole[order])
    assert (as_matrix(case.draw(ALL, 3, 12, node_weights), NODES) != whole).any()


@pytest.mark.parametrize("node_weights", [None, NODE_WEIGHTS], ids=["uniform", "by weight"])
def test_threads_draw_what_one_draws(case: Case, node_weights: np.ndarray | None) -> None:
    def work(seed: int) -> list[np.ndarray]:
        targets = np.random.default_rng(seed).permutation(NODES)[: seed % NODES]
        sample = case.draw(targets, 4, seed, node_weights)
        return [sample.sources, sample.indptr, sample.indices, as_matrix(sample, NODES)]

    serial = [work(seed) for seed in range(300)]
    with ThreadPoolExecutor(4) as pool:
        for one, other in zip(serial, pool.map(work, range(300)), strict=True):
            for a, b in zip(one, other, strict=True):
                np.testing.assert_array_equal(a, b)
    with case.tables.borrow() as table:
        assert (table == -1).all()


def test_targets_without_neighbours_and_no_targets(case: Case) -> None:
    for node_weights in (None, NODE_WEIGHTS, np.zeros(NODES)):
        sample = case.draw(np.array([NODES // 2]), 3, 0, node_weights)
        assert sample.sources.tolist() == [NODES // 2]
        assert sample.indptr.tolist() == [0, 0]
        none = case.draw(np.empty(0, np.int64), 3, 0, node_weights)
        assert none.sources.size == none.indices.size == none.num_dst == 0
    assert case.draw(ALL, -1, 0, np.zeros(NODES)).indices.size == 0


@pytest.mark.parametrize("weight", [-1.0, np.nan, np.inf])
def test_weights_that_are_none(case: Case, weight: float) -> None:
    with pytest.raises(ValueError, match="finite and not negative"):
        case.draw(ALL, 3, 0, np.full(NODES, weight))
