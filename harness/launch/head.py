"""The head: node 0, which calls the others to each trial, judges it and writes its record."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.launch.inputs import TrialInputs
from harness.launch.local import GRACE_S, TERM_S, GroupResult, RankFailure
from harness.launch.nodes import (
    CALL,
    MEMBERS,
    PLAN,
    POLL_S,
    REFUSED,
    NodeInfo,
    Seat,
    backend_of,
    blocks,
    fingerprint,
    member_key,
    merged,
    places_of,
    plan_of,
    unpacked,
)
from harness.launch.process import is_loopback
from harness.launch.rendezvous import Link, NotMet, address_towards, interface_of
from harness.launch.runner import FAILED, INTERRUPTED, OneMachine, RunOptions, TrialProgress, run_suite
from harness.launch.watch import Ears, Watch, failures_in
from harness.results.store import ResultStore
from harness.suite.schema import Suite, TrialConfig

FAREWELL_S = 15.0  # for the nodes to hear that the run is over


def lead(
    link: Link,
    suite: Suite,
    trials: Sequence[TrialConfig],
    store: ResultStore,
    options: RunOptions,
    progress: TrialProgress,
) -> int:
    """Run the suite as `run_suite` does, on all nodes; the nodes end when this returns."""
    ranks = OneMachine(suite.timeouts, options.worker, link.cluster.nodes)
    head = Head(link, suite.name, ranks)
    code = FAILED
    try:
        link.put(PLAN, plan_of(suite, trials, link.cluster))
        code = run_suite(suite, trials, store, options, progress, head)
    finally:
        head.dismiss(code, progress)
    return code


@dataclass
class Head:
    """Runs trials on all nodes (see `trial.Machines`)."""

    link: Link
    suite: str
    ranks: OneMachine
    _calls: int = 0
    _complete: bool = False  # all nodes were there at the end of the last trial
    _graphs: dict[Path, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.nodes = self.link.cluster.nodes
        self._info = NodeInfo.here("", self.link.address)
        self._id = uuid.uuid4().hex[:8]
        self._watch = Watch(self.link, self.link.cluster.node_timeout_s)

    def why_not(self, trial: TrialConfig) -> str | None:
        """Return why the trial cannot run on several machines; None if it can."""
        if trial.network is None:
            return None
        return f"network {trial.network.label} is played on one machine only (run without --nnodes)"

    def run(self, trial: TrialConfig, inputs: TrialInputs, out: Path, progress: TrialProgress) -> GroupResult:
        """Run the ranks of `trial` on all nodes; whatever becomes of a node is in the result."""
        if not self._complete:
            progress.trial_stage(f"waiting for {self.nodes} nodes at {self.link.cluster.endpoint}")
        group = self._run(trial, inputs, out, progress)
        self._complete = group.status == "ok"
        return group

    def _run(self, trial: TrialConfig, inputs: TrialInputs, out: Path, progress: TrialProgress) -> GroupResult:
        self._calls += 1
        run = f"{self.suite}.{trial.id}.{self._id}-{self._calls}"
        call = {"number": self._calls, "trial": trial.id, "run": run}
        self.link.put(CALL, call | {"open": True})
        try:
            with self.link.meet(run) as rank:
                self.link.put(CALL, call | {"open": False})
                seat = Seat(self.link, run, rank)
                try:
                    return self._together(seat, trial, inputs, out, progress)
                finally:
                    seat.order("stop", True)
        except NotMet as missing:
            refused = self.link.get(REFUSED)
            why = f"{missing}; one was refused: {refused}" if refused else str(missing)
            return GroupResult([RankFailure(None, "timeout", f"waited in vain: {why}", node=0)])

    def _together(
        self, seat: Seat, trial: TrialConfig, inputs: TrialInputs, out: Path, progress: TrialProgress
    ) -> GroupResult:
        limit_s, silence_s = self.ranks.timeouts.trial_s, self.link.cluster.node_timeout_s
        ears = Ears(seat, self._watch, [rank for rank in range(self.nodes) if rank != seat.rank])
        said = ears.hear("node", silence_s, f"said nothing within {silence_s:g} s (--node-timeout)")
        if failures := failures_in(said):
            return GroupResult(failures)
        infos = [self._info, *(NodeInfo(**content) for content in said)]
        ears.watch([info.session for info in infos[1:]])
        ready = ears.hear("ready", limit_s, f"had no data ready within {limit_s:g} s (timeouts.trial_s)")
        if failures := failures_in(ready) or self._differing(ready, inputs):
            return GroupResult(failures)
        shares = blocks(trial.partition.parts, self.nodes)
        meeting = seat.meeting(backend_of(trial, infos, shares))
        seat.order("go", {"shares": ears.seats(shares[1:]), "backend": meeting.backend})
        own = self.ranks.start(
            trial,
            inputs,
            out,
            places_of(shares[0], trial.partition.parts, self._interface(infos)),
            progress.trial_event,
            meeting=meeting,
            failed_elsewhere=ears.failed,
        )
        if own.status != "ok":
            seat.order("stop", True)
        left_s = max(0.0, limit_s - (own.wall_s or 0.0)) + GRACE_S + 2 * TERM_S + silence_s
        ends = ears.hear("end", left_s, f"did not end within {limit_s:g} s (timeouts.trial_s)")
        groups = [GroupResult([end]) if isinstance(end, RankFailure) else unpacked(end) for end in ends]
        return merged(
            [own, *groups],
            [{"node": node, "ranks": [*shares[node]], **info.hardware} for node, info in enumerate(infos)],
        )

    def _differing(self, ready: Sequence[dict[str, Any]], inputs: TrialInputs) -> list[RankFailure]:
        own = fingerprint(inputs, self._graphs)
        what = "prepared other data than node 0: its graph or its partition differs (same files, same versions?)"
        return [
            RankFailure(None, "error", what, node=node)
            for node, content in enumerate(ready, 1)
            if content["hash"] != own
        ]

    def _interface(self, infos: Sequence[NodeInfo]) -> str:
        """Return the interface towards the others: HOST may resolve to the loopback on the head itself."""
        far = [info.address for info in infos[1:] if not is_loopback(info.address)]
        return interface_of(address_towards(far[0], self.link.cluster.port) if far else self._info.address)

    def dismiss(self, code: int, progress: TrialProgress) -> None:
        """Tell the nodes that the run is over and wait for them to go, for a limited time."""
        self.link.put(CALL, {"over": code})
        if self._calls == 0 and code != INTERRUPTED and not self._all_came():
            progress.trial_stage("nothing to run on the other nodes; waiting for them to hear of it")
            self._wait(self._all_came, self.link.cluster.rdzv_timeout_s)
        self._wait(self._all_gone, FAREWELL_S)

    def _wait(self, condition: Callable[[], bool], limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        while not condition() and time.monotonic() < deadline:
            time.sleep(POLL_S)

    def _all_came(self) -> bool:
        return self.link.count(MEMBERS) >= self.nodes - 1

    def _all_gone(self) -> bool:
        sessions = [self.link.get(member_key(i)) for i in range(1, self.link.count(MEMBERS) + 1)]
        return all(session is not None and self._watch.lost(session) for session in sessions)
