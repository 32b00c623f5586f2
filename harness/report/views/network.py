"""Epoch time against the network: trials that differ in their network only, and the projection over them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from harness.report.palette import Style
from harness.report.plot import DOTTED, Axis, Entry, Mark, Panel, Plot, guide, line_entries, make_plot
from harness.report.table import Cell, Group, Row, Table
from harness.report.variants import Variant
from harness.report.views import NetworksView
from harness.results.projection import LOOPBACK, project
from harness.results.record import Record
from harness.results.stats import significant
from harness.suite.sections import UNLIMITED, latency_text, rate_text

POINTS = 60  # of a projected line
BEYOND = 3.0  # a line goes on to this many times the largest rate; what has no rate stands farther out


class NetworkRateView(NetworksView):
    """Epoch time against the network: trials that differ in their network only, and the projection over them."""

    name = "rate"
    title = "Network"
    question = "What does an epoch take on another network, measured and projected?"
    place = 10

    def table(self) -> Table:
        """Measured and projected epoch time and the error: a row a variant, number of parts and network."""
        section, frame = self.section, self.networks.frame
        rows = []
        for variant in section.variants:
            mine = frame[frame["variant"] == variant.key]
            for (parts, network), cell in mine.groupby(["parts", "network"], sort=False):
                projected = cell["projected_s"].mean()
                shown = [Cell("base", number=False), Cell()]
                if not math.isnan(projected):
                    worst = cell["error"].iloc[int(cell["error"].abs().to_numpy().argmax())]
                    shown = [Cell(significant(projected)), Cell(f"{100 * worst:+.1f}")]
                measured = Cell(significant(cell["epoch_time_s"].mean()))
                cells = (Cell(f"{parts}"), Cell(str(network), number=False), measured, *shown)
                rows.append(Row(variant.label, cells, variant, int(cell["parts"].iloc[0]), str(network)))
        return Table(
            "Epoch time by network, measured and projected",
            "Measured: seconds an epoch, the median after warm-up of the slowest rank's. Projected: from the "
            "trial marked “base”, the same on a faster network, by the alpha-beta model of `harness project`. "
            "Error: projected / measured - 1. Means over seeds; of the errors the largest.",
            "Method",
            (Group("", ("P", "Network", "Measured (s)", "Projected (s)", "Error (%)")),),
            tuple(rows),
        )

    def figure(self) -> Plot | None:
        """Return epoch time against rate, a panel a number of parts and kind of network; None without any rate."""
        section, frame = self.section, self.networks.frame
        bases = self.networks.bases
        limited = frame[np.isfinite(frame["rate_bits_s"])]
        panels = sorted(set(limited[["parts", "latency_s", "ranks_per_host"]].itertuples(index=False, name=None)))
        if not panels:
            return None
        rates = sorted(map(float, limited["rate_bits_s"].unique()))
        shown = [v for v in section.variants if v.key in set(frame["variant"])]
        row = []
        for parts, latency_s, hosted in panels:
            alike = (frame["latency_s"] == latency_s) & (frame["ranks_per_host"] == hosted)
            there = frame[(frame["parts"] == parts) & (alike | ~np.isfinite(frame["rate_bits_s"]))]
            marks = [Mark("up", x=("", [rates[-1] * BEYOND]), style=guide(DOTTED))]
            for variant in shown:
                mine = there[there["variant"] == variant.key]
                own = [bases[trial] for trial in mine["base"].unique()]
                marks += [_line(own, (variant, parts), rates, latency_s, hosted)] if own else []
                marks += _points(mine, (variant, parts), rates)
            latency = f", latency {latency_text(latency_s)}" if latency_s else ""
            title = f"P = {parts}{latency}" + (f", {hosted} ranks a host" if hosted > 1 else "")
            row.append(Panel(_rates(rates), Axis("Epoch time (s)", log=True), tuple(marks), parts, title))
        unshaped = not np.isfinite(frame.loc[frame["trial"] == frame["base"], "rate_bits_s"]).any()
        source = f"projected from the {'unshaped' if unshaped else 'fastest'} trial (alpha-beta model)"
        caption = (
            "Points: measured, mean over seeds; whisker: from the lowest to the highest end of the seeds' 95 % "
            f"intervals. Lines: {source}: its compute as measured, its bytes over a link of that rate; of a model, not "
            "measured. Both axes are logarithmic; to the right of the dotted line stand networks without a limit. "
            "Lower is better."
        )
        entries = (*line_entries(shown), Entry(f"line: {source}; point: measured", Style("#666666", "", "-")))
        title = "Epoch time and network"
        return make_plot(section, "rate", title, caption, [row], 4.4, entries=entries, share=("none", "all"))


def _points(mine: pd.DataFrame, of: tuple[Variant, int], rates: Sequence[float]) -> list[Mark]:
    """Return what was measured: mean over seeds, with a whisker over their intervals."""
    marks = []
    for name, trials in mine.groupby("network"):
        network, rate = str(name), float(trials["rate_bits_s"].iloc[0])
        x = rate if math.isfinite(rate) else _place(network, rates)
        mean, low = float(trials["epoch_time_s"].mean()), float(trials["epoch_time_low_s"].min())
        high = float(trials["epoch_time_high_s"].max())
        told = {"shown": "measured", "network": network, "rate_bits_s": rate, "low_s": low, "high_s": high}
        y = ("epoch_time_s", [mean])
        own = Mark("points", *of, ("", [x]), y, [low], [high], seeds=[len(trials)], more=told, network=network)
        marks.append(own)
    return marks


def _line(own: list[Record], of: tuple[Variant, int], rates: Sequence[float], latency_s: float, hosted: int) -> Mark:
    """Return the mean of the projections of a variant's trials over the range of rates."""
    x = np.geomspace(rates[0] / BEYOND, rates[-1] * BEYOND, POINTS)
    y = [float(np.mean([project(r, v, latency_s, ranks_per_host=hosted).epoch_time_s for r in own])) for v in x]
    return Mark("line", *of, ("rate_bits_s", x.tolist()), ("epoch_time_s", y), more={"shown": "projected"}, bare=True)


def _place(network: str, rates: Sequence[float]) -> float:
    """Return where on the axis of rates a network without one stands."""
    gap = max(BEYOND, (rates[-1] / rates[0]) ** 0.3)  # their names must stand apart
    return float(rates[-1] * BEYOND * gap ** (2 if network == LOOPBACK else 1))


def _rates(rates: Sequence[float]) -> Axis:
    names = {float(rate): rate_text(rate) for rate in rates}
    names |= {_place(UNLIMITED, rates): "no\nlimit", _place(LOOPBACK, rates): "loopback"}
    high = _place(LOOPBACK, rates) * math.sqrt(BEYOND)
    label = "Rate of a host's link, each direction"
    return Axis(label, log=True, low=rates[0] / BEYOND, high=high, ticks=names)
