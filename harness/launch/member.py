"""A node that is not the head: it takes part in the trials that the head calls, and keeps nothing."""

from __future__ import annotations

import tempfile
import time
import traceback
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from harness.errors import DataUnavailable, UserError
from harness.launch.inputs import InputCache, TrialInputs
from harness.launch.local import GroupResult, RankFailure
from harness.launch.nodes import (
    CALL,
    MEMBERS,
    PLAN,
    POLL_S,
    REFUSED,
    WATCH_S,
    NodeInfo,
    Seat,
    check_plan,
    fingerprint,
    member_key,
    places_of,
    plan_of,
)
from harness.launch.pulse import pulse
from harness.launch.rendezvous import HeadLost, Link, NotMet, interface_of
from harness.launch.runner import FAILED, INTERRUPTED, OneMachine, RunOptions, check_device, explain
from harness.suite.schema import Suite, TrialConfig

BEATS = 6  # in the time after which a silent node is lost
Say = Callable[[str], None]


def follow(link: Link, suite: Suite, trials: Sequence[TrialConfig], options: RunOptions, say: Say) -> int:
    """Take part in the head's run to its end and return the head's exit code.

    1 also when the head is lost, 130 when the user interrupts this node. `say` shows a line. Raises UserError
    when this node's plan differs from the head's, or it lacks the GPU that trials want.
    """
    session = uuid.uuid4().hex
    try:
        plan = _plan(link, suite, trials)
        with pulse(link.host, link.cluster.port, session, float(plan["node_timeout_s"]) / BEATS):
            link.put(member_key(link.count(MEMBERS, 1)), session)
            say(f"joined the run at {link.cluster.endpoint}")
            ranks = OneMachine(suite.timeouts, options.worker, link.cluster.nodes)
            inputs = InputCache(options.data_dir, options.cache)
            info = NodeInfo.here(session, link.address)
            return Member(link, {trial.id: trial for trial in trials}, ranks, inputs, info, say).follow()
    except HeadLost as lost:
        say(f"{lost}; this node ends")
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


def _plan(link: Link, suite: Suite, trials: Sequence[TrialConfig]) -> dict[str, Any]:
    """Return the head's plan once it is known to be this node's too."""
    own = plan_of(suite, trials, link.cluster)
    plan = _wait(lambda: link.get(PLAN), link.cluster.rdzv_timeout_s)
    if plan is None:
        limit = f"{link.cluster.rdzv_timeout_s:g} s (--rdzv-timeout)"
        raise UserError(f"the head at {link.cluster.endpoint} told no plan within {limit}")
    try:
        check_plan(own, plan)
        check_device(trials)
    except UserError as error:
        link.put(REFUSED, str(error))
        raise
    return dict(plan)


def _wait(look: Callable[[], Any], limit_s: float) -> Any:
    """Return what `look` finds, or None if it has found nothing within `limit_s`."""
    deadline = time.monotonic() + limit_s
    while (found := look()) is None and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return found


@dataclass
class Member:
    """Takes part in trials."""

    link: Link
    trials: dict[str, TrialConfig]
    ranks: OneMachine
    inputs: InputCache
    info: NodeInfo
    say: Say
    _graphs: dict[Path, str] = field(default_factory=dict)
    _asked: float = 0.0

    def follow(self) -> int:
        """Take part in all trials to come; returns the head's exit code."""
        met = 0
        while True:
            call = self.link.get(CALL) or {}
            if "over" in call:
                return int(call["over"])
            if call.get("open") and call["number"] != met:
                with suppress(NotMet):  # the head records it, and calls to the next trial
                    self._attend(call["run"], self.trials[call["trial"]])
                    met = call["number"]
            time.sleep(POLL_S)

    def _attend(self, run: str, trial: TrialConfig) -> None:
        self.say(trial.label)
        with self.link.meet(run) as rank:
            seat = Seat(self.link, run, rank)
            seat.say("node", asdict(self.info))
            inputs: list[TrialInputs] = []
            self._do(seat, "ready", lambda: self._prepare(trial, inputs))
            go = _wait(lambda: self._go(seat), 2 * self.ranks.timeouts.trial_s)
            if go:
                self._do(seat, "end", lambda: asdict(self._train(seat, trial, inputs[0], go)))

    def _do(self, seat: Seat, what: str, work: Callable[[], dict[str, Any]]) -> None:
        """Do `work` and tell the head what came of it, whatever that is."""
        try:
            seat.say(what, work())
        except HeadLost:
            raise
        except KeyboardInterrupt:
            seat.say(what, _failed("error", "was interrupted by its user"))
            raise
        except Exception as error:
            status, reason = explain(error)
            log = "" if isinstance(error, DataUnavailable | UserError) else traceback.format_exc()
            self.say(f"    {reason}")
            seat.say(what, _failed(status, f"said: {reason}", log))

    def _prepare(self, trial: TrialConfig, found: list[TrialInputs]) -> dict[str, Any]:
        found.append(self.inputs.get(trial, lambda text: self.say(f"    {text}")))
        return {"hash": fingerprint(found[0], self._graphs)}

    def _go(self, seat: Seat) -> Any:
        return seat.ordered("go") or (False if seat.ordered("stop") else None)

    def _train(self, seat: Seat, trial: TrialConfig, inputs: TrialInputs, go: dict[str, Any]) -> GroupResult:
        node, start, stop = go["shares"][str(seat.rank)]
        world = trial.partition.parts
        self.say(f"    node {node}, ranks {start} to {stop - 1} of {world}" if stop > start else "    no ranks")
        with tempfile.TemporaryDirectory(prefix="harness-") as directory:
            group = self.ranks.start(
                trial,
                inputs,
                Path(directory),
                places_of(range(start, stop), world, interface_of(self.info.address)),
                lambda event: None,
                meeting=seat.meeting(go["backend"]),
                failed_elsewhere=lambda: self._stopped(seat),
            )
        self.say(f"    {group.status}" + (f": {group.reason}" if group.reason else ""))
        return group

    def _stopped(self, seat: Seat) -> bool:
        now = time.monotonic()
        if now < self._asked + WATCH_S:
            return False
        self._asked = now
        return self.link.has(f"{seat.run}/stop") or "over" in self.link.get(CALL)


def _failed(status: Any, reason: str, log: str = "") -> dict[str, Any]:
    return asdict(GroupResult([RankFailure(None, status, reason)], log=log))
