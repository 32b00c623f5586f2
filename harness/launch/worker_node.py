"""A worker node takes part in the trials that the coordinator calls, and keeps nothing."""

from __future__ import annotations

import math
import time
import traceback
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.errors import DataUnavailable, UserError
from harness.launch.group import GroupResult, RankFailure
from harness.launch.hardware import check_device
from harness.launch.heartbeat import heartbeat
from harness.launch.inputs import InputCache, NotPrepared, TrialInputs
from harness.launch.machines import OneMachine, TrialJob, explain
from harness.launch.process import placements_of, scratch
from harness.launch.rendezvous import (
    CALL,
    JOINED,
    PLAN,
    POLL_S,
    REFUSED,
    WATCH_S,
    CoordinatorLost,
    NodeInfo,
    StoreClient,
    TrialChannel,
    check_plan,
    interface_of,
    plan_of,
    session_key,
    wait_for,
)
from harness.launch.runner_process import FAILED, INTERRUPTED
from harness.launch.slots import RunOptions
from harness.runtime.checkpoint import CheckpointPlace
from harness.suite.schema import Suite, TrialConfig

BEATS = 6  # in the time after which a silent node is lost


def take_part(
    client: StoreClient, suite: Suite, trials: Sequence[TrialConfig], options: RunOptions, show: Callable[[str], None]
) -> int:
    """Take part in the coordinator's run to its end and return the coordinator's exit code.

    It is 1 also when the coordinator is lost, and 130 when the user interrupts this node. `show` shows a line.
    Raises UserError when this node's plan differs from the coordinator's, or it lacks the GPU that trials want.
    """
    session = uuid.uuid4().hex
    try:
        plan = _agreed_plan(client, suite, trials)
        with heartbeat(client.host, client.cluster.port, session, float(plan["node_timeout_s"]) / BEATS):
            client.put(session_key(client.count(JOINED, 1)), session)
            show(f"joined the run at {client.cluster.endpoint}")
            ranks = OneMachine(suite.timeouts, options.worker, options.warm, client.cluster.nodes, audit=options.audit)
            ranks.warm_up(trials, show)
            inputs = InputCache(options.data_dir, options.cache, apart=True)
            info = NodeInfo.here(session, client.address)
            return WorkerNode(
                client, {trial.of_any_data.id: trial for trial in trials}, ranks, inputs, info, show
            ).take_part()
    except CoordinatorLost as lost:
        show(f"{lost}; this node ends")
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


def _agreed_plan(client: StoreClient, suite: Suite, trials: Sequence[TrialConfig]) -> dict[str, Any]:
    """Return the coordinator's plan once it is known to be this node's too."""
    own, limit_s = plan_of(suite, trials, client.cluster), client.cluster.rdzv_timeout_s
    plan: dict[str, Any] | None = wait_for(lambda: client.get(PLAN), limit_s)
    if plan is None:
        what = f"the coordinator at {client.cluster.endpoint} told no plan within {limit_s:g} s (--rdzv-timeout)"
        raise UserError(what)
    try:
        check_plan(own, plan)
        check_device(trials, client.cluster.nodes)
    except UserError as error:
        client.put(REFUSED, str(error))
        raise
    return plan


@dataclass
class WorkerNode:
    """Takes part in trials."""

    client: StoreClient
    trials: dict[str, TrialConfig]
    ranks: OneMachine
    inputs: InputCache
    info: NodeInfo
    show: Callable[[str], None]
    _asked: float = 0.0

    def take_part(self) -> int:
        """Take part in all trials to come; returns the coordinator's exit code."""
        attended = None
        while True:
            call = self.client.get(CALL) or {}
            if "over" in call:
                return int(call["over"])
            # A trial whose nodes are chosen goes on without this one.
            if call and call["run"] != attended and not self.client.has(f"{call['run']}/nodes"):
                attended = call["run"]
                self._attend(TrialChannel.join(self.client, attended), self.trials[call["trial"]], call["shown"])
            time.sleep(POLL_S)

    def _attend(self, channel: TrialChannel, trial: TrialConfig, shown: str | None) -> None:
        self.show(trial.label)
        channel.say("node", asdict(self.info))
        numbers = self._ordered(channel, "nodes", math.inf) or []
        if channel.number not in numbers:  # the trial is off, or has nodes enough
            return
        inputs: list[TrialInputs] = []
        self._do(channel, "ready", lambda: self._prepare(trial, inputs, shown))
        if go := self._ordered(channel, "go", 2 * self.ranks.timeouts.trial_s):
            node = 1 + numbers.index(channel.number)
            self._do(channel, "end", lambda: asdict(self._train(channel, node, trial, inputs[0], go)))

    def _ordered(self, channel: TrialChannel, what: str, limit_s: float) -> Any:
        """Wait for an order of the coordinator's and return it; return None or False if there is none."""
        return wait_for(lambda: channel.ordered(what) or (False if self._stopped(channel) else None), limit_s)

    def _do(self, channel: TrialChannel, what: str, work: Callable[[], dict[str, Any]]) -> None:
        """Do `work` and tell the coordinator what came of it, whatever that is."""
        try:
            channel.say(what, work())
        except CoordinatorLost:
            raise
        except KeyboardInterrupt:
            channel.say(what, _failed("error", "was interrupted by its user"))
            raise
        except Exception as error:
            status, reason = explain(error)
            log = "" if isinstance(error, DataUnavailable | UserError) else traceback.format_exc()
            log = error.log if isinstance(error, NotPrepared) else log
            self.show(f"    {reason}")
            channel.say(what, _failed(status, f"said: {reason}", log))

    def _prepare(self, trial: TrialConfig, found: list[TrialInputs], shown: str | None) -> dict[str, Any]:
        self.ranks.expect(trial)
        found.append(self.inputs.get(trial, lambda text: self.show(f"    {text}")))
        return {"hash": found[0].fingerprint, "sees": shown is not None and Path(shown).is_file()}

    def _train(
        self, channel: TrialChannel, node: int, trial: TrialConfig, inputs: TrialInputs, go: dict[str, Any]
    ) -> GroupResult:
        (start, stop), world = go["shares"][node], trial.partition.parts
        place = go.get("checkpoints")
        self.show(f"    node {node}, ranks {start} to {stop - 1} of {world}" if stop > start else "    no ranks")
        with scratch() as directory:
            job = TrialJob(
                trial,
                inputs,
                directory,
                rendezvous=channel.ranks_rendezvous(go["backend"]),
                failed_elsewhere=lambda: self._stopped(channel, WATCH_S),
                checkpoints=None if place is None else CheckpointPlace.model_validate(place),
            )
            placements = placements_of(range(start, stop), world, interface_of(self.info.address))
            group = self.ranks.start(job, placements)
        self.show(f"    {group.status}" + (f": {group.reason}" if group.reason else ""))
        return group

    def _stopped(self, channel: TrialChannel, every_s: float = 0.0) -> bool:
        """Return whether the coordinator has ended the trial; asks it every `every_s` at most."""
        now = time.monotonic()
        if now < self._asked + every_s:
            return False
        self._asked = now
        return channel.ordered("stop") is not None or "over" in self.client.get(CALL)


def _failed(status: Any, reason: str, log: str = "") -> dict[str, Any]:
    return asdict(GroupResult([RankFailure(None, status, reason)], log=log))
