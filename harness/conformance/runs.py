"""What is run for the checks of methods, and how: all of it in few groups of ranks, nothing twice."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from harness.conformance.ranks import RankError, RankGroup, rank_group
from harness.conformance.tiny import Tiny
from harness.conformance.training import Case, Moments, Outcome, aggregations, train
from harness.models.spec import ModelSpec
from harness.runtime.spec import PluginSource, TrainSpec

SHOWN = 6  # lines of a rank's output that say why it failed
WARM_S = 20  # more for the first run of a group, which loads what is compiled
PATIENCE = 4  # runs of a method, none of which came to a result, after which no more are tried


@dataclass(frozen=True)
class Subject:
    """A method that is checked: its name, and where its code is if it is not installed."""

    name: str
    plugin: PluginSource | None = None


@dataclass(frozen=True, eq=False)
class Run:
    """One method on one graph, trained; or, with `draws`, its aggregations drawn so many times.

    Attributes:
        subject, options: the method.
        tiny: the graph, dealt to as many parts as there are ranks.
        model: in words, and the spec.
        spec: how it is trained.
        draws: 0, or how many epochs are drawn.
        again: tells runs apart that are the same.
    """

    subject: Subject
    options: dict[str, Any]
    tiny: Tiny
    world: int
    model: str
    network: ModelSpec
    spec: TrainSpec
    draws: int = 0
    again: int = 0

    @property
    def key(self) -> str:
        """Runs of equal keys are one and the same."""
        where = self.tiny.name, self.world, self.draws, self.again
        return repr((self.subject, sorted(self.options.items()), self.network, self.spec, where))

    @property
    def case(self) -> Case:
        """What its ranks are given."""
        return Case(
            self.tiny.stored, self.subject.name, self.options, self.network, self.spec,
            plugin=self.subject.plugin,
        )  # fmt: skip

    def __str__(self) -> str:
        return f"{self.model}, {self.world} rank{'s' * (self.world > 1)}, graph {self.tiny.name}"


@dataclass(frozen=True)
class Failure:
    """Why a run came to no result, in one line, and the end of its ranks' output; or it was left out."""

    reason: str
    output: str
    left_out: bool = False


Result = list[Outcome] | list[Moments] | Failure
"""What each rank saw, by rank."""


def execute(runs: Iterable[Run], *, limit_s: float) -> dict[str, Result]:
    """Do each run once; return the results by key.

    Args:
        runs: of any methods.
        limit_s: seconds after which a run counts as one that hangs.
    """
    wanted = {run.key: run for run in runs}
    found: dict[str, Result] = {}
    for world in sorted({run.world for run in wanted.values()}):
        found |= _on_ranks(world, [run for run in wanted.values() if run.world == world], limit_s)
    return found


def _on_ranks(world: int, runs: Sequence[Run], limit_s: float) -> dict[str, Result]:
    """Do runs one after the other in one group, in a new one behind each that fails."""
    found: dict[str, Result] = {}
    hopeless = dict.fromkeys((run.subject for run in runs), PATIENCE)
    with ExitStack() as stack:
        group: RankGroup | None = None
        allowed_s = limit_s
        for run in runs:
            if hopeless[run.subject] == 0:
                found[run.key] = Failure("", "", left_out=True)
                continue
            if group is None:
                group = stack.enter_context(rank_group(world))
                allowed_s = limit_s + WARM_S
            try:
                found[run.key] = _do(group, run, allowed_s)
                allowed_s = limit_s
                hopeless[run.subject] = -1
            except RankError as error:
                found[run.key] = Failure(error.reason, _told(error.output))
                hopeless[run.subject] -= 1
                stack.pop_all().close()
                group = None
    return found


def _do(group: RankGroup, run: Run, limit_s: float) -> Result:
    if run.draws:
        pairs = [(run.case, run.draws)]
        return [moments for (moments,) in group.call(aggregations, pairs, timeout_s=limit_s)]
    return [outcome for (outcome,) in group.call(train, [run.case], timeout_s=limit_s)]


def _told(output: str) -> str:
    """Return what of the output of ranks says why a run failed: where each was, or the end of a traceback."""
    told = []
    for part in output.split("--- ")[1:]:
        lines = [line for line in part.splitlines() if line.strip()]
        stacks = [i for i, line in enumerate(lines) if "most recent call first" in line]
        inner = lines[stacks[-1] + 1 :][:SHOWN] if stacks else lines[1:][-SHOWN:]
        told += [lines[0], *inner] if inner else []
    return "\n".join(told)
