from __future__ import annotations

import numpy as np
import pytest
from scipy import stats as scipy_stats

from harness.results.stats import (
    Interval,
    default_warmup,
    deviation,
    difference_interval,
    mean,
    mean_interval,
    median,
    median_interval,
    paired_test,
    ratio_interval,
    time_to_score,
)


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


def test_mean_and_deviation() -> None:
    values = [1.0, 2.0, 4.0]
    assert mean(values) == np.mean(values)
    assert deviation(values) == np.std(values, ddof=1)
    assert (mean([]), deviation([]), deviation([1.0])) == (None, None, None)


@pytest.mark.parametrize("interval", [ratio_interval, difference_interval])
def test_no_interval_of_nothing(interval) -> None:
    assert interval([], [1.0], paired=False) is None
    assert interval([1.0], [], paired=False) is None
    with pytest.raises(ValueError, match="not 2 and 3"):
        interval([1.0, 2.0], [1.0, 2.0, 3.0], paired=True)


def test_one_value_has_no_width_and_zero_no_ratio() -> None:
    assert mean_interval([]) is None
    assert mean_interval([3.0]) == Interval(3.0, 3.0, 3.0)
    assert ratio_interval([3.0], [2.0], paired=True) == pytest.approx(Interval(1.5, 1.5, 1.5))
    assert difference_interval([3.0], [2.0], paired=True) == Interval(1.0, 1.0, 1.0)
    assert ratio_interval([3.0, 4.0], [0.0, 0.0], paired=True) is None


def test_few_values_have_the_interval_of_student() -> None:
    values = np.array([1.0, 1.3, 0.9])
    low, high = scipy_stats.t.interval(0.95, 2, values.mean(), scipy_stats.sem(values))
    ours = mean_interval(values)
    assert ours is not None
    assert (ours.centre, ours.low, ours.high) == pytest.approx((values.mean(), low, high), rel=0.05)
    apart = difference_interval(values + 2, np.full(3, 2.0), paired=True, statistic="mean")
    assert apart is not None
    assert (apart.low, apart.high) == pytest.approx((low, high), rel=0.05)


@pytest.mark.parametrize("n", [3, 12])
@pytest.mark.parametrize("paired", [True, False])
def test_intervals_cover_the_truth(n: int, paired: bool) -> None:
    """Seeds of before and after go together: pairs see the difference through what they have in common."""
    rng = np.random.default_rng(5)
    hits, widths = np.zeros(3), []
    for _ in range(60):
        common = rng.normal(10, 1, n) if paired else np.full(n, 10.0)
        after, before = 1.2 * common + rng.normal(0, 0.1, n), common + rng.normal(0, 0.1, n)
        ratio = ratio_interval(after, before, paired=paired, statistic="mean")
        difference = difference_interval(after - common, before, paired=paired, statistic="mean")
        own = mean_interval(before - common)
        assert ratio is not None
        assert difference is not None
        assert own is not None
        hits += [ratio.low <= 1.2 <= ratio.high, difference.low <= -8 <= difference.high, own.has(0)]
        widths.append(ratio.high - ratio.low)
    assert (hits >= 51).all()
    assert np.median(widths) < 0.2  # common's own spread of 10 % would give more at each n


def test_pairs_are_resampled_together() -> None:
    before = np.array([1.0, 10.0, 100.0, 5.0, 50.0, 2.0, 30.0])
    ratio = ratio_interval(1.1 * before, before, paired=True, statistic="mean")
    assert ratio is not None
    assert (ratio.low, ratio.high) == pytest.approx((1.1, 1.1))
    apart = ratio_interval(1.1 * before, before, paired=False, statistic="mean")
    assert apart is not None
    assert apart.low < 0.7 < 1.5 < apart.high


def test_paired_test_is_scipys() -> None:
    rng = np.random.default_rng(6)
    a = rng.random(5)
    b = a + rng.normal(0.1, 0.05, 5)
    assert paired_test(a, b) == pytest.approx(scipy_stats.ttest_rel(a, b).pvalue)
    assert paired_test([1.0], [2.0]) is None
    assert paired_test([1.0, 2.0], [1.0, 2.0]) == 1.0
    assert paired_test([2.0, 3.0], [1.0, 2.0]) == 0.0


def test_time_to_score_is_the_first_time_and_counts_every_epoch() -> None:
    nan = float("nan")
    times, scores = [4.0, 1.0, 1.0, 1.0, 1.0], [nan, 0.5, nan, 0.7, 0.6]
    assert time_to_score(times, scores, 0.5) == 5
    assert time_to_score(times, scores, 0.6) == 7
    assert time_to_score(times, scores, 0.8) is None
    assert time_to_score([], [], 0.8) is None
