"""What a method is held to, and what holds it: tiny graphs, groups of ranks, a dense oracle, checks."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from harness.check.claims import (
    DRAWS,
    bytes_check,
    exact_check,
    limit_runs,
    model_runs,
    options_finding,
    repeat_check,
    repeated_runs,
    training_check,
    trouble_check,
    trouble_runs,
    unbiased_check,
    unbiased_runs,
)
from harness.check.graphs import TinyGraphs
from harness.check.runs import Check, CheckFinding, CheckReport, CheckRun, Result, Subject, execute, find_all
from harness.errors import UserError
from harness.registry import find_plugins
from harness.runtime.method import METHODS, Method

WORLDS = (2, 3)
LIMIT_S = 20.0


def check_method(
    name: str,
    *,
    plugin: Path | str | Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    limit_s: float = LIMIT_S,
) -> CheckReport:
    """Check a method.

    Args:
        name: as in a suite.
        plugin: files (or modules) that it may be in, if it is not installed.
        options: in place of its defaults; `exact` and `unbiased` stay as declared.
        limit_s: seconds after which a run of a few epochs counts as one that hangs.

    Raises:
        UserError: there is no such method, or the options are none of it.
    """
    files = plugin if isinstance(plugin, Sequence) and not isinstance(plugin, str) else [str(plugin)]
    found = METHODS.find(name, find_plugins(files))
    _require_valid(found.value, options or {})
    subject = Subject(name, found.source)
    (report,) = check_methods({subject: found.value}, options={subject: options or {}}, limit_s=limit_s)
    return report


def check_methods(
    methods: Mapping[Subject, type[Method[Any]]],
    *,
    options: Mapping[Subject, Mapping[str, Any]] | None = None,
    worlds: Sequence[int] = WORLDS,
    limit_s: float = LIMIT_S,
) -> list[CheckReport]:
    """Check several methods, in the same groups of ranks, of `worlds` ranks each; see `check_method`."""
    given = options or {}
    with tempfile.TemporaryDirectory() as folder:
        graphs = TinyGraphs(Path(folder))
        plans = [
            _plan(subject, method, dict(given.get(subject, {})), graphs, worlds) for subject, method in methods.items()
        ]
        results = execute([run for plan in plans for run in plan.runs], limit_s=limit_s)
        return [plan.report(results) for plan in plans]


@dataclass(frozen=True, eq=False)
class _Plan:
    """What is run for a method, and what is held against it."""

    subject: Subject
    method: type[Method[Any]]
    checks: Sequence[Check]
    not_claimed: Sequence[CheckFinding]

    @property
    def runs(self) -> list[CheckRun]:
        return [run for check in self.checks for run in check.runs]

    def report(self, results: dict[str, Result]) -> CheckReport:
        findings = find_all(self.checks, results)
        return CheckReport(self.subject.name, (options_finding(self.method), *findings, *self.not_claimed))


def _plan(
    subject: Subject, method: type[Method[Any]], options: dict[str, Any], graphs: TinyGraphs, worlds: Sequence[int]
) -> _Plan:
    # Unknown options are reported with the other findings; they cannot be run.
    exact = method.exact if _is_valid(method, method.exact) else None
    unbiased = method.unbiased if _is_valid(method, method.unbiased) else None
    settings = [options] if unbiased is None else [options, unbiased]
    first = [run for world in worlds for run in model_runs(subject, options, graphs, world)]
    trained, checks, missing = [*first], [training_check(first)], []
    if exact is None:
        missing.append(CheckFinding("exact", "not claimed", "`exact`: options at which it is full-graph training"))
    else:
        runs = [run for world in worlds for run in limit_runs(subject, exact, graphs, world)]
        checks.append(exact_check(runs, exact))
        trained += runs
    if unbiased is None:
        missing.append(CheckFinding("unbiased", "not claimed", "`unbiased`: options at which its sampling is"))
    else:
        runs = list(unbiased_runs(subject, unbiased, graphs, DRAWS[method.family]))
        checks.append(unbiased_check(runs, unbiased))
    twice = [run for setting in settings for run in repeated_runs(subject, setting, graphs, worlds[0])]
    # Of two ranks none has a boundary, or both; three can be stuck in every way that two can.
    stuck = [run for setting in settings for run in trouble_runs(subject, setting, graphs, worlds[-1])]
    checks += [repeat_check(twice), trouble_check(stuck)]
    sent = bytes_check(method, [*trained, *twice, *stuck])
    if sent is None:
        missing.append(CheckFinding("bytes", "not claimed", "`bytes_per_epoch`: what it sends, in closed form"))
    else:
        checks.append(sent)
    return _Plan(subject, method, checks, missing)


def _is_valid(method: type[Method[Any]], options: Mapping[str, Any] | None) -> bool:
    try:
        method.Options(**(options or {}))
    except (ValueError, TypeError):
        return False
    return options is not None


def _require_valid(method: type[Method[Any]], options: Mapping[str, Any]) -> None:
    try:
        method.Options(**options)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise UserError(first["msg"], key=f"--option {key}", fix="see `harness list methods`") from error
