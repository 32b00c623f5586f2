"""`harness compare`, `history` and `project`: results with others, over commits, and on another network."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.command_options import Printed, option
from harness.cli.terminal import bytes_text, print_csv, table
from harness.errors import UserError, nearest

if TYPE_CHECKING:
    from harness.metrics import Metric
    from harness.report.rivals import Match
    from harness.results.comparison import Compared, Pair, Pairing, Point
    from harness.results.contrast import Drift
    from harness.results.frames import ResultInputs
    from harness.results.projection import HostLink
    from harness.results.record import Record


def compare(
    before: Annotated[
        Path,
        typer.Argument(
            metavar="A", help="Results of before: a directory, or a suite's in it; with --method those of all methods."
        ),
    ],
    after: Annotated[Path | None, typer.Argument(metavar="B", help="Results of after.", show_default=False)] = None,
    method: Annotated[
        str | None, option("--method NAME", "Compare methods within A: this one, or a variant as the report names it.")
    ] = None,
    against: Annotated[
        str | None, option("--against NAME,...", "With --method: what it is held against.", show_default="all others")
    ] = None,
    metric: Annotated[
        str | None,
        option(
            "--metric COLUMN",
            "Metric to compare: a column of load_results; with --method several, with commas between them.",
            show_default="epoch_time_s; with --method time to target, epoch time, scores, bytes",
        ),
    ] = None,
    fail_on: Annotated[
        str | None,
        option(
            "--fail-on PERCENT",
            "Exit with 1 if B, or the method, is surely worse, and by this or more, e.g. 5% (of scores: points), "
            "or if a trial failed that was ok in A.",
        ),
    ] = None,
    any_machine: Annotated[
        bool, typer.Option("--any-machine", help="Compare times of different machines too.")
    ] = False,
    format: Printed = "table",
) -> None:
    """Compare two sets of results trial by trial, or one method with others.

    Prints B / A (of scores B - A) of every trial and over all, with intervals that hold together with 95 %,
    and a verdict: slower, faster, or cannot tell and what it would take. Pairs are trials of one id, or else
    those that agree in all that A and B have in common. With --method, A is each method that it is held against
    and B the method, seed by seed, on every data set and number of parts. See docs/compare.md.

    Exit code: 0; 1 worse than --fail-on allows; 2 a mistake, or times of different machines.
    """
    limit = None
    if fail_on is not None:
        if not (match := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%?\s*", fail_on)):
            raise UserError(f"'{fail_on}' is no percentage", key="--fail-on", fix="e.g. 5%")
        limit = float(match[1]) / 100
    if method is not None:
        if after is not None:
            raise UserError("compares methods within one directory", key="--method", fix=f"leave '{after}' out")
        worse = _methods(before, method, against, metric, limit, any_machine, format)
    elif after is None:
        fix = "name a second directory, or a method of this one with --method"
        raise UserError("nothing to compare with", file=before, fix=fix)
    elif against is not None:
        raise UserError("needs --method: the method that is held against others", key="--against")
    else:
        worse = _directories(before, after, metric or "epoch_time_s", limit, any_machine, format)
    if worse:
        raise typer.Exit(1)


def _directories(before: Path, after: Path, metric: str, limit: float | None, any_machine: bool, format: str) -> bool:
    """Compare two directories; return whether the second is worse than a limit allows."""
    from harness.results.comparison import compare as compare_pairs
    from harness.results.comparison import load_trials, metric_of, pair, value_of
    from harness.results.frames import edited

    if "," in metric:
        fix = "one a command, or --method within one directory"
        raise UserError(f"two directories are compared by one metric, not '{metric}'", key="--metric", fix=fix)
    sides = load_trials(before), load_trials(after)
    chosen = metric_of(metric, [*sides[0], *sides[1]])
    _check_direction(chosen, limit)
    found = pair(*sides)
    ok = [p for p in found.pairs if p.ok]
    notes = [*_machines(ok, chosen, any_machine, after), *_left_out(found, ok)]
    notes += [f"warning: {line}" for line in edited((before, after))]
    rows, whole = compare_pairs(ok, chosen, limit)
    if not rows:
        raise UserError(f"no trial that ended well on both sides has '{metric}'", key="--metric", file=after)
    lacking = [p.after.label for p in ok if value_of(p.before, metric) is None is value_of(p.after, metric)]
    notes += [f"not compared: {label} (neither side has {metric})" for label in lacking]
    _print(chosen, rows, whole, format)
    for note in notes:
        typer.echo(note, err=format == "csv")
    return limit is not None and (
        _broken(found.pairs) or _past(limit, [(chosen, row) for row in (*rows, whole) if row])
    )


def _methods(
    results: Path,
    method: str,
    against: str | None,
    metrics: str | None,
    limit: float | None,
    any_machine: bool,
    format: str,
) -> bool:
    """Compare a method of a directory with others; return whether it is worse than a limit allows."""
    from harness.report.rivals import USUAL, answers, failures, find_places, match_all, names_in
    from harness.results.frames import edited, load_inputs

    inputs = load_inputs(results)
    places = find_places(inputs, method, names_in(against or ""))
    matches = match_all(inputs, places, names_in(metrics) if metrics else USUAL, limit)
    if not matches:
        what = f"no trials that ended well on both sides have {metrics or 'one of the usual metrics'}"
        raise UserError(what, key="--metric", file=results)
    groups = {name: [*own] for name, own in itertools.groupby(matches, lambda match: match.metric)}
    notes: dict[str, None] = {}
    for metric in groups:
        _check_direction(metric, limit if metrics else None)
        for place in places:
            notes |= dict.fromkeys(
                _machines([p for p in place.pairs if p.ok], metric, any_machine, results, busy=False)
            )

    def heads(match: Match) -> list[object]:
        return [str(match.place), match.place.other.label, match.place.mine.label]

    if format == "csv":
        lines = [[metric.name, *heads(m), *_csv_row(m.row)] for metric, own in groups.items() for m in own]
        print_csv(["metric", "where", "against", "method", *CSV], lines)
    else:
        for metric, own in groups.items():
            _table(metric, ["where", "A", "B"], [(heads(match), match.row) for match in own])
        typer.echo(f"verdicts hold with 95 % for all {len(matches)} rows together")
        for line in drift_lines([match.row.drift for match in matches if match.row.drift != "none"]):
            typer.echo(line)
    for note in [*notes, *failures(places), *(f"warning: {line}" for line in edited([results]))]:
        typer.echo(note, err=format == "csv")
    for line in answers(matches) if format != "csv" else []:
        typer.echo(line)
    pairs = [pair for place in places for pair in place.pairs]
    return limit is not None and (_broken(pairs) or _past(limit, [(match.metric, match.row) for match in matches]))


def _check_direction(metric: Metric, limit: float | None) -> None:
    if limit is not None and metric.better is None:
        raise UserError(f"nothing says whether more or less of '{metric.name}' is better", key="--fail-on")


def _broken(pairs: Sequence[Pair]) -> bool:
    """Return whether a trial failed that was ok in A."""
    return any(pair.before.status == "ok" != pair.after.status for pair in pairs)


def _past(limit: float, rows: Sequence[tuple[Metric, Compared]]) -> bool:
    """Return whether a row is surely worse, and by a limit or more."""
    return any(
        row.worse and (not row.numeric or abs(row.change - (not metric.difference)) >= limit) for metric, row in rows
    )


def _machines(pairs: Sequence[Pair], metric: Metric, any_machine: bool, after: Path, *, busy: bool = True) -> list[str]:
    """Return notes on the environments; UserError for times of different machines.

    `busy`: whether one side may have got less of the processor; methods differ in that as they are.
    """
    from harness.results.comparison import busier, differences

    if not pairs:
        return []
    apart = differences(pairs)
    if apart.hardware and metric.machine and not any_machine:
        what = f"times of different machines: {'; '.join(apart.hardware)}"
        raise UserError(what, file=after, fix="run both on one machine, or say --any-machine")
    shares = busier(pairs) if metric.machine and busy else None
    warnings = filter(None, (*apart.hardware, *apart.software, shares))
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


CSV = ("seeds", "a", "b", "raw", "change", "low", "high", "verdict", "needs")


def _print(metric: Metric, rows: Sequence[Compared], whole: Compared | None, format: str) -> None:
    if format == "csv":
        last = [["all", whole.trials, None, None, *numbers(whole)]] if whole else []
        print_csv(["trial", *CSV], [*([row.label, *_csv_row(row)] for row in rows), *last])
        return
    numeric = [row for row in rows if row.numeric]
    together = []
    if whole:
        together = [[f"all {len(numeric)}", whole.trials, None, None, *cells(whole, metric)[2:], verdict(whole)]]
    _table(metric, ["trial"], [([row.label], row) for row in rows], together)
    if len(numeric) > 1:
        typer.echo(f"intervals hold with 95 % for all {len(numeric)} trials and their mean together")
    for line in drift_lines([row.drift for row in numeric] if len(numeric) > 1 else [], whole.drift if whole else None):
        typer.echo(line)


def _csv_row(row: Compared) -> list[object]:
    ends = (value if math.isfinite(value) else None for value in (row.before, row.after))
    return [row.trials, *ends, *numbers(row)]


def _table(
    metric: Metric,
    heads: Sequence[str],
    rows: Sequence[tuple[list[object], Compared]],
    more: Sequence[list[object]] = (),
) -> None:
    """Print rows, each below its first cells, and `more` below them."""
    shown = [[*first, row.trials, *cells(row, metric), verdict(row)] for first, row in rows]
    ends = ["A", "B"] if heads[-1] == "trial" else ["of A", "of B"]
    columns = [*heads, "seeds", *ends, "B - A" if metric.difference else "B / A", "interval", "verdict"]
    title = f"{metric.name}{f', {metric.better} is better' if metric.better else ''}"
    table(columns, [*shown, *more], title=title)


DRIFTS: dict[Drift, str] = {
    "none": "",
    "turns": "runs of A and B alternate: the machine's drift cancels in pairs, a steady one is taken out (corrected)",
    "reference": "B / A is corrected for the machine's drift by the reference workload",
    "unknown": (
        "runs of A and B do not alternate, and the reference workload was measured too rarely: intervals allow for a "
        "drift of 10 % (to alternate, run A, then B, for each K = 0, 1, ... with --repeat N --only repeat=K)"
    ),
}


def drift_lines(trials: Sequence[Drift], whole: Drift | None = None) -> list[str]:
    """Return lines on the machine's drift in each of several trials, and in all together: one line where they agree."""
    of = {whole: [f"all {len(trials)}"]} if whole else {}
    for drift, count in Counter(trials).items():
        of.setdefault(drift, []).append("each trial" if count == len(trials) else f"{count} of {len(trials)} trials")
    if len(of) == 1:
        return [DRIFTS[drift] for drift in of if DRIFTS[drift]]
    return [f"{' and '.join(names)}: {DRIFTS[drift]}" for drift, names in of.items() if DRIFTS[drift]]


