"""`harness plan` and `harness schema`: what a suite would do, and what it may say."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.options import (
    DataDir,
    Device,
    Fresh,
    Only,
    Plugin,
    Results,
    Retry,
    Set,
    SuiteFile,
    bytes_text,
    statuses_of,
    table,
    use_data_dir,
)
from harness.errors import UserError

if TYPE_CHECKING:
    from harness.launch.planner import PlannedTrial


Memory = Annotated[
    bool, typer.Option("--memory", help="Also show what the memory of a rank consists of, trial by trial.")
]


def plan(
    suite: SuiteFile,
    results: Results = Path("results"),
    device: Device = None,
    only: Only = None,
    set_: Set = None,
    plugin: Plugin = None,
    retry: Retry = "",
    fresh: Fresh = False,
    data_dir: DataDir = None,
    memory: Memory = False,
) -> None:
    """List what a run would do.

    Every trial: done, to run, or skipped and why; the memory of its largest rank, and whether all ranks fit
    this machine or its GPUs. Nothing is downloaded, built or written. Memory is what layers, features, sparse
    matrices and the optimizer take, from the least possible (no boundary) to the most, or one figure once
    the partition is known; interpreter and libraries come on top.
    """
    from harness.cli.run import select_trials
    from harness.launch.planner import plan as make_plan
    from harness.launch.runner import RunOptions
    from harness.results.store import ResultStore

    options = RunOptions(statuses_of(retry), fresh, use_data_dir(data_dir))
    loaded, trials = select_trials(suite, set_, device, only, data_dir, plugin)
    planned = make_plan(trials, ResultStore(results, loaded.name), options)
    rows = [(p.trial.id, _state(p), p.trial.label, _memory(p), _fits(p), p.reason) for p in planned]
    table(["id", "state", "trial", "memory a rank", "fits", "reason"], rows)
    if memory:
        for trial in planned:
            _show_components(trial)
    counts = Counter(p.state for p in planned)
    claims = f"; claims: {len(loaded.claims)}" if loaded.claims else ""
    states = f"{counts['done']} done, {counts['run']} to run, {counts['skip']} skipped"
    typer.echo(f"\n{len(planned)} trials: {states}{claims}")
    for command in sorted({p.command for p in planned if p.command}):
        typer.echo(f"get the missing data: {command}")


def _state(planned: PlannedTrial) -> str:
    return f"done ({planned.done_status})" if planned.state == "done" else planned.state


def _memory(planned: PlannedTrial) -> str:
    from harness.launch.memory import total

    low, high = bytes_text(total(planned.memory.least)), bytes_text(total(planned.memory.most))
    return low if low == high else f"{low} - {high}"


def _fits(planned: PlannedTrial) -> str:
    lacking = planned.shortage
    if lacking is None:
        return ""
    verdict = "will not fit: needs at least" if lacking.certain else "may not fit: needs up to"
    return f"{verdict} {bytes_text(lacking.needed)}, {lacking.where} has {bytes_text(lacking.available)}"


def _show_components(planned: PlannedTrial) -> None:
    from harness.launch.memory import total

    least, most = planned.memory.least, planned.memory.most
    names = list(most | least)
    rows = [(name, bytes_text(least.get(name, 0)), bytes_text(most.get(name, 0))) for name in names]
    rows.append(("together", bytes_text(total(least)), bytes_text(total(most))))
    typer.echo("")
    table(["memory of the largest rank", "at least", "at most"], rows, title=planned.trial.label)


def schema(
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write it there instead of printing it.")
    ] = None,
) -> None:
    """Print the JSON schema of suite files, installed methods' options included.

    With `# yaml-language-server: $schema=FILE` as a suite's first line, editors complete and check its keys.
    """
    from harness.suite.json_schema import suite_schema

    text = json.dumps(suite_schema(), indent=2) + "\n"
    if out is None:
        typer.echo(text, nl=False)
        return
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot be written: {error.strerror}", file=out, key="--out") from error
    typer.echo(f"{out}: write `# yaml-language-server: $schema={out}` as a suite's first line")
