"""What the kernel and the drivers count of a rank: memory, processor time, energy."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
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
