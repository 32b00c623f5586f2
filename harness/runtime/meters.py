"""Meters: one thread samples memory, utilisation, energy and load of a rank while it trains."""

from __future__ import annotations

import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

from harness.deferred import torch
from harness.runtime.counters import (
    POWERCAP,
    PROC,
    Gpu,
    Load,
    PackageEnergy,
    PeakMemory,
    Reasons,
    open_gpu,
    proportional_size,
    resident_size,
)
from harness.runtime.run_config import IN_PHASES, Timing


@dataclass(frozen=True)
class MeterSample:
    """One look at a rank; None where a metric cannot be had, or was not looked at."""

    resident: int | None = None  # bytes of the resident set
    gpu_memory: int | None = None  # bytes that this process holds on its GPU
    utilisation: float | None = None  # share 0..1 of time with a kernel running
    power: float | None = None  # watts of the GPU
    device_memory: int | None = None  # bytes in use on the GPU, by any process
    clock: float | None = None  # MHz of the GPU's multiprocessors
    slowed: tuple[str, ...] | None = None  # why the driver holds that down, () if it does not
    proportional: int | None = None  # bytes of the proportional set


@dataclass
class Mean:
    """Mean of the values that were there."""

    total: float = 0.0
    count: int = 0

    def add(self, value: float | None) -> None:
        """Add a value, unless it is None."""
        if value is not None:
            self.total += value
            self.count += 1

    @property
    def value(self) -> float | None:
        """The mean; None without values."""
        return self.total / self.count if self.count else None


@dataclass
class SampleSummary:
    """Summary of the samples of one epoch or phase."""

    samples: int = 0
    peak_resident: int | None = None
    utilisation: Mean = field(default_factory=Mean)
    power: Mean = field(default_factory=Mean)

    def add(self, sample: MeterSample) -> None:
        """Add a sample."""
        self.samples += 1
        self.peak_resident = largest(self.peak_resident, sample.resident)
        self.utilisation.add(sample.utilisation)
        self.power.add(sample.power)

    def row(self) -> dict[str, Any]:
        """Return it as JSON: bytes, share, watts."""
        return {
            "samples": self.samples,
            "peak_rss_bytes": self.peak_resident,
            "gpu_utilisation": self.utilisation.value,
            "gpu_power_w": self.power.value,
        }


