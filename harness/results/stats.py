"""Statistics of values, and values as text: significant digits, units, means over seeds, cells of CSV files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from harness.deferred import numpy as np
from harness.errors import readable

if TYPE_CHECKING:
    import pandas as pd


Values: TypeAlias = "Sequence[float] | np.ndarray"
RESAMPLES = 2000
CONFIDENCE = 0.95
NOISY = 0.05
# Of n values, all lie on one side of the median with probability 2 / 2^n: below 6, more than 5 %.
ENOUGH = 6
_MOST = 10_000  # values that are resampled, of more
_CHUNK = 50  # resamples at a time


@dataclass(frozen=True)
class Interval:
    """A value with its interval (95 %, alone or together with others), in the unit of the values."""

    centre: float
    low: float
    high: float

    @property
    def noisy(self) -> bool:
        """Whether the interval is wider than 5 % of the centre."""
        return self.high - self.low > NOISY * abs(self.centre)

    @property
    def absurd(self) -> bool:
        """Whether the ends say nothing: one is infinite, or more than 100 times the other."""
        return not math.isfinite(self.high) or (0 < 100 * self.low < self.high)

    @property
    def beyond_scores(self) -> bool:
        """Whether it is wider than the scale of scores, and so says nothing of one, or of a difference of two."""
        return self.high - self.low > 1

    def has(self, value: float) -> bool:
        """Whether `value` is in the interval, ends included."""
        return self.low <= value <= self.high


def default_warmup(epochs: int) -> int:
    """Return how many of `epochs` are warm-up: a tenth, 1 to 5, but never all."""
    return max(0, min(5, max(1, epochs // 10), epochs - 1))


def mean(values: Values) -> float | None:
    """Return the mean, or None of no values."""
    return float(np.mean(values)) if len(values) else None


def median_interval(values: Values, *, seed: int = 0) -> Interval | None:
    """Return the median with its 95 % percentile-bootstrap interval, or None of no values.

    `values` are in the order in which they were measured: where successive ones are correlated, the interval widens to
    that of as many independent values as they are worth (`independent`), but of values that are not negative no
    further than 0. 2000 resamples, deterministic for `seed`. One value has an interval without width.
    """
    sample = np.sort(np.asarray(values, dtype=np.float64))
    if not len(sample):
        return None
    drawn_of = sample
    if len(sample) > _MOST:  # evenly spaced in sorted order: the quantiles stay, work and memory are bounded
        drawn_of = sample[np.linspace(0, len(sample) - 1, _MOST).round().astype(np.int64)]
    rng, n = np.random.default_rng(seed), len(drawn_of)
    rows = [rng.integers(n, size=(min(_CHUNK, RESAMPLES - i), n)) for i in range(0, RESAMPLES, _CHUNK)]
    medians = np.concatenate([np.median(drawn_of[each], axis=-1) for each in rows])
    low, high = np.quantile(medians, [0.5 - CONFIDENCE / 2, 0.5 + CONFIDENCE / 2])
    centre, wider = float(np.median(sample)), _stretch(len(sample), independent(values))
    least = 0.0 if sample[0] >= 0 else -math.inf
    return Interval(centre, max(least, centre - wider * (centre - float(low))), centre + wider * (float(high) - centre))


def independent(values: Values) -> float:
    """Return the effective sample size of `values`, in the order they came.

    n (1 - r) / (1 + r), r the autocorrelation at a lag of one, of ranks so that single disturbances do not hide it,
    less its bias of -(1 + 3 r) / n (Marriott and Pope, Biometrika 41, 1954); of a first-order autoregression.
    At least 2 of two or more, at most n.
    """
    count = len(values)
    if count < 3 or not np.ptp(values):
        return float(count)
    order = np.empty(count)
    order[np.argsort(values, kind="stable")] = np.arange(count)
    order -= order.mean()
    lag = float(order[1:] @ order[:-1] / (order @ order))
    lag = min(max(lag + (1 + 3 * lag) / count, 0.0), 0.99)
    return max(2.0, count * (1 - lag) / (1 + lag))


def _stretch(count: int, effective: float) -> float:
    """Return the factor by which an interval of `count` values widens if only `effective` are independent."""
    if effective >= count:
        return 1.0
    from scipy import special  # its import takes longer than `harness status` without it

    few, all_of_them = special.stdtrit([effective - 1, count - 1], 0.5 + CONFIDENCE / 2)
    return math.sqrt(count / effective) * float(few / all_of_them)


def time_to_score(times: Values, scores: Values, target: float) -> float | None:
    """Return the seconds of training until a score was first `target` or more; None if it never was.

    `times` [epochs]: seconds of every epoch from the first, warm-up included (of the slowest rank);
    `scores` [epochs]: the score after it, NaN where none was taken. Evaluations take no time. ValueError for
    different lengths.
    """
    if len(times) != len(scores):
        raise ValueError(f"every epoch has a time and a score, not {len(times)} and {len(scores)}")
    seconds, reached = np.asarray(times, dtype=np.float64), np.asarray(scores, dtype=np.float64)
    (hits,) = np.nonzero(reached >= target)
    return float(seconds[: hits[0] + 1].sum()) if len(hits) else None


def derived_target(best: Values, below: float = 0.01) -> float:
    """Return the score to reach where none is named: `below` the mean of a method's best, down to 0.1 point."""
    return math.floor(1000 * (float(np.mean(best)) - below) + 1e-6) / 1000


