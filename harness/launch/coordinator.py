"""The coordinator, node 0 of several machines: it calls worker nodes to each trial, judges it and writes its record."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any, Self

from harness.deferred import torch
from harness.errors import UserError
from harness.gpus import usable_gpus
from harness.launch.group import GRACE_S, TERM_S, GroupResult, RankFailure
from harness.launch.hardware import blocks, cores, unlike_gpus
from harness.launch.machines import OneMachine, TrialJob
from harness.launch.process import is_loopback, placements_of
from harness.launch.rendezvous import CALL, Cluster, Coordination, Hub, Peer, address_towards, interface_of, wait_for
from harness.launch.runner import TrialProgress, run_suite
from harness.launch.runner_process import FAILED, INTERRUPTED
from harness.launch.slots import RunOptions, Slot
from harness.results.environment import collect
from harness.results.record_store import ResultStore
from harness.runtime.job import Backend, RanksRendezvous
from harness.suite.schema import Suite, TrialConfig

FAREWELL_S = 15.0  # for the nodes to see that the run is over
PREEMPTED_S = 5.0  # between the first and the last node that a cancelled job loses
WATCH_S = 1.0  # between two looks while ranks train, because they need the cores
# Names of messages. Those of one trial begin with the call's `run`: a node reports "came", "ready" and "end"; the
# coordinator orders "nodes", "go" and "stop".
PLAN = "plan"
JOINED, REFUSED = "joined", "refused"  # a node's plan is the coordinator's, or why the node does not take part
_HARDWARE = ("platform", "python", "cpu", "cores", "usable_cores", "memory_bytes", "gpus", "driver", "cuda", "nccl")
_FIXES = {
    "nodes": ("--nnodes", "give every node the same"),
    "versions": ("versions", "install the same on every node"),
    "plugins": ("plugins", "give every node the same files"),
    "suite": ("suite", "give every node the same file"),
    "timeouts": ("timeouts", "give every node the same file"),
}


@dataclass(frozen=True)
class NodeInfo:
    """What a node is; `session` is its runner's name in the coordinator's orders, `names` are its GPUs'."""

    session: str
    address: str
    gpus: int
    hardware: dict[str, Any]
    names: Sequence[str] = ()

    @classmethod
    def here(cls, session: str, address: str) -> NodeInfo:
        """Describe this machine."""
        found, names = collect(cores()), [gpu.name for gpu in usable_gpus()]
        return cls(session, address, len(names), {key: found.get(key) for key in _HARDWARE}, names)


def plan_of(suite: Suite, trials: Sequence[TrialConfig], cluster: Cluster) -> dict[str, Any]:
    """Return what must be alike on all nodes."""
    found = collect(cores())
    return {
        "nodes": cluster.nodes,
        "versions": {key: found[key] for key in ("harness", "commit")} | {"torch": torch.__version__},
        "plugins": {
            f"{kind} {source.cls}": source.sha256[:12] for trial in trials for kind, source in trial.sources.items()
        },
        "suite": suite.name,
        "timeouts": suite.timeouts.model_dump(mode="json"),
        "trials": {trial.of_any_data.id: trial.of_any_data.label for trial in trials},
    }


def check_plan(own: Mapping[str, Any], coordinators: Any) -> None:
    """Raise UserError that says in what this node's plan differs from the coordinator's."""
    there = coordinators.get("trials") if isinstance(coordinators, Mapping) else None
    if not isinstance(there, Mapping) or not own.keys() <= coordinators.keys():
        raise UserError("the coordinator's plan lacks something", key="versions", fix=_FIXES["versions"][1])
    for key, (name, fix) in _FIXES.items():
        if own[key] != coordinators[key]:
            raise UserError(f"{own[key]} here, {coordinators[key]} on the coordinator", key=name, fix=fix)
    here = own["trials"]
    if here.keys() == there.keys():
        return
    only = [f"only here: {here[id_]}" for id_ in here if id_ not in there][:1]
    only += [f"only on the coordinator: {there[id_]}" for id_ in there if id_ not in here][:1]
    raise UserError(
        f"{len(here)} trials here, {len(there)} on the coordinator, {len(here.keys() & there.keys())} alike; "
        + "; ".join(only),
        key="trials",
        fix="same suite file, options, data directory and kind of device on every node",
    )


def coordinate(
    hub: Hub,
    suite: Suite,
    trials: Sequence[TrialConfig],
    store: ResultStore,
    options: RunOptions,
    progress: TrialProgress,
) -> int:
    """Run the suite as `run_suite` does, on all nodes; the worker nodes end when this returns."""
    own = suite.timeouts, options.worker, options.warm, hub.cluster.nodes
    coordinator = Coordinator(*own, hub=hub, suite=suite.name, audit=options.audit)
    code = FAILED
    try:
        hub.order(PLAN, plan_of(suite, trials, hub.cluster))
        code = run_suite(suite, trials, store, options, progress, coordinator)
    finally:
        coordinator.dismiss(code, progress)
        hub.close()
    return code


