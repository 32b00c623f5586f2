from __future__ import annotations

import numpy as np
import pytest
from scipy import stats as scipy_stats
from scipy.signal import lfilter

from harness.results.stats import (
    Interval,
    default_warmup,
    independent,
    mean,
    median_interval,
    over_seeds,
    time_to_score,
)


@pytest.mark.parametrize(
    ("epochs", "warmup"), [(0, 0), (1, 0), (2, 1), (5, 1), (19, 1), (20, 2), (49, 4), (50, 5), (10_000, 5)]
)
def test_default_warmup(epochs: int, warmup: int) -> None:
    assert default_warmup(epochs) == warmup


def test_interval_of_nothing_and_of_one_value() -> None:
    assert median_interval([]) is None
    assert median_interval([2.0]) == Interval(2.0, 2.0, 2.0)


def test_interval_is_seeded() -> None:
    values = np.random.default_rng(0).normal(1, 0.2, 50)
    assert median_interval(values) == median_interval(list(values))
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
    assert over_seeds(np.array(values)).std == np.std(values, ddof=1)
    assert (mean([]), over_seeds(np.array([])), over_seeds(np.array([1.0])).std) == (None, None, None)


def autoregressive(rng: np.random.Generator, lag: float, shape: tuple[int, ...]) -> np.ndarray:
    """Series along the last axis with mean 0 and deviation 1."""
    noise = rng.normal(0, np.sqrt(1 - lag**2), shape)
    noise[..., 0] = rng.normal(0, 1, shape[:-1])
    return lfilter([1], [1, -lag], noise)


@pytest.mark.parametrize(("lag", "count"), [(0.0, 100), (0.5, 100), (0.9, 300)])
def test_resembling_epochs_count_as_fewer(lag: float, count: int) -> None:
    series = autoregressive(np.random.default_rng(7), lag, (200, count))
    expected = count * (1 - lag) / (1 + lag)
    assert np.median([independent(own) for own in series]) == pytest.approx(expected, rel=0.35)
    assert max(independent(own) for own in series) <= count


def test_few_or_equal_values_have_no_autocorrelation() -> None:
    assert (independent([]), independent([1.0, 2.0]), independent([3.0] * 9)) == (0, 2, 9)
    assert independent(np.arange(50)) == 2


def test_interval_of_resembling_epochs_covers_the_median() -> None:
    """Taken for independent, 100 epochs with a lag of 0.8 cover it half of the time."""
    series = autoregressive(np.random.default_rng(8), 0.8, (60, 100))
    found = [median_interval(own) for own in series]
    assert np.mean([each is not None and each.low <= 0 <= each.high for each in found]) >= 0.85
    shuffled = [median_interval(np.random.default_rng(9).permutation(own)) for own in series]
    assert np.mean([each is not None and each.low <= 0 <= each.high for each in shuffled]) < 0.7


def test_no_interval_of_times_begins_below_zero() -> None:
    """Epochs that went from fast to slow are worth two: their interval is stretched."""
    found = median_interval([1.0, 1.1, 1.2, 1.3, 5.0, 5.1, 5.2, 5.3])
    assert found is not None
    assert found.low == 0 < found.centre < found.high
    lower = median_interval([-1.0, 1.1, 1.2, 1.3, 5.0, 5.1, 5.2, 5.3])
    assert lower is not None
    assert lower.low < 0


def test_time_to_score_is_the_first_time_and_counts_every_epoch() -> None:
    nan = float("nan")
    times, scores = [4.0, 1.0, 1.0, 1.0, 1.0], [nan, 0.5, nan, 0.7, 0.6]
    assert time_to_score(times, scores, 0.5) == 5
    assert time_to_score(times, scores, 0.6) == 7
    assert time_to_score(times, scores, 0.8) is None
    assert time_to_score([], [], 0.8) is None
