"""Standstill: no rank of a group moves any more, and which of them the others wait for."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.launch.process import PROC, RankProcess, log_tail
from harness.runtime.job import STACKS, Place, read_beacon

LOOK_S = 1.0
STILL_S = 5.0  # that a rank has not moved for, and is no longer taken for a busy one
STACKS_S = 2.0  # for ranks to write where they are


@dataclass
class Standstill:
    """Looks at ranks of a group that write to `out`, `world` of the trial's all together.

    Attributes:
        limit_s: seconds without a move of any rank, once one has begun an epoch, after which they stand still.
    """

    out: Path
    world: int
    limit_s: float
    clock: Callable[[], float] = time.monotonic
    _seen: dict[int, tuple[Place, float]] = field(default_factory=dict)
    _next: float = 0.0

    def look(self, processes: Sequence[RankProcess]) -> bool:
        """Take in where ranks are, once a second; returns whether they stand still for longer than the limit."""
        now = self.clock()
        if now < self._next:
            return False
        self._next = now + LOOK_S
        for process in processes:
            place = read_beacon(self.out, process.rank)
            if place is not None and (process.rank not in self._seen or self._seen[process.rank][0] != place):
                self._seen[process.rank] = place, now
        running = [process for process in processes if process.code is None]
        if not running or not any(place.epoch >= 0 for place, _ in self._seen.values()):
            return False
        return all(self.seconds(process.rank) >= self.limit_s for process in running)

    def seconds(self, rank: int) -> float:
        """Return for how long a rank has not moved; 0 of one that has not said where it is."""
        found = self._seen.get(rank)
        return 0.0 if found is None else self.clock() - found[1]

    def name(self, processes: Sequence[RankProcess], *, ended_for_it: bool) -> None:
        """Have the ranks that have not moved write their stacks, and say of those that others wait for that they stood.

        Those are the ones in no collective; if every rank of the trial is in one, those that have begun fewest. Where
        the group is `ended_for_it` and there are none, all did.
        """
        still = [p for p in processes if p.code is None and self.seconds(p.rank) >= STILL_S]
        if not still:
            return
        for process in still:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, STACKS)  # the rank alone: what it started may end of it
        places = {process.rank: self._seen[process.rank][0] for process in still}
        behind = [process for process in still if not places[process.rank].waits]
        if not behind and len(still) == self.world:
            least = min(place.entered for place in places.values())
            behind = [process for process in still if places[process.rank].entered == least]
        behind = behind or (still if ended_for_it else [])
        waiting = sorted(rank for rank, place in places.items() if place.waits and rank not in _ranks(behind))
        for process in behind:
            process.stood = self._told(process, places[process.rank], waiting)
        end = self.clock() + STACKS_S
        while self.clock() < end and not all(
            _has_written(self.out, process) for process in still if not _stopped(process)
        ):
            time.sleep(0.05)

    def _told(self, process: RankProcess, place: Place, waiting: Sequence[int]) -> str:
        how = "was stopped" if _stopped(process) else "stood still"
        where = f"in epoch {place.epoch}" if place.epoch >= 0 else "before the first epoch"
        whom = f", while ranks {list(waiting)} waited for it" if waiting else ""
        return f"{how} for {self.seconds(process.rank):.0f} s {where}{whom}; stacks of all ranks are in the log"


def _ranks(processes: Sequence[RankProcess]) -> set[int]:
    return {process.rank for process in processes}


def _stopped(process: RankProcess) -> bool:
    """Return whether the kernel has stopped a process (SIGSTOP, a debugger)."""
    try:
        return (PROC / str(process.pid) / "stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    except OSError:
        return False


def _has_written(out: Path, process: RankProcess) -> bool:
    return "most recent call first" in log_tail(out, process.rank)
