"""Status of a run, read from its suite's directory: trials that ended, run now, or are left."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import DamagedRecord, UserError, pass_over
from harness.results.leases import HEARTBEAT_S, RunnerInfo, Runners
from harness.results.record import RECORD_FILE, Record
from harness.results.record_store import SUITE_FILE, read_at, read_suite, records_under, require_directory
from harness.suite.schema import TrialConfig


@dataclass(frozen=True)
class SuiteState:
    """A suite's trials at one moment.

    `ended`: their records, without figures; `running`: by whom, `lost`: runners that died with one, and how they ended;
    `seeds`: of rounds of fresh seeds how many each configuration has, with which label; `decided`: why it ended.
    """

    name: str
    total: int
    ended: list[Record]
    running: list[RunnerInfo]
    lost: list[tuple[RunnerInfo, str]]
    seeds: Sequence[tuple[str, int]] = ()
    decided: str = ""

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
        """Whether every trial has a record, and no round of fresh seeds follows."""
        return len(self.ended) >= self.total and (not self.seeds or bool(self.decided))


class SuiteWatch:
    """Looks at a suite's directory again and again; a record is read once."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._runners = Runners(directory)
        self._records: dict[Path, tuple[tuple[int, int], Record]] = {}

    def state(self) -> SuiteState:
        """Return how it stands now; a damaged record is named, and its trial is left to run."""
        suite = read_suite(self.directory / SUITE_FILE) if (self.directory / SUITE_FILE).is_file() else None
        ended = [each for path in records_under(self.directory) if (each := self._ended(path))]
        if suite:
            known = {trial.id for trial in suite.trials}
            # A directory that was copied holds a trial a second time.
            ended = list({each.trial: each for each in ended if each.trial in known}.values())
        busy = [(info, self._runners.dead(info.id)) for info in self._runners.all() if info.trial is not None]
        return SuiteState(
            self.directory.name,
            total=len(suite.trials) if suite else len(ended),
            ended=ended,
            running=[info for info, why in busy if why is None],
            lost=[(info, why) for info, why in busy if why is not None],
            seeds=_seeds(suite.trials, ended) if suite and suite.rounds else (),
            decided=suite.decided if suite else "",
        )

    def silent(self) -> frozenset[str]:
        """Return the runners elsewhere whose heartbeat does not move; if any, that takes over a heartbeat.

        Clocks are not asked: they may differ by minutes.
        """
        waiting = self._runners.heartbeats_elsewhere()
        end = time.monotonic() + 2 * HEARTBEAT_S
        still = set(waiting)
        while still and time.monotonic() < end:
            time.sleep(0.2)
            now = self._runners.heartbeats_elsewhere()
            still = {id_ for id_ in still if id_ in now and now[id_] == waiting[id_]}
        return frozenset(still)

    def _ended(self, path: Path) -> Record | None:
        stamp = 0, 0
        with contextlib.suppress(OSError):
            found = (path / RECORD_FILE).stat()
            stamp = found.st_ino, found.st_ctime_ns
        if path not in self._records or self._records[path][0] != stamp:
            # Figures of thousands of trials would take gigabytes.
            try:
                self._records[path] = stamp, read_at(path).model_copy(update={"result": {}, "ranks": []})
            except DamagedRecord as error:
                pass_over(error)
                return None
        return self._records[path][1]


def _seeds(trials: Iterable[TrialConfig], ended: Sequence[Record]) -> list[tuple[str, int]]:
    labels, found = {each.trial: each.label for each in ended}, dict[str, list[TrialConfig]]()
    for trial in trials:
        found.setdefault(trial.seedless, []).append(trial)
    return [
        (labels.get(own[0].id, own[0].label).removesuffix(f" seed={own[0].seed}"), len({each.seed for each in own}))
        for own in found.values()
    ]


def suite_directories(place: Path) -> list[Path]:
    """Return the suites' directories that `place` is or holds; UserError if there are none."""
    require_directory(place)
    if (place / SUITE_FILE).is_file() or records_under(place):
        return [place]
    found = sorted(path.parent for path in place.glob(f"*/{SUITE_FILE}"))
    if not found:
        raise UserError("holds no results of a suite", file=place, fix="name a directory that `harness run` wrote")
    return found
