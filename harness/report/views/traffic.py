"""Bytes by purpose, and those that pass the network."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.report.bars import stacked_bars
from harness.report.palette import PURPOSES
from harness.report.plot import Plot
from harness.report.sections import Section
from harness.report.table import Cell, Table, components_table, missing
from harness.report.values import Values, components, largest_total, values_of
from harness.report.variants import Variant
from harness.report.views import ReportView, variants_table
from harness.report.views.batches import ALIKE, Saving, exchanges, savings_of
from harness.results.stats import byte_unit, fixed, join_unique


class TrafficView(ReportView):
    """Bytes by purpose, and those that pass the network."""

    name = "traffic"
    title = "Traffic"
    question = "How many bytes are sent, and what for?"
    place = 60

    def table(self) -> Table | None:
        """Bytes per epoch by purpose, a row a method and number of parts; None if nothing was sent."""
        section = self.section
        purposes = components(section, "purpose")
        size, unit = byte_unit(largest_total(purposes))
        caption = (
            "Payload bytes sent in a training epoch, summed over ranks, mean over all epochs, then over seeds; "
            f"evaluation excluded; 1 {unit} = {size:,.0f} bytes. Purposes without any byte are left out."
        )
        sent = exchanges(section)
        savings = savings_of(section, sent)
        if savings:
            caption += " Exchanged: all but model and swap. Saved: 1 - own / that of the method named, at equal P"
            caption += f"; {ALIKE}" if len(savings) > 1 or not section.baseline else ""
            caption += "; below 0: more is sent."

        def exchanged(variant: Variant, parts: int, places: int) -> Cell:
            found = sent.get((variant, parts))
            return Cell(fixed(found.mean / size, places)) if found else Cell()

        def shares(saving: Saving) -> Callable[[Variant, int, int], Cell]:
            def cell(variant: Variant, parts: int, _: int) -> Cell:
                share = saving(variant, parts)
                return Cell() if share is None else Cell(f"{100 * share:,.1f}")

            return cell

        saved = {f"Saved of {name} (%)": shares(saving) for name, saving in savings.items()}
        return components_table(
            section,
            purposes,
            size,
            f"Traffic ({unit} per epoch, all ranks)",
            caption,
            more={"Exchanged": exchanged} | saved if saved else {},
        )

    def figure(self) -> Plot | None:
        """Return stacked bars of bytes per epoch by purpose."""
        section = self.section
        if not (purposes := components(section, "purpose")):
            return None
        size, unit = byte_unit(largest_total(purposes))
        caption = (
            "The purposes of the table above, stacked, all ranks together; each panel has a scale of its own, "
            f"the total stands beside the bar; 1 {unit} = {size:,.0f} bytes. A number of parts without any byte "
            "has no panel."
        )
        title, scale = "Bytes per epoch by purpose", (size, f"Bytes per epoch ({unit})")
        return stacked_bars(section, "traffic", title, caption, purposes, PURPOSES, scale)

    def details(self) -> dict[str, Table | None]:
        """See `ReportView`."""
        return {"network_traffic": network_traffic_table(self.section)}


PLACES = 2


def network_traffic_table(section: Section) -> Table | None:
    """Counted bytes, bytes through the network by estimate and as the interface saw them; None if only counted."""
    verified = "wire_seen_by" in section.ok and bool(section.ok["wire_seen_by"].notna().any())
    columns = {"Counted": values_of(section, "counted_bytes")}
    if estimated := values_of(section, "wire_estimate_bytes"):
        columns["Estimated"] = estimated
    if verified:
        columns["Interface"] = values_of(section, "wire_bytes")
    if len(columns) == 1:
        return None
    ratio = values_of(section, "wire_ratio")
    size, unit = byte_unit(max((s.mean for found in columns.values() for s in found.values()), default=None))

    def cells(variant: Variant, parts: int) -> Sequence[Cell]:
        key, gap = (variant, parts), missing(section, variant, parts)
        found = [own.get(key) for own in columns.values()]
        row = [Cell(fixed(stat.mean / size, PLACES)) if stat else gap for stat in found]
        if verified:
            row.append(Cell(f"{ratio[key].mean:.3f}") if key in ratio else gap)
            whose = join_unique(section.select(variant, parts)["wire_seen_by"])
            row.append(Cell(whose or gap.text, number=False))
        return row

    heads = (*columns, *(("Ratio", "Seen at") if verified else ()))
    shared = any(key not in ratio for key in columns.get("Interface", {}) if key[1] > 1)
    caption = f"{_rules(columns, shared)} Means over seeds; 1 {unit} = {size:,.0f} bytes."
    title = f"Bytes through the network ({unit} per epoch, all ranks)"
    return variants_table(section, title, caption, heads, cells, {key for key in columns["Counted"] if key[1] > 1})


def _rules(columns: dict[str, Values], shared: bool) -> str:
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
