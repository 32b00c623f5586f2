"""A worker node takes part in the trials to which the coordinator calls it, and keeps nothing."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.launch.coordinator import JOINED, PLAN, REFUSED, WATCH_S, NodeInfo, check_plan, plan_of, ranks_rendezvous
from harness.launch.group import GroupResult, RankFailure
from harness.launch.hardware import check_device
from harness.launch.inputs import InputCache, TrialInputs
from harness.launch.machines import OneMachine, TrialJob, explain
from harness.launch.process import placements_of, scratch
from harness.launch.rendezvous import CALL, POLL_S, Coordination, CoordinatorLost, interface_of, wait_for
from harness.launch.runner_process import FAILED, INTERRUPTED
from harness.launch.slots import RunOptions
from harness.runtime.checkpoint import CheckpointPlace
from harness.suite.schema import Suite, TrialConfig


def take_part(
    coordinator: Coordination,
    suite: Suite,
    trials: Sequence[TrialConfig],
    options: RunOptions,
    show: Callable[[str], None],
) -> int:
    """Take part in the coordinator's run to its end and return the coordinator's exit code.

    It is 1 also when the coordinator is lost, and 130 when the user interrupts this node. `show` shows a line.
    Raises UserError when this node's plan differs from the coordinator's, or it lacks the GPU that trials want.
    """
    try:
        _check_plan(coordinator, suite, trials)
        coordinator.send(JOINED, True)
        show(f"joined the run at {coordinator.cluster.endpoint}")
        ranks = OneMachine(suite.timeouts, options.worker, options.warm, coordinator.cluster.nodes, audit=options.audit)
        ranks.warm_up(trials, show)
        inputs = InputCache(options.data_dir, apart=True)
        info = NodeInfo.here(uuid.uuid4().hex, coordinator.address)
        by_id = {trial.of_any_data.id: trial for trial in trials}
        return WorkerNode(coordinator, by_id, ranks, inputs, info, show).take_part()
    except CoordinatorLost as lost:
        show(f"{lost}; this node ends")
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        coordinator.close()


def _check_plan(coordinator: Coordination, suite: Suite, trials: Sequence[TrialConfig]) -> None:
    """Wait for the coordinator's plan and compare it with this node's."""
    limit_s = coordinator.cluster.rdzv_timeout_s
    plan = wait_for(lambda: coordinator.get(PLAN), limit_s)
    if plan is None:
        what = f"the coordinator at {coordinator.cluster.endpoint} sent no plan within {limit_s:g} s (--rdzv-timeout)"
        raise UserError(what)
    try:
        check_plan(plan_of(suite, trials, coordinator.cluster), plan)
        check_device(trials, coordinator.cluster.nodes)
    except UserError as error:
        coordinator.send(REFUSED, str(error))
        raise


@dataclass
class WorkerNode:
    """Takes part in trials."""

    coordinator: Coordination
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
            call = self.coordinator.get(CALL) or {}
            if "over" in call:
                return int(call["over"])
            # A trial whose nodes are chosen goes on without this one.
            if call and call["run"] != attended and self.coordinator.get(f"{call['run']}/nodes") is None:
                attended = call["run"]
                self._attend(attended, self.trials[call["trial"]], call["shown"])
            time.sleep(POLL_S)

    def _attend(self, run: str, trial: TrialConfig, shown: str | None) -> None:
        self.show(trial.label)
        self._report(run, "came", asdict(self.info))
        nodes = self._ordered(run, "nodes", math.inf) or []
        if self.info.session not in nodes:  # the trial is off, or has nodes enough
            return
        inputs: list[TrialInputs] = []

        def prepare() -> dict[str, Any]:
            self.ranks.expect(trial)
            inputs.append(self.inputs.get(trial, lambda text: self.show(f"    {text}")))
            return {"hash": inputs[0].fingerprint, "sees": shown is not None and Path(shown).is_file()}

        self._do(run, "ready", prepare)
        if go := self._ordered(run, "go", 2 * self.ranks.timeouts.trial_s):
            number = 1 + nodes.index(self.info.session)
            self._do(run, "end", lambda: asdict(self._train(run, number, trial, inputs[0], go)))

    def _report(self, run: str, what: str, content: dict[str, Any]) -> None:
        self.coordinator.send(f"{run}/{what}", content)

    def _ordered(self, run: str, what: str, limit_s: float) -> Any:
        """Wait for an order of the coordinator's and return it; return None or False if there is none."""
        key = f"{run}/{what}"
        return wait_for(lambda: self.coordinator.get(key) or (False if self._stopped(run) else None), limit_s)

    def _do(self, run: str, what: str, work: Callable[[], dict[str, Any]]) -> None:
        """Do `work` and report to the coordinator what came of it, whatever that is."""
        try:
            self._report(run, what, work())
        except CoordinatorLost:
            raise
        except KeyboardInterrupt:
            self._report(run, what, _failed("error", "was interrupted by its user"))
            raise
        except Exception as error:
            status, reason, log = explain(error)
            self.show(f"    {reason}")
            self._report(run, what, _failed(status, f"said: {reason}", log))

    def _train(self, run: str, number: int, trial: TrialConfig, inputs: TrialInputs, go: dict[str, Any]) -> GroupResult:
        (start, stop), world = go["shares"][number], trial.partition.parts
        place = go.get("checkpoints")
        self.show(f"    node {number}, ranks {start} to {stop - 1} of {world}" if stop > start else "    no ranks")
        with scratch() as directory:
            job = TrialJob(
                trial,
                inputs,
                directory,
                rendezvous=ranks_rendezvous(self.coordinator, run, go["backend"]),
                failed_elsewhere=lambda: self._stopped(run, WATCH_S),
                checkpoints=None if place is None else CheckpointPlace.model_validate(place),
            )
            placements = placements_of(range(start, stop), world, interface_of(self.info.address))
            group = self.ranks.start(job, placements)
        self.show(f"    {group.status}" + (f": {group.reason}" if group.reason else ""))
        return group

    def _stopped(self, run: str, every_s: float = 0.0) -> bool:
        """Return whether the coordinator has ended the trial; asks it every `every_s` seconds at most."""
        now = time.monotonic()
        if now < self._asked + every_s:
            return False
        self._asked = now
        return self.coordinator.get(f"{run}/stop") is not None or "over" in self.coordinator.get(CALL)


def _failed(status: Any, reason: str, log: str = "") -> dict[str, Any]:
    return asdict(GroupResult([RankFailure(None, status, reason)], log=log))
