"""Checks, and what came of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from harness.conformance.runs import Failure, Result, Run
from harness.conformance.training import Moments, Outcome

State = Literal["ok", "FAIL", "not claimed", "not run"]
Judged = Sequence[tuple[Run, list[Outcome] | list[Moments]]]
"""Runs that came to a result, with what each of their ranks saw."""
SHOWN = 3  # problems of a check that are told


@dataclass(frozen=True)
class Check:
    """Something that a method is held to.

    Attributes:
        name: one word or two.
        claim: what is held, in a line.
        runs: what has to be run for it.
        judge: returns what is wrong, a line each, from the results of those runs that came to one.
    """

    name: str
    claim: str
    runs: Sequence[Run] = ()
    judge: Callable[[Judged], list[str]] = field(default=lambda results: [])


@dataclass(frozen=True)
class Finding:
    """What came of a check.

    Attributes:
        check: its name.
        state: "FAIL" with `problems`, a line each, and the `output` of the first run that came to no result.
        claim: what was held.
    """

    check: str
    state: State
    claim: str
    problems: tuple[str, ...] = ()
    output: str = ""

    @property
    def lines(self) -> list[str]:
        """The finding as text."""
        told = [f"{self.state:<11}  {self.check:<13}  {self.claim}"]
        told += [f"{'':<13}{problem}" for problem in self.problems[:SHOWN]]
        if len(self.problems) > SHOWN:
            told.append(f"{'':<13}and {len(self.problems) - SHOWN} more like these")
        return told + [f"{'':<15}{line}" for line in self.output.splitlines()]


@dataclass(frozen=True)
class Report:
    """What came of all checks of a method."""

    method: str
    findings: tuple[Finding, ...]

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
        body = [line for finding in self.findings for line in finding.lines]
        held = sum(finding.state == "ok" for finding in self.findings)
        end = f"{self.method}: {held} checks hold"
        if self.failed:
            end = (
                f"{self.method}: {len(self.failed)} of {held + len(self.failed)} checks failed: "
                + ", ".join(self.failed)
            )
        return [*body, end]


def find_all(checks: Sequence[Check], results: Mapping[str, Result]) -> list[Finding]:
    """Judge checks by the results of their runs; a run that failed is told by the first check that has it."""
    told: set[str] = set()
    return [_find(check, results, told) for check in checks]


def _find(check: Check, results: Mapping[str, Result], told: set[str]) -> Finding:
    done = [(run, results[run.key]) for run in check.runs]
    ended = [(run, result) for run, result in done if not isinstance(result, Failure)]
    failures = [
        (run, result)
        for run, result in done
        if isinstance(result, Failure) and not result.left_out and run.key not in told
    ]
    told.update(run.key for run, _ in failures)
    if not ended and not failures:
        return Finding(check.name, "not run", "nothing of it runs")
    problems = [f"{run}: {failure.reason}" for run, failure in failures] + check.judge(ended)
    output = failures[0][1].output if failures else ""
    return Finding(check.name, "FAIL" if problems else "ok", check.claim, tuple(problems), output)
