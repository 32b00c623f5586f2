from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.fake_nvml import FakeNvml

from harness.runtime.counters import Reasons, find_gpu
from harness.runtime.meters import PSS_SHARE, RESIDENT, Sampler

PAGE = os.sysconf("SC_PAGE_SIZE")


class Bench:
    """A sampler on a fake process and driver, looked through by hand."""

    def __init__(self, proc: Path) -> None:
        self.proc, self.phase, self.api, self.reasons = proc, "other", FakeNvml(), Reasons()
        self.set(pages=1, pss_kib=1)
        gpu = find_gpu(self.api, "aa-bb", 0)
        self.samples = Sampler(self.reasons, lambda: self.phase, proc, gpu)

    def set(self, *, pages: int = 1, pss_kib: int = 1, percent: int = 0, watts: int = 0) -> None:
        (self.proc / "statm").write_text(f"900 {pages} 3 4 0 6 0\n")
        (self.proc / "smaps_rollup").write_text(f"0-1 ---p 0 [rollup]\nRss: 9 kB\nPss:  {pss_kib} kB\n")
        self.api.utilisation_percent, self.api.power_mw = percent, watts * 1000

    def look(self, phase: str, **figures: int) -> None:
        self.phase = phase
        self.set(**figures)
        self.samples.look(last=True)
        assert self.samples.failure is None


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_samples_are_filed_under_the_phase_they_were_taken_in(bench: Bench) -> None:
    bench.samples.follow(epoch=True)
    bench.look("forward", pages=10, percent=40, watts=100)
    bench.look("forward", pages=30, percent=60, watts=200)
    bench.look("comm", pages=20, percent=0, watts=50)
    bench.look("", pages=99)  # between two epochs
    bench.samples.follow(epoch=False)
    bench.look("forward", pages=99, percent=100, watts=999)
    rows = {name: summary.row() for name, summary in bench.samples.by_phase.items()}
    assert rows == {
        "forward": {"samples": 2, "peak_rss_bytes": 30 * PAGE, "gpu_utilisation": 0.5, "gpu_power_w": 150.0},
        "comm": {"samples": 1, "peak_rss_bytes": 20 * PAGE, "gpu_utilisation": 0.0, "gpu_power_w": 50.0},
    }


def test_utilisation_falls_into_tenths(bench: Bench) -> None:
    bench.samples.follow(epoch=True)
    for percent in (0, 9, 10, 55, 99, 100):
        bench.look("forward", percent=percent)
    assert bench.samples.total.tenths == {0: 2, 1: 1, 5: 1, 9: 2}


def test_an_epochs_means_are_of_its_own_samples(bench: Bench) -> None:
    first = bench.samples.follow(epoch=True)
    bench.look("forward", percent=20)
    bench.samples.follow(epoch=False)
    bench.look("forward", percent=100)
    second = bench.samples.follow(epoch=True)
    bench.look("forward", percent=80)
    third = bench.samples.follow(epoch=True)
    assert [s.mean("gpu_utilisation") for s in (first, second, third)] == [0.2, 0.8, None]


def test_a_pause_is_left_out_even_of_a_reading_that_outlasts_it(bench: Bench) -> None:
    bench.samples.follow(epoch=True)
    bench.look("forward", pages=5, pss_kib=7)
    bench.samples.turn()
    bench.look("forward", pages=50, pss_kib=70)
    bench.samples.turn()

    def slow_read() -> int:  # an evaluation comes and goes meanwhile
        bench.samples.turn()
        bench.samples.turn()
        return 99 * PAGE

    bench.samples._readers[RESIDENT] = slow_read
    bench.samples.look()
    assert bench.samples.by_phase["forward"].row()["peak_rss_bytes"] == 5 * PAGE
    assert bench.samples.peaks["peak_pss_bytes"] == 7 * 1024
    assert bench.samples.total.samples == 1


def test_a_figure_that_fails_is_given_up_and_the_others_go_on(bench: Bench) -> None:
    bench.samples.follow(epoch=True)
    bench.api.missing = ("nvmlDeviceGetPowerUsage",)
    bench.look("forward", percent=30)
    bench.api.missing = ()
    bench.look("forward", percent=30, watts=70)
    row = bench.samples.by_phase["forward"].row()
    assert (row["gpu_power_w"], row["gpu_utilisation"]) == (None, 0.3)
    assert bench.reasons.why == {"gpu_power_w": "NVML (GPU): Not Supported"}


def test_the_page_table_is_walked_less_often_where_that_takes_long(bench: Bench) -> None:
    clock = iter([0.0, 0.05, 1.0, 1.001])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harness.runtime.meters.time.thread_time", lambda: next(clock))
        bench.look("")
        bench.look("")
    assert bench.samples.pss_interval_s == pytest.approx(0.05 / PSS_SHARE)
