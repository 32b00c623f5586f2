"""`harness compare`: two sets of results, trial by trial."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.options import Printed, option
from harness.cli.terminal import bytes_text, print_csv, table
from harness.errors import UserError

if TYPE_CHECKING:
    from harness.metrics import Metric
    from harness.results.compare import Compared, Pair, Pairing, Trial
    from harness.results.contrast import Drift


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
    from harness.results.compare import compare as compare_pairs
    from harness.results.compare import load_trials, metric_of, pair
    from harness.results.frames import edited

    limit, sides = _limit(fail_on), (load_trials(before), load_trials(after))
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
    broken = [p for p in found.pairs if p.before.record.status == "ok" != p.after.record.status]
    if limit is not None and (broken or any(_exceeds(row, chosen, limit) for row in (*rows, whole))):
        raise typer.Exit(1)


def _limit(text: str | None) -> float | None:
    """Read "5%" or "5" as 0.05."""
    if text is None:
        return None
    if not (match := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%?\s*", text)):
        raise UserError(f"'{text}' is no percentage", key="--fail-on", fix="e.g. 5%")
    return float(match[1]) / 100


def _exceeds(row: Compared, metric: Metric, limit: float) -> bool:
    return row.worse and abs(row.change - (0 if metric.difference else 1)) >= limit


def _machines(pairs: Sequence[Pair], metric: Metric, any_machine: bool, after: Path) -> list[str]:
    """Return what to say of the environments; UserError for times of different machines."""
    from harness.results.compare import busier, differences

    if not pairs:
        return []
    apart = differences(pairs)
    if apart.hardware and metric.machine and not any_machine:
        what = f"times of different machines: {'; '.join(apart.hardware)}"
        raise UserError(what, file=after, fix="run both on one machine, or say --any-machine")
    notes = [f"code: {line}" for line in apart.code]
    busy = busier(pairs) if metric.machine else None
    warnings = (*apart.hardware, *apart.software, *([busy] if busy else []))
    return notes + [f"warning: {line}" for line in warnings]


def _left_out(found: Pairing, ok: Sequence[Pair]) -> list[str]:
    """Return what to say of pairs by configuration, failed trials, and those without a partner."""
    notes = [f"paired by all but {', '.join(found.apart)}"] if found.apart else []
    for p in found.pairs:
        if p not in ok:
            statuses = (f"{side}: {_status(t)}" for side, t in (("A", p.before), ("B", p.after)))
            notes.append(f"not compared: {p.after.record.label} ({', '.join(statuses)})")
    notes += [f"not compared: {p.after.record.label} (ran on other data)" for p in found.other_data]
    for side, trials in (("A", found.only_before), ("B", found.only_after)):
        if trials:
            more = f" and {len(trials) - 1} more" if len(trials) > 1 else ""
            notes.append(f"only in {side}: {trials[0].record.label}{more}")
    return notes


def _status(trial: Trial) -> str:
    return ", ".join(filter(None, (trial.record.status, trial.record.reason)))


def _print(metric: Metric, rows: Sequence[Compared], whole: Compared, format: str) -> None:
    if format == "csv":
        lines = [[row.label, row.trials, row.before, row.after, *numbers(row)] for row in rows]
        lines.append(["all", whole.trials, None, None, *numbers(whole)])
        print_csv(["trial", "seeds", "a", "b", "change", "low", "high", "verdict", "needs"], lines)
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
    "turns": "A and B ran in turns: pairs take the machine's drift out",
    "reference": "B / A is without the machine's drift, as the reference workload tells it",
    "unknown": (
        "A and B did not run in turns, nor was the reference workload measured often enough: intervals allow for a "
        "drift of 10 % (for K = 0, 1, ... run A, then B, with --repeat N --only repeat=K)"
    ),
}


def drift_lines(trials: Sequence[Drift], whole: Drift) -> list[str]:
    """Return what became of the machine's drift in each of several trials, and in all together: a line if it is one."""
    of = {whole: [f"all {len(trials)}"]}
    for drift, count in Counter(trials).items():
        of.setdefault(drift, []).append("each trial" if count == len(trials) else f"{count} of {len(trials)} trials")
    if len(of) == 1:
        return [DRIFTS[whole]] if DRIFTS[whole] else []
    return [f"{' and '.join(names)}: {DRIFTS[drift]}" for drift, names in of.items() if DRIFTS[drift]]


def verdict(row: Compared) -> str:
    """Return the verdict, and what it would take to tell."""
    return ": ".join(filter(None, (row.verdict, row.needs)))


def numbers(row: Compared) -> list[object]:
    """Return change, interval, verdict and what it would take, as numbers and words."""
    low, high = (row.interval.low, row.interval.high) if row.interval else (None, None)
    return [row.change, low, high, row.verdict, row.needs]


def cells(row: Compared, metric: Metric) -> list[object]:
    """Return before, after, change and interval as a table shows them."""

    def text(value: float) -> str:
        return f"{100 * value:+.2f}" if metric.difference else f"{value:.3f}"

    def amount(value: float) -> object:
        if metric.difference:
            return f"{100 * value:.2f}"
        return bytes_text(value) if metric.unit.removesuffix("/epoch") == "B" else value

    interval = f"{text(row.interval.low)} to {text(row.interval.high)}" if row.interval else None
    return [amount(row.before), amount(row.after), text(row.change), interval]
