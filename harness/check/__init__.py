"""What a method is held to, and what holds it: tiny graphs, groups of ranks, a dense oracle, checks."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from harness.check import claims
from harness.check.graphs import TinyGraphs
from harness.check.runs import Check, CheckFinding, CheckReport, Subject, execute, find_all
from harness.errors import UserError, spelled
from harness.registry import find_plugins
from harness.runtime.method import METHODS, Method

WORLDS = (2, 3)
LIMIT_S = 20.0
CLAIMS = {  # that a method may make, and by what
    "exact": "`exact`: options at which it is full-graph training",
    "unbiased": "`unbiased`: options at which its sampling is",
    "bytes": "`bytes_per_epoch`: what it sends, in closed form",
}


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
    plugins = find_plugins(files)
    name = spelled(name, METHODS.names(plugins))
    found = METHODS.find(name, plugins)
    if found.value.family == "external":
        raise UserError(f"{name} runs a command, of which nothing can be checked", fix="name a method")
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
            CheckReport(s.name, (claims.options_finding(methods[s]), *find_all(checks, results), *not_claimed))
            for s, (checks, not_claimed) in plans.items()
        ]


def _plan(
    subject: Subject, method: type[Method[Any]], options: dict[str, Any], graphs: TinyGraphs, worlds: Sequence[int]
) -> tuple[list[Check], list[CheckFinding]]:
    """Return what is held against a method, and what it does not claim."""
    # Unknown options are reported with the other findings; they cannot be run.
    declared = method.exact, method.unbiased
    exact, unbiased = (None if own is None or claims.wrong_options(method, own) else own for own in declared)
    settings = [options] if unbiased is None else [options, unbiased]
    checks = [claims.training_check(subject, options, graphs, worlds)]
    if exact is not None:
        runs = [run for world in worlds for run in claims.limit_runs(subject, exact, graphs, world)]
        checks.append(claims.exact_check(runs, exact))
    trained = [run for check in checks for run in check.runs]
    checks.insert(1, claims.flags_check(checks[0].runs))
    if unbiased is not None:
        runs = list(claims.unbiased_runs(subject, unbiased, graphs, claims.DRAWS[method.family]))
        checks.append(claims.unbiased_check(runs, unbiased))
    twice = claims.repeat_check(subject, settings, graphs, worlds[0])
    cut = claims.resume_check(subject, settings, graphs, worlds[0])
    # Of two ranks none has a boundary, or both; three can be stuck in every way that two can.
    stuck = claims.trouble_check(subject, settings, graphs, worlds[-1])
    checks += [twice, cut, stuck]
    if sent := claims.bytes_check(method, [*trained, *twice.runs, *stuck.runs]):
        checks.append(sent)
    held = {check.name for check in checks}
    return checks, [CheckFinding(name, "not claimed", what) for name, what in CLAIMS.items() if name not in held]
