"""The coordinator is node 0: it calls the worker nodes to each trial, judges it and writes its record."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any, Self

from harness.launch.group import GRACE_S, TERM_S, GroupResult, RankFailure
from harness.launch.hardware import blocks, unlike_gpus
from harness.launch.heartbeat import Heartbeats
from harness.launch.inputs import TrialInputs
from harness.launch.machines import OneMachine, TrialJob
from harness.launch.process import is_loopback, placements_of
from harness.launch.rendezvous import (
    CALL,
    JOINED,
    PLAN,
    REFUSED,
    WATCH_S,
    CoordinatorLost,
    NodeInfo,
    StoreClient,
    TrialChannel,
    address_towards,
    backend_of,
    interface_of,
    plan_of,
    session_key,
    wait_for,
)
from harness.launch.runner import TrialProgress, run_suite
from harness.launch.runner_process import FAILED, INTERRUPTED
from harness.launch.slots import RunOptions, Slot
from harness.results.record_store import ResultStore
from harness.suite.schema import Suite, TrialConfig

FAREWELL_S = 15.0  # for the nodes to hear that the run is over


def coordinate(
    client: StoreClient,
    suite: Suite,
    trials: Sequence[TrialConfig],
    store: ResultStore,
    options: RunOptions,
    progress: TrialProgress,
) -> int:
    """Run the suite as `run_suite` does, on all nodes; the worker nodes end when this returns."""
    own = suite.timeouts, options.worker, options.warm, client.cluster.nodes
    coordinator = Coordinator(*own, client=client, suite=suite.name, audit=options.audit)
    code = FAILED
    try:
        client.put(PLAN, plan_of(suite, trials, client.cluster))
        code = run_suite(suite, trials, store, options, progress, coordinator)
    finally:
        with suppress(CoordinatorLost):  # what kept the store was killed: the nodes see that, too
            coordinator.dismiss(code, progress)
        client.close()
    return code


@dataclass(kw_only=True)
class Coordinator(OneMachine):
    """Runs trials on all nodes, its own ranks on this machine; the worker nodes do for themselves what it does here."""

    client: StoreClient
    suite: str
    _calls: int = 0
    _complete: bool = False  # all nodes were there at the end of the last trial

    def __post_init__(self) -> None:
        self._info = NodeInfo.here("", self.client.address)
        self._id = uuid.uuid4().hex[:8]
        self._heartbeats = Heartbeats(self.client, self.client.cluster.node_timeout_s)

    def at(self, slot: Slot) -> Self:
        """Return itself: of several machines a trial has all that they have."""
        return self

    def why_not(self, trial: TrialConfig) -> str | None:
        """Return why the trial cannot run on several machines; None if it can."""
        if trial.network is None:
            return None
        return f"network {trial.network.label} is played on one machine only (run without --nnodes)"

    def run(self, job: TrialJob) -> GroupResult:
        """Run the ranks of a trial on all nodes; whatever becomes of a node is in the result."""
        trial, checkpoints = job.trial, job.checkpoints
        cluster = self.client.cluster
        if not self._complete:
            job.report(f"waiting for {self.nodes} nodes at {cluster.endpoint}")
        self._calls += 1
        channel = TrialChannel(self.client, f"{self.suite}.{trial.id}.{self._id}-{self._calls}")
        seen = None if checkpoints is None else str(checkpoints.shown())
        self.client.put(CALL, {"trial": trial.of_any_data.id, "run": channel.run, "shown": seen})
        try:
            workers = self.gather(channel)
            if workers is None:
                why = f"not all of the {self.nodes} nodes came within {cluster.rdzv_timeout_s:g} s (--rdzv-timeout)"
                why += f"; one was refused: {refused}" if (refused := self.client.get(REFUSED)) else ""
                group = GroupResult([RankFailure(None, "timeout", f"waited in vain: {why}", node=0)])
            else:
                group = self._together(channel, workers, job)
        finally:
            channel.order("stop", True)
        self._complete = group.status == "ok"
        return group

    def gather(self, channel: TrialChannel) -> WorkerNodes | None:
        """Wait until enough nodes have come to the trial and live; return None if they do not come in time."""
        came: dict[int, NodeInfo] = {}

        def look() -> dict[int, NodeInfo] | None:
            for number in range(1, channel.came() + 1):
                if number not in came and (content := channel.heard("node", number)):
                    came[number] = NodeInfo.of(content)
            alive = (pair for pair in came.items() if not self._heartbeats.lost(pair[1].session))
            chosen = dict(islice(alive, self.nodes - 1))
            return chosen if len(chosen) == self.nodes - 1 else None

        chosen = wait_for(look, self.client.cluster.rdzv_timeout_s)
        if chosen is None:
            return None
        # By address, so that a node keeps its number from trial to trial.
        ordered = dict(sorted(chosen.items(), key=lambda item: (item[1].address, item[1].session)))
        channel.order("nodes", [*ordered])
        return WorkerNodes(channel, self._heartbeats, ordered)

    def _together(self, channel: TrialChannel, workers: WorkerNodes, job: TrialJob) -> GroupResult:
        trial, checkpoints = job.trial, job.checkpoints
        limit_s = self.timeouts.trial_s
        ready = workers.hear("ready", limit_s, f"had no data ready within {limit_s:g} s (timeouts.trial_s)")
        if failures := failures_in(ready) or self._differing(ready, job.inputs):
            return GroupResult(failures)
        infos = [self._info, *workers.nodes.values()]
        shares = blocks(trial.partition.parts, self.nodes)
        theirs = [name for info, share in zip(infos, shares, strict=True) for name in info.names[: len(share)]]
        if (unlike := unlike_gpus(trial, theirs)) is not None:
            return GroupResult([RankFailure(None, "error", f"found {unlike}", node=0)])
        backend = backend_of(trial, infos, shares)
        if checkpoints is not None and not all(word.get("sees") for word in ready):
            job.report(f"no checkpoints: not all nodes see {checkpoints.directory}")
            checkpoints = None
        go = {"shares": [[share.start, share.stop] for share in shares], "backend": backend}
        channel.order("go", go | {"checkpoints": checkpoints and checkpoints.model_dump(mode="json")})
        own = self.start(
            replace(
                job,
                checkpoints=checkpoints,
                rendezvous=channel.ranks_rendezvous(backend),
                failed_elsewhere=workers.failed,
            ),
            placements_of(shares[0], trial.partition.parts, self._interface(infos)),
        )
        if own.status != "ok":
            channel.order("stop", True)
        left_s = max(0.0, limit_s - (own.wall_s or 0.0)) + GRACE_S + 2 * TERM_S + self.client.cluster.node_timeout_s
        ends = workers.hear("end", left_s, f"did not end within {limit_s:g} s (timeouts.trial_s)")
        hardware = [{"node": node, "ranks": [*shares[node]], **info.hardware} for node, info in enumerate(infos)]
        return merged([own, *map(unpacked, ends)], hardware)

    def _differing(self, ready: Sequence[Mapping[str, Any]], inputs: TrialInputs) -> list[RankFailure]:
        own = inputs.fingerprint
        what = "prepared other data than node 0: its graph or its partition differs (same files, same versions?)"
        return [
            RankFailure(None, "error", what, node=node) for node, word in enumerate(ready, 1) if word["hash"] != own
        ]

    def _interface(self, infos: Sequence[NodeInfo]) -> str:
        """Return the interface towards the others: here, HOST may resolve to the loopback."""
        far = [info.address for info in infos[1:] if not is_loopback(info.address)]
        return interface_of(address_towards(far[0], self.client.cluster.port) if far else self._info.address)

    def dismiss(self, code: int, progress: TrialProgress) -> None:
        """Tell the nodes that the run is over and wait for them to go, for a limited time."""
        self.client.put(CALL, {"over": code})
        if self._calls == 0 and code != INTERRUPTED and not self._all_came():
            progress.trial_stage("nothing to run on the other nodes; waiting for them to hear of it")
            wait_for(lambda: self._all_came() or None, self.client.cluster.rdzv_timeout_s)
        wait_for(lambda: self._all_gone() or None, FAREWELL_S)

    def _all_came(self) -> bool:
        return self.client.count(JOINED) >= self.nodes - 1

    def _all_gone(self) -> bool:
        sessions = [self.client.get(session_key(i)) for i in range(1, self.client.count(JOINED) + 1)]
        return all(session is not None and self._heartbeats.lost(session) for session in sessions)


class WorkerNodes:
    """Hears the worker nodes of one trial; `nodes` has them by the number that they came with, node 1 first.

    What a node says is a JSON object. If it fails or is lost, `failures` in it says so.
    """

    def __init__(self, channel: TrialChannel, heartbeats: Heartbeats, nodes: Mapping[int, NodeInfo]) -> None:
        self.nodes = nodes
        self._channel, self._heartbeats = channel, heartbeats
        self._words: dict[tuple[str, int], dict[str, Any]] = {}
        self._failed, self._next = False, 0.0

    def hear(self, what: str, limit_s: float, late: str) -> list[dict[str, Any]]:
        """Wait until each node has said `what` or is lost, and return their words; after `limit_s`: `late`."""
        wait_for(lambda: None if None in self._now(what) else True, limit_s)
        return [word or _lost("timeout", late) for word in self._now(what)]

    def failed(self) -> bool:
        """Return whether a node is lost or has said that its ranks failed; looks once a second at most."""
        now = time.monotonic()
        if not self._failed and now >= self._next:
            self._next = now + WATCH_S
            ends = [word for word in self._now("end") if word is not None]
            self._failed = bool(failures_in(ends)) or any(word.get("limit_s") is not None for word in ends)
        return self._failed

    def _now(self, what: str) -> list[dict[str, Any] | None]:
        return [self._word(what, number) for number in self.nodes]

    def _word(self, what: str, number: int) -> dict[str, Any] | None:
        if (what, number) not in self._words:
            # Asked first, because what a node said before it ended is still to be heard.
            lost = self._heartbeats.lost(self.nodes[number].session)
            word = self._channel.heard(what, number) or (_lost("error", lost) if lost else None)
            if word is None:
                return None
            self._words[what, number] = word
        return self._words[what, number]


def _lost(status: Any, reason: str) -> dict[str, Any]:
    return {"failures": [asdict(RankFailure(None, status, reason, lost=status == "error"))]}


def failures_in(words: Sequence[Mapping[str, Any]]) -> list[RankFailure]:
    """Return the failures in what the worker nodes said, node 1's first."""
    return [
        replace(RankFailure(**failure), node=node)
        for node, word in enumerate(words, 1)
        for failure in word.get("failures", ())
    ]


def unpacked(word: Mapping[str, Any]) -> GroupResult:
    """Return the result that a node sent as `dataclasses.asdict`."""
    return replace(GroupResult(**word), failures=[RankFailure(**failure) for failure in word["failures"]])


def merged(groups: Sequence[GroupResult], nodes: Sequence[dict[str, Any]]) -> GroupResult:
    """Return one result from those of all nodes, the coordinator's first; `nodes` says what each is."""
    own = groups[0]
    return GroupResult(
        failures=[replace(f, node=node) for node, group in enumerate(groups) for f in group.failures],
        ranks=sorted((rank for group in groups for rank in group.ranks), key=lambda rank: int(rank["rank"])),
        log="".join(group.log for group in groups),
        wall_s=own.wall_s,
        warm=all(group.warm for group in groups if group.ranks),
        limit_s=next((group.limit_s for group in groups if group.limit_s is not None), None),
        reached=own.reached,
        nodes=nodes,
        epochs=[row for group in groups for row in group.epochs],
    )
