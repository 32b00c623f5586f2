from __future__ import annotations

import numpy as np
import pytest
from scipy import stats as scipy_stats

from harness.results.stats import Interval, default_warmup, median, median_interval


@pytest.mark.parametrize(
    ("epochs", "warmup"), [(0, 0), (1, 0), (2, 1), (5, 1), (19, 1), (20, 2), (49, 4), (50, 5), (10_000, 5)]
)
def test_default_warmup(epochs: int, warmup: int) -> None:
    assert default_warmup(epochs) == warmup


def test_median() -> None:
    assert median([3.0, 1.0, 2.0, 10.0]) == 2.5
    assert median([]) is None


def test_interval_of_nothing_and_of_one_value() -> None:
    assert median_interval([]) is None
    assert median_interval([2.0]) == Interval(2.0, 2.0, 2.0)


def test_interval_is_seeded_and_does_not_depend_on_order() -> None:
    values = np.random.default_rng(0).normal(1, 0.2, 50)
    assert median_interval(values) == median_interval(values[::-1]) == median_interval(list(values))
    assert median_interval(values, seed=1) != median_interval(values)


def test_interval_agrees_with_scipy() -> None:
    values = np.random.default_rng(1).lognormal(0, 0.3, 60)
    ours = median_interval(values)
    theirs = scipy_stats.bootstrap(
        (values,), np.median, n_resamples=5000, method="percentile", random_state=np.random.default_rng(2)
    ).confidence_interval
    assert ours is not None
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.02)


def test_interval_covers_the_true_median() -> None:
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(40):
        interval = median_interval(rng.exponential(1, 40))
        assert interval is not None
        hits += interval.low <= np.log(2) <= interval.high
    assert 34 <= hits <= 40


def test_many_values_cost_little_and_keep_the_median() -> None:
    values = np.random.default_rng(4).random(200_001)
    interval = median_interval(values)
    assert interval is not None
    assert interval.centre == np.median(values)
    assert interval.low < interval.centre < interval.high


def test_noisy_is_an_interval_wider_than_five_percent() -> None:
    assert not Interval(1.0, 0.98, 1.02).noisy
    assert Interval(1.0, 0.97, 1.03).noisy
    assert Interval(1.0, 0.94, 1.0).noisy
    assert Interval(1.0, 1.0, 1.06).noisy
    assert not Interval(0.0, 0.0, 0.0).noisy
