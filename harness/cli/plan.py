"""`harness plan`: what a run would do, and how long it would take."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from harness.cli.command_options import Executor, Nodes, SlurmSettings, SuiteOptions, node_count, suite_command
from harness.cli.terminal import bytes_text, seconds_text, table
from harness.errors import UserError

if TYPE_CHECKING:
    from harness.launch.hardware import Capacity
    from harness.launch.planner import PlannedTrial
    from harness.results.projection import Checked, Projection
    from harness.results.record import Record
    from harness.results.record_store import ResultStore
    from harness.results.scaling import Machines


@suite_command("warm")
def plan(
    asked: SuiteOptions,
    memory: Annotated[
        bool, typer.Option("--memory", help="Also show what the memory of a rank consists of, trial by trial.")
    ] = False,
    executor: Executor = "local",
    slurm: SlurmSettings = None,
    nnodes: Nodes = None,
    on: Annotated[
        str | None,
        typer.Option(
            "--on", metavar="RANKSxcore[/EACH],NETWORK[,MEMORY]|FILE", help="Predict an epoch on machines with cores "
            "like these, from trials in fewer parts: 16xcore,10gbit, or 16xcore/8,10gbit,64GB for eight ranks a host; "
            "or of a YAML file.",
        ),
    ] = None,
    price: Annotated[
        float | None,
        typer.Option("--price", metavar="MONEY", help="With --on: what a host costs an hour.", min=0),
    ] = None,
) -> None:  # fmt: skip
    """List what a run would do.

    It says of every trial whether it is done, is to run or is skipped, and why. It says how much memory the largest
    rank needs, and whether all ranks fit: into this machine, or those of the executor, or their GPUs. It warns of
    options that may not be meant on their graph. Nothing is downloaded, built or written.

    Memory is what layers, features, sparse matrices and the optimizer take at most: with the largest possible boundary
    until the partition is known. Interpreter and libraries come on top. Of each known partition it shows the
    volume (boundary nodes of all parts) and the boundary imbalance (largest / mean part): above 2 a note says so.

    Of full-graph methods it says what an epoch sends, from the partition or, for sets whose boundary in 2 to 64 parts
    is published, from that: no data are needed.

    The time is that of trials that ran on this machine before. Where there are none, arithmetic gives a rough one.

    With --on it plans for as many parts as there are ranks, and predicts an epoch there from trials of the suite in
    two parts and more; trials in one part show what boundary rows cost. It says how far such predictions were off.
    """
    from harness.launch.executors import executor_of
    from harness.launch.planner import plan as make_plan
    from harness.launch.planner import require_means, warnings
    from harness.results.record_store import ResultStore, read_records
    from harness.results.stats import trials as trials_text

    elsewhere = None if on is None else _machines(on)
    asked = asked if elsewhere is None else replace(asked, parts=str(elsewhere.ranks))
    loaded, trials = asked.select(build=False)
    nodes = node_count(nnodes or "1")
    if elsewhere is None:
        machines = executor_of(executor, asked.plugin or [], executor_option=slurm)(slurm or []).capacity(nodes)
    else:
        machines = capacity_of(elsewhere)
    require_means(trials, loaded, machines)
    here = executor == "local" and nodes == 1 and elsewhere is None
    store = ResultStore(asked.results, loaded.name)
    records = [*read_records(store.directory).values()] if store.directory.is_dir() else []
    planned = make_plan(trials, store, asked.run_options(), machines, records)
    columns = ["id", "state", "trial", "memory a rank", "fits", "reason"]
    table(columns, [_cells(each) for each in planned], spare=["memory a rank", "id"])
    if memory:
        _show_memory(planned)
    _show_bytes(planned)
    if elsewhere is not None:
        _show_elsewhere(planned, records, elsewhere, elsewhere.price if price is None else price)
    for line in _show_partitions(planned):
        typer.echo(f"note: {line}")
    warned = [f"{p.trial.label.rpartition(' seed=')[0]}: {line}" for p in planned for line in p.warnings]
    for line in dict.fromkeys(warned):  # of all seeds once
        typer.echo(line)
    for line in warnings([p for p in planned if p.state == "run"], machines if here else None):
        typer.echo(f"note: {line}")
    counts = Counter(p.state for p in planned)
    claims = f"; claims: {len(loaded.claims)}" if loaded.claims else ""
    states = f"{counts['done']} done, {counts['run']} to run, {counts['skip']} skipped"
    typer.echo(f"\n{trials_text(len(planned))}: {states}{claims}")
    if here and (line := _duration(planned, records, store)):
        typer.echo(line)
    for command in sorted({p.command for p in planned if p.command}):
        typer.echo(f"get the missing data: {command}")


def _machines(text: str) -> Machines:
    from harness.results.scaling import Machines  # with numpy

    return Machines.parse(text)


def capacity_of(machines: Machines) -> Capacity:
    """Return the memory of machines that one does not have: no limit where nobody has said it."""
    from harness.launch.hardware import Capacity

    return Capacity(machines.memory or sys.maxsize, where="each host", nodes=machines.hosts)


def _show_memory(planned: Sequence[PlannedTrial]) -> None:
    from harness.launch.planner import total

    for each in planned:
        rows = [(name, bytes_text(size)) for name, size in each.largest.items()]
        rows.append(("together", bytes_text(total(each.largest))))
        typer.echo("")
        table(["memory of the largest rank", "at most"], rows, title=each.trial.label)


def _show_bytes(planned: Sequence[PlannedTrial]) -> None:
    """Print what an epoch sends, and how long that takes on each network at least, where there is a closed form."""
    known = [(each, each.sent) for each in {p.trial.seedless: p for p in planned}.values() if each.sent is not None]
    if not known:
        return
    from harness.launch.inputs import is_inductive
    from harness.launch.planner import compute_s
    from harness.launch.rates import known_rates
    from harness.results.projection import LINKS  # with pandas

    rows, sources = [], dict[str, None]()
    rates = known_rates()
    computes = [compute_s(each.trial, each.graph, rates) for each, _ in known]
    for (each, sent), seconds in zip(known, computes, strict=True):
        times = [f"{8 * sent / each.trial.partition.parts / link.bits_s:.2g} s" for link in LINKS]
        if any(computes):
            times.insert(0, "{:.2g} to {:.2g} s".format(*seconds) if seconds else "")
        rows.append((each.trial.label.rpartition(" seed=")[0], bytes_text(sent), *times))
        if each.published:
            whole = ", of the whole graph: training on a part of it sends less" if is_inductive(each.trial) else ""
            sources[f"{each.graph.name} ({each.published}{whole})"] = None
    typer.echo("")
    title = "bytes an epoch of all ranks, and seconds of a rank's share at a link's full rate: exchanges take longer"
    compute = ["compute here"] if any(computes) else []
    table(["trial", "bytes", *compute, *(link.label for link in LINKS)], rows, title=title)
    if compute:
        typer.echo(
            "note: compute here: dense products and gathered rows of the whole graph at the best rates of `harness "
            "doctor --bench`, from all rows in a cache (of matrices above 128 MiB but for the first time) to all in "
            "memory; not activations, dropout, normalisation, imbalance"
        )
    if sources:
        typer.echo(f"note: METIS' boundary as published, not of a partition made here: {'; '.join(sources)}")


def _show_elsewhere(
    planned: Sequence[PlannedTrial], records: Sequence[Record], machines: Machines, price: float | None
) -> None:
    """Print an epoch on other machines, predicted from trials in fewer parts, and how far such predictions were off.

    Also the hours of hosts that all of a trial's epochs take, and at a `price` an hour what they cost.
    """
    rows, behind = list[tuple[str | None, ...]](), False
    error, predictions = predict(planned, records, machines)
    for each in predictions:
        found = each.found
        if isinstance(found, str):
            rows.append((each.name, *[""] * (6 if price is None else 7), found))
            continue
        epoch = found.epoch_time_s
        between = f"{epoch / error.factor:.3g} to {epoch * error.factor:.3g} s"
        parts = ", ".join(map(str, sorted(each.known)))
        behind |= found.overlapped_s > 0
        seconds = found.compute_s, found.exchange_s + found.overlapped_s, found.reduce_s
        times = [f"{value:.2g} s" for value in seconds]
        hours = machines.hosts * epoch * each.there.trial.train.epochs / 3600
        cost = [] if price is None else [f"{price * hours:.2g}"]
        rows.append((each.name, f"{epoch:.3g} s", between, *times, f"{hours:.2g} h", *cost, f"trials in {parts} parts"))
    typer.echo("")
    title = f"an epoch of {machines}, predicted: not measured"
    cost = [] if price is None else ["cost"]
    heads = ["trial", "epoch", "between", "compute", "exchanges", "all-reduce", "all epochs, hosts", *cost, "from"]
    table(heads, rows, title=title)
    if behind:
        typer.echo(
            "note: exchanges of pipelined methods run behind the rest of an epoch, which is as long as the longer"
        )
    typer.echo(f"note: predictions of more parts than two from one and two were {error}")


class Prediction(NamedTuple):
    """An epoch of a planned trial, from `known` trials like it in fewer parts; or why there is none."""

    name: str  # without the seed
    there: PlannedTrial
    known: Mapping[int, Sequence[Record]]
    found: Projection | str


def predict(
    planned: Sequence[PlannedTrial], records: Sequence[Record], machines: Machines
) -> tuple[Checked, list[Prediction]]:
    """Predict the trials that are planned on other machines, whatever their seed; also how far that was off."""
    from harness.results.scaling import Shape, alike, held_out, key_of, scaled, sure

    groups, predictions = alike(records), list[Prediction]()
    for each in {p.trial.seedless: p for p in planned}.values():
        known = {parts: own for parts, own in groups.get(key_of(each.trial), {}).items() if parts <= machines.ranks}
        try:
            shape = Shape.of(known, machines.ranks, each.partition or (), each.boundary, each.sent)
            found: Projection | str = scaled(known, machines, shape)
        except UserError as reason:
            found = str(reason)
        predictions.append(Prediction(each.trial.label.rpartition(" seed=")[0], each, known, found))
    return sure(held_out(groups.values(), machines.link)), predictions


def _show_partitions(planned: Sequence[PlannedTrial]) -> list[str]:
    """Print a table of the known partitions' boundaries; return the warnings of those that are not balanced."""
    from harness.data.partition import boundary_warning
    from harness.data.partition.view import imbalance

    rows: dict[tuple[str, int, str, str, int, float], str | None] = {}
    for each in planned:
        spec, sizes = each.trial.partition, [row["boundary"] for row in each.partition or () if row["part"] != "total"]
        if len(sizes) > 1:
            name, ratio = each.trial.label.split()[0], imbalance(sizes)
            row = name, spec.parts, spec.method, spec.objective if spec.method == "metis" else "", sum(sizes), ratio
            rows[row] = boundary_warning(name, spec, ratio)
    if rows:
        typer.echo("")
        table(["data set", "parts", "method", "objective", "volume", "boundary imbalance"], list(rows))
    return [line for line in rows.values() if line]