def verdict(row: Compared) -> str:
    """Return the verdict, and the number of runs that a decision would take."""
    return ": ".join(filter(None, (row.verdict, row.needs)))


def numbers(row: Compared) -> list[object]:
    """Return raw change, change, interval, verdict and the runs that a decision needs, as numbers and words."""
    low, high = (row.interval.low, row.interval.high) if row.interval else (None, None)
    changes = (value if row.numeric else None for value in (row.raw, row.change))
    return [*changes, low, high, row.verdict, row.needs]


def cells(row: Compared, metric: Metric) -> list[object]:
    """Return before, after, change and interval as a table shows them; a corrected change after the raw one."""

    def text(value: float) -> str:
        return f"{100 * value:+.2f}" if metric.difference else f"{value:.3f}"

    def amount(value: float) -> object:
        if not math.isfinite(value):
            return "not reached" if metric.name.startswith("time_to_target") else "none"
        if metric.difference:
            return f"{100 * value:.2f}"
        return bytes_text(value) if metric.unit.removesuffix("/epoch") == "B" else value

    interval = None
    if found := row.interval:
        interval = f"[{text(found.low)}, {text(found.high)}]"
        none = f"none ({row.trials} seed{'s' * (row.trials > 1)})"
        if metric.difference:
            interval = none if found.beyond_scores else interval
        elif found.absurd or not found.low:  # the end near 1 is all that it says, if that
            end = f"at least {text(found.low)}" if found.low > 1 else f"at most {text(found.high)}"
            interval = none if found.has(1.0) else end
    change = text(row.raw) if row.numeric else None
    if change and text(row.change) != change:
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
                before, after, change, interval = cells(row, chosen)
                what = f"{change} {interval}" if row.numeric else f"{before} -> {after}"
                typer.echo(f"{point.version.name}: {row.label}: {what}, {verdict(row)}")


