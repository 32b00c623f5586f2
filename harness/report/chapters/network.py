"""Epoch time against the network: trials that differ in their network only, and the projection over them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from harness.report.chapters.overlap import staleness_figure
from harness.report.figures.drawing import Picture, legend, new_figure, panel, save, style
from harness.report.figures.marks import mark
from harness.report.numbers import significant
from harness.report.tables.table import Cell, Group, Row, Table
from harness.report.trials.inputs import Inputs
from harness.report.trials.sections import Section, join_unique, make_sections
from harness.report.trials.variants import Variant
from harness.results.projection import network_of, project
from harness.results.record import Record
from harness.results.twins import LOOPBACK, base_of, compare, network_label, twin_groups
from harness.suite.schema import UNLIMITED, NetworkSpec, latency_text, rate_text

POINTS = 60  # of a projected line
BEYOND = 3.0  # a line goes on to this many times the largest rate; what has no rate stands farther out


@dataclass(frozen=True)
class NetworkChapter:
    """Comparable trials on several networks; `frame` has a row a trial, see `network_frame`."""

    section: Section
    frame: pd.DataFrame
    table: Table
    picture: Picture | None
    staleness: Picture | None


def network_chapters(inputs: Inputs) -> list[NetworkChapter]:
    """Compare, for each data set, model and so on, the trials that differ in their network only."""
    blank = replace(inputs, results=inputs.results.assign(network=""))
    chapters = []
    for section in make_sections(blank):
        mine = [inputs.record(row) for row in section.ok.to_dict("records")]
        groups = [group for group in twin_groups(r for r in mine if r) if len(group) > 1]
        if groups:
            chapters.append(_chapter(section, groups))
    return chapters


def _chapter(section: Section, groups: list[list[Record]]) -> NetworkChapter:
    extra = join_unique([section.extra, "networks"])
    section = replace(section, anchor=f"network-{section.anchor}", extra=extra)
    frame = network_frame(section, groups)
    bases = {record.trial: record for group in groups if (record := base_of(group))}
    with style():
        picture, staleness = network_figure(section, frame, bases), staleness_figure(section)
    return NetworkChapter(section, frame, network_table(section, frame), picture, staleness)


def network_frame(section: Section, groups: list[list[Record]]) -> pd.DataFrame:
    """Return a row a trial: what it took, and what was projected for it from its unshaped twin.

    Columns: suite, trial, base (its twin's id), variant, label, parts, seed, network, rate_bits_s (infinite:
    not limited), latency_s, ranks_per_host, epoch_time_s with the ends of its 95 % interval, projected_s and
    error (projected / measured - 1; both NaN for the twin that is projected from).
    """
    variant_of = dict(zip(section.frame["trial"], section.frame["variant"], strict=True))
    label_of = {variant.key: variant.label for variant in section.variants}
    rows = []
    for group in groups:
        base = base_of(group)
        assert base is not None  # a group is not empty
        found = {each.trial.trial: each for each in compare(group, base)}
        for record in group:
            spec, comparison = network_of(record) or NetworkSpec(), found.get(record.trial)
            rows.append(
                {
                    "suite": record.suite,
                    "trial": record.trial,
                    "base": base.trial,
                    "variant": variant_of[record.trial],
                    "label": label_of[variant_of[record.trial]],
                    "parts": len(record.ranks),
                    "seed": record.config["seed"],
                    "network": network_label(record),
                    "rate_bits_s": spec.bits_s,
                    "latency_s": spec.latency_s,
                    "ranks_per_host": spec.ranks_per_host,
                    "epoch_time_s": record.result["epoch_time_s"],
                    "epoch_time_low_s": record.result["epoch_time_low_s"],
                    "epoch_time_high_s": record.result["epoch_time_high_s"],
                    "projected_s": comparison.projection.epoch_time_s if comparison else None,
                    "error": comparison.error if comparison else None,
                }
            )
    frame = pd.DataFrame(rows).astype({"projected_s": float, "error": float})
    return frame.sort_values(["parts", "rate_bits_s", "latency_s", "seed"], kind="stable", ignore_index=True)


def network_table(section: Section, frame: pd.DataFrame) -> Table:
    """Measured and projected epoch time and the error: a row a variant, number of parts and network."""
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


def network_figure(section: Section, frame: pd.DataFrame, bases: Mapping[str, Record]) -> Picture | None:
    """Draw epoch time against rate, a panel a number of parts and kind of network; None without any rate."""
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
        panel(ax, parts, _panel_title(parts, latency_s, hosted))
    axes[0].set_ylabel("Epoch time (s)")
    axes[0].yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes[0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes[0].yaxis.set_minor_locator(NullLocator())
    unshaped = not np.isfinite(frame.loc[frame["trial"] == frame["base"], "rate_bits_s"]).any()
    source = f"projected from the {'unshaped' if unshaped else 'fastest'} trial (alpha-beta model)"
    handles = [*(_handle(v) for v in shown), Line2D([], [], color="#666666", lw=1.3)]
    labels = [*(f"{v.label}, measured" for v in shown), f"line: {source}"]
    legend(figure, handles, labels, shown)
    return save(figure, section, "rate", "Epoch time and network", _caption(source))


def _points(ax: Axes, mine: pd.DataFrame, of: tuple[Variant, int], rates: Sequence[float]) -> None:
    """Draw what was measured: mean over seeds, with a whisker over their intervals."""
    variant = of[0]
    for network, trials in mine.groupby("network"):
        rate = float(trials["rate_bits_s"].iloc[0])
        x = rate if math.isfinite(rate) else _place(str(network), rates)
        y, low, high = (trials[f"epoch_time_{end}s"] for end in ("", "low_", "high_"))
        mean = y.mean()
        drawn = ax.errorbar(
            x,
            mean,
            [[max(0.0, mean - low.min())], [max(0.0, high.max() - mean)]],
            color=variant.style.colour,
            marker=variant.style.marker,
            markersize=5.5,
            capsize=3,
            lw=1.2,
            zorder=3,
        )
        shown = {"shown": "measured", "network": str(network), "rate_bits_s": rate, "epoch_time_s": mean}
        mark(drawn, *of, {**shown, "low_s": low.min(), "high_s": high.max()})


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
    ax.xaxis.set_major_locator(FixedLocator(list(names)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: names.get(value, "")))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("Rate of a host's link, each direction")
    sns.despine(ax=ax)


def _panel_title(parts: int, latency_s: float, hosted: int) -> str:
    latency = f", latency {latency_text(latency_s)}" if latency_s else ""
    return f"P = {parts}{latency}" + (f", {hosted} ranks a host" if hosted > 1 else "")


def _handle(variant: Variant) -> Line2D:
    s = variant.style
    return Line2D([], [], color=s.colour, linestyle=s.dash, marker=s.marker, markersize=5.5, lw=1.3)


def _caption(source: str) -> str:
    return (
        "Points: measured, mean over seeds; whisker: from the lowest to the highest end of the seeds' 95 % "
        f"intervals. Lines: {source}: its compute as measured, its bytes over a link of that rate; of a "
        "model, not measured. Both axes are logarithmic; to the right of the dotted line stand networks "
        "without a limit. Lower is better."
    )
