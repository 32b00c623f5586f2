"""Counters of the kernel and the drivers: memory of a rank and its heap, a GPU, energy, load of the cores."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import resource
import sys
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from harness.deferred import torch
from harness.graph.devices import give_back, kind_of

T = TypeVar("T")

POWERCAP = Path("/sys/class/powercap")


class Absent(Exception):  # noqa: N818 - a counter that is not there is a state, not an error
    """A metric cannot be had on this machine; the message says why."""


class Reasons(dict[str, str]):
    """Why metrics are not available, by name: the first reason of each; after it the metric is not read again."""

    def add(self, metrics: Iterable[str], reason: str) -> None:
        """Give up these metrics for `reason`, if they have not been already."""
        for metric in metrics:
            self.setdefault(metric, reason)

    def attempt(self, read: Callable[[], T], *metrics: str) -> T | None:
        """Return the result of `read`; None if it raises `Absent` or all of `metrics` were given up before."""
        if all(metric in self for metric in metrics):
            return None
        try:
            return read()
        except Absent as absent:
            self.add(metrics, str(absent))
            return None


# Why a driver holds a GPU's clock down, by the ends of the names of NVML's constants; not that it idles, nor that its
# clocks were set.
SLOWED = {
    "SwPowerCap": "power cap", "HwSlowdown": "hardware slowdown", "SyncBoost": "sync boost",
    "SwThermalSlowdown": "heat", "HwThermalSlowdown": "heat (hardware)", "HwPowerBrakeSlowdown": "power brake",
}  # fmt: skip


class Gpu:
    """One GPU, or MIG instance, as NVML sees it. Nothing here waits for the GPU's work.

    `api`: the module `pynvml`, initialised; `handle`: NVML's of the device; `what`: the device's kind, for errors. All
    methods raise Absent where the driver does not give the metric for this device.
    """

    def __init__(self, api: Any, handle: Any, what: str) -> None:
        self.api, self._handle, self._what = api, handle, what

    def ask(self, function: str, *arguments: Any) -> Any:
        """Return what a function of NVML says of the device."""
        try:
            return getattr(self.api, function)(self._handle, *arguments)
        except self.api.NVMLError as error:
            raise Absent(f"NVML ({self._what}): {error}") from None

    def memory(self) -> int | None:
        """Return the bytes that this process holds on the device; None if it is not listed (yet)."""
        processes = self.ask("nvmlDeviceGetComputeRunningProcesses")
        own = [process.usedGpuMemory for process in processes if process.pid == os.getpid()]
        if not own:
            return None
        if own[0] is None:
            raise Absent(f"NVML ({self._what}): memory is not given by process")
        return int(own[0])

    def slowed(self) -> tuple[str, ...]:
        """Return why the clock is held down now, in words of `SLOWED`; () if it is not."""
        bits = self.ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        flags = {said: getattr(self.api, f"nvmlClocksThrottleReason{end}", 0) for end, said in SLOWED.items()}
        return tuple(said for said, bit in flags.items() if bits & bit)

    def limits(self) -> dict[str, float | None]:
        """Return the power cap and its default (W), and the highest clocks (MHz); None where they are not known."""
        functions = {
            "power_cap_w": lambda: self.ask("nvmlDeviceGetEnforcedPowerLimit") / 1e3,
            "power_default_w": lambda: self.ask("nvmlDeviceGetPowerManagementDefaultLimit") / 1e3,
            "clock_max_mhz": lambda: self.ask("nvmlDeviceGetMaxClockInfo", self.api.NVML_CLOCK_SM),
            "memory_clock_max_mhz": lambda: self.ask("nvmlDeviceGetMaxClockInfo", self.api.NVML_CLOCK_MEM),
        }
        return {name: Reasons().attempt(read, name) for name, read in functions.items()}


# By metric; all but the memory of this process are of the whole device. The utilisation is the share of time with a
# kernel running, over the driver's last 1/6 to 1 s; the energy counts from when the driver was loaded.
GPU_COUNTERS: dict[str, Callable[[Gpu], Any]] = {
    "nvml_peak_bytes": Gpu.memory,
    "nvml_device_peak_bytes": lambda gpu: int(gpu.ask("nvmlDeviceGetMemoryInfo").used),
    "gpu_utilisation": lambda gpu: gpu.ask("nvmlDeviceGetUtilizationRates").gpu / 100,
    "gpu_power_w": lambda gpu: gpu.ask("nvmlDeviceGetPowerUsage") / 1e3,
    "gpu_clock_mhz": lambda gpu: float(gpu.ask("nvmlDeviceGetClockInfo", gpu.api.NVML_CLOCK_SM)),
    "gpu_slowed": Gpu.slowed,
    "energy_gpu_j": lambda gpu: gpu.ask("nvmlDeviceGetTotalEnergyConsumption") / 1e3,
}


def open_gpu(device: torch.device) -> Gpu:
    """Return the GPU that torch calls `device`; raises as `find_gpu`."""
    import pynvml

    index = torch.cuda.current_device() if device.index is None else device.index
    return find_gpu(pynvml, str(torch.cuda.get_device_properties(index).uuid), index)


def find_gpu(api: Any, uuid: str, index: int) -> Gpu:
    """Return the GPU with CUDA's `uuid`, or if NVML knows none, the one at `index` of CUDA_VISIBLE_DEVICES.

    `uuid` is without GPU- or MIG-; `index` is among the devices that CUDA sees, which the variable lists by index
    or UUID. NVML and CUDA may number GPUs differently; the index is right for GPUs of one kind or with
    CUDA_DEVICE_ORDER=PCI_BUS_ID. `api` is the module `pynvml`. Raises Absent if NVML is not there or knows neither.
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


