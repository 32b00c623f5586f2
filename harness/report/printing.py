"""Figures as matplotlib draws them: for files and for print, in the style of where they are drawn."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis as Drawn
from matplotlib.collections import QuadMesh
from matplotlib.colors import LogNorm, Normalize
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from harness.report.drawing import MARKERS, begin, current_style, finish, legend, plot_line, set_ticks
from harness.report.palette import Style
from harness.report.plot import WRITTEN, Axis, Entry, Mark, Panel, Picture, Plot, places_of
from harness.results.stats import significant

MARK = 6.5  # size of a point
HATCHED = "////"  # bars of a style whose lines are dashed
SQUARE = 0.8  # a matrix' height in print, of that on a screen: it does not get flatter
VECTOR = 32  # ranks, beyond which a matrix is one image in place of a square a pair
MANY = 3  # panels beside one another, beyond which there is room for few ticks
GREY = "#666666"


def draw_plot(plot: Plot) -> Picture:
    """Return a figure drawn in the formats of the style of here; equal figures give equal bytes."""
    scale = max(1.0, SQUARE / current_style().height) if plot.colour else 1.0
    figure = begin(plot.height * scale, f"{plot.title}: {plot.subject}", [entry.label for entry in plot.entries])
    across = max(map(len, plot.rows))
    axes = figure.subplots(len(plot.rows), across, sharex=plot.share[0], sharey=plot.share[1], squeeze=False)
    there = [(ax, panel) for own, row in zip(axes, plot.rows, strict=True) for ax, panel in zip(own, row, strict=False)]
    image = None
    for ax, panel in there:
        image = (_draw(ax, panel, plot) if panel else None) or image
    for ax, panel in there:  # what is shared hangs on what all panels show
        if panel:
            _axis(ax.xaxis, panel.x, panel, across)
            _axis(ax.yaxis, panel.y, panel, across)
            ax.set_title(_heading(panel))
    for ax in set(axes.flat) - {ax for ax, panel in there if panel}:
        ax.set_visible(False)
    for own, row in zip(axes, plot.rows, strict=True):
        _outer([(ax, panel) for ax, panel in zip(own, row, strict=False) if panel])
    if plot.share[0] == "all":
        for ax in axes[:-1].flat:
            ax.set_xlabel("")
    if plot.colour and image:
        bar = figure.colorbar(image, ax=axes, label=plot.colour.label, location="bottom", aspect=50)
        bar.ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        bar.ax.xaxis.set_minor_formatter(NullFormatter())
    if plot.entries:
        legend(figure, [_handle(entry) for entry in plot.entries], [entry.label for entry in plot.entries])
    return Picture(plot.name, plot.title, plot.caption, plot.alt, plot.data, **finish(figure))


def _outer(row: Sequence[tuple[Axes, Panel]]) -> None:
    """Leave out the labels of vertical axes that say what those of the first in a row do."""
    (first, shown), *others = row
    first.tick_params(labelleft=True)
    for ax, panel in others:
        if panel.y.label == shown.y.label:
            ax.set_ylabel("")
        if panel.kind == "stack":
            ax.set_yticklabels([])


def _draw(ax: Axes, panel: Panel, plot: Plot) -> QuadMesh | None:
    if panel.kind == "bars":
        _bars(ax, panel)
    elif panel.kind == "stack":
        _stacks(ax, panel, plot)
    elif panel.kind == "cells":
        assert plot.colour
        return _cells(ax, panel, plot.colour)
    for mark in panel.marks:
        _mark(ax, mark)
    return None


def _heading(panel: Panel) -> str:
    """Return what stands above a panel; a method's name in two lines at most."""
    if panel.kind != "cells":
        return panel.heading
    name, _, parts = panel.heading.partition("\n")
    return f"{textwrap.fill(name, 24, max_lines=2, placeholder=' …')}\n{parts}"


def _axis(drawn: Drawn, axis: Axis, panel: Panel, across: int) -> None:
    """Label a panel's axis and set its scale, ends and ticks; `across`: panels beside one another."""
    ax = drawn.axes
    name = "x" if drawn is ax.xaxis else "y"
    values = [each for mark in panel.marks for each in (mark.x[1] if name == "x" else mark.y[1])]
    drawn.set_label_text(axis.title)
    if axis.log:
        getattr(ax, f"set_{name}scale")("log", base=axis.base)
        set_ticks(drawn, LogLocator(subs=(1.0, 3.0), numticks=7) if name == "x" and across > MANY else None)
    if axis.ticks:
        set_ticks(drawn, FixedLocator(list(axis.ticks)), lambda value: axis.ticks.get(value, ""))
    elif not axis.log and (axis.whole or (name == "x" and across > 1 and panel.kind != "bars")):
        drawn.set_major_locator(MaxNLocator(5, integer=axis.whole))
    low, high = axis.low, axis.high
    if axis.zero and min(values, default=0.0) >= 0:
        low = 0.0
        high = high or 1.02 * getattr(ax, f"get_{name}lim")()[1]  # room for a marker at the top
    if low is not None or high is not None:
        getattr(ax, f"set_{name}lim")(low, high)


def _mark(ax: Axes, mark: Mark) -> None:
    """Draw what is neither a bar, a stack nor a cell."""
    look, x, y = mark.look, list(mark.x[1]), list(mark.y[1])
    if mark.kind in ("line", "steps"):
        _line(ax, mark)
    elif mark.kind == "points":
        face = "white" if mark.hollow else look.colour
        ax.plot(x, y, ls="", color=look.colour, marker=look.marker, ms=MARK, mfc=face, zorder=3)
        _whiskers(ax, mark, look.colour)
    elif mark.kind == "front":
        ax.plot(x, y, drawstyle="steps-post", **_plain(look))
    elif mark.kind == "bins":
        hatch = "" if look.dash == "-" else HATCHED
        ax.bar(x[:-1], y, np.diff(x), align="edge", color=look.colour, hatch=hatch, ec="white", lw=0.3)
    elif mark.kind in ("across", "up"):
        for each in x or y:
            (ax.axvline if x else ax.axhline)(each, **_plain(look))


