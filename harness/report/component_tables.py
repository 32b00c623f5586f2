"""The tables that split a figure into components: time by phase, bytes by purpose."""

from __future__ import annotations

from harness.report.aggregate import (
    figures_of,
    largest_total,
    phase_columns,
    purpose_columns,
    totals,
)
from harness.report.numbers import byte_unit, decimals, fixed, time_unit
from harness.report.sections import Section
from harness.report.table import Cell, Group, Row, Table, missing


def breakdown_table(section: Section) -> Table:
    """Seconds per epoch in each phase, a row a method and number of parts."""
    columns = phase_columns(section)
    size, unit = time_unit(largest_total({name: figures_of(section, c) for name, c in columns.items()}))
    return _components_table(
        section,
        columns,
        size,
        f"Time breakdown ({unit} per epoch)",
        "Mean over the epochs after warm-up of the time that the slowest rank (largest median epoch time) "
        "spent in each phase, then mean over seeds. Phases exclude one another, “other” is the residue, so "
        "that Total is that rank's mean epoch time; it may differ from the median of the epoch-time table. "
        "Phases without any time are left out.",
    )


def traffic_table(section: Section) -> Table:
    """Bytes per epoch by purpose, a row a method and number of parts."""
    columns = purpose_columns(section)
    size, unit = byte_unit(largest_total({name: figures_of(section, c) for name, c in columns.items()}))
    return _components_table(
        section,
        columns,
        size,
        f"Traffic ({unit} per epoch, all ranks)",
        f"Payload bytes sent in a training epoch, summed over ranks, mean over all epochs, then over seeds; "
        f"evaluation excluded; 1 {unit} = {size:,.0f} bytes. Purposes without any byte are left out.",
    )


def _components_table(
    section: Section, columns: dict[str, str], unit: float, title: str, caption: str
) -> Table:
    """Return a table of a column a component and their total, rows by number of parts, then variant."""
    rows: list[Row] = []
    figures = {name: figures_of(section, column) for name, column in columns.items()}
    smallest = min((total for total in totals(figures).values() if total), default=0.0)
    places = max(1, min(3, 1 + decimals(smallest / unit)))
    for parts in section.parts:
        rows.append(Row(f"P = {parts}"))
        for variant in section.variants:
            stats = [found.get((variant, parts)) for found in figures.values()]
            known = [stat.mean / unit for stat in stats if stat]
            gap = missing(section, variant, parts)
            cells = [Cell(fixed(stat.mean / unit, places)) if stat else Cell() for stat in stats]
            total = Cell(fixed(sum(known), places)) if known else gap
            rows.append(Row(variant.label, (*cells, total), variant.style.colour))
    return Table(title, caption, "Method", (Group("", (*columns, "Total")),), tuple(rows))
