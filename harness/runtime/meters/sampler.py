"""Sampler: looks at a rank at intervals, in a thread of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from threading import Event

from harness.runtime.meters.absent import Reasons
from harness.runtime.meters.gpu import Gpu
from harness.runtime.meters.kernel import PackageEnergy, ProportionalSize, ResidentSize
from harness.runtime.meters.samples import Sample, Samples

INTERVAL_S = 0.1
PSS_INTERVAL_S = 2.0
PSS_SHARE = 0.005  # of a core, at most, spent on walking the page table


class Sampler:
    """Reads what is there and hands it to `samples`; it knows nothing of who asked for it.

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
    ) -> None:
        self._reasons, self._phase, self._gpu, self._packages = reasons, phase, gpu, packages
        self._resident = reasons.attempt(lambda: ResidentSize(proc), "by_phase.peak_rss_bytes")
        self._proportional = reasons.attempt(lambda: ProportionalSize(proc), "peak_pss_bytes")
        self._next_pss = 0.0
        self.samples = Samples()
        self.failure: str | None = None
        self.pss_interval_s = PSS_INTERVAL_S

    def run(self, stop: Event) -> None:
        """Look at each interval until `stop` is set or a look fails."""
        while self.failure is None and not stop.wait(INTERVAL_S):
            self.look()

    def look(self, *, last: bool = False) -> None:
        """Take a sample, and the proportional set if it is due or this is the last look.

        An exception is kept as `failure`: a thread that ended silently would leave figures that look whole.
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

    def _look(self) -> Sample:
        attempt, resident, gpu = self._reasons.attempt, self._resident, self._gpu
        rss = None if resident is None else attempt(resident.bytes, "by_phase.peak_rss_bytes")
        if gpu is None:
            return Sample(rss)
        return Sample(
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
        self.samples.add_proportional(
            ticket, self._reasons.attempt(self._proportional.bytes, "peak_pss_bytes")
        )
        self.pss_interval_s = max(self.pss_interval_s, (time.thread_time() - start) / PSS_SHARE)
        self._next_pss = time.monotonic() + self.pss_interval_s

    def close(self) -> None:
        """Close what it reads from."""
        for source in (self._resident, self._proportional, self._packages, self._gpu):
            if source is not None:
                source.close()
