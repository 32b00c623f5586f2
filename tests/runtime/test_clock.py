from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import pytest
import torch

from harness.runtime.clock import PHASES, Clock


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
    assert sum(timed.phases.values()) == pytest.approx(timed.wall_s, abs=0.1)
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
    assert sum(timed.cpu.values()) == pytest.approx(timed.cpu_s, rel=0.01)


def test_transfers_beside_the_trainer_are_busy_but_not_exposed(ticking: None) -> None:
    clock = Clock(torch.device("cpu"))
    with clock.epoch() as timed:
        with clock.phase("comm"):  # one second of an exchange that is waited for
            pass
        clock.transferred(5.0)
        with clock.phase("comm"):  # one second of waiting for the rest of a transfer
            clock.stood_still(1.0)
    assert timed.phases["comm"] == 2
    assert timed.busy_s == 6
    with clock.epoch() as second:
        pass
    assert second.busy_s == 0


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