@dataclass(kw_only=True)
class Coordinator(OneMachine):
    """Runs trials on all nodes, its own ranks on this machine; the worker nodes do for themselves what it does here."""

    hub: Hub
    suite: str
    _calls: int = 0
    _complete: bool = False  # all nodes were there at the end of the last trial

    def __post_init__(self) -> None:
        self._info = NodeInfo.here("", self.hub.address)
        self._id = uuid.uuid4().hex[:8]

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
        trial, checkpoints, cluster = job.trial, job.checkpoints, self.hub.cluster
        if not self._complete:
            job.report(f"waiting for {self.nodes} nodes at {cluster.endpoint}")
        self._calls += 1
        run = f"{self.suite}.{trial.id}.{self._id}-{self._calls}"
        seen = None if checkpoints is None else str(checkpoints.shown())
        self.hub.order(CALL, {"trial": trial.of_any_data.id, "run": run, "shown": seen})
        try:
            workers = self.gather(run)
            if workers is None:
                why = f"not all of the {self.nodes} nodes came within {cluster.rdzv_timeout_s:g} s (--rdzv-timeout)"
                refused = [said for peer in self.hub.peers if (said := peer.get(REFUSED))]
                why += f"; one was refused: {refused[-1]}" if refused else ""
                group = GroupResult([RankFailure(None, "timeout", f"waited in vain: {why}", node=0)])
            else:
                group = self._together(workers, job)
        finally:
            self.hub.order(f"{run}/stop", True)
        self._complete = group.status == "ok"
        if group.cause and group.cause.rank is None and group.cause.status == "error":
            # A job that is cancelled or preempted loses its nodes one after the other: if this one is next, the trial
            # has no record, and is run again.
            time.sleep(PREEMPTED_S)
        return group

    def gather(self, run: str) -> WorkerNodes | None:
        """Wait until enough nodes have come to the trial and live; return None if they do not come in time."""

        def look() -> dict[int, Peer] | None:
            came = {n: peer for n, peer in enumerate(self.hub.peers) if peer.get(f"{run}/came") and not peer.lost}
            return dict(islice(came.items(), self.nodes - 1)) if len(came) >= self.nodes - 1 else None

        if (chosen := wait_for(look, self.hub.cluster.rdzv_timeout_s)) is None:
            return None
        infos = {number: NodeInfo(**peer.take(f"{run}/came")) for number, peer in chosen.items()}
        # By address, so that a node keeps its number from trial to trial.
        ordered = sorted(infos, key=lambda number: (infos[number].address, number))
        self.hub.order(f"{run}/nodes", [infos[number].session for number in ordered])
        return WorkerNodes(self.hub, run, [chosen[number] for number in ordered], [infos[number] for number in ordered])

    def _together(self, workers: WorkerNodes, job: TrialJob) -> GroupResult:
        trial, checkpoints, limit_s = job.trial, job.checkpoints, self.timeouts.trial_s
        ready = workers.reports("ready", limit_s, f"had no data ready within {limit_s:g} s (timeouts.trial_s)")
        failures = failures_in(ready)
        if not failures:
            what = "prepared other data than node 0: its graph or its partition differs (same files, same versions?)"
            differing = [node for node, report in enumerate(ready, 1) if report["hash"] != job.inputs.fingerprint]
            failures = [RankFailure(None, "error", what, node=node) for node in differing]
        infos = [self._info, *workers.infos]
        shares = blocks(trial.partition.parts, self.nodes)
        names = [name for info, share in zip(infos, shares, strict=True) for name in info.names[: len(share)]]
        if not failures and (unlike := unlike_gpus(trial, names)) is not None:
            failures = [RankFailure(None, "error", f"found {unlike}", node=0)]
        if failures:
            return GroupResult(failures)
        backend = backend_of(trial, infos, shares)
        if checkpoints is not None and not all(report.get("sees") for report in ready):
            job.report(f"no checkpoints: not all nodes see {checkpoints.directory}")
            checkpoints = None
        place = checkpoints and checkpoints.model_dump(mode="json")
        bounds = [[share.start, share.stop] for share in shares]
        self.hub.order(f"{workers.run}/go", {"shares": bounds, "backend": backend, "checkpoints": place})
        # HOST may resolve to the loopback here, so the interface is the one towards another node.
        far = [info.address for info in infos[1:] if not is_loopback(info.address)]
        address = address_towards(far[0], self.hub.cluster.port) if far else self.hub.address
        own = self.start(
            replace(
                job,
                checkpoints=checkpoints,
                rendezvous=ranks_rendezvous(self.hub, workers.run, backend),
                failed_elsewhere=workers.failed,
            ),
            placements_of(shares[0], trial.partition.parts, interface_of(address)),
        )
        if own.status != "ok":
            self.hub.order(f"{workers.run}/stop", True)
        left_s = max(0.0, limit_s - (own.wall_s or 0.0)) + GRACE_S + 2 * TERM_S + self.hub.cluster.node_timeout_s
        ends = workers.reports("end", left_s, f"did not end within {limit_s:g} s (timeouts.trial_s)")
        groups = [
            replace(GroupResult(**end), failures=[RankFailure(**failure) for failure in end["failures"]])
            for end in ends
        ]
        hardware = [{"node": node, "ranks": [*shares[node]], **info.hardware} for node, info in enumerate(infos)]
        return merged([own, *groups], hardware)

    def dismiss(self, code: int, progress: TrialProgress) -> None:
        """Announce the end of the run to the nodes and wait for them to go, for a limited time."""
        self.hub.order(CALL, {"over": code})
        if self._calls == 0 and code != INTERRUPTED and not self._all_joined():
            progress.trial_stage("nothing to run on the other nodes; waiting for them to hear of it")
            wait_for(lambda: self._all_joined() or None, self.hub.cluster.rdzv_timeout_s)
        wait_for(lambda: all(peer.lost for peer in self.hub.peers) or None, FAREWELL_S)

    def _all_joined(self) -> bool:
        return sum(peer.get(JOINED) is not None for peer in self.hub.peers) >= self.nodes - 1


