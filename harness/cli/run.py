"""`harness run`: run a suite, or what of it has not been run yet."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    device_of,
    statuses_of,
    use_data_dir,
)
from harness.errors import UserError

if TYPE_CHECKING:
    from harness.results.store import ResultStore
    from harness.suite.schema import Suite, TrialConfig


def run(
    suite: SuiteFile,
    results: Results = Path("results"),
    device: Device = None,
    only: Only = None,
    set_: Set = None,
    retry: Retry = "",
    fresh: Fresh = False,
    data_dir: DataDir = None,
    report: Annotated[
        bool, typer.Option("--report/--no-report", help="Write the report when the run is over.")
    ] = False,
) -> None:
    """Run a suite, or go on with it.

    Finished trials are kept: running the same command again goes on where it stopped.

    Exit code: 0 all ok or skipped, 1 some trials failed, 2 a mistake in the suite or the command,
    130 interrupted.
    """
    from harness.cli.progress import view
    from harness.launch.runner import INTERRUPTED, RunOptions, run_suite
    from harness.results.store import ResultStore

    options = RunOptions(statuses_of(retry), fresh, use_data_dir(data_dir))
    loaded, trials = select_trials(suite, set_, device, only, data_dir)
    store = ResultStore(results, loaded.name)
    check_writable(store.directory)
    with view() as progress:
        code = run_suite(loaded, trials, store, options, progress)
    if code == INTERRUPTED:
        typer.echo("interrupted: finished trials are kept; the same command goes on with the rest", err=True)
        raise typer.Exit(code)
    _summarise(trials, store)
    if report:
        from harness.report import write_report

        typer.echo(f"report:  {write_report(store.directory, None)}")
    else:
        typer.echo(f"report:  harness report {store.directory}")
    raise typer.Exit(code)


def check_writable(directory: Path) -> None:
    """Make the directory of the results; UserError if that, or writing there, is not possible."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if not os.access(directory, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        what = f"cannot write there: {error.strerror}"
        raise UserError(what, file=directory, key="--results", fix="name another directory") from error


def select_trials(
    file: Path, overrides: list[str] | None, device: str | None, only: str | None, data_dir: Path | None
) -> tuple[Suite, list[TrialConfig]]:
    """Load a suite and return it with the trials that the options select; at least one."""
    from harness.suite.expand import expand, matches
    from harness.suite.load import load_suite

    suite = load_suite(file, overrides or [])
    every = expand(suite, device=device_of(device), data_dir=data_dir)
    trials = [trial for trial in every if only is None or matches(trial, only)]
    if not trials:
        what = f"none of the {len(every)} trials matches '{only}'" if only else "the suite has no trials"
        raise UserError(what, file=file, key="--only" if only else None, fix=f"see `harness plan {file}`")
    return suite, trials


def _summarise(trials: list[TrialConfig], store: ResultStore) -> None:
    from collections import Counter

    from harness.cli.show import table

    finished = store.finished()
    counts = Counter(finished[trial.id] for trial in trials if trial.id in finished)
    typer.echo("")
    table(["status", "trials"], sorted(counts.items()))
    typer.echo(f"results: {store.directory}")
