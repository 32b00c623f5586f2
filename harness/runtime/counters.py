"""What the kernel and the drivers count of a rank: memory, processor time, energy; read now and then by a thread."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event, Lock
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


BINS = 10
NOT_SLOWED = ""


@dataclass(frozen=True)
class MeterSample:
    """One look at a rank; None is what cannot be had, or was not looked at.

    Attributes:
        resident: bytes of the resident set.
        gpu_memory: bytes that this process holds on its GPU.
        utilisation: share 0..1 of time with a kernel running.
        power: watts of the GPU.
        device_memory: bytes in use on the GPU, whoever uses them.
        clock: MHz of the GPU's multiprocessors.
        slowed: why the driver holds that down, () if it does not.
        proportional: bytes of the proportional set.
    """

    resident: int | None = None
    gpu_memory: int | None = None
    utilisation: float | None = None
    power: float | None = None
    device_memory: int | None = None
    clock: float | None = None
    slowed: tuple[str, ...] | None = None
    proportional: int | None = None


@dataclass
class Mean:
    """Mean of the values that were there."""

    total: float = 0.0
    count: int = 0

    def add(self, value: float | None) -> None:
        """Take a value in, unless it is None."""
        if value is not None:
            self.total += value
            self.count += 1

    @property
    def value(self) -> float | None:
        """The mean; None without values."""
        return self.total / self.count if self.count else None


@dataclass
class SampleSummary:
    """What samples of one epoch or phase come to."""

    samples: int = 0
    peak_resident: int | None = None
    utilisation: Mean = field(default_factory=Mean)
    power: Mean = field(default_factory=Mean)

    def add(self, sample: MeterSample) -> None:
        """Take a sample in."""
        self.samples += 1
        self.peak_resident = largest(self.peak_resident, sample.resident)
        self.utilisation.add(sample.utilisation)
        self.power.add(sample.power)

    @classmethod
    def of(cls, fields: dict[str, Any]) -> SampleSummary:
        """Return what `asdict` was taken of."""
        means = {name: Mean(**fields[name]) for name in ("utilisation", "power")}
        return cls(**fields | means)

    def row(self) -> dict[str, Any]:
        """Return it as JSON: bytes, share, watts."""
        return {
            "samples": self.samples,
            "peak_rss_bytes": self.peak_resident,
            "gpu_utilisation": self.utilisation.value,
            "gpu_power_w": self.power.value,
        }


_PEAKS = ("peak_gpu_memory", "peak_device_memory", "peak_proportional")


class Samples:
    """Takes samples from one thread while another opens and ends epochs and pauses.

    Between epochs only the peaks of memory are kept; in a pause nothing. A reading begun in a pause and ended
    after it is dropped too, therefore each is announced with `begin`.

    Attributes:
        by_phase: summary of each phase's samples.
        peak_gpu_memory, peak_device_memory, peak_proportional: bytes; None without a reading.
        clock: mean of the GPU's clock, MHz.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._pauses, self._paused = 0, False
        self._epoch: SampleSummary | None = None
        self._histogram = [0] * BINS
        self.by_phase: dict[str, SampleSummary] = {}
        self.peak_gpu_memory: int | None = None
        self.peak_device_memory: int | None = None
        self.clock = Mean()
        self._slowed: Counter[str] = Counter()
        self._asked = 0
        self.peak_proportional: int | None = None

    def begin(self) -> int | None:
        """Announce a reading; returns its ticket, None if nothing is to be read now."""
        with self._lock:
            return None if self._paused else self._pauses

    def add(self, ticket: int, phase: str, sample: MeterSample) -> None:
        """Take in a sample; `phase` is "" if it began outside an epoch."""
        with self._lock:
            if self._paused or ticket != self._pauses:
                return
            self.peak_gpu_memory = largest(self.peak_gpu_memory, sample.gpu_memory)
            self.peak_device_memory = largest(self.peak_device_memory, sample.device_memory)
            self.peak_proportional = largest(self.peak_proportional, sample.proportional)
            if not phase or self._epoch is None:
                return
            self._epoch.add(sample)
            self.by_phase.setdefault(phase, SampleSummary()).add(sample)
            self.clock.add(sample.clock)
            if sample.slowed is not None:
                self._asked += 1
                self._slowed.update(sample.slowed or (NOT_SLOWED,))
            if sample.utilisation is not None:
                self._histogram[min(int(sample.utilisation * BINS), BINS - 1)] += 1

    def open_epoch(self) -> SampleSummary:
        """Start an epoch; returns its summary, which grows until `end_epoch`."""
        with self._lock:
            self._epoch = SampleSummary()
            return self._epoch

    def end_epoch(self) -> None:
        """End the epoch."""
        with self._lock:
            self._epoch = None

    def pause(self, paused: bool) -> None:
        """Start or end a pause."""
        with self._lock:
            self._paused = paused
            self._pauses += 1

    def state(self) -> dict[str, Any]:
        """Return what was taken so far."""
        with self._lock:
            return {
                "peaks": [getattr(self, name) for name in _PEAKS],
                "by_phase": {phase: asdict(summary) for phase, summary in self.by_phase.items()},
                "histogram": list(self._histogram),
                "clock": asdict(self.clock),
                "slowed": dict(self._slowed),
                "asked": self._asked,
            }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what another process had taken, by its `state`; only peaks of memory of this one count besides."""
        with self._lock:
            for name, peak in zip(_PEAKS, state["peaks"], strict=True):
                setattr(self, name, largest(getattr(self, name), peak))
            self.by_phase = {phase: SampleSummary.of(summary) for phase, summary in state["by_phase"].items()}
            self._histogram, self._asked = state["histogram"], state["asked"]
            self.clock, self._slowed = Mean(**state["clock"]), Counter(state["slowed"])

    @property
    def count(self) -> int:
        """Samples taken in epochs."""
        return sum(summary.samples for summary in self.by_phase.values())

    @property
    def slowed_share(self) -> float | None:
        """Share of the samples in epochs in which the GPU's clock was held down; None without a reading."""
        return 1 - self._slowed[NOT_SLOWED] / self._asked if self._asked else None

    @property
    def slowed(self) -> dict[str, float] | None:
        """The same by reason; of one sample there may be several."""
        if not self._asked:
            return None
        return {why: count / self._asked for why, count in self._slowed.items() if why != NOT_SLOWED}

    @property
    def histogram(self) -> list[int] | None:
        """Samples by GPU utilisation, in tenths; None without a reading."""
        return self._histogram if any(self._histogram) else None


