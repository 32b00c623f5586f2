"""Status of a run, read from its suite's directory: trials that ended, run now, or are left."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import UserError
from harness.results.leases import HEARTBEAT_S, RunnerInfo, Runners
from harness.results.record_store import SUITE_FILE, read_at, read_suite, records_under


@dataclass(frozen=True)
class Ended:
    """A trial that has a record."""

    trial: str
    label: str
    status: str
    reason: str | None
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class SuiteState:
    """A suite's trials at one moment; `running`: by whom, `lost`: runners that died with one, and how they ended."""

    name: str
    total: int
    ended: list[Ended]
    running: list[RunnerInfo]
    lost: list[tuple[RunnerInfo, str]]

    @property
    def counts(self) -> dict[str, int]:
        """How many have ended, by status, most first."""
        return dict(sorted(Counter(each.status for each in self.ended).items(), key=lambda item: (-item[1], item[0])))

    @property
    def left(self) -> int:
        """How many have no record and no runner."""
        return max(0, self.total - len(self.ended) - len(self.running))

    @property
    def over(self) -> bool:
        """Whether every trial has a record."""
        return len(self.ended) >= self.total


@dataclass
class SuiteWatch:
    """Looks at a suite's directory again and again; a record is read once."""

    directory: Path
    clock: Callable[[], float] = time.monotonic
    _records: dict[Path, tuple[int, Ended]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._runners = Runners(self.directory, clock=self.clock)

    def state(self) -> SuiteState:
        """Return how it stands now. UserError for a damaged record."""
        suite = read_suite(self.directory / SUITE_FILE) if (self.directory / SUITE_FILE).is_file() else None
        ended = [self._ended(path) for path in records_under(self.directory)]
        if suite:
            known = {trial.id for trial in suite.trials}
            ended = [each for each in ended if each.trial in known]
        alive, lost = [], []
        for info in self._runners.all():
            why = self._runners.dead(info.id)
            if info.trial is not None and why is None:
                alive.append(info)
            elif info.trial is not None and why is not None:
                lost.append((info, why))
        total = len(suite.trials) if suite else len(ended)
        return SuiteState(self.directory.name, total, ended, alive, lost)

    def silent(self) -> frozenset[str]:
        """Return the runners elsewhere whose heartbeat does not move; if any, that takes over a heartbeat.

        Clocks are not asked: they may differ by minutes.
        """
        waiting = self._runners.heartbeats_elsewhere()
        end = self.clock() + 2 * HEARTBEAT_S
        still = set(waiting)
        while still and self.clock() < end:
            time.sleep(0.2)
            now = self._runners.heartbeats_elsewhere()
            still = {id_ for id_ in still if id_ in now and now[id_] == waiting[id_]}
        return frozenset(still)

    def _ended(self, path: Path) -> Ended:
        stamp = 0
        with contextlib.suppress(OSError):
            stamp = (path / "record.json").stat().st_mtime_ns
        if path not in self._records or self._records[path][0] != stamp:
            record = read_at(path)
            ended = Ended(record.trial, record.label, record.status, record.reason, tuple(record.flags))
            self._records[path] = stamp, ended
        return self._records[path][1]


def suite_directories(place: Path) -> list[Path]:
    """Return the suites' directories that `place` is or holds; UserError if there are none."""
    if not place.is_dir():
        raise UserError("no such directory of results", file=place)
    if (place / SUITE_FILE).is_file() or records_under(place):
        return [place]
    found = sorted(path.parent for path in place.glob(f"*/{SUITE_FILE}"))
    if not found:
        raise UserError("holds no results of a suite", file=place, fix="name a directory that `harness run` wrote")
    return found
