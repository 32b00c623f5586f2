"""What the kernel and the drivers count of a rank: memory, processor time, energy."""

from __future__ import annotations

import hashlib
import os
import re
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from harness.deferred import torch

T = TypeVar("T")

POWERCAP = Path("/sys/class/powercap")


class Absent(Exception):  # noqa: N818 - a counter that is not there is a state, not an error
    """A metric cannot be had on this machine; the message says why."""


class Reasons:
    """Why metrics are not available: the first reason of each; after it the metric is not read again.

    Attributes:
        why: reason by the metric's name.
    """

    def __init__(self) -> None:
        self.why: dict[str, str] = {}

    def add(self, metrics: Iterable[str], reason: str) -> None:
        """Give up these metrics for `reason`, if they have not been already."""
        for metric in metrics:
            self.why.setdefault(metric, reason)

    def attempt(self, read: Callable[[], T], *metrics: str) -> T | None:
        """Return what `read` returns; None if it raises `Absent` or all of `metrics` were given up before."""
        if all(metric in self.why for metric in metrics):
            return None
        try:
            return read()
        except Absent as absent:
            self.add(metrics, str(absent))
            return None


SLOWED = {
    "SwPowerCap": "power cap", "HwSlowdown": "hardware slowdown", "SyncBoost": "sync boost",
    "SwThermalSlowdown": "heat", "HwThermalSlowdown": "heat (hardware)", "HwPowerBrakeSlowdown": "power brake",
}  # fmt: skip
"""Why a driver holds a GPU's clock down, by the ends of the names of NVML's constants; not that it idles, nor that
somebody set its clocks."""


class Gpu:
    """One GPU, or MIG instance, as NVML sees it. Nothing here waits for the GPU's work.

    Args:
        api: the module `pynvml`, initialised.
        handle: NVML's handle of the device.
        what: what errors are said of.

    Raises (all methods):
        Absent: the driver does not give the metric for this device.
    """

    def __init__(self, api: Any, handle: Any, what: str) -> None:
        self._api, self._handle, self._what = api, handle, what

    def memory(self) -> int | None:
        """Return the bytes that this process holds on the device; None if it is not listed (yet)."""
        processes = self._ask(self._api.nvmlDeviceGetComputeRunningProcesses)
        own = [process.usedGpuMemory for process in processes if process.pid == os.getpid()]
        if not own:
            return None
        if own[0] is None:
            raise Absent(f"NVML ({self._what}): memory is not told by process")
        return int(own[0])

    def device_memory(self) -> int:
        """Return the bytes in use on the device, whoever uses them."""
        return int(self._ask(self._api.nvmlDeviceGetMemoryInfo).used)

    def clock(self) -> float:
        """Return the clock of the multiprocessors in MHz."""
        return float(self._ask(lambda handle: self._api.nvmlDeviceGetClockInfo(handle, self._api.NVML_CLOCK_SM)))

    def slowed(self) -> tuple[str, ...]:
        """Return why the clock is held down now, in words of `SLOWED`; () if it is not."""
        bits = self._ask(self._api.nvmlDeviceGetCurrentClocksThrottleReasons)
        flags = {said: getattr(self._api, f"nvmlClocksThrottleReason{end}", 0) for end, said in SLOWED.items()}
        return tuple(said for said, bit in flags.items() if bits & bit)

    def limits(self) -> dict[str, float | None]:
        """Return the power cap and its default (W), and the highest clocks (MHz); None of what is not told."""
        api = self._api
        asked: dict[str, Callable[[], float]] = {
            "power_cap_w": lambda: self._ask(api.nvmlDeviceGetEnforcedPowerLimit) / 1e3,
            "power_default_w": lambda: self._ask(api.nvmlDeviceGetPowerManagementDefaultLimit) / 1e3,
            "clock_max_mhz": lambda: self._ask(lambda own: api.nvmlDeviceGetMaxClockInfo(own, api.NVML_CLOCK_SM)),
            "memory_clock_max_mhz": lambda: self._ask(
                lambda own: api.nvmlDeviceGetMaxClockInfo(own, api.NVML_CLOCK_MEM)
            ),
        }
        absent = Reasons()
        return {name: absent.attempt(read, name) for name, read in asked.items()}

    def utilisation(self) -> float:
        """Return the share of time (0..1) with a kernel running, over the driver's last 1/6 to 1 s."""
        return float(self._ask(self._api.nvmlDeviceGetUtilizationRates).gpu) / 100

    def power(self) -> float:
        """Return the device's power in watts, whoever uses it."""
        return float(self._ask(self._api.nvmlDeviceGetPowerUsage)) / 1e3

    def energy(self) -> float:
        """Return the device's energy in joules since the driver was loaded, whoever used it."""
        return float(self._ask(self._api.nvmlDeviceGetTotalEnergyConsumption)) / 1e3

    def close(self) -> None:
        """Release NVML."""
        self._api.nvmlShutdown()

    def _ask(self, function: Callable[[Any], T]) -> T:
        try:
            return function(self._handle)
        except self._api.NVMLError as error:
            raise Absent(f"NVML ({self._what}): {error}") from None


