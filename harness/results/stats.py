"""Statistics of trials: centre and spread, bootstrap intervals, ratios, paired tests, time to a score."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Values = Sequence[float] | np.ndarray
Statistic = Literal["median", "mean"]
RESAMPLES = 2000
CONFIDENCE = 0.95
NOISY = 0.05
# Of n values, all lie on one side of the median with probability 2 / 2^n: below 6, more than 5 %.
ENOUGH = 6
_MOST = 10_000  # values that are resampled, of more
_CHUNK = 50  # resamples at a time


@dataclass(frozen=True)
class Interval:
    """A value with its 95 % interval, in the unit of the values."""

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
    medians = _resampled(np.median, _thinned(sample), np.random.default_rng(seed))
    low, high = np.quantile(medians, [0.5 - CONFIDENCE / 2, 0.5 + CONFIDENCE / 2])
    return Interval(float(np.median(sample)), float(low), float(high))


def mean_interval(values: Values, *, seed: int = 0) -> Interval | None:
    """Return the mean with its 95 % bootstrap interval, or None of no values.

    A percentile bootstrap of few values is too narrow, by sqrt((n-1)/n) and by the normal's quantiles in
    place of Student's; the percentiles are moved out by both (Hesterberg, The American Statistician 69(4),
    2015, section 5.3). No resample of fewer than 6 values reaches far enough: there the interval is
    Student's, with the bootstrap's standard error. Otherwise as `median_interval`.
    """
    sample = np.sort(np.asarray(values, dtype=np.float64))
    if not len(sample):
        return None
    means = _resampled(np.mean, _thinned(sample), np.random.default_rng(seed))
    return _interval(float(sample.mean()), means, len(sample))


def ratio_interval(
    after: Values, before: Values, *, paired: bool, statistic: Statistic = "median", seed: int = 0
) -> Interval | None:
    """Return statistic(after) / statistic(before) with its 95 % bootstrap interval; no unit.

    `paired`: value i of both is of one thing (a seed), so that both are resampled together. The interval is
    as for `mean_interval`, where all is positive of the ratio's logarithm. None if a sample is empty or the
    statistic of `before` is 0. ValueError for paired samples of different lengths.
    """
    found = _of_two(after, before, paired, statistic, seed)
    if found is None or not found.b:
        return None
    a, b, ratio = found.resampled_a, found.resampled_b, found.a / found.b
    if min(a.min(), b.min()) > 0:
        logs = _interval(math.log(ratio), np.log(a / b), found.count)
        return Interval(ratio, math.exp(logs.low), math.exp(logs.high))
    known = b != 0
    return _interval(ratio, a[known] / b[known], found.count)


def difference_interval(
    after: Values, before: Values, *, paired: bool, statistic: Statistic = "median", seed: int = 0
) -> Interval | None:
    """Return statistic(after) - statistic(before) with its interval, in their unit; as `ratio_interval`."""
    found = _of_two(after, before, paired, statistic, seed)
    if found is None:
        return None
    return _interval(found.a - found.b, found.resampled_a - found.resampled_b, found.count)


def paired_test(a: Values, b: Values) -> float | None:
    """Return the two-sided p-value of Student's paired t-test that the mean of a - b is 0.

    `a[i]` and `b[i]` are of one seed. None of fewer than two pairs; 1 if no pair differs, 0 if all differ
    by the same. ValueError for samples of different lengths.
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
    `scores` [epochs]: the score after it, NaN where none was taken. Evaluations take no time. ValueError for
    different lengths.
    """
    seconds, reached = _pairs(times, scores)
    (hits,) = np.nonzero(reached >= target)
    return float(seconds[: hits[0] + 1].sum()) if len(hits) else None


_STATISTICS: dict[Statistic, Callable[..., Any]] = {"median": np.median, "mean": np.mean}


@dataclass(frozen=True)
class _Two:
    """A statistic of two samples, of their resamples [resamples], and how many values the smaller one has."""

    a: float
    b: float
    resampled_a: np.ndarray
    resampled_b: np.ndarray
    count: int


def _of_two(after: Values, before: Values, paired: bool, statistic: Statistic, seed: int) -> _Two | None:
    if not len(after) or not len(before):
        return None
    a, b = np.asarray(after, dtype=np.float64), np.asarray(before, dtype=np.float64)
    of = _STATISTICS[statistic]
    rng = np.random.default_rng(seed)
    if paired:
        resampled_a, resampled_b = _resampled(of, np.stack(_pairs(a, b)), rng)
    else:
        resampled_a, resampled_b = (_resampled(of, _thinned(np.sort(sample)), rng) for sample in (a, b))
    return _Two(float(of(a)), float(of(b)), resampled_a, resampled_b, min(len(a), len(b)))


def _resampled(of: Callable[..., Any], sample: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return a statistic [..., resamples] of resamples of values [..., n]; rows are resampled alike."""
    n = sample.shape[-1]
    drawn = [rng.integers(n, size=(min(_CHUNK, RESAMPLES - i), n)) for i in range(0, RESAMPLES, _CHUNK)]
    return np.concatenate([of(sample[..., rows], axis=-1) for rows in drawn], axis=-1)


def _interval(centre: float, resampled: np.ndarray, count: int) -> Interval:
    """Return the interval of a statistic of `count` values from those of its resamples."""
    from scipy import special  # takes longer to import than statuses take to read

    if count < 2:
        return Interval(centre, centre, centre)
    quantile = float(special.stdtrit(count - 1, 0.5 + CONFIDENCE / 2)) * math.sqrt(count / (count - 1))
    if count < ENOUGH:
        reach = quantile * float(np.std(resampled))
        return Interval(centre, centre - reach, centre + reach)
    tail = float(special.ndtr(-quantile))
    low, high = np.quantile(resampled, [tail, 1 - tail])
    return Interval(centre, float(low), float(high))


def _thinned(ordered: np.ndarray) -> np.ndarray:
    """Return sorted values, or of very many so many evenly spaced ones."""
    if len(ordered) <= _MOST:
        return ordered
    return ordered[np.linspace(0, len(ordered) - 1, _MOST).round().astype(np.int64)]


def _pairs(a: Values, b: Values) -> tuple[np.ndarray, np.ndarray]:
    if len(a) != len(b):
        raise ValueError(f"pairs need samples of one length, not {len(a)} and {len(b)}")
    return np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
