"""A group of ranks runs on this machine: each is a process, and none outlives the runner."""

from __future__ import annotations

import math
import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from harness.errors import one_line
from harness.launch.fork_server import NoWarmStart, fork_server
from harness.launch.hardware import oom_kills
from harness.launch.process import (
    WORKER,
    Brand,
    Placement,
    ProgressTail,
    RankProcess,
    group_log,
    log_tail,
    rank_environment,
    read_ended_epochs,
    read_rank,
    start_rank,
    wait_for_end,
    what_is_odd,
)
from harness.results.record import Status
from harness.runtime.job import STACKS, Position, read_beacon

GRACE_S = 5.0  # after one rank has failed, because the others may be about to say why
TERM_S = 2.0  # between SIGTERM and SIGKILL
POLL_S = 0.05
LOOK_S = 1.0  # between two looks at the ranks' progress beacons
STILL_S = 5.0  # a rank without progress for so long is no longer taken for a busy one
STACKS_S = 2.0  # for ranks to write where they are

OnProgress = Callable[[dict[str, Any]], None]
# The worst first: the status that explains the others is the one a table should show.
SEVERITY: tuple[Status, ...] = ("oom", "invalid", "diverged", "error", "timeout")
# A rank says this when another one went away, so it is never the cause.
_CONNECTION = re.compile(r"connection|gloo|nccl|socket|broken pipe|\bpeers?\b", re.IGNORECASE)


@dataclass(frozen=True)
class RankFailure:
    """A rank failed, or a whole node did (`rank` is None), or the runner itself (so is `node`)."""

    rank: int | None
    status: Status
    reason: str
    order: int = 0  # its position among the ends of the group
    asked: bool = False  # it failed after the launcher asked it to end
    node: int | None = None  # None on one machine
    lost: bool = False  # it ended from outside, without a report of its own; another start may not

    @property
    def text(self) -> str:
        """Return who failed, and why."""
        node = "" if self.node is None else f"node {self.node}"
        who = node if self.rank is None else f"rank {self.rank}" + (f" ({node})" if node else "")
        return f"{who} {self.reason}".lstrip()

    def sort_key(self) -> tuple[bool, bool, int, int]:
        """Return the sort key, which puts the likeliest cause of a group's end first."""
        lost = self.status == "error" and _CONNECTION.search(self.reason) is not None
        known = SEVERITY.index(self.status) if self.status in SEVERITY else len(SEVERITY)
        return (self.asked, lost, known, self.order)


@dataclass(frozen=True)
class GroupResult:
    """Says how a group ended; `ranks` is what each rank wrote, those left out that wrote nothing."""

    failures: Sequence[RankFailure] = ()
    ranks: Sequence[dict[str, Any]] = ()
    log: str = ""  # the end of every rank's output
    wall_s: float | None = None  # None if no rank was started
    warm: bool = False  # all ranks were forked by a process that had imported what they need
    left: int = 0  # processes that ranks had started and left behind; they were ended
    limit_s: float | None = None  # the time limit, if it ended the group
    reached: str = ""  # where training was then, in words
    nodes: Sequence[dict[str, Any]] = ()  # what each node is; empty on one machine
    epochs: Sequence[dict[str, Any]] = ()  # rows of the epochs that ranks without a report had ended

    @property
    def cause(self) -> RankFailure | None:
        """Return what ended the group: a time limit, or else the likeliest failure; None if it ended well."""
        if self.limit_s is not None:
            hung = next((f"; {f.text}" for f in self.failures if f.status == "timeout"), "")
            return RankFailure(None, "timeout", f"time limit of {self.limit_s:g} s reached {self.reached}{hung}")
        return min(self.failures, key=RankFailure.sort_key, default=None)

    @property
    def lost(self) -> bool:
        """Return whether a rank or a node that was lost ended the group."""
        return self.cause is not None and self.cause.lost

    @property
    def status(self) -> Status:
        """Return ok, oom, timeout, diverged, invalid, error or skipped."""
        return self.cause.status if self.cause else "ok"

    @property
    def reason(self) -> str | None:
        """Return why the status is not ok, in one line."""
        return self.cause.text if self.cause else None


