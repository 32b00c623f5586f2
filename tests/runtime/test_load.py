"""The load of a rank's cores, from files like the kernel's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.runtime.counters import COLUMNS, TICKS_S, WINDOW_S, Load


class Machine:
    """A kernel's files, and a clock: what happens is told by `passes`."""

    def __init__(self, root: Path, cores: int) -> None:
        self.root, self.now, self.cores = root, 100.0, cores
        self.ticks, self.steal, self.throttled = [0.0] * cores, 0.0, 0.0
        self.passes(0)

    def passes(self, seconds: float, busy: float = 0.0, steal: float = 0.0, throttled: float = 0.0) -> None:
        """Let time pass in which each core is busy a share of it, and the first one is stolen one."""
        self.now += seconds
        self.throttled += throttled * seconds * 1e6
        self.steal += steal * seconds * TICKS_S
        self.ticks = [ticks + busy * seconds * TICKS_S for ticks in self.ticks]
        lines = ["cpu  1 1 1 1 1 1 1 1 1 1"]
        for core, ticks in enumerate(self.ticks):
            stolen = self.steal if core == 0 else 0
            user, nice, system, irq, soft = (round(ticks * part) for part in (0.6, 0.1, 0.3, 0.2, 0.5))
            lines.append(f"cpu{core} {user} {nice} {system} 9999 77 {irq} {soft} {round(stolen)} 5 5")
        self.write("proc/stat", "\n".join([*lines, "intr 5 6"]) + "\n")
        self.write("proc/self/cgroup", "0::/mine\n")
        self.write("sys/fs/cgroup/mine/cpu.stat", f"usage_usec 1\nthrottled_usec {round(self.throttled)}\n")

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def load(self, most: int | None = None) -> Load:
        return Load(most, self.root, lambda: self.now)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 2}, raising=False)
    return Machine(tmp_path, 4)


def test_an_epoch_has_what_its_windows_have(machine: Machine) -> None:
    load = machine.load()
    machine.passes(1, busy=0.5)
    load.look()
    machine.passes(2, busy=1.0, steal=0.25, throttled=0.1)
    load.look()
    assert load.cores == [0, 2]
    first, second = load.of(100.2, 100.3), load.of(101, 103)
    assert first["busy_cores"] == pytest.approx(2 * 0.5, abs=0.05)
    assert (first["steal_cores"], first["throttled"]) == (0, 0)
    assert second["busy_cores"] == pytest.approx(2 * 1.0, abs=0.05)
    assert second["steal_cores"] == pytest.approx(0.25, abs=0.01)
    assert second["throttled"] == pytest.approx(0.1)
    both = load.of(100, 103)  # a third of it in the first window
    assert both["busy_cores"] == pytest.approx((1 + 2 * 2) / 3, abs=0.05)
    assert (second["thermal_throttles"], second["cpu_mhz"]) == (None, None)  # this kernel tells none


def test_windows_are_no_shorter_than_ticks_allow(machine: Machine) -> None:
    load = machine.load()
    machine.passes(WINDOW_S / 2, busy=1)
    load.look()
    assert load.of(100, 101) == dict.fromkeys(COLUMNS)
    load.look(last=True)
    assert load.of(100, 100.01)["busy_cores"] == pytest.approx(2, abs=0.2)  # rounded to ticks
    machine.passes(0.05, busy=1)
    load.look(last=True)
    assert load.of(100.26, 100.3) == dict.fromkeys(COLUMNS)


def test_heat_and_clocks_are_those_of_the_own_cores(machine: Machine) -> None:
    def tell(heat: int) -> None:
        for core in range(4):
            folder = f"sys/devices/system/cpu/cpu{core}"
            machine.write(f"{folder}/thermal_throttle/core_throttle_count", f"{heat if core in (0, 1) else 7}\n")
            machine.write(f"{folder}/cpufreq/scaling_cur_freq", f"{1000000 * (core + 1)}\n")

    tell(3)
    load = machine.load()
    machine.passes(1)
    tell(8)
    load.look()
    found = load.of(100, 101)
    assert (found["thermal_throttles"], found["cpu_mhz"]) == (5, 2000)


def test_what_cannot_be_read_is_none(machine: Machine) -> None:
    machine.write("proc/stat", "cpu  1 2 3\ncpu0 1 2 3 4 5 6 7 8\n")  # one of the two cores
    load = machine.load()
    machine.now += 1
    load.look()
    found = load.of(100, 101)
    assert (found["busy_cores"], found["steal_cores"]) == (None, None)
    assert found["own_cores"] is not None


def test_cores_that_a_rank_is_not_pinned_to_are_not_its_own(machine: Machine) -> None:
    assert machine.load(2).cores == [0, 2]
    load = machine.load(1)
    machine.passes(1, busy=1)
    load.look()
    assert (load.cores, load.of(100, 101)["busy_cores"]) == ([], None)