BINS = 10
NOT_SLOWED = ""
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
        self.peak_proportional: int | None = None
        self.clock = Mean()
        self._slowed: Counter[str] = Counter()
        self._asked = 0

    def begin(self) -> int | None:
        """Announce a reading; returns its ticket, None if nothing is to be read now."""
        with self._lock:
            return None if self._paused else self._pauses

    def add(self, ticket: int, phase: str, sample: MeterSample) -> None:
        """Add a sample; `phase` is "" if it began outside an epoch."""
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
            self.by_phase = {
                phase: SampleSummary(**fields | {name: Mean(**fields[name]) for name in ("utilisation", "power")})
                for phase, fields in state["by_phase"].items()
            }
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
    """Reads all counters at each interval and hands what is a sample to `samples`.

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
        load: Load | None = None,
    ) -> None:
        self._reasons, self._phase, self._proc = reasons, phase, proc
        self._gpu, self._packages, self._load = gpu, packages, load
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
            if self._load is not None:
                self._load.look()
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


NVML_SAMPLED = (
    "nvml_peak_bytes", "nvml_device_peak_bytes", "gpu_utilisation", "gpu_power_w", "gpu_clock_mhz",
    "gpu_slowed", "gpu_slowed_share",
)  # fmt: skip
NVML_METRICS = (*NVML_SAMPLED, "energy_gpu_j")
MEASURED = (
    *("peak_rss_bytes", "peak_pss_bytes", "allocator_peak_bytes"),
    *(*NVML_METRICS, "energy_cpu_j", "by_phase", "by_phase.peak_rss_bytes"),
)


class Meters:
    """Measures a rank during its training: memory, GPU utilisation and power, energy, load of its cores.

    A daemon thread samples each INTERVAL_S seconds; energy is the difference of two readings of a counter.
    Nothing waits for a GPU. What cannot be had is None, with its reason in the report, never 0.

    A counter that several ranks share belongs to one of them: the packages' energy to local rank 0, energy
    and power of a GPU to the lowest local rank on it (ranks take GPUs in turn: its number is the GPU's).

    Args:
        device: this rank's.
        local_rank: this rank's number among the trial's ranks on this machine; network namespaces of one
            machine share its counters and are not machines.
        timing: the trial's; one that is not in phases starts no thread and reads no counter, only `memory` works.
        phase: returns the phase that the trainer is in, "" between epochs; called from the thread. On a GPU
            that is what the host is launching or waiting for.
        cores: that the rank may keep busy, see `Load`.
        proc: the kernel's files of this process.
        powercap: the kernel's energy counters.
        gpu: opens NVML's view of a torch device; called only for CUDA devices.

    Attributes:
        memory: peak memory, whatever the timing.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        local_rank: int,
        timing: Timing,
        phase: Callable[[], str],
        cores: int | None = None,
        proc: Path = PROC,
        powercap: Path = POWERCAP,
        gpu: Callable[[torch.device], Gpu] = open_gpu,
    ) -> None:
        self.memory = PeakMemory(device, proc)
        self._enabled, self._reasons = timing in IN_PHASES, (reasons := Reasons())
        if not self._enabled:
            reasons.add(MEASURED, f"timing: {timing}")
        # What this rank cannot have or is not to count.
        self._counts_for: list[str] = []
        if device.type != "cuda":
            reasons.add((*NVML_METRICS, "allocator_peak_bytes"), f"the device is {device.type}")
        elif local_rank == (device.index or 0):
            self._counts_for += ["energy_gpu_j", "gpu_power_w"]
        else:
            reasons.add(("energy_gpu_j", "gpu_power_w"), f"local rank {device.index or 0} counts for this GPU")
        if local_rank == 0:
            self._counts_for.append("energy_cpu_j")
        else:
            reasons.add(("energy_cpu_j",), "local rank 0 counts for this machine")
        if self.memory.resident.source != "VmHWM":
            reasons.add(("peak_rss_bytes",), "the kernel cannot reset it: evaluations would be in it")
        self._gpu = reasons.attempt(lambda: gpu(device), *NVML_METRICS)
        self._packages = reasons.attempt(lambda: PackageEnergy(powercap), "energy_cpu_j")
        self._load = Load(cores) if self._enabled else None
        self._epochs: list[tuple[float, float]] = []
        self._sampler = SamplingThread(reasons, phase, proc, self._gpu, self._packages, self._load)
        self._stop = Event()
        self._thread = Thread(target=self._sampler.run, args=(self._stop,), name="meters", daemon=True)
        weakref.finalize(self, self._stop.set)
        if self._enabled:
            self._thread.start()

    @contextmanager
    def epoch(self) -> Iterator[dict[str, float | None]]:
        """Measure an epoch; the yielded metrics are filled in when the context ends.

        `energy_gpu_j`, `energy_cpu_j`: joules of the whole GPU and of all packages. `gpu_utilisation` (0..1),
        `gpu_power_w`: means of the samples in the epoch; None in an epoch too short for one.
        """
        names = ("energy_gpu_j", "energy_cpu_j", "gpu_utilisation", "gpu_power_w")
        metrics: dict[str, float | None] = dict.fromkeys(names)
        if not self._enabled:
            yield metrics
            return
        summary, before, start_s = self._sampler.samples.open_epoch(), self._energies(), time.perf_counter()
        try:
            yield metrics
        finally:
            self._epochs.append((start_s, time.perf_counter()))
            self._sampler.samples.end_epoch()
            for name, joules in self._energies().items():
                start = before[name]
                metrics[name] = None if joules is None or start is None else joules - start
            metrics |= {"gpu_utilisation": summary.utilisation.value, "gpu_power_w": summary.power.value}

    def _energies(self) -> dict[str, float | None]:
        attempt, gpu, packages = self._reasons.attempt, self._gpu, self._packages
        return {
            "energy_gpu_j": None if gpu is None else attempt(gpu.energy, "energy_gpu_j"),
            "energy_cpu_j": None if packages is None else attempt(packages.joules, "energy_cpu_j"),
        }

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave what is enclosed (an evaluation) out of all metrics."""
        self._sampler.samples.pause(True)
        try:
            with self.memory.paused():
                yield
        finally:
            self._sampler.samples.pause(False)

    def report(self) -> dict[str, Any]:
        """Return this rank's metrics as JSON: bytes, shares, watts.

        `samples`, `by_phase`, `gpu_utilisation_histogram` (tenths) count samples in epochs. `peak_rss_bytes`
        is the kernel's own peak; those of phases, `peak_pss_bytes` and `nvml_peak_bytes` are the largest of
        samples, between which a peak can hide; `nvml_device_peak_bytes` is of the whole GPU, of all processes.
        `gpu_clock_mhz`: mean of the samples in epochs; `gpu_slowed_share`: share of them in which the driver held the
        clock down, `gpu_slowed` by reason; `gpu_limits`: of power and clocks. `counts_for`: shared counters that are
        this rank's to report; a sum over ranks is whole if each rank has those. `unavailable`: reason by metric.
        """
        sampler, samples = self._sampler, self._sampler.samples
        if not self._stop.is_set():
            sampler.look(last=True)
        if sampler.failure is not None:
            self._reasons.add((*NVML_SAMPLED, "by_phase"), sampler.failure)
        if samples.peak_gpu_memory is None:
            reason = "NVML lists no process with this process's id (a container with ids of its own?)"
            self._reasons.add(("nvml_peak_bytes",), reason)
        allocator, why = self.memory.allocator, self._reasons.why
        metrics = {
            "peak_rss_bytes": self.memory.resident.bytes(),
            "peak_pss_bytes": samples.peak_proportional,
            "nvml_peak_bytes": samples.peak_gpu_memory,
            "nvml_device_peak_bytes": samples.peak_device_memory,
            "gpu_clock_mhz": samples.clock.value,
            "gpu_slowed_share": samples.slowed_share,
            "gpu_slowed": samples.slowed,
            "allocator_peak_bytes": None if allocator is None else allocator.bytes(),
        }
        phases = {} if "by_phase" in why else samples.by_phase
        return {
            "interval_s": INTERVAL_S if self._enabled else None,
            "pss_interval_s": sampler.pss_interval_s if self._enabled else None,
            "samples": samples.count if self._enabled else None,
            **{name: None if name in why else value for name, value in metrics.items()},
            "gpu_utilisation_histogram": None if "gpu_utilisation" in why else samples.histogram,
            "gpu_limits": None if self._gpu is None else self._gpu.limits(),
            "by_phase": {name: summary.row() for name, summary in phases.items()},
            "counts_for": self._counts_for,
            "load": None if self._load is None else self._load.report(),
            "unavailable": dict(why),
        }

    def loads(self) -> list[dict[str, float | None]]:
        """Return `Load.of` of each epoch so far; it is read behind the last one."""
        if self._load is None:
            return []
        self._load.look(last=True)
        return [self._load.of(*epoch) for epoch in self._epochs]

    def state(self) -> dict[str, Any]:
        """Return what was measured so far, but for `loads`."""
        return {"memory": self.memory.state(), "samples": self._sampler.samples.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what another process had measured, by its `state`."""
        self.memory.restore(state["memory"])
        self._sampler.samples.restore(state["samples"])

    def close(self) -> None:
        """End the thread and release NVML; a second call does nothing."""
        if self._stop.is_set():
            return
        self._stop.set()
        if self._enabled:
            self._thread.join(timeout=5)
        if self._gpu is not None and not self._thread.is_alive():  # it may hang in the driver
            self._gpu.close()