def run_group(
    job: Path,
    placements: Sequence[Placement],
    *,
    threads: int,
    timeout_s: float,
    progress_s: float = math.inf,
    on_progress: OnProgress = lambda event: None,
    worker: str = WORKER,
    warm: bool = False,
    failed_elsewhere: Callable[[], bool] = lambda: False,
) -> GroupResult:
    """Run `python -P -m worker job` at each of `placements` and wait for all of them.

    Ranks write to the directory of `job`, and have `threads` each. `timeout_s` is wall time from the start;
    `progress_s` ends a group none of whose ranks has made progress for so long, once one has begun an epoch. `warm`:
    ranks are forked where that is possible. `failed_elsewhere`, asked often: whether a rank of the same trial on
    another machine has failed.

    Any exception, KeyboardInterrupt among them, ends the ranks before it leaves this function; if this process is
    killed, the ranks see the end of their stdin and exit.
    """
    out, server, why_cold = job.parent, None, "ranks start cold: {}"
    if warm and placements:
        try:
            server = fork_server(worker, rank_environment(placements[0], threads))
            server.wait()
        except NoWarmStart as why:
            on_progress({"event": "stage", "text": why_cold.format(why)})
            server = None
    started, kills = time.monotonic(), oom_kills()
    read_end, write_end = os.pipe()  # no rank inherits the write end: it closes when this process dies
    world = placements[0].world if placements else 0  # a node may have none of a trial's ranks
    group, brand, left = _Group(out, world, progress_s, on_progress, failed_elsewhere), Brand.new(), 0
    try:
        for placement in placements:
            start = partial(start_rank, worker, job, placement, threads, read_end, brand)
            try:
                process = start(server.fork if server else None)
            except NoWarmStart as why:
                on_progress({"event": "stage", "text": why_cold.format(why)})
                server, process = None, start()
            brand.put_on(process.pid)
            group.processes.append(process)
        in_time = group.wait(started + timeout_s)
    finally:
        # Both ends go first, because a second Ctrl-C may come while the ranks are being killed.
        os.close(read_end)
        os.close(write_end)
        for process in group.processes:
            process.kill()
        left = brand.end()
    group.report()  # what ranks wrote between the last look and their end
    oom, ranks, last = oom_kills() > kills, [placement.rank for placement in placements], group.last
    done = f"{int(last.get('epoch', 0)) + 1} of {last.get('epochs', '?')}"
    written = {rank: read_rank(out, rank) for rank in ranks}
    # A record can be made of these alone.
    valid = {rank: found for rank, found in written.items() if found and what_is_odd(found, rank) is None}
    return GroupResult(
        failures=[failure for process in group.processes if (failure := failure_of(process, out, oom=oom))],
        ranks=[*valid.values()],
        epochs=[row for rank in ranks if rank not in valid for row in read_ended_epochs(out, rank)],
        log=group_log(out, ranks),
        wall_s=time.monotonic() - started,
        warm=server is not None,
        left=left,
        limit_s=None if in_time else timeout_s,
        reached=f"after {done} epochs" if last else "before the first epoch ended",
    )


