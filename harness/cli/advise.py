"""`harness advise`: which method to use on a graph, on machines that one does not have."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.command_options import DatasetOption, SuiteOptions, dataset_options, option, suite_command, suite_path
from harness.cli.plan import capacity_of, predict
from harness.cli.terminal import bytes_text, outlive_readers, seconds_text, table
from harness.cli.until import Budget, run_while_time_allows
from harness.errors import UserError

if TYPE_CHECKING:
    from harness.launch.planner import PlannedTrial
    from harness.report.sections import Section
    from harness.results.projection import Projection
    from harness.results.record import Record
    from harness.results.record_store import ResultStore
    from harness.results.scaling import Machines
    from harness.suite.schema import Suite, TrialConfig

    Predicted = Mapping[str, tuple[Projection, PlannedTrial]]


@suite_command("only", "retry", "fresh", "shard", "repeat", "interleave", "parts", "twin", "device", trust_plugins=True)
def advise(
    asked: SuiteOptions,
    graph: Annotated[str, typer.Argument(metavar="GRAPH", help="A name of `harness list datasets`, or of your own.")],
    on: Annotated[
        str,
        option(
            "--on RANKSxcore[/EACH],NETWORK[,MEMORY]|FILE",
            "The machines: 16xcore,10gbit (a rank a host), 16xcore/8,10gbit,64GB (eight, and memory), or a YAML file.",
        ),
    ],
    target: Annotated[
        str, option("--target SCORE", "Validation score to reach: 0.9, or points below what full reaches here.")
    ] = "-1pt",
    budget: Annotated[str, option("--budget TEXT", "What all trials may take: '45 min', '2 h'.")] = "1 h",
    price: Annotated[
        float | None,
        option("--price MONEY", "What a host costs an hour: adds what it costs to reach the target.", min=0),
    ] = None,
    suite: Annotated[
        Path, option("--suite SUITE", "Whose model, training and methods are tried, on GRAPH.", callback=suite_path)
    ] = Path("advise"),
    options: DatasetOption = None,
) -> None:
    """Say which method to use on a graph, on machines that one does not have.

    It partitions the graph for these machines. Here it trains every method of the suite `advise`, and those of
    --plugin, in one part and two within the budget, and from that predicts epochs and times to the target there.
    Methods are ranked; all that may be the fastest are named, by the seeds and by how far such predictions were off.
    The same command goes on where it stopped.

    Epochs until the target are those of the trials in the most parts. A rank keeps its batches: in more parts an epoch
    of a mini-batch method has fewer steps, and may learn less.

    Exit code: 0 all ok, 1 some trials failed, 2 a mistake in the command, 130 interrupted.
    """
    from harness.cli.run import check_cache, check_writable, download_lacking, interrupted, run_on
    from harness.launch.inputs import InputCache
    from harness.launch.planner import plan
    from harness.launch.runner_process import INTERRUPTED, end_when_asked
    from harness.launch.twins import FIRST_SEEDS
    from harness.results.record_store import SUITE_FILE, ResultStore, read_records, read_suite
    from harness.results.scaling import Machines

    machines, (below, wanted), seconds = Machines.parse(on), _target(target), Budget.parse(budget).seconds
    if seconds is None:
        raise UserError(f"'{budget}' is no time", key="--budget", fix="e.g. '45 min' or '2 h'")
    end_when_asked()
    outlive_readers()
    data = json.dumps([{graph: dataset_options(options)}])
    asked = replace(asked, suite=suite, set_=[f"name=advise-{graph}", f"datasets={data}", *wanted, *(asked.set_ or [])])
    asked = replace(asked, set_=_shared(asked, seconds))
    loaded, trials = asked.select()
    store, run_options = ResultStore(asked.results, loaded.name), asked.run_options()
    check_writable(store.directory)
    check_cache()
    download_lacking(trials, store, run_options)
    split = {"parts": machines.ranks}
    there = [each.model_copy(update={"partition": each.partition.model_copy(update=split)}) for each in trials]
    InputCache(asked.data_dir, apart=True).get(there[0], typer.echo)  # first, as it may not be possible

    def run(suite: Suite, some: Sequence[TrialConfig]) -> int:
        return run_on(None, suite, [*some], store, run_options)

    code, why = run_while_time_allows(loaded, trials, store, run, FIRST_SEEDS, seconds)
    if code == INTERRUPTED:
        interrupted()
    typer.echo(f"\n{why}\n")
    ran = {trial.id for trial in read_suite(store.directory / SUITE_FILE).trials}
    records = [record for record in read_records(store.directory).values() if record.trial in ran]
    planned = plan([*{each.seedless: each for each in there}.values()], store, run_options, capacity_of(machines), ())
    _show(store, records, planned, machines, below, machines.price if price is None else price)
    typer.echo(f"results: {store.directory}\nreport:  harness report {store.directory}")
    raise typer.Exit(code)


def _target(text: str) -> tuple[float, list[str]]:
    """Return how far the target is below what full reaches, and what a suite says of a target in a number."""
    if found := re.fullmatch(r"-(\d+(?:\.\d+)?) ?(?:pt|points?)", text):
        return float(found[1]) / 100, []
    if not re.fullmatch(r"0?\.\d+", text) or not float(text):
        raise UserError(f"'{text}' is no score", key="--target", fix="a fraction such as 0.9, or -1pt")
    return 0.0, [f"train.target={float(text)}", "train.stop_at_target=true"]


def _shared(asked: SuiteOptions, seconds: float) -> list[str]:
    """Return the suite's overrides with the plugins' methods, and with the time that a trial trains, which is said."""
    from harness.launch.twins import AROUND_S, FIRST_SEEDS, LEAST_S
    from harness.registry import find_plugins
    from harness.suite.expand import expand

    suite, overrides = asked.read(), asked.set_ or []
    named = {method.name for method in suite.methods}
    own = [name for kind, name in find_plugins(asked.plugin or []) if kind == "method" and name not in named]
    if own:
        methods = [{each.name: each.options} for each in suite.methods]
        overrides = [f"methods={json.dumps([*methods, *own])}", *overrides]
        suite = replace(asked, set_=overrides).read()
    count = len(expand(suite.model_copy(update={"seeds": suite.seeds[:FIRST_SEEDS]}), data_dir=asked.data_dir))
    each = round(max(LEAST_S, seconds / count - AROUND_S), 1)
    whole = seconds_text(max(seconds, count * (each + AROUND_S)))
    typer.echo(
        f"{count} trials train {each:g} s each, further seeds of what reaches the target as long as time is left: "
        f"about {whole}; the making of data and parts comes on top"
    )
    return [f"train.seconds={each}", *overrides]


def _show(
    store: ResultStore,
    records: Sequence[Record],
    there: Sequence[PlannedTrial],
    machines: Machines,
    below: float,
    price: float | None,
) -> None:
    """Print who reaches the target first there, and each method with its times, its memory and its place."""
    from harness.report.elsewhere import qualified, rescaled
    from harness.report.sections import make_sections
    from harness.report.summary import answer_sentence, named_sections
    from harness.results.frames import load_inputs

    found: dict[str, tuple[Projection, PlannedTrial]] = {}
    ratios = {record.trial: 1.0 for record in records if record.config["partition"]["parts"] == 1}
    off, predictions = predict(there, records, machines)
    for each in predictions:
        if isinstance(each.found, str):
            typer.echo(f"not predicted: {each.name}: {each.found}")
            continue
        last = each.known[max(each.known)]
        own_s = statistics.median(float(record.result["epoch_time_s"]) for record in last)
        ratios |= {record.trial: each.found.epoch_time_s / own_s for record in last}
        found |= {record.trial: (each.found, each.there) for record in last}
    inputs = load_inputs(store.directory).only({(store.suite, record.trial) for record in records})
    for section, name in named_sections(make_sections(inputs)):
        section = replace(section, below=below)
        if elsewhere := rescaled(section, ratios, f"predicted for {machines}", off, machines.ranks):
            title = qualified(f"Predicted for {machines}, not measured ({off})", answer_sentence(elsewhere, name))
            _rank(elsewhere, found, title, machines.hosts, price)
    most = max(int(record.config["partition"]["parts"]) for record in records)
    typer.echo(
        f"note: epochs until the target are those of {most} parts; an epoch of a mini-batch method has fewer steps in "
        f"{machines.ranks}, and may learn less. Settings are the suite's: `harness tune` searches better ones. Memory: "
        "without interpreter and libraries"
    )


def _rank(there: Section, found: Predicted, title: str, hosts: int, price: float | None) -> None:
    """Print the methods of a section, those that reach the target first above; one rank is on one host."""
    from harness.launch.planner import total
    from harness.report.elsewhere import EpochView, placed, ranking

    view, rows = ranking(there), list[Sequence[object]]()
    for (variant, parts), median, place in placed(view):
        trials = there.select(variant, parts)
        cells: tuple[object, ...] = (trials["epoch_time_s"].median() if len(trials) else None, None, "")  # as measured
        if parts > 1 and len(trials):
            projection, planned = found[trials["trial"].iloc[0]]
            fits = f", may not fit in {bytes_text(planned.shortage.available)}" if planned.shortage else ""
            size = bytes_text(total(planned.largest))
            cells = projection.epoch_time_s, round(100 * projection.communication), f"{size}{fits}"
        costs = [] if price is None else [median and price * (hosts if parts > 1 else 1) * median / 3600]
        rows.append((variant.label, parts, view.times[variant, parts].count, *cells, median, *costs, place))
    what = "epoch" if isinstance(view, EpochView) else "to target"
    heads = [f"median s {what}", *([] if price is None else [f"cost {what}"])]
    columns = ["method", "P", "seeds", "epoch s", "communication %", "memory a rank", *heads, "place"]
    table(columns, rows, title=title, spare=["memory a rank"])
