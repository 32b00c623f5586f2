"""A table, whatever it is written as, and the layouts that tables share."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from harness.metrics import Metric
from harness.report.columns import WHY
from harness.report.palette import Style
from harness.report.sections import Section
from harness.report.values import Values, standing, totals, values_of
from harness.report.variants import Variant
from harness.results.stats import (
    MISSING,
    UNAVAILABLE,
    Stat,
    byte_unit,
    common_places,
    decimals,
    fixed,
    join_unique,
    percent,
    scaled,
    time_unit,
)

WIDE = 8  # columns


@dataclass(frozen=True)
class Cell:
    """One cell; `note` is set small next to the text, `mark` flags it; `wrap` lets words break into lines.

    `rank`: its place among those that it is compared with, 0 is the best (None: it is not compared). `ties`: the better
    ranks that it is not significantly behind. `best`: whether it is marked while all are shown, see `mark_best`.
    `value`: the number behind the text, of which others follow. `against`: how it compares with each row, those
    that have a rank first, see `AnswerView.distances`. `among`: cells of a column that have the same are compared with
    each other alone.
    """

    text: str = MISSING
    note: str = ""
    mark: str = ""
    best: bool = False
    rank: int | None = None
    ties: tuple[int, ...] = ()
    value: float | None = None
    against: tuple[str, ...] | None = None
    among: str = ""
    number: bool = True
    wrap: bool = False
    link: str = ""

    @property
    def missing(self) -> bool:
        """Whether there is no value."""
        return self.text in (MISSING, UNAVAILABLE)


@dataclass(frozen=True)
class Row:
    """Cells of a row, and the variant, number of parts, network and data set that it is of (None: of several).

    A row without cells is a subheading, whose `parts` are those of all rows below it.
    """

    label: str
    cells: tuple[Cell, ...] = ()
    variant: Variant | None = None
    parts: int | None = None
    network: str | None = None
    dataset: str | None = None

    @property
    def style(self) -> Style | None:
        """The variant's colour and marker."""
        return self.variant.style if self.variant else None


@dataclass(frozen=True)
class Group:
    """Columns under one common heading (may be ""); `parts`, `datasets`: of each column, if it is of one."""

    title: str
    columns: tuple[str, ...]
    parts: tuple[int, ...] = ()
    datasets: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """A titled table; the caption states the rule by which its numbers were computed.

    `profile_to`: the ratio up to which performance profiles are averaged, of a table of those.
    """

    title: str
    caption: str
    stub: str
    groups: tuple[Group, ...]
    rows: tuple[Row, ...]
    profile_to: float | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """Flat headings, the group's before the column's."""
        return tuple(" ".join(p for p in (g.title, c) if p) for g in self.groups for c in g.columns)

    @property
    def column_parts(self) -> tuple[int | None, ...]:
        """The number of parts of each column, None where it is of several."""
        return tuple(p for g in self.groups for p in g.parts or (None,) * len(g.columns))

    @property
    def column_datasets(self) -> tuple[str | None, ...]:
        """The data set of each column, None where it is of several."""
        return tuple(name for g in self.groups for name in g.datasets or (None,) * len(g.columns))

    @property
    def wide(self) -> bool:
        """Whether it may not fit a page next to the list of contents."""
        return len(self.columns) > WIDE

    @property
    def ranked(self) -> bool:
        """Whether cells say who is best, which depends on what is shown."""
        return any(cell.rank is not None for row in self.rows for cell in row.cells)

    @property
    def grouped(self) -> bool:
        """Whether the heading has two lines."""
        return any(group.title for group in self.groups)


