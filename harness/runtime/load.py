"""Load: what the cores of a rank did beside the trial, by windows of time.

The kernel counts a core's time in ticks of 10 ms, longer than many an epoch: what is read are windows, and an epoch
has the mean of those that it lies in.
"""

from __future__ import annotations

import hashlib
import os
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

WINDOW_S = 0.5
LEAST_S = 0.2  # a last window that is shorter says nothing: a tick is 5 % of it
TICKS_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
COLUMNS = ("busy_cores", "own_cores", "steal_cores", "throttled", "thermal_throttles", "cpu_mhz")


@dataclass(frozen=True)
class Reading:
    """What the counters say at a moment; None what cannot be read.

    Attributes:
        at: the moment, of `time.perf_counter`.
        busy, stolen: s that the cores worked, for whomever but interrupts, and that the machine's host took from them.
        own: CPU s of this process, and of its children that ended.
        throttled: s in which the control group's quota stopped it.
        thermal: times that heat has slowed the cores down.
        mhz: mean clock of the cores now.
    """

    at: float
    busy: float | None
    stolen: float | None
    own: float
    throttled: float | None
    thermal: int | None
    mhz: float | None


class Load:
    """Reads the load of the cores that this process may use, window by window, and says what epochs had of it.

    One thread looks, another tells of its epochs. A process that may run on more than `most` cores is not pinned: it
    has none of them for itself, and others' load there is not told. `root` is where the kernel's files are.
    """

    def __init__(
        self, most: int | None = None, root: Path = Path("/"), clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._root, self._clock, self._lock = root, clock, Lock()
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        self.cores = cores if most is None or len(cores) <= most else []
        self.machine = _machine(root)
        self._group = _group(root)
        self._last = self._read()
        self._windows: list[tuple[float, float, dict[str, float | None]]] = []

    def look(self, *, last: bool = False) -> None:
        """End the window if it is long enough."""
        with self._lock:
            length = self._clock() - self._last.at
            if length < (LEAST_S if last else WINDOW_S):
                return
            now, before = self._read(), self._last
            self._windows.append((before.at, now.at, _rates(before, now)))
            self._last = now

    def of(self, start: float, end: float) -> dict[str, float | None]:
        """Return `COLUMNS` of an epoch between two moments: means over the windows, by what they share with it.

        `busy_cores`, `own_cores`, `steal_cores`: cores busy with anything, with this process, and taken by the host;
        `throttled`: share of the time; `thermal_throttles`: of the windows, summed; `cpu_mhz`. None where no window
        was, or a counter cannot be read.
        """
        with self._lock:
            first = bisect_right(self._windows, start, key=lambda window: window[1])
            last = bisect_left(self._windows, end, key=lambda window: window[0])
            found = [(min(end, b) - max(start, a), rates) for a, b, rates in self._windows[first:last]]
        result: dict[str, float | None] = dict.fromkeys(COLUMNS)
        for name in COLUMNS if found else ():
            values = [(weight, value) for weight, rates in found if (value := rates[name]) is not None]
            if len(values) == len(found):
                whole = sum(weight for weight, _ in values) if name != "thermal_throttles" else 1
                weighed = ((weight if name != "thermal_throttles" else 1) * value for weight, value in values)
                result[name] = sum(weighed) / whole
        return result

    def report(self) -> dict[str, Any]:
        """Return what tells whose load this is: the machine, in a name that tells nothing of it, and the cores."""
        return {"machine": self.machine, "cores": self.cores, "window_s": WINDOW_S}

    def _read(self) -> Reading:
        at, children = self._clock(), os.times()
        busy, stolen = self._ticks()
        return Reading(
            at, busy, stolen, time.process_time() + children.children_user + children.children_system,
            self._throttled(), self._thermal(), self._mhz(),
        )  # fmt: skip

    def _ticks(self) -> tuple[float | None, float | None]:
        wanted = {f"cpu{core}" for core in self.cores}
        text = _text(self._root / "proc/stat")
        rows = [line.split() for line in (text or "").splitlines() if line.startswith("cpu")]
        own = [list(map(int, row[1:9])) for row in rows if row[0] in wanted and len(row) > 8]
        if not own or len(own) < len(wanted):
            return None, None
        # User, nice, system; and steal. Interrupts are left out: those of the own traffic are no other load.
        return sum(sum(row[:3]) for row in own) / TICKS_S, sum(row[7] for row in own) / TICKS_S

    def _throttled(self) -> float | None:
        told = dict(line.split() for line in (_text(self._group) or "").splitlines()) if self._group else {}
        return int(told["throttled_usec"]) / 1e6 if "throttled_usec" in told else None

    def _thermal(self) -> int | None:
        counts = [self._of_core(core, "thermal_throttle/core_throttle_count") for core in self.cores]
        known = [int(count) for count in counts if count is not None]
        return sum(known) if known else None

    def _mhz(self) -> float | None:
        clocks = [self._of_core(core, "cpufreq/scaling_cur_freq") for core in self.cores]
        known = [int(clock) / 1e3 for clock in clocks if clock is not None]
        return sum(known) / len(known) if known else None

    def _of_core(self, core: int, name: str) -> str | None:
        return _text(self._root / f"sys/devices/system/cpu/cpu{core}" / name)


def _rates(before: Reading, now: Reading) -> dict[str, float | None]:
    length = now.at - before.at

    def rate(start: float | None, end: float | None) -> float | None:
        return None if start is None or end is None else (end - start) / length

    thermal = None if before.thermal is None or now.thermal is None else now.thermal - before.thermal
    values = (
        rate(before.busy, now.busy), rate(before.own, now.own), rate(before.stolen, now.stolen),
        rate(before.throttled, now.throttled), thermal, now.mhz,
    )  # fmt: skip
    return dict(zip(COLUMNS, values, strict=True))


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None


def _group(root: Path) -> Path | None:
    """Return the counters of this process's control group (version 2); None if there are none."""
    for line in (_text(root / "proc/self/cgroup") or "").splitlines():
        if line.startswith("0::"):
            return root / "sys/fs/cgroup" / line[3:].lstrip("/") / "cpu.stat"
    return None


def _machine(root: Path) -> str | None:
    boot = _text(root / "proc/sys/kernel/random/boot_id")
    return None if boot is None else hashlib.blake2b(boot.encode(), digest_size=4).hexdigest()