def open_gpu(device: torch.device) -> Gpu:
    """Return the GPU that torch calls `device`.

    Raises:
        Absent: NVML is not there or does not know the device.
    """
    import pynvml

    index = torch.cuda.current_device() if device.index is None else device.index
    return find_gpu(pynvml, str(torch.cuda.get_device_properties(index).uuid), index)


def find_gpu(api: Any, uuid: str, index: int) -> Gpu:
    """Return the GPU with CUDA's `uuid`, or if NVML knows none, the one at `index` of CUDA_VISIBLE_DEVICES.

    `uuid` is without GPU- or MIG-; `index` is among the devices that CUDA sees, which the variable lists by index
    or UUID. NVML and CUDA may number GPUs differently; the index is right for GPUs of one kind or with
    CUDA_DEVICE_ORDER=PCI_BUS_ID. `api` is the module `pynvml`.

    Raises:
        Absent: NVML is not there or knows neither.
    """
    try:
        api.nvmlInit()
    except api.NVMLError as error:
        raise Absent(f"NVML: {error}") from None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    entries = [] if visible is None else visible.split(",")
    names = [f"GPU-{uuid}", f"MIG-{uuid}", entries[index].strip() if index < len(entries) else str(index)]
    failure = None
    for name in names:
        try:
            by_index = name.isdigit()
            handle = api.nvmlDeviceGetHandleByIndex(int(name)) if by_index else api.nvmlDeviceGetHandleByUUID(name)
        except api.NVMLError as error:
            failure = error
        else:
            return Gpu(api, handle, "MIG instance" if name.startswith("MIG-") else "GPU")
    api.nvmlShutdown()
    raise Absent(f"NVML knows none of {', '.join(names)}: {failure}")


def read_text(path: Path) -> str:
    """Return what a file of /proc or /sys says now.

    Raises:
        Absent: it cannot be read.
    """
    try:
        return path.read_text()
    except OSError as error:
        raise Absent(f"{path}: {error.strerror}") from None


def resident_size(proc: Path) -> int:
    """Return the bytes of this process's resident set (`statm`)."""
    return int(read_text(proc / "statm").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def proportional_size(proc: Path) -> int:
    """Return the bytes of this process's proportional set (`smaps_rollup`): a page shared by n processes counts 1/n.

    The kernel walks the whole page table for it: milliseconds for each GB.
    """
    line = next(x for x in read_text(proc / "smaps_rollup").splitlines() if x.startswith("Pss:"))
    return int(line.split()[1]) * 1024


class PackageEnergy:
    """Energy of all processor packages of the machine, whoever uses them (RAPL, also AMD's).

    Only zones called package-N count: sub-zones are not zones of their own, and `psys` holds the packages. https://docs.kernel.org/power/powercap/powercap.html

    Raises:
        Absent: there is no package, or one cannot be read (most kernels let only root).
    """

    def __init__(self, root: Path = POWERCAP) -> None:
        zones = [path for path in sorted(root.glob("intel-rapl:*")) if re.fullmatch(r"intel-rapl:\d+", path.name)]
        self._packages = [zone for zone in zones if read_text(zone / "name").startswith("package")]
        if not self._packages:
            raise Absent(f"{root}: no processor package (RAPL) is listed")
        self._ranges, self._last = self._read("max_energy_range_uj"), self._read("energy_uj")
        self._total, self._lock = 0, Lock()

    def joules(self) -> float:
        """Return the joules since this object was made; ask more often than a counter wraps (minutes)."""
        with self._lock:
            before, self._last = self._last, self._read("energy_uj")
            for start, end, wrap in zip(before, self._last, self._ranges, strict=True):
                self._total += end - start + (wrap if end < start else 0)
            return self._total / 1e6

    def _read(self, name: str) -> list[int]:
        return [int(read_text(package / name)) for package in self._packages]


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
