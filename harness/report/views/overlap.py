"""Transfers that run beside the training: what of them is hidden, and what staleness does for that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.report.palette import DASHES, Dash
from harness.report.plot import Axis, Entry, Mark, Panel, Plot, guide, line_entries, make_plot
from harness.report.sections import Section
from harness.report.sweeps import Line, sweep
from harness.report.table import Cell, Table, missing
from harness.report.values import Values, values_of
from harness.report.variants import Variant
from harness.report.views import NetworksView, ReportView, variants_table
from harness.results.stats import decimals, fixed, time_unit

SAME = 1e-6  # relative; busy and exposed time of exchanges that are waited for differ by rounding only


class OverlapView(ReportView):
    """Transfers that run beside the training: what of them is hidden, and what staleness does for that."""

    name = "overlap"
    title = "Overlapped communication"
    question = "What of the transfers is hidden behind the training?"
    place = 50

    def table(self) -> Table | None:
        """Transfers under way against the time the trainer stood still for them; None if none overlapped."""
        section = self.section
        busy, exposed = (values_of(section, f"comm_{name}_s") for name in ("busy", "exposed"))
        compute = values_of(section, "sum_compute_s")
        shown = {key for key in busy if key in exposed and key[1] > 1 and busy[key].mean}
        if not any(abs(busy[key].mean - exposed[key].mean) > SAME * busy[key].mean for key in shown):
            return None
        size, unit = time_unit(max((busy[key].mean for key in shown), default=None))
        places = min(3, max((decimals(busy[key].mean / size) for key in shown), default=0))

        def cells(variant: Variant, parts: int) -> Sequence[Cell]:
            key = variant, parts
            hidden = max(0.0, busy[key].mean - exposed[key].mean)
            work = compute.get(key)
            return [
                Cell(fixed(work.mean / size, places)) if work else missing(section, variant, parts),
                *(Cell(fixed(seconds / size, places)) for seconds in (busy[key].mean, exposed[key].mean, hidden)),
                Cell(f"{100 * (exposed[key].mean / busy[key].mean):.1f}"),
            ]

        return variants_table(
            section,
            f"Overlapped communication ({unit} per epoch)",
            "Busy: time with transfers under way; exposed: time in which the trainer stood still for them (phase "
            "comm); hidden: busy - exposed, at least 0. A method that waits for each exchange exposes all of it; "
            "one that lets them run beside the training hides them behind its compute (the sum above), wait and "
            "reduce. Of the slowest rank and the same epochs as the phases, mean over seeds.",
            ("Compute", "Busy", "Exposed", "Hidden", "Exposed / busy (%)"),
            cells,
            shown,
        )

    def figure(self) -> Plot | None:
        """Return epoch time and the exposed share against the staleness tau, a line a method and network.

        None if no method was run with several values of its option `staleness`.
        """
        section = self.section
        lines, networks = sweep(section.variants, "staleness"), _networks(section)
        there = {key for network in networks for key in network.times}
        panels = [p for p in section.parts if p > 1 and any((v, p) in there for ln in lines for _, v in ln.points)]
        if not panels:
            return None
        across = Axis("Staleness tau (epochs)", whole=True)
        rows = []
        for column, label in (("epoch_time_s", "Epoch time (s)"), ("exposed_percent", "Exposed / busy (%)")):
            up = Axis(label, zero=True)
            rows.append([Panel(across, up, _marks(lines, networks, column, parts), parts) for parts in panels])
        entries = list(line_entries(lines))
        entries += [Entry(network.label, guide(network.dash), "path") for network in networks if network.dash]
        caption = (
            "Methods that differ in their staleness alone: tau = 0 waits for every exchange, tau > 0 reads "
            "what was sent tau epochs ago. Above: epoch time; below: the share of the time with transfers "
            "under way in which the trainer stood still. Means over seeds. Lower is better."
        )
        title, share = "Epoch time and staleness", ("all", "row")
        return make_plot(section, "staleness", title, caption, rows, 5.6, entries=tuple(entries), share=share)


@dataclass(frozen=True)
class _Network:
    """The trials of a section on one network: epoch times and exposed shares, and how they are drawn."""

    name: str
    dash: Dash | None  # None: it is the only one
    times: Values
    percent: dict[tuple[Variant, int], float]

    @property
    def label(self) -> str:
        """What the legend calls it."""
        return f"network {self.name}"


def _networks(section: Section) -> list[_Network]:
    names = list(section.ok.loc[section.ok["parts"] > 1, "network"].unique())
    several = len(names) > 1
    found = []
    for i, name in enumerate(names):
        own = replace(section, frame=section.frame[section.frame["network"] == name])
        times, busy, exposed = (values_of(own, f"{each}_s") for each in ("epoch_time", "comm_busy", "comm_exposed"))
        percent = {key: 100 * (exposed[key].mean / busy[key].mean) for key in exposed if key in busy and busy[key].mean}
        dash = DASHES[i % len(DASHES)] if several else None
        found.append(_Network(str(name), dash, times, percent))
    return found


def _marks(lines: Sequence[Line], networks: Sequence[_Network], column: str, parts: int) -> tuple[Mark, ...]:
    """Return a line of a column of the data for each method and network, at one number of parts."""
    marks = []
    for network in networks:
        times = {key: stat.mean for key, stat in network.times.items()}
        values = times if column == "epoch_time_s" else network.percent
        for line in lines:
            there = [(tau, variant) for tau, variant in line.points if (variant, parts) in values]
            x, y = ("staleness", [tau for tau, _ in there]), (column, [values[v, parts] for _, v in there])
            style = replace(line.style, dash=network.dash) if network.dash else line.style
            of, more = network.name if network.dash else None, {"network": network.name if network.dash else ""}
            who = [variant for _, variant in there]
            marks.append(Mark("line", line, parts, x, y, more=more, style=style, network=of, who=who))
    return tuple(marks)


class StalenessView(NetworksView):
    """Epoch time against the staleness, on several networks."""

    name = "staleness"
    title = "Staleness"
    question = "What does staleness do for the epoch time on slower networks?"
    place = 20

    def figure(self) -> Plot | None:
        """See `OverlapView.figure`."""
        named = self.networks.frame.set_index("trial")["network"]
        frame = self.section.frame.assign(network=self.section.frame["trial"].map(named))
        return OverlapView(replace(self.section, frame=frame[frame["network"].notna()])).figure()
