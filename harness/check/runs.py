"""What is run for the checks of methods, and what it shows: all of it in few groups of ranks, nothing twice."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

from harness.check.graphs import Tiny
from harness.check.training import (
    Case,
    Moments,
    RankError,
    RankGroup,
    RankOutcome,
    aggregations,
    rank_group,
    resumed,
    train,
)
from harness.models.layer import ModelSpec
from harness.runtime.checkpoint import CheckpointPlace
from harness.runtime.run_config import Timing, TrainSpec
from harness.spec import PluginSource

SHOWN = 6  # lines of a rank's output that say why it failed
WARM_S = 20  # more for the first run of a group, which loads what is compiled
PATIENCE = 4  # runs of a method, none of which came to a result, after which no more are tried


@dataclass(frozen=True)
class Subject:
    """A method that is checked: its name, and where its code is if it is not installed."""

    name: str
    plugin: PluginSource | None = None


@dataclass(frozen=True, eq=False)
class CheckRun:
    """One method on one graph, trained; or, with `draws`, its aggregations drawn so many times.

    `tiny`: the graph, dealt to as many parts as there are ranks; `model`: in words, `network`: its spec;
    `spec`: how it is trained; `draws`: 0, or how many epochs are drawn; `again`: distinguishes runs that are the same;
    `timing`: how epochs are timed (meters take longer to start than these graphs to train); `cut`: 0, or the epochs
    after which another trainer goes on from a checkpoint.
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
    timing: Timing = "off"
    cut: int = 0

    @property
    def key(self) -> str:
        """Runs of equal keys are one and the same."""
        where = self.tiny.name, self.world, self.draws, self.again, self.timing, self.cut
        return repr((self.subject, sorted(self.options.items()), self.network, self.spec, where))

    @property
    def case(self) -> Case:
        """What its ranks are given."""
        name, plugin, stored = self.subject.name, self.subject.plugin, self.tiny.stored
        place = None
        if self.cut:
            own = hashlib.sha256(self.key.encode()).hexdigest()[:16]
            place = CheckpointPlace(directory=stored.graph.parent / f"checkpoints-{own}", lineage="0", resume=True)
        return Case(
            stored, name, self.options, self.network, self.spec, timing=self.timing, plugin=plugin, checkpoints=place
        )

    def __str__(self) -> str:
        return f"{self.model}, {self.world} rank{'s' * (self.world > 1)}, graph {self.tiny.name}"


@dataclass(frozen=True)
class RunFailure:
    """Why a run came to no result, in one line, and the end of its ranks' output; or it was left out."""

    reason: str
    output: str
    left_out: bool = False


Result = list[RankOutcome] | list[Moments] | RunFailure
"""What each rank saw, by rank."""


def outcomes_of(ranks: Result) -> list[RankOutcome]:
    """Return what each rank saw of a run that was trained."""
    assert isinstance(ranks, list)
    return [rank for rank in ranks if isinstance(rank, RankOutcome)]


def execute(runs: Iterable[CheckRun], *, limit_s: float) -> dict[str, Result]:
    """Do each run once, of any methods; one that takes more than `limit_s` seconds hangs. Return the results by key."""
    wanted = {run.key: run for run in runs}
    found: dict[str, Result] = {}
    for world in sorted({run.world for run in wanted.values()}):
        found |= _on_ranks(world, [run for run in wanted.values() if run.world == world], limit_s)
    return found


def _on_ranks(world: int, runs: Sequence[CheckRun], limit_s: float) -> dict[str, Result]:
    """Do runs one after the other in one group, in a new one behind each that fails."""
    found: dict[str, Result] = {}
    hopeless = dict.fromkeys((run.subject for run in runs), PATIENCE)
    with ExitStack() as stack:
        group: RankGroup | None = None
        allowed_s = limit_s
        for run in runs:
            if hopeless[run.subject] == 0:
                found[run.key] = RunFailure("", "", left_out=True)
                continue
            if group is None:
                group = stack.enter_context(rank_group(world))
                allowed_s = limit_s + WARM_S
            try:
                if run.draws:
                    found[run.key] = group.call(aggregations, run.case, run.draws, timeout_s=allowed_s)
                elif run.cut:
                    ranks = group.call(resumed, run.case, run.cut, timeout_s=allowed_s)
                    found[run.key] = [seen for (seen,) in ranks]
                else:
                    found[run.key] = [seen for (seen,) in group.call(train, [run.case], timeout_s=allowed_s)]
                allowed_s = limit_s
                hopeless[run.subject] = -1
            except RankError as error:
                found[run.key] = RunFailure(error.reason, _excerpt(error.output))
                hopeless[run.subject] -= 1
                stack.pop_all().close()
                group = None
    return found


