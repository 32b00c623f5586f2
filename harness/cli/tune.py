"""`harness tune`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.command_options import SuiteOptions, suite_command
from harness.cli.terminal import outlive_readers, seconds_text, table
from harness.cli.until import Budget, FreshSeeds, Until, run_until_decided

if TYPE_CHECKING:
    from harness.results.record_store import ResultStore
    from harness.suite.schema import Suite, TrialConfig
    from harness.tune import Found
    from harness.tune.space import Searched


@suite_command("only", "retry", "fresh", "shard", "repeat", "interleave", trust_plugins=True)
def tune(
    asked: SuiteOptions,
    search_only: Annotated[bool, typer.Option("--search-only", help="Do not train the chosen settings again.")] = False,
    cross: Annotated[
        bool, typer.Option("--cross", help="Also try each family's settings with the other family's methods.")
    ] = False,
    sensitivity: Annotated[
        bool, typer.Option("--sensitivity", help="Also try what was chosen with other depths and widths.")
    ] = False,
    until: Until = None,
    budget: FreshSeeds = "1 h",
) -> None:
    """Search each method's settings with the same budget, and train the chosen ones with fresh seeds.

    The suite's `tuning:` says how. The search's trials lie in NAME-tuning, without test scores; the chosen settings are
    NAME-tuning/tuned.yaml, a suite like any other, and its results NAME-tuned. The same command goes on where it
    stopped; several of them share the work.

    Exit code: 0 all ok, 1 some of the final trials failed, 2 a mistake in the suite or the command, 130 interrupted.
    """
    from harness.cli.progress import view
    from harness.cli.run import check_cache, check_writable, interrupted
    from harness.launch.runner import run_suite
    from harness.launch.runner_process import INTERRUPTED, end_when_asked
    from harness.results.record_store import ResultStore
    from harness.suite.expand import expand
    from harness.suite.suite_file import write_suite_file
    from harness.tune import Tuner, tuned_suite
    from harness.tune.space import Searched

    end_when_asked()
    outlive_readers()
    rounds = None if until is None else Budget.parse(budget)
    loaded, results, options = asked.read(), asked.results, asked.run_options()
    searched = Searched(loaded, asked.device, asked.data_dir)

    def run(of: Suite, trials: Sequence[TrialConfig], store: ResultStore) -> int:
        with view() as progress:
            return run_suite(of, trials, store, options, progress)

    tuner = Tuner(searched, results, run, typer.echo)
    check_writable(tuner.store.directory)
    check_cache()
    for line in _cost(tuner.searched, len(tuner.subjects)):
        typer.echo(line)
    try:
        found, code = tuner.search()
        if code != INTERRUPTED:
            tuner.check_reached()
            found, code = tuner.try_changes(found, cross=cross, sensitivity=sensitivity)
    except KeyboardInterrupt:
        code = INTERRUPTED
    if code == INTERRUPTED:
        interrupted()
    outcome = tuner.outcome(found)
    outcome.write(tuner.store.directory)
    _show(found)
    final = tuned_suite(loaded, found)
    path = write_suite_file(final, tuner.store.directory / "tuned.yaml")
    typer.echo(f"chosen: {path}")
    if search_only:
        typer.echo(f"train it with fresh seeds: harness run {path} --results {results}")
        return
    store = ResultStore(results, final.name)
    outcome.write(store.directory)  # results show what their settings cost, wherever they are copied
    trials, why = expand(final, device=asked.device, data_dir=asked.data_dir), ""
    if rounds is None:
        code = run(final, trials, store)
    else:
        code, why = run_until_decided(final, trials, store, lambda of, some: run(of, some, store), rounds)
    if code == INTERRUPTED:
        interrupted()
    typer.echo(f"{why}\n" if why else "", nl=False)
    typer.echo(f"results: {results / final.name}")
    typer.echo(f"report:  harness report {results / final.name}")
    raise typer.Exit(code)


def _cost(searched: Searched, subjects: int) -> Iterator[str]:
    from harness.results.stats import trials

    spec, seeds = searched.spec, len(searched.suite.seeds)
    studies = f"{spec.studies} studies of " if spec.studies > 1 else ""
    count = subjects * spec.studies * spec.budget.trials
    each = spec.budget.seconds
    whole = None if each is None else subjects * spec.studies * (spec.budget.total_seconds or each * spec.budget.trials)
    most = f", {seconds_text(whole)} of training at most" if whole is not None else ""
    yield f"search: {studies}{trials(spec.budget.trials)} for each method and data set, {count} in all{most}"
    final = subjects * seeds * len(searched.suite.network)
    after = f", {seconds_text(final * each)} of training at most" if each is not None else ""
    yield f"then the chosen settings with {seeds} seeds: {trials(final)}{after}"


def _show(found: Sequence[Found]) -> None:
    typer.echo("")
    rows = []
    for each in found:
        chosen = each.chosen
        point = "failed"
        if chosen:
            values = {k: f"{v:.3g}" if isinstance(v, float) else v for k, v in chosen.tried.point.items()}
            point = ", ".join(f"{key}={value}" for key, value in values.items()) or "the suite's own"
        curve = chosen.tried.curve if chosen else None
        took = curve.time_to(each.target) if curve and each.target is not None else None
        best = f"{curve.best():.4f}" if curve else "-"
        reached = "-" if each.target is None else seconds_text(took) if took is not None else "not reached"
        subject = each.subject.dataset.name, each.subject.method.name
        rows.append((*subject, best, reached, str(each.trials), seconds_text(each.trained_s), point))
    table(["data set", "method", "best val", "time to target", "trials", "training", "chosen"], rows)