def _row(point: Point, metric: Metric) -> list[object]:
    started = point.version.started[:16].replace("T", " ")
    beginning: list[object] = [point.version.name, started, len(point.version.trials)]
    if point.since is None:
        return [*beginning, None, None, None, "the first"]
    if point.whole is None:
        said = f"not compared: {point.why}" if point.why else "changed"
        return [*beginning, point.since.name, None, None, said]
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
    by_trial: Annotated[
        bool, typer.Option("--trials", help="A row a trial and network, as csv has it, in place of rankings.")
    ] = False,
    format: Printed = "table",
) -> None:
    """Predict epoch time, time to the target and ranking on other networks.

    From each trial's measured compute and its bytes by peer; see docs/design/networks.md for the model.
    Methods are ranked over seeds, trials of one rank as measured. Left out are trials timed without phases, and those
    whose ranks shared cores without CPU seconds by phase.
    """
    from harness.results.frames import load_inputs
    from harness.results.projection import parse_link, why_not
    from harness.suite.sections import parse_latency

    links = [parse_link(name.strip(), "--network") for name in network.split(",")]
    try:
        links = [replace(each, latency_s=parse_latency(latency), ranks_per_host=ranks_per_host) for each in links]
    except ValueError as error:
        raise UserError(str(error), key="--latency") from None
    inputs = load_inputs(results)
    records = sorted(inputs.records.values(), key=lambda r: (r.suite, r.started, r.label))
    groups = _groups(records, base, results)
    show = table if format == "table" else print_csv
    if validate:
        rows, notes = _validation(groups, results)
        show(VALIDATION, rows)
    else:
        if format == "table" and not by_trial:
            _rankings(inputs, links, base)
        else:
            show(PROJECTION, _projections([found for found, _ in groups], links))
        hosts = "a host of its own for each rank" if ranks_per_host == 1 else f"{ranks_per_host} ranks a host"
        notes = [f"Latency {latency}, {hosts}; compute includes the wait for slower ranks where it was measured apart."]
        notes += [f"{link.name}: {link.source}." for link in links if link.source]
    left_out = Counter(reason for record in records if (reason := why_not(record)))
    notes += [f"Not projected: {count} where the trial {reason}." for reason, count in left_out.items()]
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