def _excerpt(output: str) -> str:
    """Return what of the output of ranks says why a run failed: where each was, or the end of a traceback."""
    said = []
    for part in output.split("--- ")[1:]:
        lines = [line for line in part.splitlines() if line.strip()]
        stacks = [i for i, line in enumerate(lines) if "most recent call first" in line]
        inner = lines[stacks[-1] + 1 :][:SHOWN] if stacks else lines[1:][-SHOWN:]
        said += [lines[0], *inner] if inner else []
    return "\n".join(said)


State = Literal["ok", "FAIL", "not claimed", "not run"]
SHOWN_LINES = 3  # problems of a check that are printed


@dataclass(frozen=True)
class Check:
    """Something that a method is held to: its name, and in a line what is held.

    `runs`: what has to be run for it; `judge`: returns what is wrong with one that came to a result, a line each.
    """

    name: str
    claim: str
    runs: Sequence[CheckRun]
    judge: Callable[[CheckRun, Result], list[str]]


@dataclass(frozen=True)
class CheckFinding:
    """What came of a check: its name, its state, what was held.

    `state`: "FAIL" with `problems`, a line each, and the `output` of the first run that came to no result.
    """

    check: str
    state: State
    claim: str
    problems: tuple[str, ...] = ()
    output: str = ""

    @property
    def lines(self) -> list[str]:
        """The finding as text."""
        lines = [f"{self.state:<11}  {self.check:<13}  {self.claim}"]
        lines += [f"{'':<13}{problem}" for problem in self.problems[:SHOWN_LINES]]
        if len(self.problems) > SHOWN_LINES:
            lines.append(f"{'':<13}and {len(self.problems) - SHOWN_LINES} more like these")
        return lines + [f"{'':<15}{line}" for line in self.output.splitlines()]


@dataclass(frozen=True)
class CheckReport:
    """What came of all checks of a method."""

    method: str
    findings: tuple[CheckFinding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing that it claims failed."""
        return not self.failed

    @property
    def failed(self) -> list[str]:
        """Names of the checks that failed."""
        return [finding.check for finding in self.findings if finding.state == "FAIL"]

    @property
    def lines(self) -> list[str]:
        """The report as text, for people."""
        held, failed = sum(finding.state == "ok" for finding in self.findings), self.failed
        end = f"{held} checks hold"
        if failed:
            end = f"{len(failed)} of {held + len(failed)} checks failed: {', '.join(failed)}"
        return [*(line for finding in self.findings for line in finding.lines), f"{self.method}: {end}"]


def find_all(checks: Sequence[Check], results: Mapping[str, Result]) -> list[CheckFinding]:
    """Judge checks by the results of their runs; a run that failed is reported by the first check that has it."""
    reported: set[str] = set()
    return [_find(check, results, reported) for check in checks]


def _find(check: Check, results: Mapping[str, Result], reported: set[str]) -> CheckFinding:
    done = [(run, results[run.key]) for run in check.runs]
    ended = [(run, result) for run, result in done if not isinstance(result, RunFailure)]
    failed = [(run, result) for run, result in done if isinstance(result, RunFailure) and not result.left_out]
    failures = [(run, failure) for run, failure in failed if run.key not in reported]
    reported.update(run.key for run, _ in failures)
    if not ended and not failures:
        return CheckFinding(check.name, "not run", "nothing of it runs")
    problems = [f"{run}: {failure.reason}" for run, failure in failures]
    problems += [problem for run, result in ended for problem in check.judge(run, result)]
    output = failures[0][1].output if failures else ""
    return CheckFinding(check.name, "FAIL" if problems else "ok", check.claim, tuple(problems), output)