MISSING = "n/a"
UNAVAILABLE = "not available"
_BINARY = ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))


@dataclass(frozen=True)
class Stat:
    """Mean and sample standard deviation (n - 1; None for one value) of `n` values."""

    mean: float
    std: float | None
    n: int


def numbers(values: pd.Series[Any]) -> np.ndarray:
    """Return values as float64, NaN where there is none."""
    import pandas as pd  # slow, and commands that show no results import this module, too

    return pd.to_numeric(values).to_numpy(dtype=float, na_value=np.nan)


def over_seeds(values: pd.Series[Any] | np.ndarray) -> Stat | None:
    """Return the statistics of the values that are there (an array's: not NaN), None if there are none."""
    own = values if isinstance(values, np.ndarray) else numbers(values)
    present = own[~np.isnan(own)]
    if not len(present):
        return None
    deviation = float(np.std(present, ddof=1)) if len(present) > 1 else None
    return Stat(float(present.mean()), deviation, len(present))


def decimals(value: float, digits: int = 3) -> int:
    """Return how many decimals show `value` with `digits` significant digits."""
    if value == 0 or not math.isfinite(value):
        return 0
    rounded = float(f"{value:.{digits - 1}e}")  # 0.9996 is shown as 1.00
    return max(0, digits - 1 - math.floor(math.log10(abs(rounded))))


def significant(value: float, digits: int = 3) -> str:
    """Write `value` with `digits` significant digits, never with an exponent; zero is "0"."""
    return f"{value:,.{decimals(value, digits)}f}" if value else "0"


def percent(stat: Stat) -> str:
    """Write a score in percent with two decimals."""
    return scaled(Stat(100 * stat.mean, None if stat.std is None else 100 * stat.std, stat.n), 1.0, 2)


def scaled(stat: Stat, unit: float, places: int) -> str:
    """Write "mean ± std" in units of `unit` with `places` decimals, without "± std" for one value."""
    return f"{stat.mean / unit:,.{places}f}" + ("" if stat.std is None else f" ± {stat.std / unit:,.{places}f}")


def common_places(values: Iterable[float]) -> int:
    """Return the decimals that show the smallest of `values` with three significant digits, at most 5."""
    return min(5, max((decimals(value) for value in values), default=0))


def fixed(value: float, places: int) -> str:
    """Write `value` with `places` decimals; zero is "0", what would look like zero is "<0.001" or alike."""
    if not value:
        return "0"
    least = 10.0**-places
    return f"<{least:.{places}f}" if abs(value) < least / 2 else f"{value:,.{places}f}"


def time_unit(largest: float | None) -> tuple[float, str]:
    """Return the unit in which to show times up to `largest` seconds: (seconds, name)."""
    return (1.0, "s") if largest is None or largest >= 1 else (1e-3, "ms")


def byte_unit(largest: float | None) -> tuple[float, str]:
    """Return the binary unit in which `largest` bytes is at least 1: (bytes, name)."""
    return next(((size, name) for size, name in _BINARY if (largest or 0) >= size), _BINARY[-1])


def text(value: object) -> str:
    """Return `value` as text, "" for None and NaN."""
    return "" if value is None or (isinstance(value, float) and value != value) else str(value)


def show_value(value: object) -> str:
    """Write an option's value as briefly as it can be read."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return f"[{','.join(show_value(item) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {show_value(item)}' for key, item in value.items())}}}"
    return str(value)


def trials(count: int) -> str:
    """Return "1 trial" or "3 trials"."""
    return f"{count} trial" if count == 1 else f"{count} trials"


def join_unique(values: Iterable[object]) -> str:
    """Join the distinct values in order, for a table's cell."""
    return ", ".join(dict.fromkeys(text(v) for v in values if text(v)))


def in_csv(value: Any) -> Any:
    """Return what a CSV file has for a value: a text that a spreadsheet would take for a formula, behind a quote."""
    value = readable(value) if isinstance(value, str) else value
    if not isinstance(value, str) or not value.startswith(("=", "+", "-", "@", "\t", "\r")) or len(value) == 1:
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value