def narrowed(table: Table) -> Table | None:
    """Return a table without the columns that are alike in all rows, which its caption names; None if all are.

    What is of one method alone is None only if it has no value but 0.
    """
    filled = [row.cells for row in table.rows if row.cells]
    if len({row.label for row in table.rows if row.cells}) < 2:
        return table if any(cell.text.strip("0.± ") for own in filled for cell in own if not cell.missing) else None
    varies = [len({(cell.text, cell.note, cell.mark) for cell in cells}) > 1 for cells in zip(*filled, strict=True)]
    if not any(varies):
        return None
    alike = [f"{head} {cell.text}" for head, cell, own in zip(table.columns, filled[0], varies, strict=True) if not own]
    mine, groups = iter(varies), []
    for group in table.groups:
        own = list(itertools.islice(mine, len(group.columns)))
        columns, parts = (itertools.compress(group.columns, own), itertools.compress(group.parts, own))
        named = tuple(itertools.compress(group.datasets, own))
        groups += [Group(group.title, tuple(columns), tuple(parts), named)] if any(own) else []
    rows = tuple(replace(row, cells=tuple(itertools.compress(row.cells, varies))) for row in table.rows)
    caption = f"{table.caption} In all rows: {'; '.join(alike)}." if alike else table.caption
    return replace(table, caption=caption, groups=tuple(groups), rows=rows)


def mark_best(cells: list[Cell]) -> list[Cell]:
    """Mark of the cells that have a rank the best, and those that do not differ significantly from it.

    Nothing is marked where that is all of them, as it is without a test: of one seed, say. The page does the same with
    what its filters leave (`markBest` in templates/report.js).
    """
    ranks = {cell.rank for cell in cells if cell.rank is not None}

    def is_best(cell: Cell) -> bool:  # behind none that is shown
        return cell.rank is not None and {rank for rank in ranks if rank < cell.rank} <= set(cell.ties)

    marked = [replace(cell, best=True) if is_best(cell) else cell for cell in cells]
    return marked if any(cell.rank is not None and not is_best(cell) for cell in cells) else cells


def stand(section: Section, name: str, parts: int, cells: Mapping[Variant, Cell]) -> dict[Variant, Cell]:
    """Return cells of a metric at a number of parts with their ranks, marked by `mark_best`."""
    own = standing(section, name, parts)
    ranked = [replace(cell, rank=own[v][0], ties=own[v][1]) if v in own else cell for v, cell in cells.items()]
    return dict(zip(cells, mark_best(ranked), strict=True))


def missing(section: Section, variant: Variant, parts: int) -> Cell:
    """Return the cell for a value that is not there.

    "not available" if a trial ended well without it, else "n/a" with the status of those that failed.
    """
    trials = section.select(variant, parts, ok=False)
    if trials["status"].eq("ok").any():
        return Cell(UNAVAILABLE)
    return Cell(note=join_unique(trials["status"]))


Key = tuple[Variant, int]
Cells = dict[Key, Cell]
"""A column of cells, by variant and number of parts."""
WIDEST = 6  # columns side by side; more go below one another
SEEDS = "Mean ± sample standard deviation over seeds"


def usual_seeds(values: Values) -> int:
    """Return the largest number of seeds behind a figure."""
    return max((stat.n for stat in values.values()), default=0)


def seeds_note(values: Values) -> str:
    """Say what a value is over seeds."""
    if (seeds := usual_seeds(values)) <= 1:
        return "One seed, hence no deviation."
    return f"{SEEDS} (n = {seeds}; otherwise n is next to the number)."


def column(section: Section, name: str, unit: float | None = 1.0, usual: Values | None = None) -> Cells:
    """Return a column of a metric's means and deviations, in which decimals are alike; see `stand`.

    `unit`: size of the unit; None: they are scores. `usual`: values that have the usual number of seeds, if not these
    alone.
    """
    found: dict[Key, Cell] = {}
    values = values_of(section, name)
    seeds = usual_seeds(values if usual is None else usual)
    for parts in section.parts:
        stats = {variant: values.get((variant, parts)) for variant in section.variants}
        places = common_places(stat.mean / (unit or 1.0) for stat in stats.values() if stat)
        show = partial(scaled, unit=unit, places=places) if unit else percent
        cells = {
            v: Cell(show(stat), f"n={stat.n}" if stat.n != seeds else "") if stat else missing(section, v, parts)
            for v, stat in stats.items()
        }
        found |= {(variant, parts): cell for variant, cell in stand(section, name, parts, cells).items()}
    return found


