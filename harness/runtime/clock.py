"""Clock: where an epoch's time goes, in exclusive nested phases."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from harness.deferred import torch
from harness.graph.devices import kind_of
from harness.metrics import HOST_PHASES, PHASES, Phase


@dataclass
class EpochTime:
    """Durations of one epoch on one rank, in seconds."""

    wall_s: float = 0.0  # wall time
    # wall time by phase; `other` is what no phase covers. All 0 where only the whole is timed
    phases: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    cpu_s: float = 0.0  # CPU time of this process, all its threads
    # the same by the phase the trainer was in
    cpu: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    # wall time of the host by the phase it was in; on a CPU that of `phases`. On a GPU the host runs ahead of the
    # device, and what it does itself, such as sampling, shows here alone
    host: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    # time in which exchanges were under way; with transfers in the background more, or less, than the phase `comm`,
    # in which the trainer waited for them
    busy_s: float = 0.0
    barriers: int = 0  # barriers waited at; their time is the phase `wait`

    def columns(self, *, detailed: bool) -> dict[str, Any]:
        """Return the record's columns of an epoch; None, not 0, where phases were not timed."""
        metrics: dict[str, Any] = {f"time_{phase}_s": seconds for phase, seconds in self.phases.items()}
        metrics |= {f"cpu_{phase}_s": seconds for phase, seconds in self.cpu.items()}
        metrics |= {f"host_{phase}_s": self.host[phase] for phase in HOST_PHASES}
        metrics |= {"comm_busy_s": self.busy_s, "comm_exposed_s": self.phases["comm"]}
        if not detailed:
            metrics = dict.fromkeys(metrics)
        return metrics | {"cpu_s": self.cpu_s, "barriers": self.barriers}


class Spans:
    """Charges seconds outside epochs to the innermost open span of a name; opening one stops the one around it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}  # of the spans that ended, by name
        self._kind = kind_of(torch.device("cpu"))
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

    def of(self, device: torch.device) -> None:
        """Wait from now on for a device where a span begins or ends."""
        self._kind = kind_of(device)

    def _charge(self) -> None:
        self._kind.synchronize()
        now = time.perf_counter()
        if self._open:
            self.seconds[self._open[-1]] = self.seconds.get(self._open[-1], 0.0) + now - self._since
        self._since = now


# Makes events of a device: with `record()`, and `elapsed_time(later)` in ms once both have happened.
Events = Callable[[], Any]


class Moments:
    """Moments of work: of a device its events, where the stream is then, or the host's time where `events` is None."""

    def __init__(self, events: Events | None) -> None:
        self._events, self.of_host = events, events is None

    def now(self) -> Any:
        """Return this moment."""
        if self._events is None:
            return time.perf_counter()
        event = self._events()
        event.record()
        return event

    def between(self, start: Any, end: Any) -> float:
        """Return the seconds from one moment to another, which the device has reached."""
        return float(end - start if self._events is None else start.elapsed_time(end) / 1e3)


class Clock:
    """Charges every moment of an epoch to the innermost open phase; opening a phase stops its parent.

    Args:
        device: where the work is done.
        detailed: False times whole epochs only, phases cost nothing. May be changed between epochs.
        events: makes the device's events; the default are CUDA's on a GPU, none on a CPU.

    Attributes:
        aligned: whether ranks are to meet at a barrier before they communicate.
        background: wall time and CPU time of works in other threads than the trainer's, by name.
    """

    def __init__(self, device: torch.device, *, detailed: bool = True, events: Events | None = None) -> None:
        self._kind = kind_of(device)
        # On a GPU moments are CUDA events, read once at the epoch's end, so that timing adds no synchronisation inside
        # an epoch. On a CPU they are `perf_counter` readings.
        self.moments = Moments(events or (self._kind.event if self._kind.has_streams else None))
        self.detailed = detailed
        self._open: list[str] = []
        # Phase, and moment, host's time and CPU time from which on it is charged.
        self._marks: list[tuple[str, Any, float, float]] = []
        self._waits: list[tuple[Any, Any]] = []
        self._background_s, self._lock = 0.0, threading.Lock()
        self._barriers, self.aligned = 0, False
        self.background: dict[str, list[float]] = {}

    @property
    def current(self) -> str:
        """The phase that time is charged to now; "" outside an epoch."""
        open_ = self._open  # one reading: the meters' thread asks too
        return open_[-1] if open_ else ""

    @contextmanager
    def epoch(self, *, aligned: bool = False) -> Iterator[EpochTime]:
        """Time one epoch; the yielded record is filled in when the context ends.

        `aligned`: the Communicator puts a barrier before each exchange, to separate waiting from transfer.
        """
        record = EpochTime()
        self._barriers, self.aligned = 0, aligned
        with self._lock:
            self._background_s = 0.0
        self._waits = []
        self._kind.synchronize()
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
            self._kind.synchronize()
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

    @contextmanager
    def working(self, name: str) -> Iterator[None]:
        """Count what is enclosed as `background`; in any thread but the trainer's."""
        start, cpu = time.perf_counter(), time.thread_time()
        try:
            yield
        finally:
            wall, cpu = time.perf_counter() - start, time.thread_time() - cpu
            with self._lock:
                before = self.background.get(name, [0.0, 0.0])
                self.background[name] = [before[0] + wall, before[1] + cpu]

    def met(self) -> None:
        """Count a barrier."""
        self._barriers += 1

    def transferred(self, seconds: float) -> None:
        """Add the seconds of a transfer in the background; any thread may call."""
        with self._lock:
            self._background_s += seconds

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Note the part of the phase `comm` in which the trainer waits for transfers that `transferred` counts."""
        if not self._open:
            yield
            return
        start = self.moments.now()
        try:
            yield
        finally:
            self._waits.append((start, self.moments.now()))

    def _mark(self, phase: str) -> None:
        now = self.moments.now()
        host = now if self.moments.of_host else time.perf_counter()
        self._marks.append((phase, now, host, time.process_time()))

    def _charge(self, record: EpochTime) -> None:
        for (phase, start, host, cpu), (_, end, host_end, cpu_end) in pairwise(self._marks):
            record.phases[phase] += self.moments.between(start, end)
            record.host[phase] += host_end - host
            record.cpu[phase] += cpu_end - cpu
        if self._marks and self.moments.of_host:  # the same readings, so that the phases add up to the whole
            (_, _, start, cpu), (_, _, end, cpu_end) = self._marks[0], self._marks[-1]
            record.wall_s, record.cpu_s = end - start, cpu_end - cpu
        waited = sum(self.moments.between(*wait) for wait in self._waits)
        self._marks, self._waits = [], []
        record.barriers = self._barriers
        with self._lock:
            record.busy_s = max(0.0, record.phases["comm"] - waited) + self._background_s
