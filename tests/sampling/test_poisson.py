"""Inclusion probabilities of Poisson sampling against a bisection and the two conditions that define them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.sampling.layer_kernels import inclusion

weights = st.lists(st.one_of(st.sampled_from([0.0, 1.0, 4.0, 0.1]), st.floats(5e-324, 1.7e308)), max_size=14)


def by_bisection(weights: np.ndarray, size: int) -> np.ndarray:
    """min(1, c w) by bisection of log c: no overflow, no loss."""
    positive = weights > 0
    if size == 0 or size >= positive.sum():
        return np.where(positive, float(size > 0), 0.0)
    log = np.log(weights, out=np.zeros(weights.size), where=positive)
    low, high = -log[positive].max() - np.log(weights.size) - 1, -log[positive].min() + 1
    for _ in range(100):
        middle = (low + high) / 2
        p = np.exp(np.minimum(0, log + middle)) * positive
        low, high = (middle, high) if p.sum() < size else (low, middle)
    return p


@given(weights.map(np.array), st.integers(0, 16))
def test_equal_to_a_bisection(weights: np.ndarray, size: int) -> None:
    p = inclusion(weights, size)
    assert p.dtype == np.float64
    assert (p >= 0).all()
    assert (p <= 1).all()
    assert p.sum() == pytest.approx(min(size, np.count_nonzero(weights)), rel=1e-9)
    np.testing.assert_allclose(p, by_bisection(weights, size), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("spread", [0, 1, 5, 50])
@pytest.mark.parametrize("size", [1, 37, 2000, 2999])
def test_long_and_clipped(spread: float, size: int) -> None:
    """p / w is the same for all p < 1, and no p < 1 belongs to a larger weight than a p of 1."""
    weights = np.random.default_rng(0).lognormal(0, spread, 3000)
    weights[::1000] = 0
    p = inclusion(weights, size)
    assert p.sum() == pytest.approx(min(size, 2997), rel=1e-10)
    part = (p < 1) & (p > 0)
    if part.any():
        ratio = p[part] / weights[part]
        np.testing.assert_allclose(ratio, ratio[0], rtol=1e-12)
        assert (weights[p == 1] >= weights[part].max()).all()
        assert (ratio[0] * weights[p == 1] >= 1 - 1e-9).all()
    assert (p[weights == 0] == 0).all()


def test_the_certain_are_found_one_by_one() -> None:
    """Each weight is 1e-6 of the one before: a pass finds only one more."""
    weights = np.random.default_rng(0).permutation(10.0 ** (-6.0 * np.arange(50) + 150))
    p = inclusion(weights, 20)
    assert np.count_nonzero(p > 1 - 1e-5) == 20
    np.testing.assert_allclose(p, by_bisection(weights, 20), rtol=1e-9, atol=1e-12)


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 0"):
        inclusion(np.ones(3), -1)
