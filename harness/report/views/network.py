"""Network and communication: epoch time by network, and transfers that overlap with the training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from harness.report.figure import DOTTED, Axis, Chart, Figure, Guide, Layer, make_figure, tidy
from harness.report.palette import Style
from harness.report.sections import Section
from harness.report.sweeps import sweep
from harness.report.table import Cell, Group, Key, Row, Table, number_cells, variants_table
from harness.report.values import values_of
from harness.report.views import NetworksView, ReportView, prose
from harness.results.projection import LOOPBACK, HostLink, project
from harness.results.stats import decimals, significant, time_unit
from harness.suite.sections import UNLIMITED, latency_text, rate_text

POINTS = 60  # of a projected line
BEYOND = 3.0  # a line goes on to this many times the largest rate; what has no rate is farther out


class NetworkRateView(NetworksView):
    """What does an epoch take on another network, measured and projected?"""

    name = "rate"
    title = "Network"
    place = 10

    def table(self) -> Table:
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
            prose("rate.table"),
            "Method",
            (Group("", ("P", "Network", "Measured (s)", "Projected (s)", "Error (%)")),),
            tuple(rows),
        )

    def figure(self) -> Figure | None:
        section, frame = self.section, self.networks.frame
        limited = frame[np.isfinite(frame["rate_bits_s"])]
        panels = sorted(set(limited[["parts", "latency_s", "ranks_per_host"]].itertuples(index=False, name=None)))
        if not panels:
            return None
        rates = sorted(map(float, limited["rate_bits_s"].unique()))
        ticks = {rate: rate_text(rate) for rate in rates}
        ticks |= {_place(UNLIMITED, rates): "no\nlimit", _place(LOOPBACK, rates): "loopback"}
        high = _place(LOOPBACK, rates) * math.sqrt(BEYOND)
        label = "Rate of a host's link, each direction"
        x = Axis("at", label, log=True, low=rates[0] / BEYOND, high=high, ticks=ticks)
        charts = []
        for parts, latency_s, hosted in panels:
            alike = (frame["latency_s"] == latency_s) & (frame["ranks_per_host"] == hosted)
            there = frame[(frame["parts"] == parts) & (alike | ~np.isfinite(frame["rate_bits_s"]))]
            latency = f", latency {latency_text(latency_s)}" if latency_s else ""
            charts.append(
                Chart(
                    (
                        Layer(self._projected(there, parts, rates, latency_s, hosted), "path"),
                        Layer(self._measured(there, parts, rates), "points", ("low_s", "high_s")),
                    ),
                    x,
                    Axis("epoch_time_s", "Epoch time (s)", log=True),
                    "",
                    (Guide(x=[rates[-1] * BEYOND], dash=DOTTED),),
                    f"P = {parts}{latency}" + (f", {hosted} ranks a host" if hosted > 1 else ""),
                    parts,
                )
            )
        unshaped = not np.isfinite(frame.loc[frame["trial"] == frame["base"], "rate_bits_s"]).any()
        source = f"projected from the {'unshaped' if unshaped else 'fastest'} trial (alpha-beta model)"
        caption = prose("rate.figure", source=source)
        keys = {f"line: {source}; point: measured": Style("#666666", "", "-")}
        title = "Epoch time and network"
        return make_figure(section, "rate", title, caption, [charts], 4.4, keys=keys, share=("none", "all"))

    def _measured(self, there: pd.DataFrame, parts: int, rates: Sequence[float]) -> pd.DataFrame:
        """Return what was measured: means over seeds, with the ends of their intervals."""
        rows = []
        for variant in self.section.variants:
            for name, trials in there[there["variant"] == variant.key].groupby("network"):
                network, rate = str(name), float(trials["rate_bits_s"].iloc[0])
                values = {
                    "shown": "measured",
                    "network": network,
                    "rate_bits_s": rate,
                    "at": rate if math.isfinite(rate) else _place(network, rates),
                    "epoch_time_s": float(trials["epoch_time_s"].mean()),
                    "low_s": float(trials["epoch_time_low_s"].min()),
                    "high_s": float(trials["epoch_time_high_s"].max()),
                    "seeds": len(trials),
                }
                rows.append((variant, parts, values))
        return tidy(rows)

    def _projected(
        self, there: pd.DataFrame, parts: int, rates: Sequence[float], latency_s: float, hosted: int
    ) -> pd.DataFrame:
        """Return the mean of the projections of each variant's trials over the range of rates."""
        x = np.geomspace(rates[0] / BEYOND, rates[-1] * BEYOND, POINTS)
        rows = []
        for variant in self.section.variants:
            bases = [
                self.networks.bases[trial] for trial in there.loc[there["variant"] == variant.key, "base"].unique()
            ]
            if bases:
                times = [[project(r, HostLink(v, latency_s, hosted)).epoch_time_s for r in bases] for v in x]
                y = [float(np.mean(each)) for each in times]
                values = {"shown": "projected", "rate_bits_s": x.tolist(), "at": x.tolist(), "epoch_time_s": y}
                rows.append((variant, parts, values))
        return tidy(rows)


