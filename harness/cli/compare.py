"""`harness compare`, `history` and `project`: results with others, over commits, and on another network."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.command_options import Printed, option
from harness.cli.terminal import bytes_text, print_csv, table
from harness.errors import UserError, nearest

if TYPE_CHECKING:
    from harness.metrics import Metric
    from harness.results.comparison import Compared, Pair, Pairing, Point
    from harness.results.contrast import Drift
    from harness.results.projection import HostLink, Projection
    from harness.results.record import Record


def compare(
    before: Annotated[
        Path, typer.Argument(metavar="A", help="Results of before: a directory of results, or a suite's in it.")
    ],
    after: Annotated[Path, typer.Argument(metavar="B", help="Results of after.")],
    metric: Annotated[str, option("--metric COLUMN", "Metric to compare: a column of load_results.")] = "epoch_time_s",
    fail_on: Annotated[
        str | None,
        option(
            "--fail-on PERCENT",
            "Exit with 1 if B is surely worse, and by this or more, e.g. 5% (of scores: points), "
            "or if a trial failed that was ok in A.",
        ),
    ] = None,
    any_machine: Annotated[
        bool, typer.Option("--any-machine", help="Compare times of different machines too.")
    ] = False,
    format: Printed = "table",
) -> None:
    """Compare two sets of results, trial by trial.

    Prints B / A (of scores B - A) of every trial and over all, with intervals that hold together with 95 %,
    and a verdict: slower, faster, or cannot tell and what it would take. Pairs are trials of one id, or else
    those that agree in all that A and B have in common. See docs/compare.md.

    Exit code: 0; 1 worse than --fail-on allows; 2 a mistake, or times of different machines.
    """
    from harness.results.comparison import compare as compare_pairs
    from harness.results.comparison import load_trials, metric_of, pair
    from harness.results.frames import edited

    limit = None
    if fail_on is not None:
        if not (match := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%?\s*", fail_on)):
            raise UserError(f"'{fail_on}' is no percentage", key="--fail-on", fix="e.g. 5%")
        limit = float(match[1]) / 100
    sides = load_trials(before), load_trials(after)
    chosen = metric_of(metric, [*sides[0], *sides[1]])
    if limit is not None and chosen.better is None:
        raise UserError(f"nothing says whether more or less of '{metric}' is better", key="--fail-on")
    found = pair(*sides)
    ok = [p for p in found.pairs if p.ok]
    notes = [*_machines(ok, chosen, any_machine, after), *_left_out(found, ok)]
    notes += [f"warning: {line}" for line in edited((before, after))]
    rows, whole = compare_pairs(ok, chosen, limit)
    if whole is None:
        raise UserError(f"no trial that ended well on both sides has '{metric}'", key="--metric", file=after)
    _print(chosen, rows, whole, format)
    for note in notes:
        typer.echo(note, err=format == "csv")
    broken = [p for p in found.pairs if p.before.status == "ok" != p.after.status]
    unchanged = 0 if chosen.difference else 1
    worse = [row for row in (*rows, whole) if row.worse]
    if limit is not None and (broken or any(abs(row.change - unchanged) >= limit for row in worse)):
        raise typer.Exit(1)


def _machines(pairs: Sequence[Pair], metric: Metric, any_machine: bool, after: Path) -> list[str]:
    """Return notes on the environments; UserError for times of different machines."""
    from harness.results.comparison import busier, differences

    if not pairs:
        return []
    apart = differences(pairs)
    if apart.hardware and metric.machine and not any_machine:
        what = f"times of different machines: {'; '.join(apart.hardware)}"
        raise UserError(what, file=after, fix="run both on one machine, or say --any-machine")
    busy = busier(pairs) if metric.machine else None
    warnings = filter(None, (*apart.hardware, *apart.software, busy))
    return [*(f"code: {line}" for line in apart.code), *(f"warning: {line}" for line in warnings)]


def _left_out(found: Pairing, ok: Sequence[Pair]) -> list[str]:
    """Return notes on pairs by configuration, failed trials, and those without a partner."""
    notes = [f"paired by all but {', '.join(found.apart)}"] if found.apart else []
    for p in found.pairs:
        if p not in ok:
            ends = [(side, t.status, t.reason) for side, t in (("A", p.before), ("B", p.after))]
            statuses = (f"{side}: {', '.join(filter(None, end))}" for side, *end in ends)
            notes.append(f"not compared: {p.after.label} ({', '.join(statuses)})")
    notes += [f"not compared: {p.after.label} (ran on other data)" for p in found.other_data]
    for side, trials in (("A", found.only_before), ("B", found.only_after)):
        if trials:
            more = f" and {len(trials) - 1} more" if len(trials) > 1 else ""
            notes.append(f"only in {side}: {trials[0].label}{more}")
    return notes


def _print(metric: Metric, rows: Sequence[Compared], whole: Compared, format: str) -> None:
    if format == "csv":
        lines = [[row.label, row.trials, row.before, row.after, *numbers(row)] for row in rows]
        lines.append(["all", whole.trials, None, None, *numbers(whole)])
        print_csv(["trial", "seeds", "a", "b", "raw", "change", "low", "high", "verdict", "needs"], lines)
        return
    shown = [[row.label, row.trials, *cells(row, metric), verdict(row)] for row in rows]
    shown.append([f"all {len(rows)}", whole.trials, None, None, *cells(whole, metric)[2:], verdict(whole)])
    columns = ["trial", "seeds", "A", "B", "B - A" if metric.difference else "B / A", "interval", "verdict"]
    table(columns, shown, title=f"{metric.name}{f', {metric.better} is better' if metric.better else ''}")
    if len(rows) > 1:
        typer.echo(f"intervals hold with 95 % for all {len(rows)} trials and their mean together")
    for line in drift_lines([row.drift for row in rows] if len(rows) > 1 else [], whole.drift):
        typer.echo(line)


DRIFTS: dict[Drift, str] = {
    "none": "",
    "turns": "runs of A and B alternate: the machine's drift cancels in pairs, a steady one is taken out (corrected)",
    "reference": "B / A is corrected for the machine's drift by the reference workload",
    "unknown": (
        "runs of A and B do not alternate, and the reference workload was measured too rarely: intervals allow for a "
        "drift of 10 % (to alternate, run A, then B, for each K = 0, 1, ... with --repeat N --only repeat=K)"
    ),
}


def drift_lines(trials: Sequence[Drift], whole: Drift) -> list[str]:
    """Return lines on the machine's drift in each of several trials, and in all together: one line where they agree."""
    of = {whole: [f"all {len(trials)}"]}
    for drift, count in Counter(trials).items():
        of.setdefault(drift, []).append("each trial" if count == len(trials) else f"{count} of {len(trials)} trials")
    if len(of) == 1:
        return [DRIFTS[whole]] if DRIFTS[whole] else []
    return [f"{' and '.join(names)}: {DRIFTS[drift]}" for drift, names in of.items() if DRIFTS[drift]]


