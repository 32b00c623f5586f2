from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from harness_methods.dgs.guided_sampling import GuidedSampler
from scipy import stats
from support.draws import DrawCase, as_matrix, inclusion

from harness.sampling.neighbours import draw_neighbours
from harness.sampling.sample import LayerSample

NODES, FANOUT = 50, 4
RNG = np.random.default_rng(4)
LOCAL = RNG.random(NODES) < 0.4
IMPORTANCE = RNG.random(NODES).astype(np.float32)
IMPORTANCE[::7] = 0
WEIGHTS = np.where(LOCAL, 1, IMPORTANCE).astype(np.float64)
IMPORTANCE[LOCAL] = np.nan  # is not read
ALL = np.arange(NODES)
FORMS = pytest.mark.parametrize("unbiased", [False, True], ids=["mean", "unbiased"])


class Case(DrawCase):
    def draw(
        self,
        targets: np.ndarray,
        fanout: int,
        seed: int,
        importance: np.ndarray = IMPORTANCE,
        *,
        deviation: float = 0.0,
        unbiased: bool = False,
    ) -> LayerSample:
        source: Any = SimpleNamespace(topology=self.topology, tables=self.tables, local=LOCAL)
        return GuidedSampler(source, [], importance, deviation, unbiased).draw(targets, fanout, seed)

    def chances(self, deviation: float, unbiased: bool) -> tuple[np.ndarray, set[str]]:
        """Return the chances of all draws [N, N] by search, and which limits the deviation meets."""
        weights = abs(self.matrix) * WEIGHTS
        near, far = weights * LOCAL, weights * ~LOCAL
        p = inclusion(weights, FANOUT)
        rows = {name: np.where(mask, p, 0).sum(1) for name, mask in (("near", LOCAL), ("far", ~LOCAL))}
        number, most = np.count_nonzero(far, axis=1), rows["near"] * (0.5 if unbiased else 1)
        wanted = deviation * p.sum(1)
        moved = np.minimum(np.minimum(wanted, most), number - rows["far"])
        limits = {
            "remote": ((moved > 1e-9) & (moved < np.minimum(wanted, most))).any(),
            "local": ((moved > 1e-9) & (moved == most) & (most < wanted)).any(),
        }
        chances = inclusion(near, rows["near"] - moved) + inclusion(far, rows["far"] + moved)
        return chances, {name for name, is_met in limits.items() if is_met}


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "weighted"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(tmp_path_factory.mktemp("graph"), NODES, request.param)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("deviation", "unbiased"), [(0.0, False), (0.1, False), (0.1, True), (0.5, False), (0.5, True)]
)
def test_chances_quotas_and_counts(case: Case, deviation: float, unbiased: bool) -> None:
    p, limits = case.chances(deviation, unbiased)
    assert deviation < 0.5 or limits == {"local"} | (set() if unbiased else {"remote"})
    size, total = abs(case.matrix), abs(case.matrix).sum(1)
    number = np.minimum(np.count_nonzero(size * WEIGHTS, axis=1), FANOUT)
    draws = 1500
    often, remote = np.zeros((NODES, NODES)), np.zeros(draws)
    for seed in range(draws):
        sample = case.draw(ALL, FANOUT, seed, deviation=deviation, unbiased=unbiased)
        matrix = as_matrix(sample, NODES)
        drawn = matrix != 0
        np.testing.assert_array_equal(drawn.sum(1), number)
        factor = (total / np.maximum((size * drawn).sum(1), 1e-9))[:, None]
        counts = case.matrix[drawn] / p[drawn] if unbiased else (case.matrix * factor)[drawn]
        np.testing.assert_allclose(matrix[drawn], counts, rtol=1e-9)
        often += drawn
        remote[seed] = drawn[:, ~LOCAL].sum()
    np.testing.assert_array_equal(often[p == 0], 0)
    np.testing.assert_array_equal(often[p == 1], draws)
    open_ = (p > 1e-9) & (p < 1 - 1e-9)
    z = (often - draws * p)[open_] / np.sqrt(draws * p * (1 - p))[open_]
    assert abs(z).max() < stats.norm.isf(1e-5 / z.size)
    quota = p[:, ~LOCAL].sum()
    assert abs(remote.mean() - quota) < 4.5 * remote.std(ddof=1) / np.sqrt(draws)


@FORMS
@pytest.mark.parametrize("fanout", [-1, 100])
def test_all_neighbours_are_the_full_sum(case: Case, fanout: int, unbiased: bool) -> None:
    sample = case.draw(ALL, fanout, 1, IMPORTANCE + np.float32(0.1), deviation=0.1, unbiased=unbiased)
    np.testing.assert_array_equal(as_matrix(sample, NODES), case.matrix)


@pytest.mark.quick(1)
def test_without_deviation_they_are_draws_by_node_weight(case: Case) -> None:
    for seed, fanout in enumerate((1, 4, 8, -1)):
        ours = case.draw(ALL, fanout, seed, unbiased=True)
        theirs = draw_neighbours(case.topology, ALL, fanout, seed, case.tables, node_weights=WEIGHTS)
        for name in ("sources", "indptr", "indices", "values"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))


@FORMS
def test_a_draw_depends_on_its_seed_and_node_alone(case: Case, unbiased: bool) -> None:
    def draw(targets: np.ndarray, seed: int) -> np.ndarray:
        return as_matrix(case.draw(targets, 3, seed, deviation=0.1, unbiased=unbiased), NODES)

    whole = draw(ALL, 11)
    order = np.random.default_rng(1).permutation(NODES)[:30]
    np.testing.assert_array_equal(draw(order, 11), whole[order])
    assert (draw(ALL, 12) != whole).any()


@FORMS
def test_nothing_to_draw(case: Case, unbiased: bool) -> None:
    zero = np.zeros(NODES, np.float32)
    for targets in (np.array([NODES // 2]), np.empty(0, np.int64)):
        sample = case.draw(targets, 3, 0, deviation=0.1, unbiased=unbiased)
        np.testing.assert_array_equal(sample.sources, targets)
        np.testing.assert_array_equal(sample.indptr, np.zeros(targets.size + 1))
    assert LOCAL[case.draw(ALL, 3, 0, zero, deviation=0.1, unbiased=unbiased).sources[NODES:]].all()


@pytest.mark.parametrize("importance", [-1.0, np.nan, np.inf])
def test_importance_that_is_none(case: Case, importance: float) -> None:
    with pytest.raises(ValueError, match="finite and not negative"):
        case.draw(ALL, 3, 0, np.full(NODES, importance, np.float32))