def _plain(look: Style) -> dict[str, Any]:
    """Return how a thin line behind everything looks."""
    return {"color": look.colour, "linestyle": look.dash, "lw": 1, "zorder": 1}


def _line(ax: Axes, mark: Mark) -> None:
    look, x, y = mark.look, list(mark.x[1]), list(mark.y[1])
    if mark.bare or not x:
        ax.plot(x, y, **_plain(look))
        return
    for line in plot_line(ax, x, y, look, markers=8 if mark.band else MARKERS, size=4.5 if mark.band else 5.5):
        line.set(drawstyle="steps-post" if mark.kind == "steps" else "default")
    if mark.band:
        low, high = (np.array(ends, dtype=float) for ends in (mark.low, mark.high))
        ax.fill_between(x, low, high, color=look.colour, alpha=0.12, lw=0)
    else:
        _whiskers(ax, mark, look.colour)


def _whiskers(ax: Axes, mark: Mark, colour: str) -> None:
    """Draw the ends of values that have some apart from them."""
    rows = zip(mark.x[1], mark.y[1], mark.low, mark.high, strict=True) if mark.low else ()
    known = [(x, y, y - low, high - y) for x, y, low, high in rows if low is not None and high is not None]
    if known := [each for each in known if each[2] or each[3]]:
        x, y, down, up = zip(*known, strict=True)
        ax.errorbar(x, y, np.clip([down, up], 0, None), color=colour, ls="", capsize=2.5, lw=1, zorder=2)


def _bars(ax: Axes, panel: Panel) -> None:
    for mark, left, width in places_of(panel):
        if not mark.y[1]:
            ax.annotate(
                "n/a", (left + width / 2, 0), (0, 3), textcoords="offset points", rotation=90, ha="center",
                va="bottom", fontsize=7, color=GREY,
            )  # fmt: skip
            continue
        look, height = mark.look, mark.y[1][0]
        hatch = "" if look.dash == "-" else HATCHED
        ax.bar(left, height, width, align="edge", color=look.colour, hatch=hatch)
        _whiskers(ax, replace(mark, x=("", [left + width / 2])), GREY)
    names = [name for name, _ in panel.groups]
    every = -(-len(names) // 16)
    ax.set_xticks(range(0, len(names), every), names[::every])
    ax.set_xlim(-0.5, len(names) - 0.5)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    ax.grid(visible=False, axis="x")


def _stacks(ax: Axes, panel: Panel, plot: Plot) -> None:
    thick, longest = 0.74 if len(panel.marks) > 2 else 0.5, 0.0
    for y, mark in enumerate(panel.marks):
        left, total = 0.0, sum(mark.x[1])
        scale = 100 / total if panel.shares and total else 1.0
        for value, component in zip(mark.x[1], mark.more["component"], strict=True):
            colour = plot.components[component]
            ax.barh(y, value * scale, thick, left=left, color=colour, edgecolor="white", lw=0.4)
            left += value * scale
        longest = max(longest, left)
        text = significant(mark.value[0]) if mark.value else "n/a"
        if not panel.shares or text == "n/a":
            ax.annotate(text, (left, y), (3, 0), textcoords="offset points", va="center", fontsize=7.5)
    labels = [mark.of.label if mark.of else "" for mark in panel.marks]
    names = [textwrap.fill(label, 52, max_lines=2, placeholder=" …") for label in labels]
    ax.set_yticks(range(len(names)), names, fontsize=7.5)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_xlim(0, 100 if panel.shares else 1.22 * longest or 1.0)
    ax.grid(visible=False, axis="y")
    ax.spines["left"].set_visible(False)


def _cells(ax: Axes, panel: Panel, colour: Axis) -> QuadMesh:
    """Draw one matrix; its numbers too, where they fit."""
    (mark,) = panel.marks
    count = panel.parts or 0
    assert colour.low is not None
    norm: Normalize = (LogNorm if colour.log else Normalize)(colour.low, colour.high)
    shown = np.full((count, count), np.nan)
    for target, source, value in zip(mark.x[1], mark.y[1], mark.value, strict=True):
        shown[source, target] = value or math.nan
    edges = np.arange(count + 1) - 0.5
    image = ax.pcolormesh(
        *(edges, edges, shown),
        cmap=mpl.colormaps["cividis"].with_extremes(bad="none"),
        norm=norm,
        edgecolor="white",
        lw=0.3,
        rasterized=count > VECTOR,
    )
    ax.set_aspect("equal")
    if count <= WRITTEN:
        for target, source, value in zip(mark.x[1], mark.y[1], mark.value, strict=True):
            dark = not value or norm(value) < 0.55
            ink = "#555555" if not value else "white" if dark else "black"
            ax.text(target, source, significant(value, 2), ha="center", va="center", fontsize=7, color=ink)
    ax.grid(visible=False)
    ax.title.set_fontsize(8)
    return image


def _handle(entry: Entry) -> Artist:
    """Return what the legend shows for an entry."""
    look = entry.style
    if entry.drawn == "area":
        return Patch(facecolor=look.colour, hatch="" if look.dash == "-" else HATCHED)
    if entry.drawn == "point":
        return Line2D([], [], color=look.colour, marker=look.marker, ls="", ms=MARK)
    return Line2D([], [], color=look.colour, ls=look.dash, marker=look.marker, ms=5.5, lw=1.4)
