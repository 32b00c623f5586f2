"""Theorem 2's probabilities against solvers and the conditions of an optimum; draws against enumeration."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch
from harness_methods.psc_gcn.edges import draw_edges, inclusion_probabilities, optimal_probabilities
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, sparse, stats

Probabilities = Callable[[np.ndarray, float], np.ndarray]

scores = st.one_of(st.sampled_from([0.0, 1.0, 4.0]), st.floats(5e-324, 1e308))
rows = st.lists(st.lists(scores, max_size=14).map(np.array), min_size=1, max_size=3)
rates = st.one_of(st.sampled_from([1e-6, 0.1, 0.3, 1 / 3, 0.5, 1 - 1e-12, 1.0]), st.floats(1e-9, 1, exclude_min=True))


def of_row(score: np.ndarray, rate: float) -> np.ndarray:
    """The probabilities of a single row."""
    indices = np.arange(score.size, dtype=np.int32)
    return optimal_probabilities(np.array([0, score.size]), indices, score, None, rate)


def by_dual(score: np.ndarray, rate: float) -> np.ndarray:
    """Bisection of log sqrt(lambda): p = min(1, sqrt(score / lambda)) sums to the budget."""
    root, budget = np.sqrt(score), rate * score.size
    if np.count_nonzero(root) <= budget:
        spare = (root == 0).sum()
        return np.where(root > 0, 1.0, (budget - (root > 0).sum()) / max(spare, 1))
    low, high = np.log(root[root > 0].min()), np.log(root.max()) + np.log(score.size / budget)
    for _ in range(100):
        middle = (low + high) / 2
        p = np.minimum(1, np.exp(np.log(np.maximum(root, 1e-320)) - middle)) * (root > 0)
        low, high = (middle, high) if p.sum() > budget else (low, middle)
    return p


def by_primal(score: np.ndarray, rate: float) -> np.ndarray:
    """Sequential quadratic programming on the problem as the paper states it (eq. 17)."""
    budget = rate * score.size
    found = optimize.minimize(
        lambda p: np.sum(score * (1 / p - 1)),
        np.full(score.size, rate),
        jac=lambda p: -score / p**2,
        bounds=[(1e-4, 1)] * score.size,
        constraints={"type": "eq", "fun": lambda p: p.sum() - budget, "jac": np.ones_like},
        method="SLSQP",
        options={"ftol": 1e-16, "maxiter": 2000},
    )
    return found.x


def certify(p: np.ndarray, score: np.ndarray, rate: float) -> None:
    """Assert the Karush-Kuhn-Tucker conditions (all scores positive): they prove a convex optimum.

    Where p is at its floor of 1e-30 the optimal one is below it.
    """
    assert p.sum() == pytest.approx(rate * score.size, rel=1e-9)
    assert (p > 0).all()
    assert (p <= 1).all()
    slope = np.sqrt(score) / p
    multiplier = slope[p < 1].max()
    np.testing.assert_allclose(slope[(p < 1) & (p > 1e-30)], multiplier, rtol=1e-6)
    assert (slope[p == 1] >= multiplier * (1 - 1e-6)).all()


@given(rows, rates, st.integers(0, 2**32 - 1), st.booleans())
def test_every_row_sums_to_its_budget_within_range_and_rises_with_the_score(
    rows: list[np.ndarray], rate: float, seed: int, weighted: bool
) -> None:
    """Rows share their sources; weights undo the sharing, or there are none."""
    score = np.concatenate(rows)
    indices = np.random.default_rng(seed).permutation(score.size).astype(np.int32)
    by_source = np.empty_like(score)
    by_source[indices] = 1.0 if weighted else score
    indptr = np.cumsum([0, *(row.size for row in rows)])
    weights = -np.sqrt(score) if weighted else None
    p = optimal_probabilities(indptr, indices, by_source, weights, rate)
    assert p.dtype == np.float64
    assert (p > 0).all()
    assert (p <= 1).all()
    for row, of_row in zip(rows, np.split(p, indptr[1:-1]), strict=True):
        assert of_row.sum() == pytest.approx(rate * row.size, rel=1e-9)
        order = np.argsort(row)
        assert (np.diff(of_row[order])[np.diff(row[order]) > 0] >= 0).all()
        assert (np.diff(of_row[order])[np.diff(row[order]) == 0] == 0).all()
        expected = by_dual(row, rate) if row.any() else np.full(row.size, rate)
        np.testing.assert_allclose(of_row, expected, atol=1e-9)


@pytest.mark.parametrize("seed", range(12))
def test_equal_to_a_convex_solver(seed: int) -> None:
    rng = np.random.default_rng(seed)
    score = rng.lognormal(0, 1.2, rng.integers(2, 15))
    rate = rng.uniform(0.3, 0.9)
    p = of_row(score, rate)
    certify(p, score, rate)
    np.testing.assert_allclose(p, by_primal(score, rate), atol=1e-6)


@pytest.mark.parametrize("spread", [0, 1, 5, 30])
@pytest.mark.parametrize("rate", [1e-4, 0.1, 0.6, 0.999])
def test_optimal_in_long_rows(spread: float, rate: float) -> None:
    score = np.random.default_rng(7).lognormal(0, spread, 3000)
    certify(of_row(score, rate), score, rate)


def test_optimal_where_the_certain_are_found_one_by_one() -> None:
    """Each score is 1e-4 of the one before: a pass over the row finds only one more of p = 1."""
    score = np.random.default_rng(0).permutation(10.0 ** (-4.0 * np.arange(50)))
    certify(of_row(score, 0.4), score, 0.4)
    assert np.count_nonzero(of_row(score, 0.4) == 1) >= 19


@pytest.mark.parametrize(
    "fault",
    [
        lambda score, rate: np.minimum(1, proportional(np.sqrt(score), rate)),
        lambda score, rate: proportional(np.sqrt(score), rate),
        lambda score, rate: of_row(score**2, rate),
        lambda score, rate: np.full(score.size, rate),
        lambda score, rate: of_row(score, 1.01 * rate),
        lambda score, rate: np.where(score == score.max(), 1, of_row(score, rate - 1 / score.size)),
    ],
    ids=["clipped, not shared", "not clipped", "variance for deviation", "uniform", "budget", "one too many"],
)
def test_the_certificate_sees_faults(fault: Probabilities) -> None:
    score = np.random.default_rng(3).lognormal(0, 2, 40)
    certify(of_row(score, 0.3), score, 0.3)
    assert np.count_nonzero(of_row(score, 0.3) == 1) == 4
    with pytest.raises(AssertionError):
        certify(fault(score, 0.3), score, 0.3)


def proportional(root: np.ndarray, rate: float) -> np.ndarray:
    return rate * root.size * root / root.sum()


def test_rows_that_name_no_optimum() -> None:
    """No neighbours; scores not finite, negative, or 0; fewer positive ones than the budget, and as many."""
    indptr = np.array([0, 0, 3, 6, 9, 11, 14, 14])
    score = np.array([0, 1.0, 1.0, np.nan, np.inf, -1.0])
    indices = np.array([1, 3, 2, 4, 1, 2, 1, 2, 5, 0, 0, 1, 0, 0], np.int32)
    p = optimal_probabilities(indptr, indices, score, None, 0.5)
    np.testing.assert_array_equal(p[:11], np.full(11, 0.5))
    np.testing.assert_allclose(p[11:], [1, 0.25, 0.25])
    p = optimal_probabilities(np.array([0, 3]), np.array([0, 1, 2], np.int32), score, None, 1 / 3)
    assert 0 < p[0] < 1e-20
    np.testing.assert_allclose(p[1:], 0.5)
    tiny = np.array([1e-310, 0])  # the inverse of their sum is not finite
    p = optimal_probabilities(np.array([0, 2]), np.array([1, 2], np.int32), score, tiny, 0.5)
    np.testing.assert_array_equal(p, 0.5)


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.5, float("nan")])
def test_a_rate_out_of_range(rate: float) -> None:
    with pytest.raises(ValueError, match="sampling rate"):
        of_row(np.ones(3), rate)


@st.composite
def parts(draw: st.DrawFn) -> tuple[sparse.csr_array, np.ndarray, int]:
    """A part's matrix [inner, inner + boundary] of weights, columns in any order, and a p for every edge."""
    inner, boundary = draw(st.integers(0, 6)), draw(st.integers(0, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    dense = rng.random((inner, inner + boundary)) < draw(st.sampled_from([0.2, 0.7]))
    matrix = sparse.csr_array(dense * rng.uniform(0.5, 2, dense.shape))
    for first, last in zip(matrix.indptr, matrix.indptr[1:], strict=False):
        order = first + rng.permutation(last - first)
        matrix.indices[first:last], matrix.data[first:last] = matrix.indices[order], matrix.data[order]
    return matrix, rng.choice([1e-3, 0.4, 1], matrix.nnz), boundary


@given(parts(), st.integers(0, 2**32 - 1), st.sampled_from([torch.float32, torch.float64]))
def test_a_draw_is_what_its_uniform_numbers_say(
    part: tuple[sparse.csr_array, np.ndarray, int], seed: int, dtype: torch.dtype
) -> None:
    matrix, p, boundary = part
    inner = matrix.shape[0]
    indptr, indices = matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32)
    rng = np.random.default_rng(seed)
    sample = draw_edges(indptr, indices, p, matrix.data, inner, boundary, rng, dtype)

    drawn = np.random.default_rng(seed).random(p.size) < p
    rows = np.repeat(np.arange(inner), np.diff(indptr))
    kept = np.unique(indices[drawn & (indices >= inner)]) - inner
    np.testing.assert_array_equal(sample.kept, kept)
    assert sample.kept.dtype == np.int64
    adjacency, transposed = sample.adjacency, sample.transposed
    assert adjacency.num_cols == transposed.num_rows == inner + kept.size
    assert adjacency.num_rows == transposed.num_cols == inner
    column = np.concatenate([np.arange(inner), inner + kept])[adjacency.indices.numpy()]
    np.testing.assert_array_equal(column, indices[drawn])
    np.testing.assert_array_equal(np.repeat(np.arange(inner), np.diff(adjacency.indptr.numpy())), rows[drawn])
    assert adjacency.values is not None
    assert adjacency.values.dtype == dtype
    expected = torch.from_numpy((matrix.data / p)[drawn]).to(dtype)
    torch.testing.assert_close(adjacency.values, expected, rtol=0, atol=0)
    assert transposed.values is not None
    there, back = (
        sparse.csr_array((m.values.numpy(), m.indices.numpy(), m.indptr.numpy()), (m.num_rows, m.num_cols))
        for m in (adjacency, transposed)
    )
    np.testing.assert_array_equal(back.toarray(), there.toarray().T)


def test_one_probability_and_no_weights_stand_for_arrays() -> None:
    indptr, indices = np.array([0, 3, 4]), np.array([1, 2, 4, 3], np.int32)
    one, many = (
        draw_edges(indptr, indices, p, w, 2, 3, np.random.default_rng(5), torch.float64)
        for p, w in ((0.5, None), (np.full(4, 0.5), np.ones(4)))
    )
    np.testing.assert_array_equal(one.kept, many.kept)
    for ours, theirs in ((one.adjacency, many.adjacency), (one.transposed, many.transposed)):
        for name in ("indptr", "indices", "values"):
            assert torch.equal(getattr(ours, name), getattr(theirs, name))
    np.testing.assert_array_equal(
        inclusion_probabilities(indices, 0.3, 2, 3), inclusion_probabilities(indices, np.full(4, 0.3), 2, 3)
    )


# Columns 0-2 are inner, 3-5 boundary; node 4 is met by three rows, 5 by none.
INDPTR, INDICES = np.array([0, 2, 4, 6]), np.array([1, 4, 3, 4, 0, 4], np.int32)
P = np.array([0.7, 0.3, 0.55, 0.4, 0.9, 0.2])
PATTERNS = np.array(list(product([False, True], repeat=6)))
CHANCE = np.where(PATTERNS, P, 1 - P).prod(1)


def test_every_set_of_edges_is_drawn_as_often_as_independence_says() -> None:
    rng = np.random.default_rng(11)
    counts = np.zeros(len(PATTERNS))
    total = np.zeros((3, 6))
    draws = 8_000
    for _ in range(draws):
        sample = draw_edges(INDPTR, INDICES, P, None, 3, 3, rng, torch.float64)
        node = np.concatenate([np.arange(3), 3 + sample.kept])[sample.adjacency.indices.numpy()]
        row = np.repeat(np.arange(3), np.diff(sample.adjacency.indptr.numpy()))
        dense = np.zeros((3, 6))
        assert sample.adjacency.values is not None
        dense[row, node] = sample.adjacency.values.numpy()
        total += dense
        pattern = dense[[0, 0, 1, 1, 2, 2], INDICES] > 0
        counts[pattern @ (1 << np.arange(6)[::-1])] += 1
    assert stats.chisquare(counts, draws * CHANCE).pvalue > 1e-3
    expected = np.zeros((3, 6))
    expected[[0, 0, 1, 1, 2, 2], INDICES] = 1
    deviation = np.zeros((3, 6))
    deviation[[0, 0, 1, 1, 2, 2], INDICES] = np.sqrt((1 / P - 1) / draws)
    assert (np.abs(total / draws - expected) <= 4 * deviation).all()


def test_inclusion_is_the_share_of_all_edge_sets() -> None:
    expected = [CHANCE[PATTERNS[:, node == INDICES].any(1)].sum() for node in (3, 4, 5)]
    np.testing.assert_allclose(inclusion_probabilities(INDICES, P, 3, 3), expected, rtol=1e-12)
    assert expected[2] == 0


def test_inclusion_at_the_ends_of_the_range() -> None:
    """A thousand edges of 1e-20 would vanish beside 1; a certain edge makes its node certain."""
    indices = np.repeat(np.array([0, 1, 2], np.int32), 1000)
    p = np.concatenate([np.ones(1000), np.full(2000, 1e-20)])
    p[2500] = 1
    np.testing.assert_allclose(inclusion_probabilities(indices, p, 1, 3), [1e-17, 1, 0], rtol=1e-12)
    assert inclusion_probabilities(indices, p, 1, 3)[1] == 1
