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

from harness.report.drawing import begin, current_style, finish, legend, plot_line, set_ticks
from harness.report.palette import Style
from harness.report.plot import WRITTEN, Axis, Entry, Mark, Panel, Picture, Plot, places_of
from harness.results.text import significant

MARK = 6.5  # size of a point
HATCHED = "////"  # bars of a style whose lines are dashed
SQUARE = 0.8  # a matrix' height in print, of that on a screen: it does not get flatter
VECTOR = 32  # ranks, beyond which a matrix is one image in place of a square a pair
GREY = "#666666"


def draw_plot(plot: Plot) -> Picture:
    """Return a figure drawn in the formats of the style of here; equal figures give equal bytes."""
    scale = max(1.0, SQUARE / current_style().height) if plot.colour else 1.0
    figure = begin(plot.height * scale, f"{plot.title}: {plot.subject}", [entry.label for entry in plot.entries])
    across = max(map(len, plot.rows))
    axes = figure.subplots(len(plot.rows), across, sharex=plot.share[0], sharey=plot.share[1], squeeze=False)
    image = None
    for own, row in zip(axes, plot.rows, strict=True):
        for ax, panel in zip(own, row, strict=False):
            image = _draw(ax, panel, plot) or image
            _axis(ax.xaxis, panel.x, [x for mark in panel.marks for x in mark.x[1]], across)
            _axis(ax.yaxis, panel.y, [y for mark in panel.marks for y in mark.y[1]], across)
            ax.set_title(_heading(panel))
        for ax in own[len(row) :]:
            ax.set_visible(False)
        _outer(own[: len(row)], row, plot)
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


def _outer(own: Sequence[Axes], row: Sequence[Panel], plot: Plot) -> None:
    """Leave out the labels of vertical axes that say what the first one's does."""
    for ax, panel in zip(own[1:], row[1:], strict=True):
        if panel.y.label == row[0].y.label:
            ax.set_ylabel("")
        if plot.share[1] == "none" and panel.kind == "stack":
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


def _axis(drawn: Drawn, axis: Axis, values: Sequence[float], across: int) -> None:
    """Label an axis of values and set its scale, ends and ticks; `across`: panels beside one another."""
    horizontal = drawn.axis_name == "x"
    ax, name = drawn.axes, drawn.axis_name
    drawn.set_label_text(axis.title)
    if axis.log:
        getattr(ax, f"set_{name}scale")("log", base=axis.base)
        set_ticks(drawn, LogLocator(subs=(1.0, 3.0), numticks=7) if horizontal and across > 1 else None)
    if axis.ticks:
        set_ticks(drawn, FixedLocator(list(axis.ticks)), lambda value: axis.ticks.get(value, ""))
    elif not axis.log and (axis.whole or (horizontal and across > 1)):
        drawn.set_major_locator(MaxNLocator(5, integer=axis.whole))
    low, high = axis.low, axis.high
    if axis.zero and min(values, default=0.0) >= 0:
        low = 0.0
        high = high or 1.02 * getattr(ax, f"get_{name}lim")()[1]  # room for a marker at the top
    getattr(ax, f"set_{name}lim")(low, high)


def _mark(ax: Axes, mark: Mark) -> None:
    look, x, y = mark.look, list(mark.x[1]), list(mark.y[1])
    plain: dict[str, Any] = {"color": look.colour, "linestyle": look.dash, "lw": 1, "zorder": 1}
    if mark.kind == "across":
        for each in y:
            ax.axhline(each, **plain)
    elif mark.kind == "up":
        for each in x:
            ax.axvline(each, **plain)
    elif mark.kind == "front":
        ax.plot(x, y, drawstyle="steps-post", **plain)
    elif mark.kind == "bins":
        hatch = "" if look.dash == "-" else HATCHED
        ax.bar(x[:-1], y, np.diff(x), align="edge", color=look.colour, hatch=hatch, ec="white", lw=0.3)
    elif mark.kind == "points":
        face = "white" if mark.hollow else look.colour
        ax.plot(x, y, ls="", color=look.colour, marker=look.marker, ms=MARK, mfc=face, zorder=3)
        _whiskers(ax, mark, look.colour)
    elif mark.kind in ("line", "steps"):
        steps = {"drawstyle": "steps-post"} if mark.kind == "steps" else {}
        if mark.bare:
            ax.plot(x, y, **plain | ({} if mark.of is None else {"lw": 1.3}))
        elif x:
            for line in plot_line(ax, x, y, look, markers=8 if mark.band else 12, size=4.5 if mark.band else 5.5):
                line.set(**steps)
        if mark.band:
            ax.fill_between(x, list(mark.low), list(mark.high), color=look.colour, alpha=0.12, lw=0)
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
