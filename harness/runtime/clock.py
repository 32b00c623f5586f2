"""Clock: where an epoch's time goes, in exclusive nested phases."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from harness.runtime.spec import PHASES, Phase


@dataclass
class EpochTime:
    """Wall time of one epoch and of its phases, in seconds; `other` is what no phase covers."""

    wall_s: float = 0.0
    phases: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))


class Clock:
    """Charges every moment of an epoch to the innermost open phase; opening a phase stops its parent.

    On a GPU the moments are CUDA events, read once at the epoch's end, so that timing adds no
    synchronisation inside an epoch. On a CPU they are `perf_counter` readings.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._open: list[str] = []
        self._marks: list[tuple[str, float | torch.cuda.Event]] = []

    @contextmanager
    def epoch(self) -> Iterator[EpochTime]:
        """Time one epoch; the yielded record is filled in when the context ends."""
        record = EpochTime()
        self._synchronize()
        start = time.perf_counter()
        self._open, self._marks = ["other"], []
        self._mark("other")
        try:
            yield record
        finally:
            self._mark("other")
            self._open = []
            self._synchronize()
            record.wall_s = time.perf_counter() - start
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

    def _mark(self, phase: str) -> None:
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append((phase, event))
        else:
            self._marks.append((phase, time.perf_counter()))

    def _charge(self, record: EpochTime) -> None:
        for (phase, start), (_, end) in zip(self._marks, self._marks[1:], strict=False):
            if isinstance(start, torch.cuda.Event) and isinstance(end, torch.cuda.Event):
                record.phases[phase] += start.elapsed_time(end) / 1e3
            elif isinstance(start, float) and isinstance(end, float):
                record.phases[phase] += end - start

    def _synchronize(self) -> None:
        if self._cuda:
            torch.cuda.synchronize()
