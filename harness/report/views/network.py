"""Epoch time against the network: trials that differ in their network only, and the projection over them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator

from harness.report.drawing import Picture, legend, line_handle, mark, new_figure, panel, save, set_ticks
from harness.report.sections import Variant
from harness.report.table import Cell, Group, Row, Table
from harness.report.views import NetworksView
from harness.results.projection import LOOPBACK, project
from harness.results.record import Record
from harness.results.text import significant
from harness.suite.schema import UNLIMITED, latency_text, rate_text

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

    def figure(self) -> Picture | None:
        """Draw epoch time against rate, a panel a number of parts and kind of network; None without any rate."""
        section, frame = self.section, self.networks.frame
        bases = self.networks.bases
        limited = frame[np.isfinite(frame["rate_bits_s"])]
        panels = sorted(set(limited[["parts", "latency_s", "ranks_per_host"]].itertuples(index=False, name=None)))
        if not panels:
            return None
        rates = sorted(limited["rate_bits_s"].unique())
        shown = [v for v in section.variants if v.key in set(frame["variant"])]
        figure = new_figure(4.4 + 0.2 * (1 + len(shown) // 3), section, "Epoch time and network")
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for ax, (parts, latency_s, hosted) in zip(axes, panels, strict=True):
            alike = (frame["latency_s"] == latency_s) & (frame["ranks_per_host"] == hosted)
            there = frame[(frame["parts"] == parts) & (alike | ~np.isfinite(frame["rate_bits_s"]))]
            for variant in shown:
                mine = there[there["variant"] == variant.key]
                _points(ax, mine, (variant, parts), rates)
                own = [bases[trial] for trial in mine["base"].unique()]
                _line(ax, own, (variant, parts), rates, latency_s, hosted)
            _axes(ax, rates)
            latency = f", latency {latency_text(latency_s)}" if latency_s else ""
            panel(ax, parts, f"P = {parts}{latency}" + (f", {hosted} ranks a host" if hosted > 1 else ""))
        axes[0].set_ylabel("Epoch time (s)")
        set_ticks(axes[0].yaxis, text="{:g}".format)
        unshaped = not np.isfinite(frame.loc[frame["trial"] == frame["base"], "rate_bits_s"]).any()
        source = f"projected from the {'unshaped' if unshaped else 'fastest'} trial (alpha-beta model)"
        handles = [*(line_handle(v.style, width=1.3) for v in shown), Line2D([], [], color="#666666", lw=1.3)]
        labels = [*(f"{v.label}, measured" for v in shown), f"line: {source}"]
        legend(figure, handles, labels, shown)
        caption = (
            "Points: measured, mean over seeds; whisker: from the lowest to the highest end of the seeds' 95 % "
            f"intervals. Lines: {source}: its compute as measured, its bytes over a link of that rate; of a model, not "
            "measured. Both axes are logarithmic; to the right of the dotted line stand networks without a limit. "
            "Lower is better."
        )
        return save(figure, section, "rate", "Epoch time and network", caption)


def _points(ax: Axes, mine: pd.DataFrame, of: tuple[Variant, int], rates: Sequence[float]) -> None:
    """Draw what was measured: mean over seeds, with a whisker over their intervals."""
    style = of[0].style
    for network, trials in mine.groupby("network"):
        rate = float(trials["rate_bits_s"].iloc[0])
        x = rate if math.isfinite(rate) else _place(str(network), rates)
        mean, low = trials["epoch_time_s"].mean(), trials["epoch_time_low_s"].min()
        high = trials["epoch_time_high_s"].max()
        ends = [[max(0.0, mean - low)], [max(0.0, high - mean)]]
        look: dict[str, Any] = {"capsize": 3, "lw": 1.2, "zorder": 3}
        drawn = ax.errorbar(x, mean, ends, color=style.colour, marker=style.marker, markersize=5.5, **look)
        shown = {"shown": "measured", "network": str(network), "rate_bits_s": rate, "epoch_time_s": mean}
        mark(drawn, *of, {**shown, "low_s": low, "high_s": high})


def _line(
    ax: Axes, own: list[Record], of: tuple[Variant, int], rates: Sequence[float], latency_s: float, hosted: int
) -> None:
    """Draw the mean of the projections of a variant's trials over the range of rates."""
    x = np.geomspace(rates[0] / BEYOND, rates[-1] * BEYOND, POINTS)
    y = [np.mean([project(r, v, latency_s, ranks_per_host=hosted).epoch_time_s for r in own]) for v in x]
    drawn = ax.plot(x, y, color=of[0].style.colour, linestyle=of[0].style.dash, lw=1.3)
    mark(drawn, *of, {"shown": "projected", "rate_bits_s": list(x), "epoch_time_s": y})


def _place(network: str, rates: Sequence[float]) -> float:
    """Return where on the axis of rates a network without one stands."""
    gap = max(BEYOND, (rates[-1] / rates[0]) ** 0.3)  # their names must stand apart
    return float(rates[-1] * BEYOND * gap ** (2 if network == LOOPBACK else 1))


def _axes(ax: Axes, rates: Sequence[float]) -> None:
    names = {rate: rate_text(rate) for rate in rates}
    names |= {_place(UNLIMITED, rates): "no\nlimit", _place(LOOPBACK, rates): "loopback"}
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(rates[0] / BEYOND, _place(LOOPBACK, rates) * math.sqrt(BEYOND))
    ax.axvline(rates[-1] * BEYOND, color="#999999", lw=0.8, ls=":")
    set_ticks(ax.xaxis, FixedLocator(list(names)), lambda value: names.get(value, ""))
    ax.set_xlabel("Rate of a host's link, each direction")