def ratios(values: Values, baseline: Variant, ratio: Callable[[float, float], float], places: int) -> Cells:
    """Return a column of `ratio(baseline's mean, own mean)` at equal numbers of parts."""
    bases = {key: values.get((baseline, key[1])) for key in values}
    return {
        key: Cell(f"{ratio(base.mean, own.mean):,.{places}f}")
        for key, own in values.items()
        if (base := bases[key]) and base.mean > 0 and own.mean > 0
    }


def number_cells(values: Mapping[Key, Stat | float], unit: float = 1.0, places: int | None = None) -> Cells:
    """Return a column of means in a unit; `places`: decimals (default: as the smallest needs)."""
    own = {key: (stat.mean if isinstance(stat, Stat) else stat) / unit for key, stat in values.items()}
    digits = common_places(own.values()) if places is None else places
    return {key: Cell(fixed(value, digits)) for key, value in own.items()}


def variants_table(
    section: Section,
    title: str,
    caption: str,
    columns: Mapping[str, Cells],
    among: Iterable[Key],
    *,
    falling: Values | None = None,
    absent: Cell | None = None,
) -> Table | None:
    """Return a table of a row a variant and number of parts `among` those given, see `by_parts`; None without a row.

    `columns`: cells by heading; `absent`: the cell of a row that a column lacks (default: `missing`).
    """
    rows_of = set(among)

    def cells(variant: Variant, parts: int) -> Sequence[Cell]:
        key = variant, parts
        if key not in rows_of:
            return ()
        complete = all(key in own for own in columns.values())
        gap = absent or (Cell() if complete else missing(section, variant, parts))
        return [own.get(key, gap) for own in columns.values()]

    rows = by_parts(section, cells, falling)
    return Table(title, caption, "Method", (Group("", tuple(columns)),), rows) if rows else None


def grid(section: Section, title: str, caption: str, columns: Mapping[str, Cells]) -> Table:
    """Return a table of a row a variant and a column a number of parts under each heading.

    If that is too wide, the headings go below one another.
    """

    def rows(groups: Iterable[Cells]) -> list[Row]:
        own = list(groups)
        return [
            Row(v.label, tuple(cells.get((v, parts), Cell()) for cells in own for parts in section.parts), v)
            for v in section.variants
        ]

    heads = tuple(f"P = {parts}" for parts in section.parts)
    if len(columns) * len(heads) <= WIDEST:
        groups = tuple(Group(name, heads, section.parts) for name in columns)
        return Table(title, caption, "Method", groups, tuple(rows(columns.values())))
    below = [row for name, group in columns.items() for row in (Row(name), *rows([group]))]
    return Table(title, caption, "Method", (Group("", heads, section.parts),), tuple(below))


def parts_heading(parts: int) -> Row:
    """Return the subheading of rows that are of one number of parts."""
    return Row(f"P = {parts}", parts=parts)


def by_parts(
    section: Section, cells: Callable[[Variant, int], Sequence[Cell]], falling: Values | None = None
) -> tuple[Row, ...]:
    """Return a row a variant under a heading for each number of parts, of those that it was to run on.

    Without cells there is no row.
    Variants come in their usual order, or by `falling` values, those without one last.
    """
    amounts = {key: stat.mean for key, stat in (falling or {}).items()}
    rows: list[Row] = []
    for parts in section.parts:
        variants = sorted(section.tried(parts), key=lambda variant: -amounts.get((variant, parts), -math.inf))
        shown = [Row(variant.label, own, variant) for variant in variants if (own := tuple(cells(variant, parts)))]
        rows += [parts_heading(parts), *shown] if shown else []
    return tuple(rows)