def verdict(row: Compared) -> str:
    """Return the verdict, and the number of runs that a decision would take."""
    return ": ".join(filter(None, (row.verdict, row.needs)))


def numbers(row: Compared) -> list[object]:
    """Return raw change, change, interval, verdict and the runs that a decision needs, as numbers and words."""
    low, high = (row.interval.low, row.interval.high) if row.interval else (None, None)
    return [row.raw, row.change, low, high, row.verdict, row.needs]


def cells(row: Compared, metric: Metric) -> list[object]:
    """Return before, after, change and interval as a table shows them; a corrected change after the raw one."""

    def text(value: float) -> str:
        return f"{100 * value:+.2f}" if metric.difference else f"{value:.3f}"

    def amount(value: float) -> object:
        if metric.difference:
            return f"{100 * value:.2f}"
        return bytes_text(value) if metric.unit.removesuffix("/epoch") == "B" else value

    interval = f"[{text(row.interval.low)}, {text(row.interval.high)}]" if row.interval else None
    change = text(row.raw)
    if text(row.change) != change:
        change += f", corrected {text(row.change)}"
    return [amount(row.before), amount(row.after), change, interval]


def history(
    directories: Annotated[
        list[Path],
        typer.Argument(metavar="DIR...", help="Results of one suite by several versions: a directory each, or one."),
    ],
    metric: Annotated[str, option("--metric COLUMN", "Metric to follow: a column of load_results.")] = "epoch_time_s",
    format: Printed = "table",
) -> None:
    """Follow the same trials over commits, and say where a metric changed.

    Each version is compared with the one of the last change, as `harness compare` compares two: B / A over all trials
    with its interval, slower, faster or cannot tell. A change point names the trials that changed. Of a code that never
    changed at most 5 % of histories have one.
    """
    from harness.results.comparison import history as follow
    from harness.results.comparison import metric_of, versions

    found = versions(directories)
    chosen = metric_of(metric, [trial for version in found for trial in version.trials])
    points = follow(found, chosen)
    if format == "csv":
        columns = ["version", "started", "trials", "since", "raw", "change", "low", "high", "verdict", "needs", "why"]
        rows = (
            [
                *(point.version.name, point.version.started, len(point.version.trials)),
                point.since.name if point.since else None,
                *(numbers(point.whole) if point.whole else [None] * 6),
                point.why or None,
            ]
            for point in points
        )
        print_csv(columns, rows)
        return
    ratio = "B - A" if chosen.difference else "B / A"
    columns = ["version", "started", "trials", "since", ratio, "interval", "verdict"]
    better = f", {chosen.better} is better" if chosen.better else ""
    table(columns, [_row(point, chosen) for point in points], title=f"{chosen.name}{better}", spare=["since"])
    for point in points:
        for row in point.changed:
            if row is not point.whole:
                change, interval = cells(row, chosen)[2:]
                typer.echo(f"{point.version.name}: {row.label}: {change} {interval}, {verdict(row)}")


