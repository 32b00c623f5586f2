"""What measuring costs: epochs with their phases timed against epochs timed as a whole, and the rest."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks import pair

from harness.check.graphs import OnDisk
from harness.check.training import Case
from harness.data.partition.cached import ensure_partitioned
from harness.models.layer import ModelSpec
from harness.runtime.clock import Clock
from harness.runtime.counters import PROC, Reasons
from harness.runtime.meters import INTERVAL_S, Meters, Sampler
from harness.runtime.run_config import TrainSpec
from harness.spec import PartitionSpec

MODEL = ModelSpec(name="sage", layers=3, hidden=64, norm="layer", dropout=0.5)
TRAIN = TrainSpec(epochs=1, threads=1)
WARMUP = 5


@pytest.mark.parametrize(("size", "pairs"), [(100_000, 1000), (1_000_000, 200)], ids=["1e5", "1e6"])
def test_clock_of_one_rank(
    benchmark: Any, planted: Callable[[int], OnDisk], size: int, pairs: int, tmp_path: Path
) -> None:
    """Epochs in turn with phases timed and without (A B B A); all else is the same. Least noise."""
    graph = planted(size).graph
    whole = OnDisk(graph, ensure_partitioned(graph, PartitionSpec(), inductive=False), False)
    work = pair.clock_on_and_off(0, Case(whole, "full", {}, MODEL, TRAIN), world=1)
    tell(f"{size:,} edges, 1 rank", *turns(benchmark, work, pairs))


def test_clock_of_two_ranks(benchmark: Any, planted: Callable[[int], OnDisk], tmp_path: Path) -> None:
    """The same with exchanges, whose times vary with the scheduler."""
    case, pairs = Case(planted(1_000_000), "full", {}, MODEL, TRAIN), 150
    with pair.two_ranks(pair.clock_on_and_off, case, 2 * (pairs + WARMUP), tmp_path / "store") as work:
        tell("1,000,000 edges, 2 ranks", *turns(benchmark, work, pairs))


def turns(benchmark: Any, work: Callable[[], Any], pairs: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the epochs [pairs, (wall, CPU) seconds] with phases timed, and those without."""
    done = benchmark.pedantic(lambda: [work() for _ in range(2 * (pairs + WARMUP))], rounds=1)[2 * WARMUP :]
    on, off = (np.array([row[1:] for row in done if row[0] == how]) for how in (True, False))
    return on, off


def tell(what: str, on: np.ndarray, off: np.ndarray) -> None:
    """Print what the clock costs."""
    print(f"\n{what}, {1e3 * np.median(off[:, 0]):.2f} ms an epoch", end="")
    # The kernel counts CPU time in ticks of milliseconds, so that only its mean says something.
    for name, column, middle in (("median wall", 0, np.median), ("mean CPU", 1, np.mean)):
        low, cost, high = cost_with_interval(on[:, column], off[:, column], middle)
        print(f"; {name} time {cost:+.2%} (95 % interval {low:+.2%} to {high:+.2%})", end="")
    print()


def test_bookkeeping(benchmark: Any) -> None:
    """What clock and meters do in an epoch of 15 phases, with nothing else in it."""
    cpu = torch.device("cpu")
    clock = Clock(cpu)
    meters = Meters(cpu, local_rank=0, enabled=True, phase=lambda: clock.current)

    def epoch() -> None:
        with meters.epoch(), clock.epoch():
            for _ in range(15):
                with clock.phase("forward"):
                    pass

    benchmark.pedantic(epoch, rounds=500, warmup_rounds=20)
    meters.close()
    print(f"\nbookkeeping of an epoch of 15 phases: {1e6 * benchmark.stats.stats.median:.0f} us")


def cost_with_interval(
    on: np.ndarray, off: np.ndarray, middle: Callable[[np.ndarray], Any]
) -> tuple[float, float, float]:
    """Return middle(on) / middle(off) - 1 with its 95 % bootstrap interval: low, estimate, high."""
    draw = np.random.default_rng(0).choice
    ratios = [middle(draw(on, on.size)) / middle(draw(off, off.size)) - 1 for _ in range(1000)]
    low, high = np.percentile(ratios, [2.5, 97.5])
    return float(low), float(middle(on) / middle(off) - 1), float(high)


def test_sampling_thread(benchmark: Any) -> None:
    """What the meters' thread takes of a core: the time of a look, by the looks a second."""
    sampler = Sampler(Reasons(), lambda: "forward", PROC, None)
    sampler.follow(epoch=True)
    sampler.look()  # the rare look that reads the proportional set
    start = time.thread_time()
    benchmark.pedantic(sampler.look, rounds=200)
    share = (time.thread_time() - start) / 200 / INTERVAL_S
    benchmark.extra_info["share"] = share
    print(f"\nsampling takes {100 * share:.3f} % of a core")