def components_table(
    section: Section,
    values: dict[str, Values],
    unit: float,
    title: str,
    caption: str,
    absent: Cell | None = None,
    more: Mapping[str, Callable[[Variant, int, int], Cell]] = MappingProxyType({}),
) -> Table | None:
    """Return a table of the total and a column a component (of `components`), rows by number of parts, then variant.

    `absent`: for a component that a trial with others lacks; None: as for any value that is not there.
    `more`: further columns by heading, a cell of a variant, a number of parts and the table's decimals.
    """
    if not values:
        return None
    smallest = min((total for total in totals(values).values() if total > 0), default=0.0)
    places = max(1, min(3, 1 + decimals(smallest / unit)))

    def cells(variant: Variant, parts: int) -> Sequence[Cell]:
        stats = [found.get((variant, parts)) for found in values.values()]
        known = [stat.mean / unit for stat in stats if stat]
        gap = missing(section, variant, parts)
        lacking = (absent if known else None) or Cell(gap.text)
        total = Cell(fixed(sum(known), places)) if known else gap
        shown = [Cell(fixed(stat.mean / unit, places)) if stat else lacking for stat in stats]
        return [total, *shown, *(cell(variant, parts, places) for cell in more.values())]

    heads = Group("", ("Total", *values, *more))
    return Table(title, caption, "Method", (heads,), by_parts(section, cells))


def metrics_table(
    section: Section,
    names: Sequence[str],
    title: str,
    caption: str,
    shared: tuple[float, str] | None = None,
    *,
    sparse: bool = False,
) -> Table | None:
    """Return a table of a column a metric; None if no trial has any of them.

    `shared`: the unit of all of them, which the title names; None: each has its own, in its heading.
    `sparse`: whether methods without any of them have no row.
    """
    found = {name: values_of(section, name) for name in names}
    if not any(found.values()):
        return None
    scales = {name: shared or scale_of(section.metric_of(name), own) for name, own in found.items()}
    places = {name: common_places(stat.mean / scales[name][0] for stat in own.values()) for name, own in found.items()}

    def cells(variant: Variant, parts: int) -> Sequence[Cell]:
        stats = {name: own.get((variant, parts)) for name, own in found.items()}
        if sparse and not any(stats.values()):
            return ()
        gap = missing(section, variant, parts)
        units = ((stat, scales[name][0], places[name]) for name, stat in stats.items())
        return [Cell(f"{stat.mean / unit:,.{digits}f}") if stat else gap for stat, unit, digits in units]

    heads = [heading(section.metric_of(name), "" if shared else scales[name][1]) for name in names]
    caption += _reasons(section, dict(zip(names, heads, strict=True)))
    return Table(title, caption, "Method", (Group("", tuple(heads)),), by_parts(section, cells))


def heading(metric: Metric, unit: str) -> str:
    """Return the heading of a metric's column, or the label of its axis."""
    return f"{metric.title} ({unit})" if unit else metric.title


def scale_of(metric: Metric, values: Values) -> tuple[float, str]:
    """Return the unit in which to show values of a metric: its size and name."""
    largest = max((stat.mean for stat in values.values()), default=None)
    unit = metric.unit.removesuffix("/epoch")
    if unit == "fraction":
        return 0.01, "%"
    return time_unit(largest) if unit == "s" else byte_unit(largest) if unit == "B" else (1.0, unit)


def _reasons(section: Section, heads: Mapping[str, str]) -> str:
    """Say why metrics are not available that a trial lacks."""
    found = []
    for name, head in heads.items():
        lacking = section.ok[section.ok[name].isna()] if name in section.ok else section.ok
        column = f"{WHY}{name}"
        if column in lacking and (why := join_unique(lacking[column])):
            found.append(f"{head} ({why})")
    return f" Not available: {'; '.join(found)}." if found else ""