def _row(point: Point, metric: Metric) -> list[object]:
    started = point.version.started[:16].replace("T", " ")
    beginning: list[object] = [point.version.name, started, len(point.version.trials)]
    if point.since is None:
        return [*beginning, None, None, None, "the first"]
    if point.whole is None:
        return [*beginning, point.since.name, None, None, f"not compared: {point.why}"]
    said = f"changed: {verdict(point.whole)}" if point.changed else verdict(point.whole)
    return [*beginning, point.since.name, *cells(point.whole, metric)[2:], said]


Row = tuple[object, ...]
PROJECTION_MODEL = (
    "Projections of a model (alpha-beta, one full-duplex link a host), not measurements. Assumptions: "
    "docs/design/networks.md"
)
PROJECTION = (
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

    From each trial's measured compute and its bytes by peer; see docs/design/networks.md for the model.
    Left out are trials of one rank, those that failed, and those timed without phases.
    """
    from harness.results.frames import load_inputs
    from harness.results.projection import parse_link, why_not
    from harness.suite.sections import parse_latency

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
        hosts = "a host of its own for each rank" if ranks_per_host == 1 else f"{ranks_per_host} ranks a host"
        notes = [f"Latency {latency}, {hosts}; compute includes the wait for slower ranks where it was measured apart."]
        notes += [f"{link.name}: {link.source}." for link in links if link.source]
    (table if format == "table" else print_csv)(VALIDATION if validate else PROJECTION, rows)
    left_out = Counter(reason for record in records if (reason := why_not(record)))
    notes += [f"Left out: {count} where the trial {reason}." for reason, count in left_out.items()]
    for note in [PROJECTION_MODEL, *notes]:
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
    bases: Sequence[Record], links: Sequence[HostLink], latency_s: float, ranks_per_host: int
) -> list[Row]:
    from harness.results.projection import network_label
    from harness.results.projection import project as project_trial

    def on(link: HostLink, record: Record) -> Projection:
        return project_trial(record, link.bits_s, latency_s, ranks_per_host=ranks_per_host, sockets=link.sockets)

    def setting(record: Record) -> dict[str, object]:
        return {key: value for key, value in record.config.items() if key != "method"}

    fulls = [record for record in bases if record.config["method"]["name"] == "full"]
    rows: list[Row] = []
    for record, link in itertools.product(bases, links):
        found = on(link, record)
        full = next((each for each in fulls if setting(each) == setting(record)), None)
        epoch = found.epoch_time_s
        head = (record.trial, record.label, network_label(record), record.result["epoch_time_s"])
        shown = (found.compute_s + found.wait_s, found.exchange_s, found.reduce_s, epoch)
        speed_up = on(link, full).epoch_time_s / epoch if full and epoch else None
        rows.append((*head, link.name, *shown, 100 * found.communication, speed_up))
    return rows


def _validation(groups: Sequence[tuple[Record, Sequence[Record]]], results: Path) -> tuple[list[Row], list[str]]:
    from harness.results.projection import compare_counterparts, network_label

    errors = [(found, each) for found, group in groups for each in compare_counterparts(group, found)]
    if not errors:
        fix = "run a suite whose `network` lists several, e.g. suites/network.yaml"
        raise UserError("holds no trials that differ only in network", file=results, fix=fix)
    rows: list[Row] = [
        (
            *(each.trial.trial, each.trial.label, network_label(found)),
            *(each.measured_s, each.projection.epoch_time_s, 100 * each.error),
        )
        for found, each in errors
    ]
    largest = max((each for _, each in errors), key=lambda each: abs(each.error))
    return rows, [f"Largest error: {100 * largest.error:+.1f} % ({largest.trial.label})."]
