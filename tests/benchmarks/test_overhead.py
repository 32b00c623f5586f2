"""What measuring costs: epochs of which everything is measured against epochs timed as a whole only."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks import pair
from support.graphs import OnDisk
from support.training import Case

from harness.models.spec import ModelSpec
from harness.runtime.memory import PROC
from harness.runtime.meters.absent import Reasons
from harness.runtime.meters.sampler import INTERVAL_S, Sampler
from harness.runtime.spec import TrainSpec

MODEL = ModelSpec(name="sage", layers=3, hidden=64, norm="layer", dropout=0.5)
WARMUP = 2


@pytest.mark.parametrize(("size", "pairs"), [(100_000, 200), (1_000_000, 60)], ids=["1e5", "1e6"])
def test_clock_and_counters(
    benchmark: Any, planted: Callable[[int], OnDisk], size: int, pairs: int, tmp_path: Path
) -> None:
    """Two ranks; epochs in turn with clock, byte counters and meters, and without (A B B A)."""
    case = Case(planted(size), "full", {}, MODEL, TrainSpec(epochs=1, threads=1))
    with pair.two_ranks(pair.measured_or_not, case, 2 * (pairs + WARMUP), tmp_path / "store") as work:
        seconds = benchmark.pedantic(lambda: [work() for _ in range(2 * (pairs + WARMUP))], rounds=1)
    first, second = seconds[2 * WARMUP :: 2], seconds[2 * WARMUP + 1 :: 2]
    # Of every second pair the measured epoch came second.
    ratios = [a / b if i % 2 == 0 else b / a for i, (a, b) in enumerate(zip(first, second, strict=True))]
    low, _, high = statistics.quantiles(ratios)
    cost = statistics.median(ratios) - 1
    benchmark.extra_info["cost"] = cost
    print(
        f"\n{size:,} edges, {1e3 * statistics.median(seconds):.2f} ms an epoch: measuring costs "
        f"{100 * cost:+.2f} % (median of {pairs} pairs; middle half {100 * (low - 1):+.1f} to "
        f"{100 * (high - 1):+.1f} %)"
    )


def test_sampling_thread(benchmark: Any) -> None:
    """What the meters' thread takes of a core: the time of a look, by the looks a second."""
    sampler = Sampler(Reasons(), lambda: "forward", PROC, None, None)
    sampler.samples.open_epoch()
    sampler.look()  # the rare look that reads the proportional set
    start = time.thread_time()
    benchmark.pedantic(sampler.look, rounds=200)
    share = (time.thread_time() - start) / 200 / INTERVAL_S
    benchmark.extra_info["share"] = share
    print(f"\nsampling takes {100 * share:.3f} % of a core")
    sampler.close()
