"""Meters: one thread samples memory, utilisation, energy and load of a rank while it trains."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

from harness.deferred import torch
from harness.runtime.counters import (
    GPU_COUNTERS,
    POWERCAP,
    PROC,
    Gpu,
    Load,
    PackageEnergy,
    PeakMemory,
    Rates,
    Reasons,
    open_gpu,
    proportional_size,
    resident_size,
)
from harness.runtime.run_config import IN_PHASES, Timing

RESIDENT = "by_phase.peak_rss_bytes"
PEAKS = (RESIDENT, "nvml_peak_bytes", "nvml_device_peak_bytes", "peak_pss_bytes")
NVML_SAMPLED = tuple(name for name in GPU_COUNTERS if name != "energy_gpu_j")
NVML_METRICS = (*GPU_COUNTERS, "gpu_slowed_share")
MEASURED = (
    *("peak_rss_bytes", "peak_pss_bytes", "allocator_peak_bytes"),
    *(*NVML_METRICS, "energy_cpu_j", "by_phase", RESIDENT),
)
MEANS = ("gpu_utilisation", "gpu_power_w", "gpu_clock_mhz")


@dataclass
class Summary:
    """Summary of samples, values by metric: the largest of PEAKS, sums and numbers of MEANS, and what else was seen."""

    samples: int = 0
    peaks: dict[str, int] = field(default_factory=dict)
    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    slowed: dict[str, int] = field(default_factory=dict)  # samples by why the GPU's clock was held down, "": it was not
    tenths: dict[int, int] = field(default_factory=dict)  # samples by tenths of GPU utilisation

    def add(self, sample: Mapping[str, Any]) -> None:
        """Add a sample: values by metric, None where one cannot be had."""
        self.samples += 1
        raise_peaks(self.peaks, sample)
        for name in MEANS:
            if (value := sample.get(name)) is not None:
                self.sums[name] = self.sums.get(name, 0.0) + value
                self.counts[name] = self.counts.get(name, 0) + 1
        if (why := sample.get("gpu_slowed")) is not None:
            self.counts["gpu_slowed"] = self.counts.get("gpu_slowed", 0) + 1
            for each in why or ("",):
                self.slowed[each] = self.slowed.get(each, 0) + 1
        if (share := sample.get("gpu_utilisation")) is not None:
            tenth = min(int(share * 10), 9)
            self.tenths[tenth] = self.tenths.get(tenth, 0) + 1

    def mean(self, name: str) -> float | None:
        """Return the mean of a metric; None without values."""
        return self.sums[name] / self.counts[name] if name in self.sums else None

    def row(self) -> dict[str, Any]:
        """Return it as JSON: bytes, share, watts."""
        means = {name: self.mean(name) for name in ("gpu_utilisation", "gpu_power_w")}
        return {"samples": self.samples, "peak_rss_bytes": self.peaks.get(RESIDENT), **means}


def raise_peaks(peaks: dict[str, int], sample: Mapping[str, Any]) -> None:
    """Raise the largest values so far of PEAKS to those of a sample."""
    for name in PEAKS:
        if (value := sample.get(name)) is not None:
            peaks[name] = max(value, peaks.get(name, value))


INTERVAL_S = 0.1
PSS_INTERVAL_S = 2.0
PSS_SHARE = 0.005  # of a core, at most, spent on walking the page table


class Sampler:
    """Reads all counters at each interval in one thread, while another opens and ends epochs and pauses.

    Between epochs only the peaks of memory are kept; in a pause nothing. A reading begun in a pause and ended
    after it is dropped too. Arguments are those of `Meters`, and the counters that there are.
    """

    def __init__(
        self,
        reasons: Reasons,
        phase: Callable[[], str],
        proc: Path,
        gpu: Gpu | None,
        packages: PackageEnergy | None = None,
        load: Load | None = None,
    ) -> None:
        self._reasons, self._phase, self._proc, self._packages, self._load = reasons, phase, proc, packages, load
        self._readers: dict[str, Callable[[], Any]] = {RESIDENT: lambda: resident_size(proc)}
        if gpu is not None:
            self._readers |= {name: partial(GPU_COUNTERS[name], gpu) for name in NVML_SAMPLED}
        self._lock, self._next_pss = Lock(), 0.0
        self._turns = 0  # beginnings and ends of pauses: odd within one
        self._epoch: Summary | None = None
        self.peaks = dict[str, int]()  # of memory, between epochs too
        self.total, self.by_phase = Summary(), dict[str, Summary]()  # samples in epochs
        self.failure: str | None = None  # why it ended before it was stopped
        # Longer where a reading takes so long that it would cost more than PSS_SHARE of a core.
        self.pss_interval_s = PSS_INTERVAL_S

    def run(self, stop: Event) -> None:
        """Take a sample at each interval until `stop` is set or one fails."""
        while self.failure is None and not stop.wait(INTERVAL_S):
            self.look()

    def look(self, *, last: bool = False) -> None:
        """Take a sample, and the proportional set if it is due or this is the last look."""
        attempt = self._reasons.attempt
        try:
            if self._load is not None:
                self._load.look()
            if self._packages is not None:  # seen before it wraps twice, however long the epoch
                attempt(self._packages.joules, "energy_cpu_j")
            if not (turn := self._turns) % 2:
                phase = self._phase()
                self._add(turn, phase, {name: attempt(read, name) for name, read in self._readers.items()})
            if not (turn := self._turns) % 2 and (last or time.monotonic() >= self._next_pss):
                start = time.thread_time()
                size = attempt(lambda: proportional_size(self._proc), "peak_pss_bytes")
                self.pss_interval_s = max(self.pss_interval_s, (time.thread_time() - start) / PSS_SHARE)
                self._next_pss = time.monotonic() + self.pss_interval_s
                self._add(turn, "", {"peak_pss_bytes": size})
        except Exception as error:  # a thread that ended silently would leave metrics that look whole
            self.failure = f"sampling ended: {type(error).__name__}: {error}"

    def _add(self, turn: int, phase: str, sample: dict[str, Any]) -> None:
        """Add a sample, unless a pause has begun or ended since `turn`; `phase` is "" if it began outside an epoch."""
        with self._lock:
            if turn != self._turns:
                return
            raise_peaks(self.peaks, sample)
            if phase and self._epoch is not None:
                for summary in (self._epoch, self.total, self.by_phase.setdefault(phase, Summary())):
                    summary.add(sample)

    def follow(self, *, epoch: bool) -> Summary:
        """Begin an epoch, or the time between two; returns the summary of an epoch, which grows until its end."""
        summary = Summary()
        with self._lock:
            self._epoch = summary if epoch else None
        return summary

    def turn(self) -> None:
        """Begin a pause, or end it."""
        with self._lock:
            self._turns += 1

    def state(self) -> dict[str, Any]:
        """Return what was taken so far."""
        with self._lock:
            phases = {phase: asdict(summary) for phase, summary in self.by_phase.items()}
            return {"peaks": dict(self.peaks), "total": asdict(self.total), "by_phase": phases}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what another process had taken, by its `state`; only peaks of memory of this one count besides."""
        with self._lock:
            raise_peaks(self.peaks, state["peaks"])
            self.total = Summary(**state["total"])
            self.by_phase = {phase: Summary(**fields) for phase, fields in state["by_phase"].items()}


