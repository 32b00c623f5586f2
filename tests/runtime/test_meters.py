from __future__ import annotations

import gc
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pynvml
import pytest
import torch
from support.fake_nvml import FakeNvml

from harness.runtime.counters import Absent, Gpu, find_gpu
from harness.runtime.meters import MEASURED, Meters
from harness.runtime.run_config import Timing

BLOCK = 200 * 2**20
CPU = torch.device("cpu")
Make = Callable[..., Meters]


def no_gpu(device: torch.device) -> Gpu:
    raise AssertionError("NVML was asked for on a machine without CUDA device")


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Returns a function that makes meters of this process, with one package in `tmp_path`."""
    made = []
    zone = tmp_path / "intel-rapl:0"
    zone.mkdir()
    for name, text in (("name", "package-0"), ("max_energy_range_uj", "9000000"), ("energy_uj", "0")):
        (zone / name).write_text(text)

    def build(device: torch.device = CPU, *, local_rank: int = 0, timing: Timing = "plain", **given: Any) -> Meters:
        sources = {"phase": lambda: "forward", "powercap": tmp_path, "gpu": no_gpu, **given}
        made.append(Meters(device, local_rank=local_rank, timing=timing, **sources))
        return made[-1]

    yield build
    for meters in made:
        meters.close()


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "meters"]


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def nvml(api: FakeNvml) -> Callable[[torch.device], Gpu]:
    return lambda device: find_gpu(api, "aa-bb", 0)


def test_the_peak_sees_what_was_freed_before_the_report_and_no_pause(make: Make) -> None:
    with make().paused():
        pass  # what earlier tests freed goes back to the kernel now, not between the readings
    meters = make()
    if meters.memory.resident_source != "VmHWM":
        pytest.skip("the kernel cannot reset the peak (/proc/self/clear_refs)")
    before = meters.report()["peak_rss_bytes"]
    with meters.paused():
        np.ones(2 * BLOCK, np.uint8)
    assert meters.report()["peak_rss_bytes"] - before < 0.5 * BLOCK
    np.ones(BLOCK, np.uint8)
    assert 0.9 * BLOCK < meters.report()["peak_rss_bytes"] - before < 1.5 * BLOCK


def test_a_real_epoch_is_sampled_and_reported_as_json(make: Make) -> None:
    meters = make()
    with meters.epoch():
        block = np.ones(BLOCK, np.uint8)
        until(lambda: meters.report()["samples"] >= 3)
    del block
    report = json.loads(json.dumps(meters.report()))
    assert report["by_phase"]["forward"]["samples"] == report["samples"]
    assert BLOCK < report["by_phase"]["forward"]["peak_rss_bytes"] <= 1.02 * report["peak_rss_bytes"]
    assert BLOCK < report["peak_pss_bytes"] <= 1.02 * report["peak_rss_bytes"]
    assert (report["interval_s"], report["counts_for"]) == (0.1, ["energy_cpu_j"])


def test_energy_of_the_packages_is_the_epochs_and_of_one_rank_only(make: Make, tmp_path: Path) -> None:
    counter = tmp_path / "intel-rapl:0" / "energy_uj"
    first, second = make(local_rank=0), make(local_rank=1)
    counter.write_text("8000000")  # before the epoch
    with first.epoch() as one, second.epoch() as other:
        counter.write_text("500000")  # wraps at 9 J
    counter.write_text("3000000")  # after it
    assert one["energy_cpu_j"] == pytest.approx(1.5)
    assert other["energy_cpu_j"] is None
    assert second.report()["unavailable"]["energy_cpu_j"] == "local rank 0 counts for this machine"
    assert second.report()["counts_for"] == []


def test_energy_of_a_gpu_is_of_its_lowest_rank_only(make: Make) -> None:
    api = FakeNvml()
    device = torch.device("cuda", 1)
    ranks = [make(device, local_rank=rank, gpu=nvml(api)) for rank in (1, 3)]  # of 4 ranks on 2 GPUs
    with ranks[0].epoch() as one, ranks[1].epoch() as other:
        api.energy_mj += 12_500
        until(lambda: all(rank._sampler.total.samples >= 2 for rank in ranks))
    assert one == {"energy_gpu_j": 12.5, "energy_cpu_j": None, "gpu_utilisation": 0.5, "gpu_power_w": 250.0}
    assert other == {**dict.fromkeys(one), "gpu_utilisation": 0.5}
    report = ranks[0].report()
    assert report["nvml_peak_bytes"] == 5 * 2**20
    assert sum(report["gpu_utilisation_histogram"]) == report["samples"] > 0
    assert report["counts_for"] == ["energy_gpu_j", "gpu_power_w"]
    assert ranks[1].report()["unavailable"]["energy_gpu_j"] == "local rank 1 counts for this GPU"
    for rank in ranks:
        rank.close()
    assert api.users == 0


def test_a_process_that_the_driver_does_not_list_has_no_peak(make: Make) -> None:
    api = FakeNvml()
    api.processes = [(1, 999)]
    report = make(torch.device("cuda", 0), gpu=nvml(api)).report()
    assert report["nvml_peak_bytes"] is None
    assert "process's id" in report["unavailable"]["nvml_peak_bytes"]


def test_memory_of_the_whole_gpu_clock_and_why_it_is_held_down(make: Make) -> None:
    api = FakeNvml()
    api.processes = []  # a container: nobody is listed
    meters = make(torch.device("cuda", 0), gpu=nvml(api))
    with meters.epoch():
        until(lambda: meters._sampler.total.samples >= 3)
        api.throttle = pynvml.nvmlClocksThrottleReasonSwPowerCap | pynvml.nvmlClocksThrottleReasonSwThermalSlowdown
        api.clock_mhz, api.used_bytes = 900, 20 * 2**20
        before = meters._sampler.total.samples
        until(lambda: meters._sampler.total.samples >= before + 3)
    report = json.loads(json.dumps(meters.report()))
    assert report["nvml_device_peak_bytes"] == 20 * 2**20
    slowed = report["gpu_slowed_share"]
    assert 0 < slowed < 1
    assert report["gpu_slowed"] == {"power cap": pytest.approx(slowed), "heat": pytest.approx(slowed)}
    assert report["gpu_clock_mhz"] == pytest.approx(1500 - 600 * slowed, rel=0.15)
    assert report["gpu_limits"] == {
        "power_cap_w": 600.0, "power_default_w": 700.0, "clock_max_mhz": 1980, "memory_clock_max_mhz": 2619
    }  # fmt: skip


def absent(report: dict[str, Any]) -> set[str]:
    """Names of figures that are None or empty."""
    return {name for name in MEASURED if "." not in name and not report.get(name)}


def test_where_nothing_is_to_be_had_everything_has_a_reason(make: Make, tmp_path: Path) -> None:
    def broken(device: torch.device) -> Gpu:
        raise Absent("NVML: no driver")

    nowhere = tmp_path / "nowhere"
    meters = make(torch.device("cuda", 0), proc=nowhere, powercap=nowhere, gpu=broken)
    with meters.epoch() as figures:
        pass
    report = meters.report()
    assert set(figures.values()) == {None}
    why = report["unavailable"]
    assert why["nvml_peak_bytes"] == why["energy_gpu_j"] == "NVML: no driver"
    assert why["peak_pss_bytes"] == f"{nowhere}/smaps_rollup: No such file or directory"
    assert "evaluations" in why["peak_rss_bytes"]
    assert "no processor package" in why["energy_cpu_j"]
    assert absent(report) - set(why) <= {"by_phase", "allocator_peak_bytes"}


@pytest.mark.parametrize("timing", ["wall", "off"])
def test_wall_and_off_read_nothing(make: Make, timing: Timing) -> None:
    descriptors = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    running = len(threads())
    meters = make(torch.device("cuda", 0), timing=timing)  # no_gpu would raise
    assert len(threads()) == running
    if descriptors:
        assert len(os.listdir("/proc/self/fd")) == descriptors
    with meters.epoch() as figures:
        pass
    report = meters.report()
    assert set(figures.values()) == {None}
    assert report["unavailable"] == dict.fromkeys(MEASURED, f"timing: {timing}")
    assert absent(report) == set(report["unavailable"]) - {"by_phase.peak_rss_bytes"}
    assert report["samples"] is report["interval_s"] is None


def test_an_exception_in_the_thread_is_told_and_no_half_figures_are(make: Make) -> None:
    def phase() -> str:
        raise RuntimeError("lost")

    running = len(threads())
    meters = make(torch.device("cuda", 0), gpu=nvml(FakeNvml()), phase=phase)
    with meters.epoch():
        until(lambda: len(threads()) == running)
    report = meters.report()
    reason = "sampling ended: RuntimeError: lost"
    assert {name for name, why in report["unavailable"].items() if why == reason} == {
        *("nvml_peak_bytes", "nvml_device_peak_bytes", "gpu_utilisation", "gpu_power_w", "by_phase"),
        *("gpu_clock_mhz", "gpu_slowed", "gpu_slowed_share"),
    }
    assert (report["nvml_peak_bytes"], report["gpu_utilisation_histogram"]) == (None, None)
    assert report["peak_rss_bytes"] is not None


def test_the_thread_ends_with_close_and_with_the_meters(make: Make) -> None:
    running = len(threads())
    meters = make()
    assert len(threads()) == running + 1
    meters.close()
    meters.close()
    assert len(threads()) == running
    assert meters.report()["peak_pss_bytes"] is None or meters.report()["peak_pss_bytes"] > 0
    forgotten = Meters(CPU, local_rank=0, timing="plain", phase=str)
    gc.disable()  # no cycle: the last reference is enough
    try:
        del forgotten
        until(lambda: len(threads()) == running)
    finally:
        gc.enable()
