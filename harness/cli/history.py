"""`harness history`: the same trials over commits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.compare import cells, numbers, verdict
from harness.cli.options import Printed, option
from harness.cli.terminal import print_csv, table

if TYPE_CHECKING:
    from harness.metrics import Metric
    from harness.results.compare import Point


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
    from harness.results.compare import history as follow
    from harness.results.compare import metric_of, versions

    found = versions(directories)
    chosen = metric_of(metric, [trial for version in found for trial in version.trials])
    points = follow(found, chosen)
    if format == "csv":
        columns = ["version", "started", "trials", "since", "change", "low", "high", "verdict", "needs", "why"]
        print_csv(columns, [_line(point) for point in points])
        return
    columns = [
        "version",
        "started",
        "trials",
        "since",
        "B - A" if chosen.difference else "B / A",
        "interval",
        "verdict",
    ]
    better = f", {chosen.better} is better" if chosen.better else ""
    table(columns, [_row(point, chosen) for point in points], title=f"{chosen.name}{better}", spare=["since"])
    for point in points:
        for row in point.changed:
            if row is not point.whole:
                change, interval = cells(row, chosen)[2:]
                typer.echo(f"{point.version.name}: {row.label}: {change} ({interval}), {verdict(row)}")


def _line(point: Point) -> list[object]:
    since = point.since.name if point.since else None
    told = numbers(point.whole) if point.whole else [None] * 5
    return [point.version.name, point.version.started, len(point.version.trials), since, *told, point.why or None]


def _row(point: Point, metric: Metric) -> list[object]:
    started = point.version.started[:16].replace("T", " ")
    beginning: list[object] = [point.version.name, started, len(point.version.trials)]
    if point.since is None:
        return [*beginning, None, None, None, "the first"]
    if point.whole is None:
        return [*beginning, point.since.name, None, None, f"not compared: {point.why}"]
    said = f"changed: {verdict(point.whole)}" if point.changed else verdict(point.whole)
    return [*beginning, point.since.name, *cells(point.whole, metric)[2:], said]
