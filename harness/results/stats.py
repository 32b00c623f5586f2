"""Statistics of timings: median, its interval, and the rule of what is warm-up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000
NOISY = 0.05
# Of n values, all lie on one side of the median with probability 2 / 2^n: below 6, more than 5 %.
ENOUGH = 6


@dataclass(frozen=True)
class Interval:
    """A median with its 95 % bootstrap interval, in the unit of the values."""

    median: float
    low: float
    high: float

    @property
    def noisy(self) -> bool:
        """Whether the interval is wider than 5 % of the median."""
        return self.high - self.low > NOISY * abs(self.median)


def default_warmup(epochs: int) -> int:
    """Return how many of `epochs` are warm-up: a tenth, 1 to 5, but never all."""
    return max(0, min(5, max(1, epochs // 10), epochs - 1))


def median(values: Sequence[float] | np.ndarray) -> float | None:
    """Return the median, or None of no values."""
    return float(np.median(values)) if len(values) else None


def median_interval(values: Sequence[float] | np.ndarray, *, seed: int = 0) -> Interval | None:
    """Return the median with its 95 % percentile-bootstrap interval, or None of no values.

    Deterministic for `seed`. 2000 resamples; work and memory are bounded by using at most 10,000 values,
    evenly spaced in sorted order, which leaves the quantiles in place.
    """
    sample = np.sort(np.asarray(values, dtype=np.float64))
    if not len(sample):
        return None
    centre = float(np.median(sample))
    if len(sample) > 10_000:
        sample = sample[np.linspace(0, len(sample) - 1, 10_000).round().astype(np.int64)]
    rng = np.random.default_rng(seed)
    medians = np.array([np.median(rng.choice(sample, len(sample))) for _ in range(RESAMPLES)])
    low, high = np.percentile(medians, [2.5, 97.5])
    return Interval(centre, float(low), float(high))