def _projections(bases: Sequence[Record], links: Sequence[HostLink]) -> list[Row]:
    from harness.results.projection import network_label
    from harness.results.projection import project as project_trial

    def setting(record: Record) -> dict[str, object]:
        return {key: value for key, value in record.config.items() if key != "method"}

    fulls = [record for record in bases if record.config["method"]["name"] == "full"]
    rows: list[Row] = []
    for record, link in itertools.product(bases, links):
        found = project_trial(record, link)
        full = next((each for each in fulls if setting(each) == setting(record)), None)
        epoch = found.epoch_time_s
        head = (record.trial, record.label, network_label(record), record.result["epoch_time_s"])
        shown = (found.compute_s + found.wait_s, found.exchange_s, found.reduce_s, epoch)
        speed_up = project_trial(full, link).epoch_time_s / epoch if full and epoch else None
        rows.append((*head, link.name, *shown, 100 * found.communication, speed_up))
    return rows


def _rankings(inputs: ResultInputs, links: Sequence[HostLink], base: str | None) -> None:
    """Print for each network who reaches the target first, and all methods in the order of their times."""
    from harness.report.elsewhere import EpochView, find_elsewhere, placed, ranking
    from harness.report.sections import make_sections
    from harness.report.summary import named_sections
    from harness.report.values import values_of

    named = named_sections(make_sections(inputs))
    for there in find_elsewhere([section for section, _ in named], inputs.records, links, base):
        for section, name in ((there.sections.get(each.anchor), name) for each, name in named):
            if section is None:
                continue
            view, epochs = ranking(section), values_of(section, "epoch_time_s")
            of = "median epoch s" if isinstance(view, EpochView) else "median s to target"
            rows = [
                (variant.label, parts, view.times[variant, parts].count, epochs[variant, parts].mean, median, place)
                for (variant, parts), median, place in placed(view)
            ]
            table(("method", "P", "seeds", "mean epoch s", of, "place"), rows, title=there.sentence(section, name))
            typer.echo()


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
