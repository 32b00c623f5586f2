from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import pytest
import torch

from harness.runtime.batches import AsideClock
from harness.runtime.clock import PHASES, Clock, Spans


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let every reading of the time be one second after the last."""
    seconds = itertools.count()
    monkeypatch.setattr("harness.runtime.clock.time.perf_counter", lambda: float(next(seconds)))
    return iter(())


def test_an_inner_phase_stops_the_outer_one(ticking: None) -> None:
    clock = Clock(torch.device("cpu"))
    with clock.epoch() as timed, clock.phase("forward"):
        with clock.phase("comm"):
            pass
        with clock.phase("comm"), clock.phase("wait"):
            pass
    # A mark at every change, one second apart: forward | comm | forward | comm wait comm | forward.
    used = {name: seconds for name, seconds in timed.phases.items() if seconds}
    assert used == {"forward": 3, "comm": 3, "wait": 1, "other": 2}


def test_phases_add_up_to_the_wall_time() -> None:
    clock = Clock(torch.device("cpu"))
    with clock.epoch() as timed:
        for phase in PHASES[:-1]:
            with clock.phase(phase):
                time.sleep(0.02)
    assert set(timed.phases) == set(PHASES)
    assert sum(timed.phases.values()) == pytest.approx(timed.wall_s)
    assert min(timed.phases[phase] for phase in PHASES[:-1]) >= 0.02


def test_outside_an_epoch_nothing_is_timed() -> None:
    clock = Clock(torch.device("cpu"))
    with clock.phase("comm"):
        pass
    with clock.epoch() as timed:
        pass
    assert timed.phases["comm"] == 0


def test_a_failing_epoch_still_closes(ticking: None) -> None:
    clock = Clock(torch.device("cpu"))
    with pytest.raises(RuntimeError, match="boom"), clock.epoch() as timed, clock.phase("backward"):
        raise RuntimeError("boom")
    assert timed.phases["backward"] == 1
    with clock.epoch() as second:
        pass
    assert second.phases["backward"] == 0


def test_cpu_time_is_told_by_phase() -> None:
    clock = Clock(torch.device("cpu"))
    with clock.epoch() as timed:
        with clock.phase("wait"):
            time.sleep(0.2)
        with clock.phase("forward"):
            end = time.process_time() + 0.2
            while time.process_time() < end:
                pass
    assert timed.cpu["forward"] > 0.19
    assert timed.cpu["wait"] < 0.1
    assert sum(timed.cpu.values()) == pytest.approx(timed.cpu_s)


def test_transfers_beside_the_trainer_are_busy_but_not_exposed(ticking: None) -> None:
    clock = Clock(torch.device("cpu"))
    with clock.epoch() as timed:
        with clock.phase("comm"):  # one second of an exchange that is waited for
            pass
        clock.transferred(5.0)
        with clock.phase("comm"), clock.waiting():  # three seconds, one of them for the rest of a transfer
            pass
    assert timed.phases["comm"] == 4
    assert timed.busy_s == 4 - 1 + 5
    with clock.epoch() as second:
        pass
    assert second.busy_s == 0


class Device:
    """A device whose queue of work ends at `end` seconds; the host never waits for it."""

    def __init__(self) -> None:
        self.end = 0.0

    def event(self) -> Event:
        return Event(self)


class Event:
    """An event of a device, which happens when the work launched before it has ended."""

    def __init__(self, device: Device) -> None:
        self._device, self._at = device, 0.0

    def record(self) -> None:
        self._at = self._device.end

    def elapsed_time(self, later: Event) -> float:
        return 1e3 * (later._at - self._at)


def test_a_transfer_on_a_stream_takes_as_long_as_the_stream_not_as_its_launch() -> None:
    """What is launched beside the trainer is timed by the events behind it."""
    device = Device()
    clock = Clock(torch.device("cpu"), events=device.event)
    aside = AsideClock(clock)
    with clock.epoch() as timed:
        with aside.phase("fetch"):
            device.end += 100
        with aside.phase("comm"):
            device.end += 5
        assert timed.busy_s == 0
        aside.settle()
        with clock.phase("comm"):
            device.end += 1
        with clock.phase("comm"), clock.waiting():
            device.end += 2
        aside.settle()
    assert timed.phases["comm"] == pytest.approx(3)
    assert timed.busy_s == pytest.approx(1 + 5)


def test_the_host_has_seconds_of_its_own_beside_a_device(ticking: None) -> None:
    device = Device()
    clock = Clock(torch.device("cpu"), events=device.event)
    with clock.epoch() as timed:
        with clock.phase("sample"):
            clock.moments.now()
        with clock.phase("forward"):
            device.end += 7
    assert (timed.phases["sample"], timed.phases["forward"]) == (0, 7)
    assert (timed.host["sample"], timed.host["forward"]) == (1, 1)


def test_on_a_cpu_the_hosts_seconds_are_the_phases(ticking: None) -> None:
    clock = Clock(torch.device("cpu"))
    with clock.epoch() as timed, clock.phase("sample"):
        pass
    assert timed.host == timed.phases
    assert timed.host["sample"] == 1


def test_spans_exclude_one_another(ticking: None) -> None:
    spans = Spans()
    with spans("prepare"):
        with spans("cache"):
            pass
        with pytest.raises(RuntimeError, match="boom"), spans("cache"):
            raise RuntimeError("boom")
    assert spans.seconds == {"prepare": 3, "cache": 2}


def test_work_beside_the_trainer_is_added_up_by_name() -> None:
    clock = Clock(torch.device("cpu"))
    with clock.working("draws"):
        time.sleep(0.02)
    first = clock.background["draws"][0]
    with pytest.raises(RuntimeError, match="boom"), clock.working("draws"):
        raise RuntimeError("boom")
    wall, cpu = clock.background["draws"]
    assert wall > first >= 0.02
    assert cpu < first


def test_a_clock_that_times_the_whole_only() -> None:
    clock = Clock(torch.device("cpu"), detailed=False)
    with clock.epoch() as timed, clock.phase("forward"):
        assert clock.current == ""
        time.sleep(0.01)
    assert timed.wall_s >= 0.01
    assert not any(timed.phases.values())


def test_the_current_phase() -> None:
    clock = Clock(torch.device("cpu"))
    assert clock.current == ""
    with clock.epoch():
        assert clock.current == "other"
        with clock.phase("forward"), clock.phase("comm"):
            assert clock.current == "comm"
