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
    Nodes,
    NodeTimeout,
    Only,
    Plugin,
    Rendezvous,
    RendezvousTimeout,
    Results,
    Retry,
    Set,
    SuiteFile,
    cluster_of,
    device_of,
    statuses_of,
    use_data_dir,
)
from harness.errors import UserError

if TYPE_CHECKING:
    from harness.launch.rendezvous import Cluster
    from harness.launch.runner import RunOptions
    from harness.results.store import ResultStore
    from harness.suite.schema import Suite, TrialConfig


def run(
    suite: SuiteFile,
    results: Results = Path("results"),
    device: Device = None,
    only: Only = None,
    set_: Set = None,
    plugin: Plugin = None,
    retry: Retry = "",
    fresh: Fresh = False,
    data_dir: DataDir = None,
    report: Annotated[
        bool, typer.Option("--report/--no-report", help="Write the report when the run is over.")
    ] = False,
    nnodes: Nodes = None,
    rdzv: Rendezvous = None,
    rdzv_timeout: RendezvousTimeout = 300,
    node_timeout: NodeTimeout = 30,
) -> None:
    """Run a suite, or go on with it.

    Finished trials are kept: running the same command again goes on where it stopped.

    On several machines: the same command with --nnodes and --rdzv on each, or under `srun`.

    Exit code: 0 all ok or skipped, 1 some trials failed, 2 a mistake in the suite or the command,
    130 interrupted.
    """
    from harness.cli.progress import view
    from harness.launch.planner import outdated
    from harness.launch.runner import INTERRUPTED, RunOptions, run_suite
    from harness.results.store import ResultStore

    cluster = cluster_of(nnodes, rdzv, rdzv_timeout, node_timeout)
    options = RunOptions(statuses_of(retry), fresh, use_data_dir(data_dir))
    loaded, trials = select_trials(suite, set_, device, only, data_dir, plugin)
    store = ResultStore(results, loaded.name)
    for line in outdated(trials, store, options):
        typer.echo(f"note: {line}")
    if cluster is None:
        check_writable(store.directory)
        with view() as progress:
            code = run_suite(loaded, trials, store, options, progress)
    else:
        code = _run_on(cluster, loaded, trials, store, options)
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


def _run_on(cluster: Cluster, suite: Suite, trials: list[TrialConfig], store: ResultStore, options: RunOptions) -> int:
    """Run the suite on a cluster and return the exit code; does not return where this is a worker node."""
    from harness.cli.progress import view
    from harness.launch.coordinator import coordinate
    from harness.launch.rendezvous import connect
    from harness.launch.worker_node import take_part

    client = connect(cluster)
    if not client.coordinator:
        raise typer.Exit(take_part(client, suite, trials, options, typer.echo))
    check_writable(store.directory)
    with view() as progress:
        return coordinate(client, suite, trials, store, options, progress)


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
    file: Path,
    overrides: list[str] | None,
    device: str | None,
    only: str | None,
    data_dir: Path | None,
    plugins: list[str] | None = None,
) -> tuple[Suite, list[TrialConfig]]:
    """Load a suite and return it with the trials that the options select; at least one."""
    from harness.registry import find_plugins, whole_entries
    from harness.suite.expand import expand, older_names
    from harness.suite.load import load_suite
    from harness.suite.select import matches

    suite = load_suite(file, overrides or [])
    if plugins:
        more = whole_entries(plugins)
        find_plugins(more)  # a mistake in them is none of the suite's
        suite = suite.model_copy(update={"plugins": tuple(dict.fromkeys([*suite.plugins, *more]))})
    every = expand(suite, device=device_of(device), data_dir=data_dir)
    for line in older_names(suite):
        typer.echo(f"note: {line}", err=True)
    options = {key for trial in every for key in trial.method.options}
    trials = [trial for trial in every if only is None or matches(trial, only, options)]
    if not trials:
        what = f"none of the {len(every)} trials matches '{only}'" if only else "the suite has no trials"
        raise UserError(what, file=file, key="--only" if only else None, fix=f"see `harness plan {file}`")
    return suite, trials


def _summarise(trials: list[TrialConfig], store: ResultStore) -> None:
    from collections import Counter

    from harness.cli.options import table

    finished = store.finished()
    counts = Counter(finished[trial.id] for trial in trials if trial.id in finished)
    typer.echo("")
    table(["status", "trials"], sorted(counts.items()))
    typer.echo(f"results: {store.directory}")
