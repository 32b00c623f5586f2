"""Samples of a rank's memory and GPU, summed by epoch and by phase."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock
from typing import Any

BINS = 10


@dataclass(frozen=True)
class Sample:
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
class Summary:
    """What samples of one epoch or phase come to."""

    samples: int = 0
    peak_resident: int | None = None
    utilisation: Mean = field(default_factory=Mean)
    power: Mean = field(default_factory=Mean)

    def add(self, sample: Sample) -> None:
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
        self._epoch: Summary | None = None
        self._histogram = [0] * BINS
        self.by_phase: dict[str, Summary] = {}
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

    def add(self, ticket: int, phase: str, sample: Sample) -> None:
        """Take in a sample; `phase` is "" if it began outside an epoch."""
        with self._lock:
            if self._stale(ticket):
                return
            self.peak_gpu_memory = largest(self.peak_gpu_memory, sample.gpu_memory)
            if not phase or self._epoch is None:
                return
            self._epoch.add(sample)
            self.by_phase.setdefault(phase, Summary()).add(sample)
            if sample.utilisation is not None:
                self._histogram[min(int(sample.utilisation * BINS), BINS - 1)] += 1

    def add_proportional(self, ticket: int, size: int | None) -> None:
        """Take in a proportional set size, in bytes."""
        with self._lock:
            if not self._stale(ticket):
                self.peak_proportional = largest(self.peak_proportional, size)

    def open_epoch(self) -> Summary:
        """Start an epoch; returns its summary, which grows until `end_epoch`."""
        with self._lock:
            self._epoch = Summary()
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
