"""When the reference workload is run, and how: on a quiet machine, before trials and when they are over."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from harness.launch.inputs import usable_cores
from harness.launch.local import run_group
from harness.launch.process import placements_of
from harness.launch.scratch import scratch
from harness.results.environment import Measurement, machine, measured, measurements, note

WORKLOAD = "harness.runtime.speed_reference"
LIMIT_S = 60.0
EVERY = timedelta(seconds=20)  # several in a suite of a minute, at 2 % of its time: of one nobody knows how sure it is


def run_reference(threads: int, *, warm: bool) -> Measurement | None:
    """Run the workload on the cores that trials get; None if that fails.

    `threads`: of the ranks of the trial that comes next, so that a process which forks them can fork it, too.
    """
    cores = usable_cores()
    with scratch() as folder:
        job = folder / "job.json"
        job.write_text(json.dumps({"cores": cores}))
        group = run_group(
            job,
            placements_of(range(1), 1),
            folder,
            threads=threads,
            timeout_s=LIMIT_S,
            on_progress=lambda event: None,
            worker=WORKLOAD,
            warm=warm,
        )
    if group.status != "ok":
        return None
    return measured(group.ranks[0]["summary"]["reference_s"], len(cores))


@dataclass
class Reference:
    """The measurements of one run of a suite, kept in `directory`, from where those of earlier runs are read."""

    directory: Path
    _last: Measurement | None = field(init=False)
    _tried: datetime | None = field(init=False)  # when it was measured last, or that failed
    _run: Callable[[], Measurement | None] | None = None  # of the trials since

    def __post_init__(self) -> None:
        here = machine(), len(usable_cores())
        own = [each for each in measurements(self.directory) if (each.machine, each.cores) == here]
        self._last = own[-1] if own else None
        self._tried = own[-1].when if own else None

    def before(self, run: Callable[[], Measurement | None]) -> Measurement | None:
        """Return what a trial's record has, measured now by `run` if the last time is too long ago."""
        if self._tried is None or not timedelta() <= datetime.now(UTC) - self._tried < EVERY:
            self._measure(run)
        self._run = run
        return self._last

    def after(self, quiet: AbstractContextManager[bool]) -> None:
        """Measure once more, when the run is over, if trials have run since and the machine is quiet."""
        if self._run is None:
            return
        with quiet as is_quiet:
            if is_quiet:
                self._measure(self._run)

    def _measure(self, run: Callable[[], Measurement | None]) -> None:
        self._last, self._run = None, None
        with suppress(OSError):  # a full disk: the trial goes on
            self._last = run()
            if self._last is not None:
                note(self.directory, [self._last])
        self._tried = datetime.now(UTC)
