"""Values as text: significant digits, units, means over seeds, options."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.deferred import numpy as np
from harness.results.stats import deviation

if TYPE_CHECKING:
    import pandas as pd

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
    """Return values as floats, NaN where there is none."""
    import pandas as pd  # commands that show no results count trials, too

    return pd.to_numeric(values).to_numpy(dtype=float, na_value=np.nan)


def over_seeds(values: pd.Series[Any] | np.ndarray) -> Stat | None:
    """Return the statistics of the values that are there (an array's: not NaN), None if there are none."""
    own = values if isinstance(values, np.ndarray) else numbers(values)
    present = own[~np.isnan(own)]
    return Stat(float(present.mean()), deviation(present), len(present)) if len(present) else None


def decimals(value: float, digits: int = 3) -> int:
    """Return how many decimals show `value` with `digits` significant digits."""
    if value == 0 or not math.isfinite(value):
        return 0
    rounded = float(f"{value:.{digits - 1}e}")  # 0.9996 is shown as 1.00
    return max(0, digits - 1 - math.floor(math.log10(abs(rounded))))


def significant(value: float, digits: int = 3) -> str:
    """Write `value` with `digits` significant digits, never with an exponent; zero is "0"."""
    return f"{value:,.{decimals(value, digits)}f}" if value else "0"


def spread(mean: float, std: float | None, places: int) -> str:
    """Write "mean ± std" with `places` decimals, without "± std" for one value."""
    return f"{mean:,.{places}f}" + ("" if std is None else f" ± {std:,.{places}f}")


def percent(stat: Stat) -> str:
    """Write a score in percent with two decimals."""
    return spread(100 * stat.mean, None if stat.std is None else 100 * stat.std, 2)


def scaled(stat: Stat, unit: float, places: int) -> str:
    """Write a value in units of `unit` with `places` decimals."""
    return spread(stat.mean / unit, None if stat.std is None else stat.std / unit, places)


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
    return str(value)


def trials(count: int) -> str:
    """Return "1 trial" or "3 trials"."""
    return f"{count} trial" if count == 1 else f"{count} trials"


def join_unique(values: Iterable[object]) -> str:
    """Join the distinct values in order, for a table's cell."""
    return ", ".join(dict.fromkeys(text(v) for v in values if text(v)))