@dataclass
class _Group:
    """Watches ranks of a group that write to `out`, `world` of the trial's all together."""

    out: Path
    world: int
    progress_s: float
    on_progress: OnProgress
    failed_elsewhere: Callable[[], bool]
    processes: list[RankProcess] = field(default_factory=list)
    last: dict[str, Any] = field(default_factory=dict)
    _beacons: dict[int, tuple[Position, float]] = field(default_factory=dict)
    _next_look: float = 0.0

    def __post_init__(self) -> None:
        self._tail = ProgressTail(self.out / "progress.jsonl")
        self._ended, self._failed = 0, False

    def wait(self, deadline: float) -> bool:
        """Wait until every rank has ended, or ask them to; False if the deadline passed with no rank failed."""
        grace_end: float | None = None
        while not self._all_ended():
            now = time.monotonic()
            if grace_end is None and (self._failed or self.failed_elsewhere()):
                grace_end = now + GRACE_S
            hung = self._are_hung()
            if hung or now >= (deadline if grace_end is None else grace_end):
                self._blame(ended_for_it=hung)
                for process in self.processes:
                    process.asked = process.asked or process.code is None
                    process.signal(signal.SIGTERM)
                give_up = time.monotonic() + TERM_S  # for ranks to report how they ended; the caller kills the others
                while not self._all_ended() and time.monotonic() < give_up:
                    wait_for_end(self.processes, POLL_S)
                return hung or grace_end is not None
            self.report()
            wait_for_end(self.processes, POLL_S)
        return True

    def report(self) -> None:
        """Pass on the progress that was written since the last call."""
        for event in self._tail.new():
            if event.get("event") == "epoch":
                self.last = event
            self.on_progress(event)

    def _all_ended(self) -> bool:
        for process in self.processes:
            if process.order is None and process.ended():
                process.order, self._ended = self._ended, self._ended + 1
                self._failed |= failure_of(process, self.out) is not None
        return self._ended == len(self.processes)

    def _are_hung(self) -> bool:
        """Read the ranks' progress beacons, once a second; returns whether all have stood for `progress_s`."""
        now = time.monotonic()
        if now < self._next_look:
            return False
        self._next_look = now + LOOK_S
        for process in self.processes:
            place = read_beacon(self.out, process.rank)
            if place is not None and (process.rank not in self._beacons or self._beacons[process.rank][0] != place):
                self._beacons[process.rank] = place, now
        running = [process for process in self.processes if process.code is None]
        begun = any(place.epoch >= 0 for place, _ in self._beacons.values())
        return begun and bool(running) and all(self._still_s(process.rank) >= self.progress_s for process in running)

    def _still_s(self, rank: int) -> float:
        """Return for how many seconds a rank has made no progress; 0 of one without a beacon yet."""
        return time.monotonic() - self._beacons[rank][1] if rank in self._beacons else 0.0

    def _blame(self, *, ended_for_it: bool) -> None:
        """Have the ranks without progress write their stacks, and mark those that the others wait for as hung.

        A hung rank cannot report, so its last written position is compared with its peers'. Hung are the ranks in no
        collective; if every rank of the trial is in one, those that have begun fewest. Where the group is
        `ended_for_it` and there are none, all are.
        """
        still = [p for p in self.processes if p.code is None and self._still_s(p.rank) >= STILL_S]
        if not still:
            return
        for process in still:
            with suppress(ProcessLookupError):
                os.kill(process.pid, STACKS)  # the rank alone: the signal may end what it started
        places = {process.rank: self._beacons[process.rank][0] for process in still}
        behind = [process for process in still if not places[process.rank].waits]
        if not behind and len(still) == self.world:
            least = min(place.entered for place in places.values())
            behind = [process for process in still if places[process.rank].entered == least]
        behind = behind or (still if ended_for_it else [])
        blamed = {process.rank for process in behind}
        waiting = sorted(rank for rank, place in places.items() if place.waits and rank not in blamed)
        whom = f", while ranks {waiting} waited for it" if waiting else ""
        stopped = {process.rank for process in still if _is_stopped(process.pid)}
        for process in behind:
            epoch = places[process.rank].epoch
            how = "was stopped" if process.rank in stopped else "hung"
            where = f"in epoch {epoch}" if epoch >= 0 else "before the first epoch"
            seconds = f"{self._still_s(process.rank):.0f} s"
            process.hung = f"{how} for {seconds} {where}{whom}; stacks of all ranks are in the log"
        writing, end = {process.rank for process in still} - stopped, time.monotonic() + STACKS_S
        while time.monotonic() < end and any("most recent call first" not in log_tail(self.out, r) for r in writing):
            time.sleep(0.05)


def _is_stopped(pid: int) -> bool:
    # By SIGSTOP, or a debugger.
    with suppress(psutil.Error):
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    return False


def failure_of(process: RankProcess, out: Path, *, oom: bool = False) -> RankFailure | None:
    """Return how an ended rank failed, None if it did not; `oom`: the kernel killed for want of memory meanwhile."""
    rank, code, written = process.rank, process.code, read_rank(out, process.rank)
    status: Status = "error"
    if written is not None and (odd := what_is_odd(written, rank)) is not None:
        return RankFailure(rank, status, f"reported what is no report: {odd}", process.order or 0)
    if process.hung:
        return RankFailure(rank, "timeout", process.hung, process.order or 0)
    if written is not None and written["status"] != "ok":
        status = next((known for known in SEVERITY if known == written["status"]), "error")
        reason = f"said: {one_line(str(written.get('reason') or written['status']))}"
    elif code is not None and code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else "unknown"
        reason = f"was killed by signal {-code} ({name})"
        if oom and code == -signal.SIGKILL and not process.asked:
            status, reason = "oom", f"{reason}: the machine or its memory limit ran out of memory"
    elif code == 0:
        if written is not None:
            return None
        reason = "ended without a result"
    else:
        lines = log_tail(out, rank).rstrip().splitlines()
        reason = f"exited with code {code}" + (f": {one_line(lines[-1])}" if lines else "")
    lost = written is None and status == "error"
    return RankFailure(rank, status, reason, process.order or 0, process.asked, lost=lost)
