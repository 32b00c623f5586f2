"""The meters on a real GPU, against what torch says."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch

from harness.runtime.meters import Meters

pytestmark = pytest.mark.gpu
BLOCK = 512 * 2**20


@pytest.fixture
def meters() -> Iterator[Meters]:
    device = torch.device("cuda", 0)
    torch.zeros(1, device=device)
    torch.cuda.empty_cache()  # what earlier tests left would hide what these allocate
    torch.cuda.reset_peak_memory_stats(device)
    meters = Meters(device, local_rank=0, timing="plain", phase=lambda: "forward")
    yield meters
    meters.close()


def _work(seconds: float) -> None:
    matrix = torch.rand(4096, 4096, device="cuda")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        matrix = torch.nn.functional.normalize(matrix @ matrix)
        torch.cuda.synchronize()


def _or_skip(report: dict[str, object], figure: str) -> None:
    unavailable = report["unavailable"]
    assert isinstance(unavailable, dict)
    if figure in unavailable:
        pytest.skip(f"{figure} is not available here: {unavailable[figure]}")


def test_both_peaks_see_a_block_and_the_drivers_is_larger(meters: Meters) -> None:
    before = meters.report()
    _or_skip(before, "nvml_peak_bytes")
    block = torch.ones(BLOCK, dtype=torch.uint8, device="cuda")
    time.sleep(0.5)
    del block
    after = meters.report()
    assert after["allocator_peak_bytes"] >= BLOCK
    # the driver also counts the context and what the allocator keeps
    assert after["nvml_peak_bytes"] > after["allocator_peak_bytes"]
    assert after["nvml_peak_bytes"] - before["nvml_peak_bytes"] == pytest.approx(BLOCK, rel=0.2)


def test_an_evaluation_leaves_no_trace_in_either_peak(meters: Meters) -> None:
    before = meters.report()
    with meters.paused():
        block = torch.ones(2 * BLOCK, dtype=torch.uint8, device="cuda")
        time.sleep(0.3)
        del block
    time.sleep(0.3)
    after = meters.report()
    assert after["allocator_peak_bytes"] - before["allocator_peak_bytes"] < 0.1 * BLOCK
    _or_skip(after, "nvml_peak_bytes")
    assert after["nvml_peak_bytes"] - before["nvml_peak_bytes"] < 0.5 * BLOCK


def test_a_busy_gpu_is_busy_and_its_energy_is_its_power_times_time(meters: Meters) -> None:
    _work(1)
    start = time.monotonic()
    with meters.epoch() as figures:
        _work(3)
    seconds = time.monotonic() - start
    report = meters.report()
    _or_skip(report, "gpu_utilisation")
    assert figures["gpu_utilisation"] is not None
    assert figures["gpu_utilisation"] > 0.5
    histogram = report["gpu_utilisation_histogram"]
    assert sum(histogram[5:]) > sum(histogram[:5])
    _or_skip(report, "energy_gpu_j")
    energy, power = figures["energy_gpu_j"], figures["gpu_power_w"]
    assert energy is not None
    assert power is not None
    assert energy == pytest.approx(power * seconds, rel=0.3)