def known(read: Callable[[], T]) -> T | None:
    """Return what `read` does; None where the system has no answer."""
    with suppress(AttributeError, OSError, ValueError):
        return read()
    return None


def read_text(path: Path) -> str:
    """Return the present text of a file of /proc or /sys; raises Absent if it cannot be read."""
    try:
        return path.read_text()
    except OSError as error:
        raise Absent(f"{path}: {error.strerror}") from None


def resident_size(proc: Path) -> int:
    """Return the bytes of this process's resident set (`statm`)."""
    return int(read_text(proc / "statm").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def proportional_size(proc: Path) -> int:
    """Return the bytes of this process's proportional set: a page shared by n processes counts 1/n."""
    # The kernel walks the whole page table for it: milliseconds for each GB.
    line = next(x for x in read_text(proc / "smaps_rollup").splitlines() if x.startswith("Pss:"))
    return int(line.split()[1]) * 1024


class PackageEnergy:
    """Energy of all processor packages of the machine, of all processes (RAPL, also AMD's).

    Only zones called package-N count: sub-zones are not zones of their own, and `psys` holds the packages. https://docs.kernel.org/power/powercap/powercap.html
    Raises Absent if there is no package, or one cannot be read (most kernels let only root).
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


PROC = Path("/proc/self")
THRESHOLD = "MALLOC_MMAP_THRESHOLD_"
HELD_BYTES, OUTSIDE_BYTES = 2**30, 2**20
_MMAP_THRESHOLD = -3  # of mallopt
_OPEN: list[None] = []  # an item for each `outside_heap` that has begun


def trim_heap() -> None:
    """Return free memory to the kernel: what large matrices left, and of the C library's heap, where it is glibc's."""
    give_back()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


@contextmanager
def outside_heap() -> Iterator[None]:
    """Have blocks from 1 MiB on allocated outside of the heap: each goes back as a whole when it is freed."""
    # A rank's heap keeps what an epoch frees (`harness.launch.process.DEFAULTS`), because the next one needs the same.
    # What is made before stays or is needed once: in the heap it would leave holes that little fits into.
    after = os.environ.get(THRESHOLD, "")
    # Only where an environment variable says what holds again afterwards.
    option = getattr(ctypes.CDLL(None), "mallopt", None) if after.isdecimal() else None
    if option is None:
        yield
        return
    option(_MMAP_THRESHOLD, OUTSIDE_BYTES)
    _OPEN.append(None)
    try:
        yield
    finally:
        _OPEN.pop()
        if not _OPEN:  # an int; the variable's own limit is that of a size
            option(_MMAP_THRESHOLD, min(int(after), 2**31 - 1))


class PeakMemory:
    """Peak of a rank's memory over its training, evaluations left out where the kernel allows.

    Attributes:
        resident_source: "VmHWM", which is reset after each pause (what was freed is given back first); or where the
            kernel refuses that, "ru_maxrss", pauses included.
        source: where `bytes` comes from: torch's CUDA allocator on a GPU, else the resident set.
        base: `bytes` when this was made: of a rank, what interpreter and libraries hold before its data.
    """

    def __init__(self, device: torch.device, proc: Path = PROC) -> None:
        self._status, self._clear = proc / "status", proc / "clear_refs"
        self._device, self._kind = device, kind_of(device)
        self._earlier = {"resident": 0, "allocator": 0}  # peaks before the last reset
        self.resident_source = "VmHWM"
        self._reset_resident()
        self.source = "CUDA allocator" if self._kind.has_allocator else self.resident_source
        self.base, self._mapped = self.bytes(), self._mapped_now()

    def bytes(self) -> int:
        """Return the peak so far, in bytes."""
        allocator = self.allocator()
        return self.resident() if allocator is None else allocator

    def resident(self) -> int:
        """Return the peak resident set of this process, in bytes."""
        if self.resident_source == "VmHWM":
            now = self._line("VmHWM")
        else:
            now = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        return max(self._earlier["resident"], now)

    def allocator(self) -> int | None:
        """Return the peak of what torch's CUDA allocator handed out, in bytes; None without a GPU."""
        return max(self._earlier["allocator"], self._kind.peak(self._device)) if self._kind.has_allocator else None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave what is enclosed out of the peaks; memory that it made the allocator keep is given back."""
        self._earlier = {"resident": self.resident(), "allocator": self.allocator() or 0}
        kept = self._kind.reserved(self._device) if self._kind.has_allocator else 0
        try:
            yield
        finally:
            if self._kind.has_allocator:
                # Without that, the driver's metric would hold an evaluation's memory for the rest of the training.
                if self._kind.reserved(self._device) > kept:
                    self._kind.give_back()
                self._kind.reset_peak(self._device)
            if self.resident_source == "VmHWM":
                trim_heap()
                self._reset_resident()

    def mapped(self) -> int | None:
        """Bytes by which resident pages of mapped files have grown, which are in `bytes`; None where they are not."""
        # They are the page cache's, one copy a machine, and go when memory is short. They hardly ever become fewer
        # otherwise, so that they are read when the training has ended.
        found = None if self._kind.has_allocator else self._mapped_now()
        return None if found is None or self._mapped is None else max(0, found - self._mapped)

    def state(self) -> dict[str, int]:
        """Return base and peaks so far."""
        return {"base": self.base, "resident": self.resident(), "allocator": self.allocator() or 0}

    def restore(self, state: dict[str, int]) -> None:
        """Take the base of another process, and its peaks where they are higher, by its `state`."""
        self.base = state["base"]
        self._earlier = {name: max(peak, state[name]) for name, peak in self._earlier.items()}

    def _reset_resident(self) -> None:
        try:
            self._clear.write_text("5")
        except OSError:
            self.resident_source = "ru_maxrss"

    def _mapped_now(self) -> int | None:
        return self._line("RssFile") if self.resident_source == "VmHWM" else None

    def _line(self, name: str) -> int:
        line = next(x for x in self._status.read_text().splitlines() if x.startswith(f"{name}:"))
        return int(line.split()[1]) * 1024


# The kernel counts a core's time in ticks of 10 ms, longer than many an epoch: what is read are windows, and an epoch
# has the mean of those that it lies in.
WINDOW_S = 0.5
LEAST_S = 0.2  # a last window that is shorter says nothing: a tick is 5 % of it
TICKS_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
COLUMNS = ("busy_cores", "own_cores", "steal_cores", "throttled", "thermal_throttles", "cpu_mhz")
Rates = dict[str, float | None]  # by `COLUMNS`; None where a counter cannot be read


class Load:
    """Load of the cores that this process may use, window by window, and the part of it that falls into epochs.

    One thread looks, another asks for its epochs. A process that may run on more than `most` cores is not pinned: it
    has none of them for itself, and others' load there is not counted. `root` is where the kernel's files are.
    """

    def __init__(
        self, most: int | None = None, root: Path = Path("/"), clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._root, self._clock, self._lock = root, clock, Lock()
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        self.cores = cores if most is None or len(cores) <= most else []
        groups = re.findall(r"^0::/*(.*)$", self._text("proc/self/cgroup") or "", re.MULTILINE)  # of version 2
        self._group = f"sys/fs/cgroup/{groups[0]}/cpu.stat" if groups else None
        self._last = self._read()
        self._windows: list[tuple[float, float, Rates]] = []

    def look(self, *, last: bool = False) -> None:
        """End the window if it is long enough."""
        with self._lock:
            start, before = self._last
            if self._clock() - start < (LEAST_S if last else WINDOW_S):
                return
            end, now = self._last = self._read()
            rates: Rates = {"cpu_mhz": now["cpu_mhz"]}
            for name in COLUMNS[:-1]:
                first, second = before[name], now[name]
                by = 1 if name == "thermal_throttles" else end - start
                rates[name] = None if first is None or second is None else (second - first) / by
            self._windows.append((start, end, rates))

    def of(self, start: float, end: float) -> Rates:
        """Return `COLUMNS` of an epoch between two moments: means over the windows, weighted by their overlap with it.

        `busy_cores`, `own_cores`, `steal_cores`: cores busy with anything, with this process, and taken by the host;
        `throttled`: share of the time; `thermal_throttles`: of the windows, summed; `cpu_mhz`. None where no window
        was, or a counter cannot be read.
        """
        with self._lock:
            first = bisect_right(self._windows, start, key=lambda window: window[1])
            last = bisect_left(self._windows, end, key=lambda window: window[0])
            found = [(min(end, b) - max(start, a), rates) for a, b, rates in self._windows[first:last]]
        result: Rates = dict.fromkeys(COLUMNS)
        for name in COLUMNS if found else ():
            values = [(weight, value) for weight, rates in found if (value := rates[name]) is not None]
            if len(values) == len(found) and name == "thermal_throttles":
                result[name] = sum(value for _, value in values)
            elif len(values) == len(found):
                result[name] = sum(weight * value for weight, value in values) / sum(weight for weight, _ in values)
        return result

    def report(self) -> dict[str, Any]:
        """Return whose load this is: the machine, in a name that reveals nothing of it, and the cores."""
        boot = self._text("proc/sys/kernel/random/boot_id")
        machine = None if boot is None else hashlib.blake2b(boot.encode(), digest_size=4).hexdigest()
        return {"machine": machine, "cores": self.cores, "window_s": WINDOW_S}

    def _read(self) -> tuple[float, Rates]:
        """Return the moment, and by `COLUMNS` seconds, times and MHz so far."""
        at, children = self._clock(), os.times()
        wanted, busy, stolen = {f"cpu{core}" for core in self.cores}, None, None
        rows = [line.split() for line in (self._text("proc/stat") or "").splitlines() if line.startswith("cpu")]
        ticks = [list(map(int, row[1:9])) for row in rows if row[0] in wanted and len(row) > 8]
        if ticks and len(ticks) == len(wanted):
            # User, nice, system; and steal. Interrupts are left out: those of the own traffic are no other load.
            busy, stolen = sum(sum(row[:3]) for row in ticks) / TICKS_S, sum(row[7] for row in ticks) / TICKS_S
        own = time.process_time() + children.children_user + children.children_system
        quota = dict(line.split() for line in (self._text(self._group) or "").splitlines()) if self._group else {}
        throttled = int(quota["throttled_usec"]) / 1e6 if "throttled_usec" in quota else None
        heat, clocks = (
            [int(text) for core in self.cores if (text := self._text(f"sys/devices/system/cpu/cpu{core}/{name}"))]
            for name in ("thermal_throttle/core_throttle_count", "cpufreq/scaling_cur_freq")
        )
        values = (
            busy, own, stolen, throttled, sum(heat) if heat else None,
            sum(clocks) / len(clocks) / 1e3 if clocks else None,
        )  # fmt: skip
        return at, dict(zip(COLUMNS, values, strict=True))

    def _text(self, name: str) -> str | None:
        return known((self._root / name).read_text)
