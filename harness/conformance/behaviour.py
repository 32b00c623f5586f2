"""What any method is held to: options that are told, models that train, draws that repeat, ranks that end."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, get_args

import numpy as np

from harness.conformance.runs import Result, Run, Subject
from harness.conformance.tiny import TROUBLES, TinyGraphs
from harness.conformance.training import Outcome
from harness.conformance.verdict import Check, Finding, Judged
from harness.models.spec import ModelSpec
from harness.runtime.method import Family, Method
from harness.runtime.spec import TrainSpec

# As a suite trains: with dropout, in single precision.
MODELS = {
    "sage": ModelSpec(name="sage", layers=2, hidden=6, norm="layer"),
    "gcn": ModelSpec(name="gcn", layers=2, hidden=5),
    "gat": ModelSpec(name="gat", layers=2, hidden=6, heads=2),
    "mixhop": ModelSpec(name="mixhop", layers=2, hidden=6, order=2),
}
ON = {"sage": "transductive", "gcn": "inductive", "gat": "weighted", "mixhop": "multilabel"}
SPEC = TrainSpec(epochs=4, threads=1)


def options_finding(method: type[Method[Any]]) -> Finding:
    """Hold what a user is told of the method: its line, its options, their defaults."""
    fields = method.Options.model_fields
    problems = [
        f"option {name}: expected a description (Field(..., description=...)), seen none"
        for name, field in fields.items()
        if not field.description
    ]
    if method.summary() in ("", Method.summary()) or "__doc__" not in vars(method):
        problems.append("expected a docstring whose first line says what the method does, seen none")
    if getattr(method, "family", None) not in get_args(Family):
        problems.append(f"family: expected one of {', '.join(get_args(Family))}")
    for name in ("exact", "unbiased"):
        declared = getattr(method, name)
        try:
            if declared is not None:
                method.Options(**declared)
        except (ValueError, TypeError) as error:
            problems.append(f"{name}: expected valid options, seen: {' '.join(str(error).split())}")
    try:
        method.Options()
    except ValueError as error:
        problems.append(f"expected valid defaults, seen: {' '.join(str(error).split())}")
    claim = f"{len(fields)} described, defaults valid"
    return Finding("options", "FAIL" if problems else "ok", claim, tuple(problems))


def model_runs(subject: Subject, options: dict[str, Any], graphs: TinyGraphs, world: int) -> Iterator[Run]:
    """Yield a run of every model, each on a graph of another kind."""
    for model, network in MODELS.items():
        yield Run(subject, options, graphs.get(ON[model], world), world, model, network, SPEC)


def trouble_runs(subject: Subject, options: dict[str, Any], graphs: TinyGraphs, world: int) -> Iterator[Run]:
    """Yield runs that leave a rank with little to do."""
    for name in TROUBLES:
        yield Run(subject, options, graphs.get(name, world), world, "sage", MODELS["sage"], SPEC)


def repeated_runs(subject: Subject, options: dict[str, Any], graphs: TinyGraphs, world: int) -> Iterator[Run]:
    """Yield the same run twice; the first is that of `model_runs`."""
    for again in (0, 1):
        tiny = graphs.get(ON["sage"], world)
        yield Run(subject, options, tiny, world, "sage", MODELS["sage"], SPEC, again=again)


def training_check(runs: list[Run]) -> Check:
    """Return the check that every model trains, alike on all ranks."""
    claim = f"{', '.join(MODELS)} train, all ranks' replicas alike ({len(runs)} runs)"
    return Check("runs", claim, runs, _unlike)


def trouble_check(runs: list[Run]) -> Check:
    """Return the check that no rank waits for one that has little to do."""
    return Check("trouble", f"ends with {'; '.join(TROUBLES.values())} ({len(runs)} runs)", runs, _unlike)


def repeat_check(runs: list[Run]) -> Check:
    """Return the check that each two runs that follow each other are the same, bit for bit."""
    return Check("deterministic", "one seed, the same losses and weights bit for bit", runs, _unequal)


def _unlike(results: Judged) -> list[str]:
    found = []
    for run, ranks in results:
        first, *others = _outcomes(ranks)
        losses = [row["loss"] for row in first.rows]
        if not all(map(math.isfinite, losses)):
            found.append(f"{run}: expected finite losses, seen {losses}")
        for rank, other in enumerate(others, start=1):
            unlike = [
                name for name in first.after if not np.array_equal(first.after[name], other.after[name])
            ]
            if unlike or [row["loss"] for row in other.rows] != losses:
                what = f"replicas of {unlike[0]}" if unlike else "losses"
                found.append(f"{run}: expected equal {what}, seen others at rank {rank} than at rank 0")
    return found


def _unequal(results: Judged) -> list[str]:
    found, once = [], dict[tuple[str, int, str], list[Outcome]]()
    for run, ranks in results:
        key = str(sorted(run.options.items())), run.world, run.tiny.name
        if key not in once:
            once[key] = _outcomes(ranks)
            continue
        one, two = once[key][0], _outcomes(ranks)[0]
        for epoch, (a, b) in enumerate(zip(one.rows, two.rows, strict=True)):
            if a["loss"] != b["loss"]:
                found.append(
                    f"{run}: loss of epoch {epoch} is {a['loss']!r}, and {b['loss']!r} when run again"
                )
                break
        else:
            if any(not np.array_equal(one.after[name], two.after[name]) for name in one.after):
                found.append(f"{run}: expected equal weights after {len(one.rows)} epochs, seen others")
    return found


def _outcomes(ranks: Result) -> list[Outcome]:
    assert isinstance(ranks, list)
    return [rank for rank in ranks if isinstance(rank, Outcome)]