def largest(one: int | None, other: int | None) -> int | None:
    """Return the larger; None counts as nothing."""
    return max((value for value in (one, other) if value is not None), default=None)


INTERVAL_S = 0.1
PSS_INTERVAL_S = 2.0
PSS_SHARE = 0.005  # of a core, at most, spent on walking the page table


class SamplingThread:
    """Reads what is there and hands it to `samples`; it knows nothing of who asked for it.

    `also`: called at each look.

    Attributes:
        samples: what was read.
        failure: why it ended before it was stopped; None if it did not.
        pss_interval_s: seconds between readings of the proportional set: longer than PSS_INTERVAL_S where
            one takes so long that it would cost more than PSS_SHARE of a core.
    """

    def __init__(
        self,
        reasons: Reasons,
        phase: Callable[[], str],
        proc: Path,
        gpu: Gpu | None,
        packages: PackageEnergy | None,
        also: Callable[[], None] | None = None,
    ) -> None:
        self._also = also
        self._reasons, self._phase, self._gpu, self._packages, self._proc = reasons, phase, gpu, packages, proc
        self._next_pss = 0.0
        self.samples = Samples()
        self.failure: str | None = None
        self.pss_interval_s = PSS_INTERVAL_S

    def run(self, stop: Event) -> None:
        """Take a sample at each interval until `stop` is set or one fails."""
        while self.failure is None and not stop.wait(INTERVAL_S):
            self.look()

    def look(self, *, last: bool = False) -> None:
        """Take a sample, and the proportional set if it is due or this is the last look.

        An exception is kept as `failure`: a thread that ended silently would leave metrics that look whole.
        """
        try:
            if self._also is not None:
                self._also()
            if self._packages is not None:  # seen before it wraps twice, however long the epoch
                self._reasons.attempt(self._packages.joules, "energy_cpu_j")
            ticket = self.samples.begin()
            if ticket is not None:
                self.samples.add(ticket, self._phase(), self._sample())
            ticket = self.samples.begin()
            if ticket is not None and (last or time.monotonic() >= self._next_pss):
                self.samples.add(ticket, "", MeterSample(proportional=self._proportional()))
        except Exception as error:
            self.failure = f"sampling ended: {type(error).__name__}: {error}"

    def _sample(self) -> MeterSample:
        attempt, gpu = self._reasons.attempt, self._gpu
        resident = attempt(lambda: resident_size(self._proc), "by_phase.peak_rss_bytes")
        if gpu is None:
            return MeterSample(resident)
        return MeterSample(
            resident,
            attempt(gpu.memory, "nvml_peak_bytes"),
            attempt(gpu.utilisation, "gpu_utilisation"),
            attempt(gpu.power, "gpu_power_w"),
            attempt(gpu.device_memory, "nvml_device_peak_bytes"),
            attempt(gpu.clock, "gpu_clock_mhz"),
            attempt(gpu.slowed, "gpu_slowed", "gpu_slowed_share"),
        )

    def _proportional(self) -> int | None:
        start = time.thread_time()
        size = self._reasons.attempt(lambda: proportional_size(self._proc), "peak_pss_bytes")
        self.pss_interval_s = max(self.pss_interval_s, (time.thread_time() - start) / PSS_SHARE)
        self._next_pss = time.monotonic() + self.pss_interval_s
        return size
