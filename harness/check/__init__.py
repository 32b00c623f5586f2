"""What a method is held to, and what holds it: tiny graphs, groups of ranks, a dense oracle, checks."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from harness.check.claims import (
    DRAWS,
    bytes_check,
    exact_check,
    limit_runs,
    options_finding,
    repeat_check,
    training_check,
    trouble_check,
    unbiased_check,
    unbiased_runs,
    wrong_options,
)
from harness.check.graphs import TinyGraphs
from harness.check.runs import Check, CheckFinding, CheckReport, Subject, execute, find_all
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
    try:
        found.value.Options(**(options or {}))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise UserError(first["msg"], key=f"--option {key}", fix="see `harness list methods`") from error
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
        plans = {s: _plan(s, method, dict(given.get(s, {})), graphs, worlds) for s, method in methods.items()}
        runs = [run for checks, _ in plans.values() for check in checks for run in check.runs]
        results = execute(runs, limit_s=limit_s)
        return [
            CheckReport(s.name, (options_finding(methods[s]), *find_all(checks, results), *not_claimed))
            for s, (checks, not_claimed) in plans.items()
        ]


def _plan(
    subject: Subject, method: type[Method[Any]], options: dict[str, Any], graphs: TinyGraphs, worlds: Sequence[int]
) -> tuple[list[Check], list[CheckFinding]]:
    """Return what is held against a method, and what it does not claim."""
    # Unknown options are reported with the other findings; they cannot be run.
    declared = method.exact, method.unbiased
    exact, unbiased = (own if own is not None and not wrong_options(method, own) else None for own in declared)
    settings = [options] if unbiased is None else [options, unbiased]
    checks, missing = [training_check(subject, options, graphs, worlds)], []
    if exact is None:
        missing.append(CheckFinding("exact", "not claimed", "`exact`: options at which it is full-graph training"))
    else:
        runs = [run for world in worlds for run in limit_runs(subject, exact, graphs, world)]
        checks.append(exact_check(runs, exact))
    trained = [run for check in checks for run in check.runs]
    if unbiased is None:
        missing.append(CheckFinding("unbiased", "not claimed", "`unbiased`: options at which its sampling is"))
    else:
        runs = list(unbiased_runs(subject, unbiased, graphs, DRAWS[method.family]))
        checks.append(unbiased_check(runs, unbiased))
    twice = repeat_check(subject, settings, graphs, worlds[0])
    # Of two ranks none has a boundary, or both; three can be stuck in every way that two can.
    stuck = trouble_check(subject, settings, graphs, worlds[-1])
    checks += [twice, stuck]
    sent = bytes_check(method, [*trained, *twice.runs, *stuck.runs])
    if sent is None:
        missing.append(CheckFinding("bytes", "not claimed", "`bytes_per_epoch`: what it sends, in closed form"))
    else:
        checks.append(sent)
    return checks, missing
