"""On a GPU phases are the device's time, not the host's."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from harness.runtime.batches import AsideClock
from harness.runtime.clock import Clock

pytestmark = pytest.mark.gpu
Spin = Callable[[float], None]


@pytest.fixture(scope="module")
def spin() -> Spin:
    """A function that keeps the device busy for about so many seconds, and returns at once."""
    cycles = 10_000_000
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(cycles)
    start.record()
    torch.cuda._sleep(cycles)
    end.record()
    torch.cuda.synchronize()
    a_second = cycles / start.elapsed_time(end) * 1e3
    return lambda seconds: torch.cuda._sleep(int(seconds * a_second))


def test_work_is_charged_to_the_phase_that_launched_it(spin: Spin) -> None:
    clock = Clock(torch.device("cuda"))
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with clock.epoch() as timed:
        with clock.phase("forward"):
            start.record()
            spin(0.2)
            end.record()
        launched = time.perf_counter()
        with clock.phase("optimize"):
            spin(0.05)
        assert time.perf_counter() - launched < 0.05  # nobody waited for the first spin
    device_s = start.elapsed_time(end) / 1e3
    assert timed.phases["forward"] == pytest.approx(device_s, rel=0.02)
    assert 0.1 * device_s < timed.phases["optimize"] < device_s
    assert sum(timed.phases.values()) == pytest.approx(timed.wall_s, rel=0.02)


def test_work_of_the_host_is_charged_while_the_device_idles(spin: Spin) -> None:
    clock = Clock(torch.device("cuda"))
    with clock.epoch() as timed:
        with clock.phase("sample"):
            time.sleep(0.2)
        with clock.phase("forward"):
            spin(0.1)
    assert timed.phases["sample"] == pytest.approx(0.2, rel=0.1)
    assert sum(timed.phases.values()) == pytest.approx(timed.wall_s, rel=0.02)


def test_a_transfer_beside_the_trainer_is_timed_to_its_end(spin: Spin) -> None:
    clock = Clock(torch.device("cuda"))
    aside, stream = AsideClock(clock), torch.cuda.Stream()
    with clock.epoch() as timed:
        with torch.cuda.stream(stream):
            with aside.phase("comm"):
                launched = time.perf_counter()
                spin(0.2)
                launch_s = time.perf_counter() - launched
            stream.synchronize()
            aside.settle()
        with clock.phase("comm"), clock.waiting():
            spin(0.05)
    assert launch_s < 0.1
    assert timed.busy_s == pytest.approx(0.2, rel=0.3)
    assert timed.phases["comm"] > 0


def test_the_host_has_seconds_of_its_own(spin: Spin) -> None:
    clock = Clock(torch.device("cuda"))
    with clock.epoch() as timed:
        with clock.phase("forward"):
            spin(0.2)
        with clock.phase("sample"):  # while the device is busy with the forward pass
            time.sleep(0.1)
    assert timed.host["sample"] == pytest.approx(0.1, rel=0.1)
    assert timed.phases["sample"] < 0.05
    assert timed.host["forward"] < 0.1