def _place(network: str, rates: Sequence[float]) -> float:
    """Return the position on the axis of rates of a network without one."""
    gap = max(BEYOND, (rates[-1] / rates[0]) ** 0.3)  # their names must not overlap
    return float(rates[-1] * BEYOND * gap ** (2 if network == LOOPBACK else 1))


SAME = 1e-6  # relative; busy and exposed time of exchanges that are waited for differ by rounding only


class OverlapView(ReportView):
    """What of the transfers is hidden behind the training?"""

    name = "overlap"
    title = "Overlapped communication"
    place = 50

    def table(self) -> Table | None:
        section = self.section
        busy, exposed = (values_of(section, f"comm_{name}_s") for name in ("busy", "exposed"))
        shown = [key for key in busy if key in exposed and key[1] > 1 and busy[key].mean]
        if not any(abs(busy[key].mean - exposed[key].mean) > SAME * busy[key].mean for key in shown):
            return None
        size, unit = time_unit(max((busy[key].mean for key in shown), default=None))
        places = min(3, max((decimals(busy[key].mean / size) for key in shown), default=0))
        hidden = {key: max(0.0, busy[key].mean - exposed[key].mean) for key in shown}
        shares = {key: 100 * (exposed[key].mean / busy[key].mean) for key in shown}
        return variants_table(
            section,
            f"Overlapped communication ({unit} per epoch)",
            prose("overlap.table"),
            {
                "Compute": number_cells(values_of(section, "sum_compute_s"), size, places),
                "Busy": number_cells(busy, size, places),
                "Exposed": number_cells(exposed, size, places),
                "Hidden": number_cells(hidden, size, places),
                "Exposed / busy (%)": number_cells(shares, places=1),
            },
            shown,
        )

    def figure(self) -> Figure | None:
        """Return epoch time and the exposed share against the staleness tau, a line a method and network.

        None if no method was run with several values of its option `staleness`.
        """
        section = self.section
        swept = sweep(section.variants, "staleness")
        networks = [str(name) for name in section.ok.loc[section.ok["parts"] > 1, "network"].unique()]
        found = {name: _of_network(section, name) for name in networks}
        there = {key for times, _ in found.values() for key in times}
        panels = [p for p in section.parts if p > 1 and any((v, p) in there for ln in swept for _, v in ln.points)]
        if not panels:
            return None
        several = len(networks) > 1
        x, charts = Axis("staleness", "Staleness tau (epochs)", whole=True), []
        for i, y in enumerate((Axis("epoch_time_s", "Epoch time (s)"), Axis("exposed_percent", "Exposed / busy (%)"))):
            rows = [
                (
                    line,
                    parts,
                    {
                        "network": name if several else "",
                        "staleness": [tau for tau, _ in points],
                        y.column: [values[i][v, parts] for _, v in points],
                        "who": [v.label for _, v in points],
                    },
                )
                for parts in panels
                for name, values in found.items()
                for line in swept
                for points in [[(tau, v) for tau, v in line.points if (v, parts) in values[i]]]
            ]
            dash = "network" if several else ""
            charts.append(Chart((Layer(tidy(rows)),), x, replace(y, zero=True), dash=dash))
        caption = prose("overlap.figure")
        title, share = "Epoch time and staleness", ("all", "row")
        return make_figure(section, "staleness", title, caption, charts, 5.6, series=swept, share=share)


def _of_network(section: Section, name: str) -> tuple[dict[Key, float], dict[Key, float]]:
    """Return epoch times (s) and exposed shares (%) of a section's trials on one network."""
    own = replace(section, frame=section.frame[section.frame["network"] == name])
    times, busy, exposed = (values_of(own, f"{each}_s") for each in ("epoch_time", "comm_busy", "comm_exposed"))
    percent = {key: 100 * (exposed[key].mean / busy[key].mean) for key in exposed if key in busy and busy[key].mean}
    return {key: stat.mean for key, stat in times.items()}, percent


class StalenessView(NetworksView):
    """What does staleness do for the epoch time on slower networks?"""

    name = "staleness"
    title = "Staleness"
    place = 20

    def figure(self) -> Figure | None:
        named = self.networks.frame.set_index("trial")["network"]
        frame = self.section.frame.assign(network=self.section.frame["trial"].map(named))
        return OverlapView(replace(self.section, frame=frame[frame["network"].notna()])).figure()
