"""Counted bytes beside those that pass the network."""

from __future__ import annotations

from collections.abc import Sequence

from harness.report.numbers import byte_unit, fixed
from harness.report.tables.grid import by_parts
from harness.report.tables.table import Cell, Group, Table, missing
from harness.report.trials.aggregate import Figures, figures_of
from harness.report.trials.sections import Section, join_unique
from harness.report.trials.variants import Variant

PLACES = 2


def wire_table(section: Section) -> Table | None:
    """Counted bytes, bytes on the wire by estimate and as the interface saw them; None if only counted."""
    verified = "wire_seen_by" in section.ok and bool(section.ok["wire_seen_by"].notna().any())
    columns = {"Counted": figures_of(section, "counted_bytes")}
    if estimated := figures_of(section, "wire_estimate_bytes"):
        columns["Estimated"] = estimated
    if verified:
        columns["Interface"] = figures_of(section, "wire_bytes")
    if len(columns) == 1:
        return None
    ratio = figures_of(section, "wire_ratio")
    size, unit = byte_unit(max((s.mean for found in columns.values() for s in found.values()), default=None))

    def cells(variant: Variant, parts: int) -> Sequence[Cell]:
        key, gap = (variant, parts), missing(section, variant, parts)
        if parts == 1 or key not in columns["Counted"]:
            return ()
        found = [own.get(key) for own in columns.values()]
        row = [Cell(fixed(stat.mean / size, PLACES)) if stat else gap for stat in found]
        if verified:
            row.append(Cell(f"{ratio[key].mean:.3f}") if key in ratio else gap)
            whose = join_unique(section.select(variant, parts)["wire_seen_by"])
            row.append(Cell(whose or gap.text, number=False))
        return row

    rows = by_parts(section, cells)
    if not rows:
        return None
    heads = (*columns, *(("Ratio", "Seen at") if verified else ()))
    shared = any(key not in ratio for key in columns.get("Interface", {}) if key[1] > 1)
    caption = f"{_rules(columns, shared)} Means over seeds; 1 {unit} = {size:,.0f} bytes."
    title = f"Bytes on the wire ({unit} per epoch, all ranks)"
    return Table(title, caption, "Method", (Group("", heads),), rows)


def _rules(columns: dict[str, Figures], shared: bool) -> str:
    rules = ["Counted: payload of the training epochs, as in the table above."]
    if "Estimated" in columns:
        rules.append("Estimated: counted plus the headers of full frames.")
    if "Interface" in columns:
        rules.append(
            "Interface (traffic: verify): what the kernel saw leave through the network interface meanwhile, "
            "with headers, acknowledgements and barriers; ratio: interface / counted."
        )
    if shared:
        rules.append("No ratio where ranks share a host's link: what they send each other does not pass it.")
    return " ".join(rules)
