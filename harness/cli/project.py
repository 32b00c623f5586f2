"""`harness project`: what measured trials would take on another network, and how far off that is."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.options import Printed, option
from harness.cli.terminal import print_csv, table
from harness.errors import UserError, nearest

if TYPE_CHECKING:
    from harness.results.projection import NamedLink, Projection
    from harness.results.record import Record

Row = tuple[object, ...]
MODEL = (
    "Projections of a model (alpha-beta, one full-duplex link a host), not measurements. Assumptions: "
    "docs/design/projection.md"
)
COLUMNS = (
    *("trial", "label", "base", "measured s", "network", "compute s", "exchange s", "reduce s"),
    *("projected s", "communication %", "speed-up over full"),
)
VALIDATION = ("trial", "label", "base", "measured s", "projected s", "error %")


def project(
    results: Annotated[
        Path, typer.Argument(metavar="RESULTS", help="Results directory, or one suite's directory in it.")
    ] = Path("results"),
    network: Annotated[
        str, option("--network NAME,...", "Rates of a host's link (10gbit), or nvlink, pcie4, pcie5, hdr, ndr.")
    ] = "1gbit,10gbit,100gbit",
    latency: Annotated[str, option("--latency TIME", "From host to host, e.g. 50us.")] = "0",
    ranks_per_host: Annotated[int, option("--ranks-per-host K", "Ranks that share a link.", min=1)] = 1,
    base: Annotated[
        str | None,
        option(
            "--base NETWORK",
            "Project from the trials on this network (none: the loopback).",
            show_default="of each trial's twins the one on the fastest",
        ),
    ] = None,
    validate: Annotated[
        bool, typer.Option("--validate", help="Compare with the twins measured on other networks instead.")
    ] = False,
    format: Printed = "table",
) -> None:
    """Predict epoch time on another network.

    From each trial's measured compute and its bytes by peer; see docs/design/projection.md for the model.
    Left out are trials of one rank, those that failed, and those timed without phases.
    """
    from harness.results.frames import load_inputs
    from harness.results.projection import parse_link, why_not
    from harness.suite.network import parse_latency

    links = [parse_link(name.strip(), "--network") for name in network.split(",")]
    try:
        latency_s = parse_latency(latency)
    except ValueError as error:
        raise UserError(str(error), key="--latency") from None
    records = sorted(load_inputs(results).records.values(), key=lambda r: (r.suite, r.started, r.label))
    groups = _groups(records, base, results)
    if validate:
        rows, notes = _validation(groups, results)
    else:
        rows = _projections([found for found, _ in groups], links, latency_s, ranks_per_host)
        notes = _notes(links, latency, ranks_per_host)
    (table if format == "table" else print_csv)(VALIDATION if validate else COLUMNS, rows)
    left_out = Counter(reason for record in records if (reason := why_not(record)))
    notes += [f"Left out: {count} where the trial {reason}." for reason, count in left_out.items()]
    for note in [MODEL, *notes]:
        typer.echo(note, err=format == "csv")


def _groups(records: Sequence[Record], label: str | None, results: Path) -> list[tuple[Record, Sequence[Record]]]:
    """Return the trials to project from, each with its twins."""
    from harness.results.projection import base_of, counterparts, network_label

    groups = counterparts(records)
    if not groups:
        raise UserError("holds no trial to project", file=results, fix="it takes two ranks and measured phases")
    networks = {network_label(record) for group in groups for record in group}
    if label is not None and label not in networks:
        raise UserError(f"no trial ran on network '{label}'", key="--base", fix=nearest(label, networks))
    return [(found, group) for group in groups if (found := base_of(group, label))]


def _projections(
    bases: Sequence[Record], links: Sequence[NamedLink], latency_s: float, ranks_per_host: int
) -> list[Row]:
    from harness.results.projection import network_label
    from harness.results.projection import project as project_trial

    def on(link: NamedLink, record: Record) -> Projection:
        return project_trial(record, link.bits_s, latency_s, ranks_per_host=ranks_per_host, sockets=link.sockets)

    rows: list[Row] = []
    for record, link in itertools.product(bases, links):
        found, full = on(link, record), _full(record, bases)
        epoch = found.epoch_time_s
        head = (record.trial, record.label, network_label(record), record.result["epoch_time_s"])
        shown = (found.compute_s + found.wait_s, found.exchange_s, found.reduce_s, epoch)
        speed_up = on(link, full).epoch_time_s / epoch if full and epoch else None
        rows.append((*head, link.name, *shown, 100 * found.communication, speed_up))
    return rows


def _full(record: Record, bases: Sequence[Record]) -> Record | None:
    """Return the trial of `full` that differs from `record` in its method only."""

    def setting(other: Record) -> dict[str, object]:
        return {key: value for key, value in other.config.items() if key != "method"}

    return next((b for b in bases if b.config["method"]["name"] == "full" and setting(b) == setting(record)), None)


def _notes(links: Sequence[NamedLink], latency: str, ranks_per_host: int) -> list[str]:
    shared = "a host of its own for each rank" if ranks_per_host == 1 else f"{ranks_per_host} ranks a host"
    notes = [f"Latency {latency}, {shared}; compute includes the wait for slower ranks where it was told apart."]
    return notes + [f"{link.name}: {link.source}." for link in links if link.source]


def _validation(groups: Sequence[tuple[Record, Sequence[Record]]], results: Path) -> tuple[list[Row], list[str]]:
    from harness.results.projection import compare_counterparts, network_label

    rows: list[Row] = []
    errors = []
    for found, group in groups:
        for each in compare_counterparts(group, found):
            head = (each.trial.trial, each.trial.label, network_label(found), each.measured_s)
            rows.append((*head, each.projection.epoch_time_s, 100 * each.error))
            errors.append(each)
    if not errors:
        fix = "run a suite whose `network` lists several, e.g. suites/network.yaml"
        raise UserError("holds no trials that differ only in network", file=results, fix=fix)
    largest = max(errors, key=lambda each: abs(each.error))
    return rows, [f"Largest error: {100 * largest.error:+.1f} % ({largest.trial.label})."]
