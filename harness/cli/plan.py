"""`harness plan`: what a run would do, without doing it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from harness.cli.options import (
    DataDir,
    Device,
    Fresh,
    Only,
    Results,
    Retry,
    Set,
    SuiteFile,
    statuses_of,
    use_data_dir,
)
from harness.cli.show import bytes_text, table

if TYPE_CHECKING:
    from harness.launch.planner import PlannedTrial


def plan(
    suite: SuiteFile,
    results: Results = Path("results"),
    device: Device = None,
    only: Only = None,
    set_: Set = None,
    retry: Retry = "",
    fresh: Fresh = False,
    data_dir: DataDir = None,
) -> None:
    """List what a run would do.

    Every trial: done, to run, or skipped and why; and the memory of a rank. Nothing is downloaded, built
    or written. Memory is what a rank's layers, features and sparse matrices take, for a boundary from none
    to the largest possible, or the real one once a record tells it; interpreter and libraries come on top.
    """
    from harness.cli.run import select_trials
    from harness.launch.planner import plan as make_plan
    from harness.launch.runner import RunOptions
    from harness.results.store import ResultStore

    options = RunOptions(statuses_of(retry), fresh, use_data_dir(data_dir))
    loaded, trials = select_trials(suite, set_, device, only, data_dir)
    planned = make_plan(trials, ResultStore(results, loaded.name), options)
    rows = [(p.trial.id, _state(p), p.trial.label, _memory(p), p.reason) for p in planned]
    table(["id", "state", "trial", "memory a rank", "reason"], rows)
    counts = Counter(p.state for p in planned)
    typer.echo(
        f"\n{len(planned)} trials: {counts['done']} done, {counts['run']} to run, {counts['skip']} skipped"
    )
    for command in sorted({p.command for p in planned if p.command}):
        typer.echo(f"get the missing data: {command}")


def _state(planned: PlannedTrial) -> str:
    return f"done ({planned.done_status})" if planned.state == "done" else planned.state


def _memory(planned: PlannedTrial) -> str | None:
    if planned.memory is None:
        return None
    low, high = bytes_text(planned.memory.low), bytes_text(planned.memory.high)
    return low if low == high else f"{low} - {high}"
