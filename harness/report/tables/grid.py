"""Cells and layouts that tables share: method by number of parts, and method below number of parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from harness.report.numbers import Stat, common_places, scaled
from harness.report.tables.table import Cell, Group, Row, Table, bold_best, missing
from harness.report.trials.aggregate import Figures
from harness.report.trials.sections import Section
from harness.report.trials.variants import Variant

Columns = list[list[Cell]]  # a list for each number of parts, a cell a variant
Format = Callable[[list[Stat]], Callable[[Stat], str]]  # how to write a column, given all of it
WIDEST = 6  # columns side by side; more go below one another
SEEDS = "Mean ± sample standard deviation over seeds"


def usual_seeds(figures: Figures) -> int:
    """Return the largest number of seeds behind a figure."""
    return max((stat.n for stat in figures.values()), default=0)


def seeds_note(seeds: int) -> str:
    """Say what a figure is over seeds."""
    if seeds <= 1:
        return "One seed, hence no deviation."
    return f"{SEEDS} (n = {seeds}; otherwise n stands beside the number)."


def measured(unit: float) -> Format:
    """Format a column of figures in units of `unit`, all with the same decimals."""

    def chosen(stats: list[Stat]) -> Callable[[Stat], str]:
        places = common_places(stat.mean / unit for stat in stats)
        return lambda stat: scaled(stat, unit, places)

    return chosen


def column(section: Section, figures: Figures, format: Format, seeds: int, *, highest: bool | None) -> Columns:
    """Return the cells of one group of columns.

    `highest`: whether the best is the largest; None: there is no best.
    """
    columns = []
    for parts in section.parts:
        stats = [figures.get((variant, parts)) for variant in section.variants]
        show = format([stat for stat in stats if stat])
        cells = [
            Cell(show(stat), f"n={stat.n}" if stat.n != seeds else "") if stat else missing(section, variant, parts)
            for variant, stat in zip(section.variants, stats, strict=True)
        ]
        if highest is not None:
            cells = bold_best(cells, [stat.mean if stat else None for stat in stats], highest=highest)
        columns.append(cells)
    return columns


def ratios(
    section: Section, figures: Figures, baseline: Variant, ratio: Callable[[float, float], float], places: int
) -> Columns:
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


def grid(section: Section, title: str, caption: str, columns: dict[str, Columns]) -> Table:
    """Return a table of a row a variant and a column a number of parts under each heading.

    If that is too wide, the headings go below one another.
    """

    def rows(groups: Sequence[Columns]) -> list[Row]:
        return [Row(v.label, tuple(c[i] for group in groups for c in group), v) for i, v in enumerate(section.variants)]

    heads = tuple(f"P = {parts}" for parts in section.parts)
    if len(columns) * len(heads) <= WIDEST:
        groups = tuple(Group(name, heads, section.parts) for name in columns)
        return Table(title, caption, "Method", groups, tuple(rows(list(columns.values()))))
    below = [row for name, group in columns.items() for row in (Row(name), *rows([group]))]
    return Table(title, caption, "Method", (Group("", heads, section.parts),), tuple(below))


def parts_heading(parts: int) -> Row:
    """Return the subheading of rows that are of one number of parts."""
    return Row(f"P = {parts}", parts=parts)


def by_parts(
    section: Section, cells: Callable[[Variant, int], Sequence[Cell]], falling: Figures | None = None
) -> tuple[Row, ...]:
    """Return a row a variant under a heading for each number of parts, of those that it was to run on.

    Without cells there is no row.
    Variants stand in their usual order, or by `falling` figures, those without one last.
    """
    amounts = {key: stat.mean for key, stat in (falling or {}).items()}
    rows: list[Row] = []
    for parts in section.parts:
        variants = sorted(section.tried(parts), key=lambda variant: -amounts.get((variant, parts), -math.inf))
        found = [(variant, tuple(cells(variant, parts))) for variant in variants]
        shown = [Row(variant.label, own, variant) for variant, own in found if own]
        rows += [parts_heading(parts), *shown] if shown else []
    return tuple(rows)