def _duration(planned: Sequence[PlannedTrial], records: Sequence[Record], store: ResultStore) -> str:
    """Return how long the trials to run will take here, one after another, by records of this and other suites."""
    from harness.launch.planner import Forecaster
    from harness.results.environment import machine
    from harness.results.record_store import SUITE_FILE, read_records

    todo = [each for each in planned if each.state == "run"]
    if not todo:
        return ""
    forecaster = Forecaster(machine())
    forecaster.learn(records)
    for directory in {file.parent for file in store.root.glob(f"*/{SUITE_FILE}")} - {store.directory}:
        with suppress(UserError):  # a damaged record is reported where its own suite is planned
            forecaster.learn(read_records(directory).values())
    found = [forecaster.of(each.trial, each.graph) for each in todo]
    by: Counter[str] = Counter(each.by for each in found)
    how = {
        "same": "ran here before",
        "like": "by trials of their method that ran here",
        "model": "by their arithmetic, which may be several times wrong",
    }
    known = ", ".join(f"{by[kind]} {said}" for kind, said in how.items() if by[kind])
    together = " one after another" if len(todo) > 1 else ""
    return f"about {seconds_text(sum(each.seconds for each in found))}{together}: {known}"


def _cells(planned: PlannedTrial) -> tuple[str | None, ...]:
    from harness.launch.planner import total

    state = f"done ({planned.done_status})" if planned.state == "done" else planned.state
    fits, lacking = "", planned.shortage
    if lacking is not None:
        needed, available = bytes_text(lacking.needed), bytes_text(lacking.available)
        fits = f"may not fit: needs up to {needed}, {lacking.where} has {available}"
        if lacking.by_evaluation and planned.trial.train.eval_memory is None:
            fits += "; without the exact evaluation it fits: bound that by `train.eval_memory`"
    size = bytes_text(total(planned.largest)) if planned.largest else "not known"
    return planned.trial.id, state, planned.trial.label, size, fits, planned.reason
