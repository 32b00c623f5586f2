"""Statistics of trials: centre and spread, bootstrap intervals, ratios, paired tests, time to a score."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import special

Values = Sequence[float] | np.ndarray
Statistic = Literal["median", "mean"]

RESAMPLES = 2000
CONFIDENCE = 0.95
NOISY = 0.05
# Of n values, all lie on one side of the median with probability 2 / 2^n: below 6, more than 5 %.
ENOUGH = 6
_MOST = 10_000  # values that are resampled, of more


@dataclass(frozen=True)
class Interval:
    """A figure with its 95 % interval, in the unit of the values."""

    centre: float
    low: float
    high: float

    @property
    def noisy(self) -> bool:
        """Whether the interval is wider than 5 % of the centre."""
        return self.high - self.low > NOISY * abs(self.centre)

    def has(self, value: float) -> bool:
        """Whether `value` is in the interval, ends included."""
        return self.low <= value <= self.high


def default_warmup(epochs: int) -> int:
    """Return how many of `epochs` are warm-up: a tenth, 1 to 5, but never all."""
    return max(0, min(5, max(1, epochs // 10), epochs - 1))


def median(values: Values) -> float | None:
    """Return the median, or None of no values."""
    return float(np.median(values)) if len(values) else None


def mean(values: Values) -> float | None:
    """Return the mean, or None of no values."""
    return float(np.mean(values)) if len(values) else None


def deviation(values: Values) -> float | None:
    """Return the sample standard deviation (n - 1), or None of fewer than two values."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def median_interval(values: Values, *, seed: int = 0) -> Interval | None:
    """Return the median with its 95 % percentile-bootstrap interval, or None of no values.

    Deterministic for `seed`. 2000 resamples; work and memory are bounded by using at most 10,000 values,
    evenly spaced in sorted order, which leaves the quantiles in place. One value has no width: nothing is
    known of how sure it is.
    """
    sample = np.sort(np.asarray(values, dtype=np.float64))
    if not len(sample):
        return None
    centre = float(np.median(sample))
    rng = np.random.default_rng(seed)
    sample = _thinned(sample)
    return _interval(centre, [np.median(rng.choice(sample, len(sample))) for _ in range(RESAMPLES)], 0.025)


def mean_interval(values: Values, *, seed: int = 0) -> Interval | None:
    """Return the mean with its 95 % expanded-percentile-bootstrap interval, or None of no values.

    A percentile bootstrap of few values is too narrow, by sqrt((n-1)/n) and by the normal's quantiles in
    place of Student's; the percentiles are moved out by both (Hesterberg, The American Statistician 69(4),
    2015, section 5.3). Of 2 or 3 values it is all that resamples reach. Otherwise as `median_interval`.
    """
    sample = np.sort(np.asarray(values, dtype=np.float64))
    if not len(sample):
        return None
    rng = np.random.default_rng(seed)
    means = [rng.choice(sample, len(sample)).mean() for _ in range(RESAMPLES)]
    return _interval(float(sample.mean()), means, _tail(len(sample)))


def ratio_interval(
    after: Values, before: Values, *, paired: bool, statistic: Statistic = "median", seed: int = 0
) -> Interval | None:
    """Return statistic(after) / statistic(before) with its 95 % bootstrap interval; no unit.

    `paired`: value i of both is of one thing (a seed), so that both are resampled together. Percentiles as
    for `mean_interval`. None if a sample is empty or the statistic of `before` is 0.

    Raises:
        ValueError: paired samples of different lengths.
    """
    of = _STATISTICS[statistic]
    if not len(after) or not len(before) or not of(np.asarray(before, dtype=np.float64)):
        return None
    return _of_two(lambda a, b: of(a) / of(b) if of(b) else math.nan, after, before, paired, seed)


def difference_interval(
    after: Values, before: Values, *, paired: bool, statistic: Statistic = "median", seed: int = 0
) -> Interval | None:
    """Return statistic(after) - statistic(before) with its interval, in their unit; as `ratio_interval`."""
    if not len(after) or not len(before):
        return None
    of = _STATISTICS[statistic]
    return _of_two(lambda a, b: of(a) - of(b), after, before, paired, seed)


def paired_test(a: Values, b: Values) -> float | None:
    """Return the two-sided p-value of Student's paired t-test that the mean of a - b is 0.

    `a[i]` and `b[i]` are of one seed. None of fewer than two pairs; 1 if no pair differs, 0 if all differ
    by the same.

    Raises:
        ValueError: different lengths.
    """
    differences = np.subtract(*_pairs(a, b))
    if len(differences) < 2:
        return None
    if not np.ptp(differences):
        return 0.0 if differences[0] else 1.0
    from scipy.stats import ttest_1samp  # takes a second to import

    return float(ttest_1samp(differences, 0.0).pvalue)


def time_to_score(times: Values, scores: Values, target: float) -> float | None:
    """Return the seconds of training until a score was first `target` or more; None if it never was.

    `times` [epochs]: seconds of every epoch from the first, warm-up included (of the slowest rank);
    `scores` [epochs]: the score after it, NaN where none was taken. Evaluations take no time.

    Raises:
        ValueError: different lengths.
    """
    seconds, reached = _pairs(times, scores)
    (hits,) = np.nonzero(reached >= target)
    return float(seconds[: hits[0] + 1].sum()) if len(hits) else None


_STATISTICS: dict[Statistic, Callable[[np.ndarray], float]] = {"median": np.median, "mean": np.mean}


def _of_two(
    figure: Callable[[np.ndarray, np.ndarray], float], after: Values, before: Values, paired: bool, seed: int
) -> Interval:
    """Return a figure of two samples with its expanded-percentile-bootstrap interval."""
    a, b = np.asarray(after, dtype=np.float64), np.asarray(before, dtype=np.float64)
    rng = np.random.default_rng(seed)
    centre = float(figure(a, b))
    if paired:
        a, b = _pairs(a, b)
        drawn = (rng.integers(len(a), size=len(a)) for _ in range(RESAMPLES))
        figures = [figure(a[rows], b[rows]) for rows in drawn]
    else:
        a, b = _thinned(np.sort(a)), _thinned(np.sort(b))
        figures = [figure(rng.choice(a, len(a)), rng.choice(b, len(b))) for _ in range(RESAMPLES)]
    return _interval(centre, figures, _tail(min(len(a), len(b))))


def _interval(centre: float, figures: Sequence[float], tail: float) -> Interval:
    low, high = np.nanpercentile(figures, [100 * tail, 100 * (1 - tail)])
    return Interval(centre, float(low), float(high))


def _tail(count: int) -> float:
    """Return the share of resamples left out at each end of an interval from `count` values."""
    if count < 2:
        return 0.0
    quantile = special.stdtrit(count - 1, 0.5 + CONFIDENCE / 2)
    return float(special.ndtr(-math.sqrt(count / (count - 1)) * quantile))


def _thinned(ordered: np.ndarray) -> np.ndarray:
    """Return sorted values, or of very many so many evenly spaced ones."""
    if len(ordered) <= _MOST:
        return ordered
    return ordered[np.linspace(0, len(ordered) - 1, _MOST).round().astype(np.int64)]


def _pairs(a: Values, b: Values) -> tuple[np.ndarray, np.ndarray]:
    if len(a) != len(b):
        raise ValueError(f"pairs need samples of one length, not {len(a)} and {len(b)}")
    return np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
