"""The tables that split a figure into components: time by phase, bytes by purpose, memory by use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from harness.metrics import SUMS
from harness.report.numbers import byte_unit, decimals, fixed, time_unit
from harness.report.tables.grid import by_parts
from harness.report.tables.table import Cell, Group, Table, missing
from harness.report.trials.aggregate import (
    figures_of,
    largest_total,
    model_columns,
    phase_columns,
    purpose_columns,
    sum_columns,
    totals,
)
from harness.report.trials.savings import exchanges, saving
from harness.report.trials.sections import Section
from harness.report.trials.variants import Variant


def breakdown_table(section: Section) -> Table | None:
    """Seconds per epoch in each phase, a row a method and number of parts; None if there are no phases."""
    columns = phase_columns(section)
    size, unit = _time_unit(section)
    return _components_table(
        section,
        columns,
        size,
        f"Time breakdown ({unit} per epoch)",
        "Mean over epochs after warm-up of the time that the slowest rank (largest median epoch time) spent "
        "in each phase, then mean over seeds. Phases exclude one another, “other” is what none of them "
        "covers, so that Total is that rank's mean epoch; it may differ from the median of the epoch-time "
        "table. "
        f"{_barriers(section)} Phases without any time are left out.",
    )


def _barriers(section: Section) -> str:
    """Say in which epochs phases were measured, and what that costs."""
    if not section.ok["timing"].eq("breakdown").any():
        return "Without barriers (timing: plain) the time that a rank waits for slower ones is inside comm and reduce."
    cost = ""
    known = 100 * section.ok["barrier_cost"].dropna()
    if len(known):
        low, high = f"{known.min():+.1f} %", f"{known.max():+.1f} %"
        cost = f"; the barriers change its median by {low if low == high else f'{low} to {high}'}"
    return (
        "With timing: breakdown every second epoch has barriers, which tell waiting for slower ranks (wait) "
        "from transfers (comm, reduce): phases are means over the epochs with barriers, epoch time is of "
        f"those without{cost}."
    )


def _time_unit(section: Section) -> tuple[float, str]:
    columns = phase_columns(section)
    return time_unit(largest_total({name: figures_of(section, c) for name, c in columns.items()}))


def sums_table(section: Section) -> Table | None:
    """The papers' sums of phases, in seconds per epoch; None if there are no phases."""
    size, unit = _time_unit(section)
    parts = [f"{name} = {' + '.join(phases)}" for name, phases in SUMS.items() if phases != (name,)]
    return _components_table(
        section,
        sum_columns(section),
        size,
        f"Compute, communication, wait and reduce ({unit} per epoch)",
        "The phases of the time breakdown added up as BNS-GCN and later papers report them: "
        f"{'; '.join(parts)}. Sums without any time are left out.",
    )


def traffic_table(section: Section) -> Table | None:
    """Bytes per epoch by purpose, a row a method and number of parts; None if nothing was sent."""
    columns = purpose_columns(section)
    size, unit = byte_unit(largest_total({name: figures_of(section, c) for name, c in columns.items()}))
    caption = (
        "Payload bytes sent in a training epoch, summed over ranks, mean over all epochs, then over seeds; "
        f"evaluation excluded; 1 {unit} = {size:,.0f} bytes. Purposes without any byte are left out."
    )
    sent = exchanges(section)
    if sent:
        caption += (
            " Exchanged: all but model and swap. Saved: 1 - own / that of graphsage with all features, at "
            "equal P, of several variants the one most like it in its options; below 0: more is sent."
        )

    def exchanged(variant: Variant, parts: int, places: int) -> Cell:
        found = sent.get((variant, parts))
        return Cell(fixed(found.mean / size, places)) if found else Cell()

    def saved(variant: Variant, parts: int, _: int) -> Cell:
        share = saving(sent, variant, parts)
        return Cell() if share is None else Cell(f"{100 * share:,.1f}")

    return _components_table(
        section,
        columns,
        size,
        f"Traffic ({unit} per epoch, all ranks)",
        caption,
        more={"Exchanged": exchanged, "Saved (%)": saved} if sent else {},
    )


def memory_model_table(section: Section) -> Table | None:
    """The memory model's bytes by component; None if no method has a model."""
    columns = model_columns(section)
    size, unit = byte_unit(largest_total({name: figures_of(section, c) for name, c in columns.items()}))
    return _components_table(
        section,
        columns,
        size,
        f"Memory model ({unit})",
        "What the rank that needs most needs by the method's memory model, by component; mean over seeds; "
        f"1 {unit} = {size:,.0f} bytes. “none”: the method has no such component. A component that corrects "
        "another, as one beside Eq. 3 (of BNS-GCN) does, can be negative.",
        absent=Cell("none"),
    )


def _components_table(
    section: Section,
    columns: dict[str, str],
    unit: float,
    title: str,
    caption: str,
    absent: Cell | None = None,
    more: Mapping[str, Callable[[Variant, int, int], Cell]] = MappingProxyType({}),
) -> Table | None:
    """Return a table of a column a component and their total, rows by number of parts, then variant.

    `absent`: for a component that a trial with others lacks; None: as for any figure that is not there.
    `more`: further columns by heading, a cell of a variant, a number of parts and the table's decimals.
    """
    if not columns:
        return None
    figures = {name: figures_of(section, column) for name, column in columns.items()}
    smallest = min((total for total in totals(figures).values() if total > 0), default=0.0)
    places = max(1, min(3, 1 + decimals(smallest / unit)))

    def cells(variant: Variant, parts: int) -> Sequence[Cell]:
        stats = [found.get((variant, parts)) for found in figures.values()]
        known = [stat.mean / unit for stat in stats if stat]
        gap = missing(section, variant, parts)
        lacking = (absent if known else None) or Cell(gap.text)
        total = Cell(fixed(sum(known), places)) if known else gap
        shown = [Cell(fixed(stat.mean / unit, places)) if stat else lacking for stat in stats]
        return [*shown, total, *(cell(variant, parts, places) for cell in more.values())]

    heads = Group("", (*columns, "Total", *more))
    return Table(title, caption, "Method", (heads,), by_parts(section, cells))
