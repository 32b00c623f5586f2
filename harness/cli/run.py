"""`harness run` and `warm`."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from harness.caches import cache_root
from harness.cli.command_options import (
    SUITE_HELP,
    Executor,
    Jobs,
    Nodes,
    NodeTimeout,
    Rendezvous,
    RendezvousTimeout,
    SlurmSettings,
    SuiteOptions,
    cluster_of,
    jobs_of,
    node_count,
    suite_command,
    suite_path,
)
from harness.cli.terminal import outlive_readers, table
from harness.cli.until import Budget, FreshSeeds, Until, run_until_decided, run_while_time_allows
from harness.errors import UserError

if TYPE_CHECKING:
    from harness.launch.rendezvous import Cluster
    from harness.launch.slots import RunOptions
    from harness.results.record_store import ResultStore
    from harness.suite.schema import Suite, TrialConfig

MOST_LOGS = 10  # of failed trials, that a run names at its end


@suite_command(trust_plugins=True)
def run(
    asked: SuiteOptions,
    report: Annotated[
        bool, typer.Option("--report/--no-report", help="Write the report when the run is over.")
    ] = False,
    nnodes: Nodes = None,
    rdzv: Rendezvous = None,
    rdzv_timeout: RendezvousTimeout = 300,
    node_timeout: NodeTimeout = 30,
    executor: Executor = "local",
    jobs: Jobs = "auto",
    slurm: SlurmSettings = None,
    detach: Annotated[bool, typer.Option("--detach", help="Submit to Slurm and do not wait for the jobs.")] = False,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="End when all trials that are left are being run by others.")
    ] = False,
    together: Annotated[
        bool, typer.Option("--together", help="Let trials that are timed run side by side, too: times then disturb.")
    ] = False,
    download: Annotated[
        bool, typer.Option("--download/--no-download", help="Download published data that are not here.")
    ] = True,
    until: Until = None,
    budget: FreshSeeds = "1 h",
    audit: Annotated[
        bool, typer.Option("--audit", help="Watch ranks' threads, child processes, files and sockets; see flags.")
    ] = False,
    request: Annotated[str | None, typer.Option("--request", help="What to run, with others.", hidden=True)] = None,
    share: Annotated[int | None, typer.Option("--share", help="Of how many runners here.", hidden=True)] = None,
) -> None:
    """Run a suite, or go on with it.

    Finished trials are kept: running the same command again goes on where it stopped.

    On a cluster: --executor slurm or ray, --results on a file system that its nodes share. On several machines
    without: the same command with --nnodes and --rdzv on each, or under `srun`.

    Exit code: 0 all ok or skipped, 1 some trials failed or none ran, 2 a mistake in the suite or the command, 130
    interrupted.
    """
    from harness.cli.progress import Lines
    from harness.cli.results import live
    from harness.launch.executors import Submission, executor_of, require_named_device
    from harness.launch.executors.local import jobs_here
    from harness.launch.planner import outdated, require_means
    from harness.launch.runner_process import INTERRUPTED, end_when_asked
    from harness.results.record_store import ResultStore
    from harness.results.status import SuiteWatch

    end_when_asked()  # by a cluster that wants its machine back, or a terminal that is closed
    outlive_readers()
    runs = executor_of(executor, asked.plugin or [], executor_option=slurm, detach=detach, rdzv=rdzv)(slurm or [])
    local = executor == "local"
    cluster = cluster_of(nnodes, rdzv, rdzv_timeout, node_timeout) if local else None
    options = asked.run_options(request=request, wait=not no_wait, jobs=share or 1, together=together, audit=audit)
    one_by_one = local and cluster is None and jobs_of(jobs) in (None, 1)
    rounds = None if until is None else _rounds(budget, one_by_one)
    loaded, trials = asked.select()
    store = ResultStore(asked.results, loaded.name)
    for line in outdated(trials, store, options):
        typer.echo(f"note: {line}")
    nodes = node_count(nnodes or "1")
    if cluster is None:
        check_writable(store.directory)
    if local:
        require_means(trials, loaded, runs.capacity(nodes))
        check_cache()
    lacking = download_lacking(trials, store, options) if download and request is None and share is None else []
    arguments = [*_arguments(asked), "--no-download", *(["--audit"] if audit else [])]
    wanted = Submission(loaded, trials, store, options, arguments, jobs_of(jobs), nodes, detach)
    if local:
        wanted = replace(wanted, jobs=1 if cluster is not None or share is not None else jobs_here(wanted))
    else:
        require_named_device(loaded, asked.device)
    sized = asked.twin is not None and not asked.seeds_chosen and asked.only is None and asked.shard is None
    if rounds is not None or (sized and one_by_one and request is None and share is None):
        code, trials = _run_rounds(loaded, trials, store, options, rounds)
    elif local and wanted.jobs == 1:
        code = run_on(cluster, loaded, trials, store, options)
    else:
        with live([SuiteWatch(store.directory)]):
            code = runs.run(wanted, Lines(), typer.echo)
    if detach:
        typer.echo(f"the jobs write to {store.directory}; the same command shows what is left")
        raise typer.Exit(code)
    if code == INTERRUPTED:
        interrupted()
    _show_end(loaded, trials, store, report)
    raise typer.Exit(code or _nothing_ran(trials, store, options, lacking))


def _rounds(budget: str, one_by_one: bool) -> Budget:
    """Return what rounds of fresh seeds may take; UserError where trials do not run one by one here."""
    if not one_by_one:
        raise UserError("runs trials one by one here", key="--until", fix="leave out --executor, --nnodes, --jobs")
    return Budget.parse(budget)


def _run_rounds(
    loaded: Suite, trials: list[TrialConfig], store: ResultStore, options: RunOptions, budget: Budget | None
) -> tuple[int, list[TrialConfig]]:
    """Run rounds of fresh seeds, without a budget those of twins; return the exit code, and the trials of all."""
    from harness.launch.twins import FIRST_SEEDS, TOTAL_S
    from harness.results.record_store import SUITE_FILE, read_suite

    def run_here(suite: Suite, some: Sequence[TrialConfig]) -> int:
        return run_on(None, suite, [*some], store, options)

    if budget is None:
        code, why = run_while_time_allows(loaded, trials, store, run_here, FIRST_SEEDS, TOTAL_S)
    else:
        code, why = run_until_decided(loaded, trials, store, run_here, budget)
    typer.echo(f"\n{why}" if why else "", nl=bool(why))
    return code, [*read_suite(store.directory / SUITE_FILE).trials]


def _show_end(loaded: Suite, trials: list[TrialConfig], store: ResultStore, report: bool) -> None:
    """Show how trials ended, their logs and flags, and where results and report are."""
    from harness.cli.results import flagged_together

    finished = store.finished()
    counts = Counter(finished[trial.id] for trial in trials if trial.id in finished)
    typer.echo("")
    table(["status", "trials"], sorted(counts.items()))
    failed = [trial.id for trial in trials if finished.get(trial.id, "ok") not in ("ok", "skipped")]
    typer.echo("".join(f"log:     {store.directory / id_ / 'log.txt'}\n" for id_ in failed[:MOST_LOGS]), nl=False)
    for label, flag in flagged_together(store.directory, {trial.seed for trial in trials}):
        typer.echo(f"flagged: {label}: {flag}")
    typer.echo(f"results: {store.directory}")
    if report:
        from harness.launch.hardware import cores
        from harness.report import write_report

        views = loaded.catalogue().sources
        written = write_report(store.directory, plugins=views, workers=cores() - 1, say=typer.echo)
        typer.echo(f"report:  {written}")
    else:
        typer.echo(f"report:  harness report {store.directory}")


def download_lacking(trials: list[TrialConfig], store: ResultStore, options: RunOptions) -> list[str]:
    """Download what unfinished trials lack; return, and say, why some of it cannot be had."""
    from harness.launch.inputs import download_missing
    from harness.launch.slots import is_done

    finished = store.finished()
    unfinished = [trial for trial in trials if not is_done(finished.get(trial.id), options)]
    failed = download_missing(unfinished, options.data_dir, typer.echo)
    for line in failed:
        typer.echo(f"note: {line}", err=True)
    return failed


def _nothing_ran(trials: list[TrialConfig], store: ResultStore, options: RunOptions, failed: list[str]) -> int:
    """Say why where all trials were skipped; return the exit code."""
    from harness.launch.inputs import missing_data

    finished = store.finished()
    if {finished.get(trial.id) for trial in trials} != {"skipped"}:
        return 0
    missing = {trial.dataset.name: missing_data(trial.dataset, options.data_dir) for trial in trials}
    why = "; ".join(failed or map(str, filter(None, missing.values()))) or "see `harness status`"
    twin = "; --twin runs a generated graph in its likeness" if any(missing.values()) else ""
    typer.echo(f"error: nothing ran: {why}{twin}", err=True)
    return 1


@suite_command("results", "retry", "fresh", "warm", "shard", "repeat", "interleave", trust_plugins=True)
def warm(
    asked: SuiteOptions,
    suite: Annotated[
        Path | None,
        typer.Argument(metavar="[SUITE]", help=f"{SUITE_HELP} Without one, every method.", callback=suite_path),
    ] = None,
) -> None:
    """Compile ahead what trials need, once on a machine.

    A run does it itself before its first trial. Each shape of trial (method, model, precision, one part or more) is
    run on a tiny graph; what is compiled is kept, until the code changes.
    """
    from harness.launch.machines import OneMachine, everything
    from harness.suite.schema import Timeouts

    trials = everything() if suite is None else asked.select(with_results=False)[1]
    count, failed = OneMachine(Timeouts(), warm=True).warm_up(trials, typer.echo)
    if failed:
        typer.echo("not every shape of trial ran: what only those need is not compiled", err=True)
        raise typer.Exit(1)
    typer.echo(f"{count} shapes of trials run; all that this machine needs is compiled")


def run_on(
    cluster: Cluster | None, suite: Suite, trials: list[TrialConfig], store: ResultStore, options: RunOptions
) -> int:
    """Run the suite here or on a cluster; return the exit code, but not where this is a worker node."""
    from harness.cli.progress import view
    from harness.launch.coordinator import coordinate
    from harness.launch.rendezvous import Coordination, connect
    from harness.launch.runner import run_suite
    from harness.launch.worker_node import take_part

    hub = None if cluster is None else connect(cluster)
    if isinstance(hub, Coordination):
        raise typer.Exit(take_part(hub, suite, trials, options, typer.echo))
    if hub is not None:
        check_writable(store.directory)
    with view() as progress:
        if hub is None:
            return run_suite(suite, trials, store, options, progress)
        return coordinate(hub, suite, trials, store, options, progress)


def _arguments(asked: SuiteOptions) -> list[str]:
    """Return the arguments of `harness run` by which a job does the same anywhere, without those that select trials."""
    from harness.registry import whole_entries

    arguments = [str(Path(asked.suite).resolve()), "--results", str(asked.results.absolute())]
    arguments += ["--warm" if asked.warm else "--cold"]
    arguments += ["--twin", asked.twin] if asked.twin else []
    arguments += ["--device", asked.device] if asked.device else []
    arguments += ["--data-dir", str(asked.data_dir)] if asked.data_dir else []
    for pair in asked.overrides:
        arguments += ["--set", pair]
    for entry in whole_entries(asked.plugin or []):
        arguments += ["--plugin", entry]
    return arguments


def interrupted() -> NoReturn:
    """Say that the same command goes on, and end."""
    from harness.launch.runner_process import INTERRUPTED

    typer.echo("interrupted: finished trials are kept; the same command goes on with the rest", err=True)
    raise typer.Exit(INTERRUPTED)


def check_cache() -> None:
    """Make the cache; UserError if that is not possible. One that holds data is used as it is."""
    home = cache_root()
    if not (home / "datasets").is_dir():
        check_writable(home, "HARNESS_CACHE")


def check_writable(directory: Path, key: str = "--results") -> None:
    """Make a directory; UserError if that, or writing there, is not possible. `key` names another one."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if not os.access(directory, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        what = f"cannot write there: {error.strerror}"
        raise UserError(what, file=directory, key=key, fix="name another directory") from error
