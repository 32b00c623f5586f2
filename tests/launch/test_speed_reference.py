"""When the reference workload is run; what it is, is measured and not tested here."""

from __future__ import annotations

import errno
import os
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import BrokenBarrierError

import pytest

from harness.launch import machines as module
from harness.launch.hardware import usable_cores
from harness.launch.machines import EVERY, SpeedReference
from harness.results.environment import Measurement, machine, measurements, note
from harness.runtime.speed_reference import measure

CORES = len(usable_cores())


class Machine:
    """Is measured by `run`, each time a second slower."""

    def __init__(self) -> None:
        self.now, self.count = datetime(2026, 1, 2, tzinfo=UTC), 0

    def run(self) -> Measurement | None:
        self.count += 1
        return Measurement(machine=machine(), when=self.now, seconds=self.count, cores=CORES)

    def broken(self) -> None:
        self.count += 1

    def wait(self, **since: float) -> None:
        self.now += timedelta(**since)


def seconds(found: Measurement | None) -> float | None:
    return found and found.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Machine:
    here = Machine()

    class Clock:
        @staticmethod
        def now(zone: object) -> datetime:
            return here.now

    monkeypatch.setattr(module, "datetime", Clock)
    return here


def test_it_is_run_first_then_every_few_minutes_and_last(clock: Machine, tmp_path: Path) -> None:
    reference, seen = SpeedReference(tmp_path), []
    for _ in range(3):
        seen.append(seconds(reference.before(clock.run)))
        clock.wait(seconds=EVERY.total_seconds() * 0.6)
    assert seen == [1, 1, 2]
    reference.after(nullcontext(True))
    reference.after(nullcontext(True))  # no trial since
    assert [each.seconds for each in measurements(tmp_path)] == [1, 2, 3]


def test_a_run_goes_on_with_the_last_time_of_one_just_before(clock: Machine, tmp_path: Path) -> None:
    SpeedReference(tmp_path).before(clock.run)
    other = Measurement(machine="00000000", when=clock.now + timedelta(seconds=1), seconds=99, cores=2)
    note(tmp_path, [other])
    clock.wait(seconds=2)
    again = SpeedReference(tmp_path)
    assert seconds(again.before(clock.run)) == 1
    clock.wait(days=1)
    assert seconds(again.before(clock.run)) == 2


def test_a_time_of_other_cores_is_another_workloads(clock: Machine, tmp_path: Path) -> None:
    note(tmp_path, [Measurement(machine=machine(), when=clock.now, seconds=99, cores=CORES + 1)])
    assert seconds(SpeedReference(tmp_path).before(clock.run)) == 1


def test_nothing_is_measured_beside_trials_or_where_none_ran(clock: Machine, tmp_path: Path) -> None:
    reference = SpeedReference(tmp_path)
    reference.after(nullcontext(True))
    assert clock.count == 0
    reference.before(clock.run)
    reference.after(nullcontext(False))
    assert clock.count == 1


def test_a_workload_that_fails_leaves_no_time(clock: Machine, tmp_path: Path) -> None:
    reference = SpeedReference(tmp_path)
    assert reference.before(clock.broken) is None
    assert measurements(tmp_path) == []
    assert reference.before(clock.run) is None
    clock.wait(seconds=EVERY.total_seconds())
    assert seconds(reference.before(clock.run)) == 2  # it may take long to fail


def test_a_workload_that_cannot_be_written_harms_no_trial(clock: Machine, tmp_path: Path) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    assert SpeedReference(tmp_path).before(full) is None


def test_a_full_disk_harms_no_trial(clock: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(directory: Path, new: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "note", full)
    assert seconds(SpeedReference(tmp_path).before(clock.run)) == 1


def test_the_workload_is_run_on_the_cores_that_are_named() -> None:
    cores = sorted(os.sched_getaffinity(0))
    assert 0 < measure(cores, repetitions=1) < 60
    assert sorted(os.sched_getaffinity(0)) == cores
    with pytest.raises((OSError, BrokenBarrierError)):  # and none waits for the one that failed
        measure([*cores, 100_000], repetitions=1)
