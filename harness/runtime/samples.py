"""Samples of a rank that a thread takes now and then, and what those of an epoch or a phase come to."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event, Lock
from typing import Any

from harness.runtime.counters import Gpu, PackageEnergy, Reasons, proportional_size, resident_size

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
