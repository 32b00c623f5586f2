"""`harness status`, `report`, `check-claims`, `merge` and `export`: commands that read a directory of results."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from harness.cli.command_options import ClaimingSuite, DataDir, Plugin, ResultDirs, TrustPlugins, option, use_data_dir
from harness.cli.terminal import is_terminal, seconds_text, table
from harness.errors import UserError
from harness.report import DRAWN, FORMATS, write_report

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from rich.console import RenderableType

    from harness.results.leases import RunnerInfo
    from harness.results.status import SuiteState, SuiteWatch

WATCH_S, RENEWED_S = 2.0, 10  # between two looks at records, between renewals of an open page
FLAGS = 20  # that are listed
RUNNING = ("running", "where", "for", "how far")


def report(
    results: ResultDirs = None,
    out: Annotated[
        Path | None, option("--out DIR", "Where the report is written.", show_default="reports/NAME")
    ] = None,
    formats: Annotated[str, option("--format LIST", "Of html, md, csv, latex, svg, pdf-figures.")] = ",".join(FORMATS),
    baseline: Annotated[
        list[Path] | None,
        option(
            "--baseline DIR",
            "Stored results to show next to these where data, model and training are the same; may be repeated.",
        ),
    ] = None,
    suite: ClaimingSuite = None,
    data_dir: DataDir = None,
    plugin: Annotated[
        list[str] | None,
        option(
            "--plugin FILE", "Show the views of a file (or of a module) that are not installed, too; may be repeated."
        ),
    ] = None,
    trust_plugins: TrustPlugins = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Write it anew as records arrive; an open page renews itself.")
    ] = False,
) -> None:
    """Write tables and figures of results.

    The trials under every DIR are shown together, as HTML, Markdown and CSV. The command prints the path of the page.
    The page draws its figures itself; --format svg or pdf-figures also writes them as files. With --watch the report
    is renewed until every trial of the suites has a record, or until Ctrl-C.
    """
    from harness.launch.hardware import cores
    from harness.registry import find_plugins
    from harness.results.record_store import require_directory

    places, stored = results or [Path("results")], baseline or []
    for place in (*places, *stored):
        require_directory(place)
    asked = [name.strip() for name in formats.split(",") if name.strip()]
    given = []
    if suite is not None:
        from harness.claims import suite_of

        given = [suite_of(suite, places, use_data_dir(data_dir), plugin or [], trusted=trust_plugins)]
    views = find_plugins(plugin or [])
    workers = cores() - 1
    if watch:
        _until_all_ended(places, lambda: write_report(places, out, asked, given, views, RENEWED_S, workers, stored))
    say = partial(typer.echo, err=True)  # what programs read is the path alone
    typer.echo(str(write_report(places, out, asked, given, views, workers=workers, baselines=stored, say=say)))
    drawn = "" if set(asked) & set(DRAWN) else "; figures as files: --format svg or pdf-figures"
    typer.echo(f"written: {', '.join(asked)}{drawn}", err=True)
    _warn_of_edits([*places, *stored])


def _warn_of_edits(places: Sequence[Path]) -> None:
    from harness.results.frames import edited

    for line in edited(places):
        typer.echo(f"warning: {line}", err=True)


def _until_all_ended(places: Sequence[Path], write: Callable[[], Path]) -> None:
    """Write the report whenever there are other records than before, while a suite has trials without one."""
    from harness.results.status import SuiteWatch, suite_directories

    watches = [SuiteWatch(directory) for place in places for directory in suite_directories(place)]
    written = 0
    with suppress(KeyboardInterrupt):
        while True:
            states = [watch.state() for watch in watches]
            if all(state.over for state in states):
                return
            if (ended := sum(len(state.ended) for state in states)) > written:
                typer.echo(f"{write()}: {ended} of {sum(state.total for state in states)} trials")
                written = ended
            time.sleep(WATCH_S)


def check_claims(
    results: ResultDirs = None,
    suite: ClaimingSuite = None,
    data_dir: DataDir = None,
    plugin: Plugin = None,
    trust_plugins: TrustPlugins = False,
) -> None:
    """Hold results against the claims of their suites.

    Prints every claim with what is expected and what was measured.

    Exit code: 0 no claim fails (some may be indicated against, or not measured), 1 a claim fails, 2 a mistake
    in the command or no claim to check.
    """
    from harness.claims import judge_directories, suite_of
    from harness.report.summary import claims_text

    directories = results or [Path("results")]
    given = []
    if suite is not None:
        given = [suite_of(suite, directories, use_data_dir(data_dir), plugin or [], trusted=trust_plugins)]
    judged = judge_directories(directories, given)
    if not judged:
        if suite is not None:
            raise UserError("the suite claims nothing", file=suite, fix="give it `claims:`")
        what, where = "no suite with claims is kept with these results", " ".join(map(str, directories))
        raise UserError(what, file=where, fix="name the suite with --suite FILE")
    typer.echo(claims_text(judged))
    _warn_of_edits(directories)
    raise typer.Exit(any(verdict.state == "fails" for one in judged for verdict in one.verdicts))


def merge(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Results directory that the others are added to.")],
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Results directories, suites' or trials'.")
    ],
    keep: Annotated[
        Literal["first", "latest"] | None,
        option(
            "--keep first|latest",
            "Of two records of a trial that differ: the first (OUT before all), or that started last.",
            show_default="refuse",
        ),
    ] = None,
) -> None:
    """Put results of several machines together.

    Copies every trial into OUT/SUITE/ID. What is there stays: a trial twice with equal content is there once,
    and one that differs ends the command, before anything is copied, unless --keep says which to take.
    """
    from harness.results.record_store import merge_results

    done = merge_results(out, directories, keep)
    typer.echo(f"{done.copied} trials copied, {done.same} were there, {done.dropped} gave way to another")
    typer.echo(f"results: {out}")


def export(
    results: Annotated[Path, typer.Argument(metavar="DIR", help="Results directory, or one suite's directory in it.")],
    to: Annotated[
        Literal["tensorboard", "mlflow", "wandb"],
        option("--to tensorboard|mlflow|wandb", "The tool; each is an extra."),
    ],
    out: Annotated[
        Path | None,
        option(
            "--out DIR",
            "Where it is written.",
            show_default="exports/TOOL; of mlflow its own MLFLOW_TRACKING_URI, if set",
        ),
    ] = None,
) -> None:
    """Write finished trials for TensorBoard, MLflow or Weights & Biases.

    Configuration, metrics, and those of every epoch. Trials that are there already are left out. Nothing is
    sent anywhere, but by MLflow to a MLFLOW_TRACKING_URI; `wandb sync` uploads runs of Weights & Biases.
    """
    from harness.trackers import TRACKERS, read_runs

    runs = read_runs(results)
    if out is None and not (to == "mlflow" and os.environ.get("MLFLOW_TRACKING_URI")):
        out = Path("exports") / to
    written = TRACKERS[to](runs, out)
    typer.echo(f"{written} trials written, {len(runs) - written} were there")
    typer.echo(f"{to}: {out or os.environ['MLFLOW_TRACKING_URI']}")


def status(
    results: Annotated[Path, typer.Argument(metavar="DIR", help="Results directory, or one suite's directory in it.")],
    watch: Annotated[bool, typer.Option("--watch", help="Show it anew until every trial has a record.")] = False,
    failed: Annotated[
        int, option("--failed N", "How many of the trials that failed to list.", min=0, show_default="20")
    ] = 20,
) -> None:
    """Show the state of a run, from any machine that sees the results.

    Running trials with their machine and time, ended ones with their status, and how many are left. Every runner
    writes its state next to the results, so the command that runs the suite need not be asked.
    """
    from harness.results.status import SuiteWatch, suite_directories

    watches = [SuiteWatch(directory) for directory in suite_directories(results)]
    if watch:
        try:
            with live(watches):
                while not all(one.state().over for one in watches):
                    time.sleep(WATCH_S)
        except KeyboardInterrupt:  # the run goes on, only its picture ends
            raise typer.Exit(130) from None
    for one in watches:
        _show(one.directory, one.state(), one.silent(), failed)


def _show(directory: Path, state: SuiteState, silent: frozenset[str], most: int) -> None:
    typer.echo(f"{state.name}: {summary(state)}")
    if state.seeds:
        most_seeds = max(count for _, count in state.seeds)
        closed = [each for each in state.seeds if each[1] < most_seeds]
        of = f"{len(state.seeds) - len(closed)} of {len(state.seeds)} configurations may still be the fastest"
        typer.echo(state.decided or f"not decided yet: {of}, with {most_seeds} seed{'s' * (most_seeds > 1)} so far")
        if closed:
            table(["gets no more seeds", "seeds"], closed)
    rows = [(*_cells(info)[:3], "silent: lost?" if info.id in silent else info.doing) for info in state.running]
    if rows:
        table(RUNNING, rows)
    for info, why in state.lost:
        typer.echo(f"lost: {info.label}: its runner ({info.where}) {why}; the next runner runs it again")
    bad = [each for each in state.ended if each.status not in ("ok", "skipped")]
    if bad and most:
        table(["failed", "status", "reason"], [(each.label, each.status, each.reason or "") for each in bad[:most]])
    if len(bad) > most:
        typer.echo(f"and {len(bad) - most} more that failed (--failed N)")
    flags = [(each.label, flag) for each in state.ended for flag in each.flags]
    if flags := [*flags, *flagged_together(directory, {each.config.get("seed") for each in state.ended})]:
        table(["flagged", "what"], flags[:FLAGS])
    if len(flags) > FLAGS:
        typer.echo(f"and {len(flags) - FLAGS} more flags, in the records and the report")


def flagged_together(directory: Path, seeds: Collection[object]) -> list[tuple[str, str]]:
    """Return label and flag of what only several trials of a suite show, of results of so many seeds."""
    if len(seeds) < 2:
        return []
    from harness.results.frames import too_soon  # pandas, which takes a while

    return too_soon(directory)


def _cells(info: RunnerInfo) -> tuple[str, str, str, str]:
    return info.label or "", info.where, seconds_text(info.elapsed_s or 0), info.doing


def summary(state: SuiteState) -> str:
    """Return how many trials have ended, run and are left, in a line."""
    ends = ", ".join(f"{count} {status}" for status, count in state.counts.items())
    counts = f"{len(state.ended)} ended" + (f" ({ends})" if ends else "")
    return f"{state.total} trials: {counts}, {len(state.running)} running, {state.left} to run"


def live(watches: list[SuiteWatch]) -> AbstractContextManager[Any]:
    """Return a table of the running trials that renews itself while the context lasts; nothing off a terminal."""
    if not is_terminal():
        return nullcontext()
    from rich import box
    from rich.console import Group
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    def drawn() -> RenderableType:
        parts: list[RenderableType] = []
        for state in (watch.state() for watch in watches):
            running = Table(*RUNNING, box=box.SIMPLE_HEAD)
            for info in state.running:
                running.add_row(*map(Text, _cells(info)))
            parts += [Text(f"{state.name}: {summary(state)}"), *([running] if running.row_count else [])]
        return Group(*parts)

    return Live(get_renderable=drawn, refresh_per_second=1 / WATCH_S, transient=True)