class WorkerNodes:
    """Collects the worker nodes' reports on one run of a trial; `peers` and `infos` are theirs, node 1's first.

    A report is a JSON object. `failures` in it says that the node failed or is lost.
    """

    def __init__(self, hub: Hub, run: str, peers: Sequence[Peer], infos: Sequence[NodeInfo]) -> None:
        self.run, self.peers, self.infos, self._hub = run, peers, infos, hub
        self._reports: dict[tuple[str, int], dict[str, Any]] = {}
        self._failed, self._next = False, 0.0

    def reports(self, what: str, limit_s: float, late: str) -> list[dict[str, Any]]:
        """Wait until each node has reported `what` or is lost; `late` says why one that took too long failed."""
        wait_for(lambda: None if None in self._now(what) else True, limit_s)
        return [report or _lost("timeout", late) for report in self._now(what)]

    def failed(self) -> bool:
        """Return whether a node is lost or has reported that its ranks failed; looks once a second at most."""
        now = time.monotonic()
        if not self._failed and now >= self._next:
            self._next = now + WATCH_S
            ends = [report for report in self._now("end") if report is not None]
            self._failed = bool(failures_in(ends)) or any(end.get("limit_s") is not None for end in ends)
        return self._failed

    def _now(self, what: str) -> list[dict[str, Any] | None]:
        for node, peer in enumerate(self.peers):
            if (what, node) not in self._reports:
                lost = peer.lost  # asked first, because a report that a node sent before it ended still counts
                if report := peer.take(f"{self.run}/{what}") or (lost and _lost("error", self._why(lost))):
                    self._reports[what, node] = report
        return [self._reports.get((what, node)) for node in range(len(self.peers))]

    def _why(self, lost: str) -> str:
        silent = f"no heartbeat for {self._hub.cluster.node_timeout_s:g} s (--node-timeout)"
        return f"was lost: {silent if lost == 'silent' else 'its runner ended or was killed'}"


def _lost(status: Any, reason: str) -> dict[str, Any]:
    return {"failures": [asdict(RankFailure(None, status, reason, lost=status == "error"))]}


def failures_in(reports: Sequence[Mapping[str, Any]]) -> list[RankFailure]:
    """Return the failures in the worker nodes' reports, node 1's first."""
    return [
        replace(RankFailure(**failure), node=node)
        for node, report in enumerate(reports, 1)
        for failure in report.get("failures", ())
    ]


def backend_of(trial: TrialConfig, infos: Sequence[NodeInfo], shares: Sequence[range]) -> Backend:
    """Return nccl if every rank has a GPU of its own, else gloo, because all ranks must take the same.

    Nodes with one address are one machine, whose GPUs each of them would take for its own.
    """
    alone = all(info.gpus >= len(share) for info, share in zip(infos, shares, strict=True))
    alone &= len({info.address for info in infos}) == len(infos)
    return "nccl" if trial.device == "cuda" and alone else "gloo"


def ranks_rendezvous(end: Hub | Coordination, run: str, backend: Backend) -> RanksRendezvous:
    """Return where the ranks of a node find those of the others."""
    return RanksRendezvous(host=end.host, port=end.cluster.port, prefix=run, backend=backend)


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
