from __future__ import annotations

import itertools
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
                torch.rand(200, 200) @ torch.rand(200, 200)
    assert set(timed.phases) == set(PHASES)
    assert sum(timed.phases.values()) == pytest.approx(timed.wall_s, rel=0.02)


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
