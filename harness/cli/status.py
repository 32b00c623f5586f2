"""`harness status`, and the table of a run that others can watch."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli.options import option
from harness.cli.terminal import is_terminal, seconds_text, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from harness.results.leases import RunnerInfo
    from harness.results.status import SuiteState, SuiteWatch

RENEWED_S = 2.0
FLAGS = 20  # that are listed
COLUMNS = ("running", "where", "for", "how far")


def status(
    results: Annotated[Path, typer.Argument(metavar="DIR", help="Results directory, or one suite's directory in it.")],
    watch: Annotated[bool, typer.Option("--watch", help="Show it anew until every trial has a record.")] = False,
    failed: Annotated[
        int, option("--failed N", "How many of the trials that failed to list.", min=0, show_default="20")
    ] = 20,
) -> None:
    """Show how a run stands, from any machine that sees the results.

    What runs, where and for how long; what has ended and how; what is left. The command that runs the suite need
    not be asked: every runner shows itself beside the results.
    """
    from harness.results.status import SuiteWatch, suite_directories

    watches = [SuiteWatch(directory) for directory in suite_directories(results)]
    if watch:
        _watch(watches)
    for one in watches:
        _show(one.state(), one.silent(), failed)


def _show(state: SuiteState, silent: frozenset[str], most: int) -> None:
    typer.echo(f"{state.name}: {summary(state)}")
    rows = [(*_cells(info)[:3], "silent: lost?" if info.id in silent else info.doing) for info in state.running]
    if rows:
        table(COLUMNS, rows)
    for info, why in state.lost:
        typer.echo(f"lost: {info.label}: its runner ({info.where}) {why}; the next runner runs it again")
    bad = [each for each in state.ended if each.status not in ("ok", "skipped")]
    if bad and most:
        table(["failed", "status", "reason"], [(each.label, each.status, each.reason or "") for each in bad[:most]])
    if len(bad) > most:
        typer.echo(f"and {len(bad) - most} more that failed (--failed N)")
    if flags := [(each.label, flag) for each in state.ended for flag in each.flags]:
        table(["flagged", "what"], flags[:FLAGS])
    if len(flags) > FLAGS:
        typer.echo(f"and {len(flags) - FLAGS} more flags, in the records and the report")


def _cells(info: RunnerInfo) -> tuple[str, str, str, str]:
    return info.label or "", info.where, seconds_text(info.elapsed_s or 0), info.doing


def summary(state: SuiteState) -> str:
    """Return how many trials have ended, run and are left, in a line."""
    ends = ", ".join(f"{count} {status}" for status, count in state.counts.items())
    counts = f"{len(state.ended)} ended" + (f" ({ends})" if ends else "")
    return f"{state.total} trials: {counts}, {len(state.running)} running, {state.left} to run"


def _watch(watches: list[SuiteWatch]) -> None:
    """Show the table until nothing is left, or until Ctrl-C: then the run goes on, only its picture ends."""
    try:
        with live(watches):
            while not all(watch.state().over for watch in watches):
                time.sleep(RENEWED_S)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def live(watches: list[SuiteWatch]) -> AbstractContextManager[Any]:
    """Return a table of the running trials that renews itself while the context lasts; nothing off a terminal."""
    if not is_terminal():
        return nullcontext()
    from rich.live import Live

    return Live(get_renderable=lambda: _drawn(watches), refresh_per_second=1 / RENEWED_S, transient=True)


def _drawn(watches: list[SuiteWatch]) -> RenderableType:
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    parts: list[RenderableType] = []
    for watch in watches:
        state = watch.state()
        drawn = Table(*COLUMNS, box=box.SIMPLE_HEAD)
        for info in state.running:
            drawn.add_row(*map(Text, _cells(info)))
        parts += [Text(f"{state.name}: {summary(state)}"), *([drawn] if drawn.row_count else [])]
    return Group(*parts)