class Meters:
    """Measures a rank during its training: memory, GPU utilisation and power, energy, load of its cores.

    Nothing waits for a GPU. What cannot be had is None, with its reason in the report, never 0.

    A counter that several ranks share belongs to one of them: the packages' energy to local rank 0, energy
    and power of a GPU to the lowest local rank on it (ranks take GPUs in turn: its number is the GPU's).

    Args:
        device: this rank's.
        local_rank: this rank's number among the trial's ranks on this machine, network namespaces included.
        timing: the trial's; one that is not in phases starts no thread and reads no counter, only `memory` works.
        phase: returns the phase that the trainer is in, "" between epochs; called from the thread. On a GPU
            that is what the host is launching or waiting for.
        cores: that the rank may keep busy, see `Load`.
        proc, powercap: the kernel's files of this process, and its energy counters.
        gpu: opens NVML's view of a torch device; called only for CUDA devices.
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
        if self.memory.resident_source != "VmHWM":
            reasons.add(("peak_rss_bytes",), "the kernel cannot reset it: evaluations would be in it")
        self._gpu = reasons.attempt(lambda: gpu(device), *NVML_METRICS)
        self._packages = reasons.attempt(lambda: PackageEnergy(powercap), "energy_cpu_j")
        self._energy: dict[str, Callable[[], float]] = {}
        if self._gpu is not None:
            self._energy["energy_gpu_j"] = partial(GPU_COUNTERS["energy_gpu_j"], self._gpu)
        if self._packages is not None:
            self._energy["energy_cpu_j"] = self._packages.joules
        self._load = Load(cores) if self._enabled else None
        self._epochs: list[tuple[float, float]] = []
        self._sampler = Sampler(reasons, phase, proc, self._gpu, self._packages, self._load)
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
        attempt, summary = self._reasons.attempt, self._sampler.follow(epoch=True)
        before, start_s = {name: attempt(read, name) for name, read in self._energy.items()}, time.perf_counter()
        try:
            yield metrics
        finally:
            self._epochs.append((start_s, time.perf_counter()))
            self._sampler.follow(epoch=False)
            for name, read in self._energy.items():
                joules, start = attempt(read, name), before[name]
                metrics[name] = None if joules is None or start is None else joules - start
            metrics |= {name: summary.mean(name) for name in ("gpu_utilisation", "gpu_power_w")}

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave what is enclosed (an evaluation) out of all metrics."""
        self._sampler.turn()
        try:
            with self.memory.paused():
                yield
        finally:
            self._sampler.turn()

    def report(self) -> dict[str, Any]:
        """Return this rank's metrics as JSON: bytes, shares, watts.

        `samples`, `by_phase`, `gpu_utilisation_histogram` (tenths) count samples in epochs. `peak_rss_bytes`
        is the kernel's own peak; those of phases, `peak_pss_bytes` and `nvml_peak_bytes` are the largest of
        samples, between which a peak can hide; `nvml_device_peak_bytes` is of the whole GPU, of all processes.
        `gpu_clock_mhz`: mean of the samples in epochs; `gpu_slowed_share`: share of them in which the driver held the
        clock down, `gpu_slowed` by reason; `gpu_limits`: of power and clocks. `counts_for`: shared counters that are
        this rank's to report; a sum over ranks is whole if each rank has those. `unavailable`: reason by metric.
        """
        sampler, why = self._sampler, self._reasons.why
        if not self._stop.is_set():
            sampler.look(last=True)
        if sampler.failure is not None:
            self._reasons.add((*NVML_SAMPLED, "by_phase"), sampler.failure)
        if "nvml_peak_bytes" not in sampler.peaks:
            reason = "NVML lists no process with this process's id (a container with ids of its own?)"
            self._reasons.add(("nvml_peak_bytes",), reason)
        if "gpu_slowed" in why:
            self._reasons.add(("gpu_slowed_share",), why["gpu_slowed"])
        total = sampler.total
        slowed = {reason: count / total.counts["gpu_slowed"] for reason, count in total.slowed.items()}
        metrics = {
            "peak_rss_bytes": self.memory.resident(),
            **{name: sampler.peaks.get(name) for name in PEAKS if name != RESIDENT},
            "gpu_clock_mhz": total.mean("gpu_clock_mhz"),
            "gpu_slowed_share": 1 - slowed.get("", 0) if slowed else None,
            "gpu_slowed": {reason: share for reason, share in slowed.items() if reason} if slowed else None,
            "allocator_peak_bytes": self.memory.allocator(),
        }
        phases = {} if "by_phase" in why else sampler.by_phase
        tenths = {} if "gpu_utilisation" in why else total.tenths
        return {
            "interval_s": INTERVAL_S if self._enabled else None,
            "pss_interval_s": sampler.pss_interval_s if self._enabled else None,
            "samples": total.samples if self._enabled else None,
            **{name: None if name in why else value for name, value in metrics.items()},
            "gpu_utilisation_histogram": [tenths.get(tenth, 0) for tenth in range(10)] if tenths else None,
            "gpu_limits": self._gpu and self._gpu.limits(),
            "by_phase": {name: summary.row() for name, summary in phases.items()},
            "counts_for": self._counts_for,
            "load": self._load and self._load.report(),
            "unavailable": dict(why),
        }

    def loads(self) -> list[Rates]:
        """Return `Load.of` of each epoch so far; it is read behind the last one."""
        if self._load is None:
            return []
        self._load.look(last=True)
        return [self._load.of(*epoch) for epoch in self._epochs]

    def state(self) -> dict[str, Any]:
        """Return what was measured so far, but for `loads`."""
        return {"memory": self.memory.state(), "samples": self._sampler.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what another process had measured, by its `state`."""
        self.memory.restore(state["memory"])
        self._sampler.restore(state["samples"])

    def close(self) -> None:
        """End the thread and release NVML; a second call does nothing."""
        if self._stop.is_set():
            return
        self._stop.set()
        if self._enabled:
            self._thread.join(timeout=5)
        if self._gpu is not None and not self._thread.is_alive():  # it may hang in the driver
            self._gpu.api.nvmlShutdown()
