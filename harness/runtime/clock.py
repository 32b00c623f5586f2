"""Clock: where an epoch's time goes, in exclusive nested phases."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch

from harness.metrics import PHASES, Phase


@dataclass
class EpochTime:
    """What one epoch took on one rank, in seconds.

    Attributes:
        wall_s: wall time.
        phases: wall time by phase; `other` is what no phase covers. All 0 where only the whole is timed.
        cpu_s: CPU time of this process, all its threads.
        cpu: the same by the phase the trainer was in.
        busy_s: time in which exchanges were under way; with transfers beside the trainer more, or less, than
            the phase `comm`, in which the trainer stood still for them.
        barriers: barriers waited at; their time is the phase `wait`.
    """

    wall_s: float = 0.0
    phases: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    cpu_s: float = 0.0
    cpu: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    busy_s: float = 0.0
    barriers: int = 0


class Spans:
    """Charges seconds outside epochs to the innermost open span of a name; opening one stops the one around it.

    Attributes:
        seconds: of the spans that ended, by name.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._open: list[str] = []
        self._since = 0.0

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Charge the enclosed time to `name`, that of a GPU's work included."""
        self._charge()
        self._open.append(name)
        try:
            yield
        finally:
            self._charge()
            self._open.pop()

    def _charge(self) -> None:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        now = time.perf_counter()
        if self._open:
            self.seconds[self._open[-1]] = self.seconds.get(self._open[-1], 0.0) + now - self._since
        self._since = now


class Clock:
    """Charges every moment of an epoch to the innermost open phase; opening a phase stops its parent.

    On a GPU the moments are CUDA events, read once at the epoch's end, so that timing adds no
    synchronisation inside an epoch. On a CPU they are `perf_counter` readings.

    Args:
        device: where the work is done.
        detailed: False times whole epochs only, phases cost nothing. May be changed between epochs.

    Attributes:
        aligned: whether ranks are to meet at a barrier before they communicate.
    """

    def __init__(self, device: torch.device, *, detailed: bool = True) -> None:
        self._cuda = device.type == "cuda"
        self.detailed = detailed
        self._open: list[str] = []
        self._marks: list[tuple[str, Any, float]] = []  # phase, moment and CPU time from which on it is charged
        self._background_s, self._stood_s, self._lock = 0.0, 0.0, threading.Lock()
        self._barriers, self.aligned = 0, False

    @property
    def current(self) -> str:
        """The phase that time is charged to now; "" outside an epoch."""
        open_ = self._open  # one reading: the meters' thread asks too
        return open_[-1] if open_ else ""

    @contextmanager
    def epoch(self, *, aligned: bool = False) -> Iterator[EpochTime]:
        """Time one epoch; the yielded record is filled in when the context ends.

        `aligned`: the Communicator puts a barrier before each exchange, to tell waiting from transfer.
        """
        record = EpochTime()
        self._barriers, self.aligned = 0, aligned
        with self._lock:
            self._background_s, self._stood_s = 0.0, 0.0
        self._synchronize()
        start, cpu = time.perf_counter(), time.process_time()
        if self.detailed:
            self._open, self._marks = ["other"], []
            self._mark("other")
        try:
            yield record
        finally:
            if self.detailed:
                self._mark("other")
            self._open, self.aligned = [], False
            self._synchronize()
            record.wall_s = time.perf_counter() - start
            record.cpu_s = time.process_time() - cpu
            self._charge(record)

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        """Charge the enclosed time to `name`; outside an epoch this does nothing."""
        if not self._open:
            yield
            return
        self._open.append(name)
        self._mark(name)
        try:
            yield
        finally:
            self._open.pop()
            self._mark(self._open[-1])

    def met(self) -> None:
        """Count a barrier."""
        self._barriers += 1

    def transferred(self, seconds: float) -> None:
        """Add a transfer that went on beside the trainer; any thread may call."""
        with self._lock:
            self._background_s += seconds

    def stood_still(self, seconds: float) -> None:
        """Count how much of the phase `comm` waited for transfers that `transferred` counts."""
        with self._lock:
            self._stood_s += seconds

    def _mark(self, phase: str) -> None:
        cpu = time.process_time()
        if self._cuda:
            moment: Any = torch.cuda.Event(enable_timing=True)
            moment.record()
        else:
            moment = time.perf_counter()
        self._marks.append((phase, moment, cpu))

    def _charge(self, record: EpochTime) -> None:
        for (phase, start, cpu), (_, end, cpu_end) in pairwise(self._marks):
            record.phases[phase] += start.elapsed_time(end) / 1e3 if self._cuda else end - start
            record.cpu[phase] += cpu_end - cpu
        self._marks = []
        record.barriers = self._barriers
        with self._lock:
            record.busy_s = max(0.0, record.phases["comm"] - self._stood_s) + self._background_s

    def _synchronize(self) -> None:
        if self._cuda:
            torch.cuda.synchronize()
