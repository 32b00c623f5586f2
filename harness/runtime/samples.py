"""Samples that a thread takes of a rank while it trains."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock
from typing import Any

from harness.runtime.counters import Gpu, PackageEnergy, ProportionalSize, Reasons, ResidentSize

BINS = 10


@dataclass(frozen=True)
class MeterSample:
    """One look at a rank; None is what cannot be had.

    Attributes:
        resident: bytes of the resident set.
        gpu_memory: bytes that this process holds on its GPU.
        utilisation: share 0..1 of time with a kernel running.
        power: watts of the GPU.
    """

    resident: int | None = None
    gpu_memory: int | None = None
    utilisation: float | None = None
    power: float | None = None


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

    def row(self) -> dict[str, Any]:
        """Return it as JSON: bytes, share, watts."""
        return {
            "samples": self.samples,
            "peak_rss_bytes": self.peak_resident,
            "gpu_utilisation": self.utilisation.value,
            "gpu_power_w": self.power.value,
        }


class Samples:
    """Takes samples from one thread while another opens and ends epochs and pauses.

    Between epochs only the peaks of memory are kept; in a pause nothing. A reading begun in a pause and ended
    after it is dropped too, therefore each is announced with `begin`.

    Attributes:
        by_phase: summary of each phase's samples.
        peak_gpu_memory, peak_proportional: bytes; None without a reading.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._pauses, self._paused = 0, False
        self._epoch: SampleSummary | None = None
        self._histogram = [0] * BINS
        self.by_phase: dict[str, SampleSummary] = {}
        self.peak_gpu_memory: int | None = None
        self.peak_proportional: int | None = None

    def begin(self) -> int | None:
        """Announce a reading; returns its ticket, None if nothing is to be read now."""
        with self._lock:
            return None if self._paused else self._pauses

    @property
    def in_epoch(self) -> bool:
        """Whether an epoch is open."""
        return self._epoch is not None

    def add(self, ticket: int, phase: str, sample: MeterSample) -> None:
        """Take in a sample; `phase` is "" if it began outside an epoch."""
        with self._lock:
            if self._stale(ticket):
                return
            self.peak_gpu_memory = largest(self.peak_gpu_memory, sample.gpu_memory)
            if not phase or self._epoch is None:
                return
            self._epoch.add(sample)
            self.by_phase.setdefault(phase, SampleSummary()).add(sample)
            if sample.utilisation is not None:
                self._histogram[min(int(sample.utilisation * BINS), BINS - 1)] += 1

    def add_proportional(self, ticket: int, size: int | None) -> None:
        """Take in a proportional set size, in bytes."""
        with self._lock:
            if not self._stale(ticket):
                self.peak_proportional = largest(self.peak_proportional, size)

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

    @property
    def count(self) -> int:
        """Samples taken in epochs."""
        return sum(summary.samples for summary in self.by_phase.values())

    @property
    def histogram(self) -> list[int] | None:
        """Samples by GPU utilisation, in tenths; None without a reading."""
        return self._histogram if any(self._histogram) else None

    def _stale(self, ticket: int) -> bool:
        return self._paused or ticket != self._pauses


def largest(one: int | None, other: int | None) -> int | None:
    """Return the larger; None counts as nothing."""
    return max((value for value in (one, other) if value is not None), default=None)


INTERVAL_S = 0.1
PSS_INTERVAL_S = 2.0
PSS_SHARE = 0.005  # of a core, at most, spent on walking the page table


class SamplingThread:
    """Reads what is there and hands it to `samples`; it knows nothing of who asked for it.

    Attributes:
        samples: what was read.
        failure: why it ended before it was stopped; None if it did not.
        pss_interval_s: seconds between readings of the proportional set: longer than PSS_INTERVAL_S where
            one takes so long that it would cost more than PSS_SHARE of a core.
    """

    def __init__(
        self, reasons: Reasons, phase: Callable[[], str], proc: Path, gpu: Gpu | None, packages: PackageEnergy | None
    ) -> None:
        self._reasons, self._phase, self._gpu, self._packages = reasons, phase, gpu, packages
        self._resident = reasons.attempt(lambda: ResidentSize(proc), "by_phase.peak_rss_bytes")
        self._proportional = reasons.attempt(lambda: ProportionalSize(proc), "peak_pss_bytes")
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
            self._sample()
            if last or time.monotonic() >= self._next_pss:
                self._sample_proportional()
        except Exception as error:
            self.failure = f"sampling ended: {type(error).__name__}: {error}"

    def _sample(self) -> None:
        if self._packages is not None:  # seen before it wraps twice, however long the epoch
            self._reasons.attempt(self._packages.joules, "energy_cpu_j")
        ticket = self.samples.begin()
        if ticket is not None:
            phase = self._phase() if self.samples.in_epoch else ""
            self.samples.add(ticket, phase, self._look())

    def _look(self) -> MeterSample:
        attempt, resident, gpu = self._reasons.attempt, self._resident, self._gpu
        rss = None if resident is None else attempt(resident.bytes, "by_phase.peak_rss_bytes")
        if gpu is None:
            return MeterSample(rss)
        return MeterSample(
            rss,
            attempt(gpu.memory, "nvml_peak_bytes"),
            attempt(gpu.utilisation, "gpu_utilisation"),
            attempt(gpu.power, "gpu_power_w"),
        )

    def _sample_proportional(self) -> None:
        ticket = self.samples.begin()
        if ticket is None or self._proportional is None:
            return
        start = time.thread_time()
        self.samples.add_proportional(ticket, self._reasons.attempt(self._proportional.bytes, "peak_pss_bytes"))
        self.pss_interval_s = max(self.pss_interval_s, (time.thread_time() - start) / PSS_SHARE)
        self._next_pss = time.monotonic() + self.pss_interval_s

    def close(self) -> None:
        """Close what it reads from."""
        for source in (self._resident, self._proportional, self._packages, self._gpu):
            if source is not None:
                source.close()
