"""Times of one piece of work at several sizes, and the exponent of their growth."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

SIZES = (100_000, 1_000_000, 10_000_000)  # directed edges
SIZE_NAMES = ("1e5", "1e6", "1e7")
WARMUP = 2


def rounds(edges: int) -> int:
    """Timed rounds at a size: enough for a least time, few enough for minutes in all."""
    return {100_000: 20, 1_000_000: 10}.get(edges, 5)


def measure(benchmark: Any, work: Callable[[], Any], series: str, edges: int) -> None:
    """Time `work`; the result bears the names that `table` groups by.

    `table` shows the least time: what other processes add is never negative.
    """
    benchmark.group = series
    benchmark.extra_info.update(series=series, edges=edges)
    benchmark.pedantic(work, rounds=rounds(edges), warmup_rounds=WARMUP)


def table(benchmarks: Iterable[Any]) -> list[str]:
    """Return a line for each series: least milliseconds by size, and the slope of log time to log edges."""
    series: dict[str, dict[int, float]] = defaultdict(dict)
    for done in benchmarks:
        if "series" in done.extra_info and done.stats:
            series[done.extra_info["series"]][done.extra_info["edges"]] = done.stats.min
    lines = []
    for name, least in series.items():
        times = "".join(f"{1e3 * least[size]:>12.3f}" if size in least else " " * 12 for size in SIZES)
        lines.append(f"{name:<36}{times}{slope(least):>10}")
    return lines


def slope(least: dict[int, float]) -> str:
    """Return the least-squares slope of log time against log edges; 1 is linear growth."""
    if len(least) < 2:
        return ""
    edges, seconds = np.array(sorted(least.items())).T
    return f"{np.polyfit(np.log(edges), np.log(seconds), 1)[0]:.2f}"
