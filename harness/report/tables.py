"""The tables of one section: method by number of parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd

from harness.report.aggregate import Figures, figures_of
from harness.report.component_tables import breakdown_table, traffic_table
from harness.report.numbers import Stat, byte_unit, common_places, percent, scaled
from harness.report.sections import Section, join_unique
from harness.report.table import Cell, Group, Row, Table, bold_best, missing
from harness.report.variants import Variant

Format = Callable[[list[Stat]], Callable[[Stat], str]]  # how to write a column, given all of it
WIDEST = 6  # columns side by side; more go below one another
SEEDS = "Mean ± sample standard deviation over seeds"


def section_tables(section: Section) -> dict[str, Table]:
    """Return the tables of a section by the heading they stand under."""
    return {
        "accuracy": accuracy_table(section),
        "time": time_table(section),
        "breakdown": breakdown_table(section),
        "traffic": traffic_table(section),
        "memory": memory_table(section),
        "partition": partition_table(section),
    }


def accuracy_table(section: Section) -> Table:
    """Test score at the best validation, and that validation score, method by parts."""
    test, val = (figures_of(section, column) for column in ("test_at_best_val", "best_val"))
    seeds = _usual_seeds(test | val)
    columns = {
        f"Test {section.metric} (%)": _column(section, test, lambda _: percent, seeds, highest=True),
        f"Validation {section.metric} (%)": _column(section, val, lambda _: percent, seeds, highest=True),
    }
    return _grid(
        section,
        f"{section.score} by method and number of parts P",
        f"Test score at the epoch of the best validation score, and that validation score. "
        f"{_seeds_note(seeds)} Bold: best of the column.",
        columns,
    )


def time_table(section: Section) -> Table:
    """Epoch time and speed-up over `full`, method by parts."""
    times = figures_of(section, "epoch_time_s")
    seeds = _usual_seeds(times)
    columns = {"Epoch time (s)": _column(section, times, _measured(1.0), seeds, highest=False)}
    baseline = next((v for v in section.variants if v.method == "full"), None)
    rule = "No trials of “full”, hence no speed-up."
    if baseline:
        rule = f"Speed-up: mean epoch time of {baseline.label} / that of the method, at equal P."
        columns["Speed-up (×)"] = _ratios(section, times, baseline, lambda base, own: base / own, 2)
    imbalance = figures_of(section, "imbalance")
    if imbalance:
        columns["Imbalance"] = _column(section, imbalance, lambda _: _two_decimals, seeds, highest=None)
        rule += " Imbalance: slowest rank's median epoch time / mean of the ranks' (1 = balanced)."
    return _grid(
        section,
        "Epoch time",
        "Seconds per training epoch, evaluation excluded: of each trial the median over the epochs after "
        f"warm-up of the slowest rank's time. {_seeds_note(seeds)} {rule} Bold: fastest of the column.",
        columns,
    )


def memory_table(section: Section) -> Table:
    """Peak memory and its ratio to that of `full`, method by parts."""
    peaks = figures_of(section, "peak_memory_bytes")
    size, unit = byte_unit(max((s.mean for s in peaks.values()), default=None))
    seeds = _usual_seeds(peaks)
    columns = {f"Peak memory ({unit})": _column(section, peaks, _measured(size), seeds, highest=False)}
    baseline = next((v for v in section.variants if v.method == "full"), None)
    rule = ""
    if baseline:
        rule = f" Relative: mean / that of {baseline.label} at equal P."
        columns["Relative (%)"] = _ratios(section, peaks, baseline, lambda base, own: 100 * own / base, 1)
    source = join_unique(section.ok["peak_memory_source"]) or "not recorded"
    return _grid(
        section,
        "Peak memory of a rank",
        f"Largest of the ranks over the whole trial; 1 {unit} = {size:,.0f} bytes. Source: {source}. "
        f"{_seeds_note(seeds)}{rule} Bold: smallest of the column.",
        columns,
    )


def partition_table(section: Section) -> Table:
    """Inner and boundary nodes of the partitions (BNS-GCN, Table 1)."""
    rows = []
    for parts in section.parts:
        frame = section.frame[section.frame["parts"] == parts]
        inner, boundary = (_range(frame[c]) for c in ("inner_nodes", "boundary_nodes"))
        ratio = (frame["boundary_nodes"] / frame["inner_nodes"]).dropna()
        shown = Cell(f"{ratio.mean():.2f}") if len(ratio) else Cell()
        rows.append(Row(f"P = {parts}", (inner, boundary, shown)))
    groups = (Group("", ("Inner nodes", "Boundary nodes", "Boundary / inner")),)
    return Table(
        "Partition",
        "Nodes of the training graph summed over ranks. A boundary node is counted once for each rank that "
        "has an edge from it, so their number is the communication volume of one exchange, in rows.",
        "Parts",
        groups,
        tuple(rows),
    )


def _range(values: pd.Series[float]) -> Cell:
    known = values.dropna()
    if known.empty:
        return Cell()
    low, high = int(known.min()), int(known.max())
    return Cell(f"{low:,}" if low == high else f"{low:,} to {high:,}")


def _usual_seeds(figures: Figures) -> int:
    return max((stat.n for stat in figures.values()), default=0)


def _seeds_note(seeds: int) -> str:
    if seeds <= 1:
        return "One seed, hence no deviation."
    return f"{SEEDS} (n = {seeds}; otherwise n stands beside the number)."


def _measured(unit: float) -> Format:
    """Format a column of figures in units of `unit`, all with the same decimals."""

    def chosen(stats: list[Stat]) -> Callable[[Stat], str]:
        places = common_places(stat.mean / unit for stat in stats)
        return lambda stat: scaled(stat, unit, places)

    return chosen


def _two_decimals(stat: Stat) -> str:
    return f"{stat.mean:.2f}"


def _column(
    section: Section, figures: Figures, format: Format, seeds: int, *, highest: bool | None
) -> list[list[Cell]]:
    """Return the cells of one group of columns: a list for each number of parts, a cell a variant.

    `highest`: whether the best is the largest; None: there is no best.
    """
    columns = []
    for parts in section.parts:
        stats = [figures.get((variant, parts)) for variant in section.variants]
        show = format([stat for stat in stats if stat])
        cells = [
            Cell(show(stat), f"n={stat.n}" if stat.n != seeds else "")
            if stat
            else missing(section, variant, parts)
            for variant, stat in zip(section.variants, stats, strict=True)
        ]
        if highest is not None:
            cells = bold_best(cells, [stat.mean if stat else None for stat in stats], highest=highest)
        columns.append(cells)
    return columns


def _ratios(
    section: Section,
    figures: Figures,
    baseline: Variant,
    ratio: Callable[[float, float], float],
    places: int,
) -> list[list[Cell]]:
    """Return `ratio(baseline's mean, own mean)` for each number of parts (outer) and variant (inner)."""
    columns = []
    for parts in section.parts:
        base, cells = figures.get((baseline, parts)), []
        for variant in section.variants:
            own = figures.get((variant, parts))
            if base and own and base.mean > 0 and own.mean > 0:
                cells.append(Cell(f"{ratio(base.mean, own.mean):,.{places}f}"))
            else:
                cells.append(Cell())
        columns.append(cells)
    return columns


def _grid(section: Section, title: str, caption: str, columns: dict[str, list[list[Cell]]]) -> Table:
    """Return a table of a row a variant and a column a number of parts under each heading.

    If that is too wide, the headings go below one another.
    """

    def rows(groups: Sequence[list[list[Cell]]]) -> list[Row]:
        return [
            Row(v.label, tuple(c[i] for group in groups for c in group), v.style.colour)
            for i, v in enumerate(section.variants)
        ]

    heads = tuple(f"P = {parts}" for parts in section.parts)
    if len(columns) * len(heads) <= WIDEST:
        groups = tuple(Group(name, heads) for name in columns)
        return Table(title, caption, "Method", groups, tuple(rows(list(columns.values()))))
    below = [row for name, group in columns.items() for row in (Row(name), *rows([group]))]
    return Table(title, caption, "Method", (Group("", heads),), tuple(below))
