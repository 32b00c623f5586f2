"""Figures as files: seaborn draws them for a screen or for print."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis as DrawnAxis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LogNorm, Normalize, to_hex, to_rgb
from matplotlib.figure import Figure as Canvas
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from harness.report.figure import SOFT, WRITTEN, Axis, Chart, Figure, Layer, Picture
from harness.report.palette import Style
from harness.results.stats import significant

COLUMN, PAGE = 3.25, 7.0  # inches: a column of two, and both
NARROWEST = 1.15  # inches of a panel in print; below that the figure takes the next width
LABEL_LETTERS = 22  # letters of an axis' label in an inch of print
LONGEST = 72  # letters of a name in a legend
HANDLE = 6  # letters that an entry of a legend is longer than its name
MARKERS = 12  # of a line with many points; at most twice as many
MARK = 6.5  # points, size of a marker
SQUARE = 0.8  # height of a heat map in print relative to a screen: it does not get flatter
VECTOR = 32  # ranks, beyond which a heat map is one image in place of a square a pair
MANY = 3  # panels side by side, beyond which there is room for few ticks
HATCHES = ("", "////", "....", "\\\\\\\\", "xxxx", "----", "oo", "||||", "++++", "////....", "\\\\\\\\----")
HATCHED = "////"  # of areas whose style has a dash
GREY = "#666666"
SHARED = {
    **sns.axes_style("whitegrid"),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right"), False),
    **dict.fromkeys(("axes.labelcolor", "text.color", "xtick.color", "ytick.color"), ".15"),
    "lines.solid_capstyle": "round",
    "text.parse_math": False,  # a `$` in a name is a `$`
    "svg.hashsalt": "harness",  # equal figures are equal files
    "svg.fonttype": "path",
    "text.hinting": "none",  # laid out with the widths that letters have in SVG and PDF
}


@dataclass(frozen=True)
class DrawingStyle:
    """A look of figures; `rc`: parameters of matplotlib.

    `widths`: inches, of which the first is taken in which no panel is too narrow; `height`: factor of a screen's, the
    legend apart; `letters`: of a legend in an inch; `titled`: the title is part of the figure; `hatched`: areas have
    hatches too, for print without colours; `formats`: of the files.
    """

    rc: Mapping[str, Any]
    widths: tuple[float, ...] = (10.0,)
    height: float = 1.0
    letters: float = 15
    titled: bool = True
    hatched: bool = False
    formats: tuple[str, ...] = ("svg",)


SCREEN = DrawingStyle(
    {
        **SHARED,
        **dict.fromkeys(("font.size", "axes.labelsize", "xtick.labelsize", "ytick.labelsize"), 9),
        "font.family": "DejaVu Sans",  # matplotlib's own
        "axes.titlesize": 10,
        "legend.fontsize": 8.5,
    }
)
PRINT = DrawingStyle(
    {
        **SHARED,
        **dict.fromkeys(("font.size", "axes.titlesize", "axes.labelsize"), 8),
        **dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), 7),
        **dict.fromkeys(("axes.labelpad", "xtick.major.pad", "ytick.major.pad"), 2),
        **{"axes.linewidth": 0.6, "grid.linewidth": 0.4, "hatch.linewidth": 0.5, "axes.titlepad": 3},
        **{
            "legend.columnspacing": 1.0,
            "legend.handlelength": 1.6,
            "legend.labelspacing": 0.3,
            "legend.borderpad": 0.2,
        },
        "font.family": ["STIXGeneral", "DejaVu Serif"],  # like Times; both come with matplotlib
        "pdf.fonttype": 42,  # TrueType: what publishers ask for
        "axes.edgecolor": "#555555",
    },
    widths=(COLUMN, PAGE),
    height=0.5,
    letters=24,
    titled=False,
    hatched=True,
    formats=("svg", "pdf"),
)
STYLES = {"svg": SCREEN, "pdf-figures": PRINT}  # by format of a report


def draw(figure: Figure | Picture, style: DrawingStyle = SCREEN) -> dict[str, bytes]:
    """Return a figure's files by format; equal figures give equal bytes."""
    with mpl.rc_context(dict[Any, Any](style.rc)):
        if isinstance(figure, Picture):
            drawn = figure.draw()
            plt.close(drawn)  # pyplot keeps every figure that it has made
            return _files(drawn, style)
        canvas = _panels(figure, style)
        _lay_out(canvas, figure, style)
        if style.hatched:
            _hatch(canvas)
        return _files(canvas, style)


def _files(canvas: Canvas, style: DrawingStyle) -> dict[str, bytes]:
    # Dates and makers are not written.
    unwritten = {"svg": ("Date", "Creator"), "pdf": ("CreationDate", "Creator", "Producer")}
    made = {}
    for name in style.formats:
        written = io.BytesIO()
        canvas.savefig(written, format=name, metadata=dict.fromkeys(unwritten[name]))
        made[name] = written.getvalue()
    return made


def _panels(figure: Figure, style: DrawingStyle) -> Canvas:
    """Draw all but the legend."""
    rows = figure.grid()
    across = max(map(len, rows))
    scale = max(1.0, SQUARE / style.height) if figure.colour else 1.0
    layout = ConstrainedLayoutEngine(wspace=0.05, hspace=0.04)  # neighbours' tick labels stay apart
    canvas = Canvas(figsize=(style.widths[0], figure.height * scale * style.height), layout=layout)
    FigureCanvasAgg(canvas)
    if style.titled:
        title = textwrap.fill(f"{figure.title}: {figure.subject}", 110)
        canvas.suptitle(title, fontsize=10.5, fontweight="bold")
    axes = canvas.subplots(len(rows), across, sharex=figure.share[0], sharey=figure.share[1], squeeze=False)
    shown = {
        ax: panel for own, row in zip(axes, rows, strict=True) for ax, panel in zip(own, row, strict=False) if panel
    }
    for ax, panel in shown.items():
        _panel(ax, panel, figure)
    for ax, panel in shown.items():  # what is shared depends on what all panels show
        _axis(ax.xaxis, panel.x, panel, across)
        _axis(ax.yaxis, panel.y, panel, across)
        name, _, parts = panel.title.partition("\n")
        ax.set_title(f"{textwrap.fill(name, 24, max_lines=2, placeholder=' …')}\n{parts}" if parts else name)
    _tidy_up(axes, shown, figure)
    if figure.colour:
        image = mpl.cm.ScalarMappable(_norm(figure.colour), "cividis")
        bar = canvas.colorbar(image, ax=axes, label=figure.colour.title, location="bottom", aspect=50)
        bar.ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        bar.ax.xaxis.set_minor_formatter(NullFormatter())
    return canvas


def _tidy_up(axes: np.ndarray[Any, Any], shown: Mapping[Axes, Chart], figure: Figure) -> None:
    """Leave out labels that repeat those of a neighbour, and places without a panel."""
    for ax in set(axes.flat) - shown.keys():
        ax.set_visible(False)
    for own in axes:
        first, *others = [ax for ax in own if ax in shown]
        first.tick_params(labelleft=True)
        for ax in others:
            if shown[ax].y.label == shown[first].y.label:
                ax.set_ylabel("")
            if shown[ax].layers[0].kind == "stack":
                ax.set_yticklabels([])
    if figure.share[0] == "all":
        for ax in axes[:-1].flat:
            ax.set_xlabel("")


def _panel(ax: Axes, panel: Chart, figure: Figure) -> None:
    for layer in panel.layers:
        if len(layer.data):
            DRAWERS[layer.kind](ax, panel, layer, figure)
    for guide in panel.guides:
        look = Style(SOFT, "", guide.dash)
        if guide.x and guide.y:
            ax.plot(guide.x, guide.y, color=look.colour, ls=look.dash, lw=1, zorder=1)
        else:
            _straight(ax, guide.y, guide.x, look)


def _straight(ax: Axes, across: Sequence[float], up: Sequence[float], look: Style) -> None:
    """Draw lines through the panel at each y (`across`) and each x (`up`)."""
    for draw_at, places in ((ax.axhline, across), (ax.axvline, up)):
        for at in places:
            draw_at(at, color=look.colour, ls=look.dash, lw=1, zorder=1)


def _levels(ax: Axes, panel: Chart, layer: Layer, figure: Figure) -> None:
    for series, own in layer.data.groupby("series"):
        look, across = figure.look(layer, str(series)), layer.kind == "across"
        places = own[panel.y.column if across else panel.x.column].tolist()
        _straight(ax, places if across else (), () if across else places, look)


def _histogram(ax: Axes, panel: Chart, layer: Layer, figure: Figure) -> None:
    (series,) = layer.data["series"].unique()
    look = figure.look(layer, series)
    sns.histplot(layer.data, x=panel.x.column, bins=20, color=look.colour, alpha=1, ec="white", lw=0.3, ax=ax)
    _hatch_second(ax.patches, look)


def _lines(ax: Axes, panel: Chart, layer: Layer, figure: Figure) -> None:
    """Draw lines; where a column decides on the dash, those of one dash after those of another."""
    if not panel.dash:
        _lines_alike(ax, panel, layer, figure, layer.dash)
        return
    for value, dash in panel.dashes().items():
        own = replace(layer, data=layer.data[layer.data[panel.dash] == value])
        if len(own.data):
            _lines_alike(ax, panel, own, figure, dash)


def _lines_alike(ax: Axes, panel: Chart, layer: Layer, figure: Figure, dash: Any) -> None:
    x, y, data = panel.x.column, panel.y.column, layer.data
    looks = {name: figure.look(layer, name) for name in data["series"].unique()}
    dashes = {name: "" if (dash or look.dash) == "-" else (dash or look.dash)[1] for name, look in looks.items()}
    bare = layer.kind == "path"
    longest = int(data.groupby("series").size().max())
    sns.lineplot(
        data, x=x, y=y, hue="series", style="series", palette={name: look.colour for name, look in looks.items()},
        dashes=dashes, markers=False if bare else {name: look.marker for name, look in looks.items()},
        estimator=None, errorbar=None, sort=False, legend=False, ax=ax, lw=1 if bare else 1.4, ms=5,
        mew=0.75, markevery=max(1, longest // MARKERS), drawstyle="steps-post" if layer.kind == "steps" else "default",
    )  # fmt: skip
    if layer.interval:
        low, high = layer.ends(y)
        for series, own in data.groupby("series"):
            colour, at = looks[str(series)].colour, own.index
            if layer.band:
                ax.fill_between(own[x], low[at], high[at], color=colour, alpha=0.12, lw=0)
            else:
                _whiskers(ax, own[x], own[y], low[at], high[at], colour)


def _points(ax: Axes, panel: Chart, layer: Layer, figure: Figure) -> None:
    x, y, data = panel.x.column, panel.y.column, layer.data
    looks = {name: figure.look(layer, name) for name in data["series"].unique()}
    markers = {name: look.marker for name, look in looks.items()}
    palette = {name: look.colour for name, look in looks.items()}
    same: dict[str, Any] = {"x": x, "y": y, "style": "series", "markers": markers, "legend": False, "ax": ax}
    sns.scatterplot(data, hue="series", palette=palette, s=MARK**2, lw=0.4, zorder=3, **same)
    if "front" in data:
        hollow, best = data[~data["front"]], data[data["front"]].sort_values([x, y])
        if len(hollow):
            sns.scatterplot(hollow, color="white", s=MARK**2 / 3, lw=0, zorder=4, **same)
        ax.plot(best[x], best[y], drawstyle="steps-post", color=SOFT, ls=(0, (4, 2)), lw=1, zorder=1)
    if layer.interval:
        low, high = layer.ends(y)
        for series, own in data.groupby("series"):
            at = own.index
            _whiskers(ax, own[x], own[y], low[at], high[at], palette[str(series)])


def _whiskers(ax: Axes, x: Any, y: Any, low: pd.Series[float], high: pd.Series[float], colour: str) -> None:
    """Draw intervals, where there are any."""
    ends = np.array([y - low, high - y], dtype=float)
    known = (ends > 0).any(axis=0)
    ax.errorbar(x[known], y[known], np.clip(ends[:, known], 0, None), color=colour, ls="", capsize=2.5, lw=1, zorder=2)


def _bars(ax: Axes, panel: Chart, layer: Layer, figure: Figure) -> None:
    x, y, data = panel.x.column, panel.y.column, layer.data
    names, groups = [name for name in figure.looks if name in set(data["series"])], sorted(data[x].unique())
    looks = {name: figure.look(layer, name) for name in names}
    values = data.astype({x: str, y: float})
    if layer.interval:  # seaborn draws the range of two rows a bar, whose mean is the bar's
        values = pd.concat([values.assign(**{y: ends.fillna(values[y])}) for ends in layer.ends(y)], ignore_index=True)
    sns.barplot(
        values, x=x, y=y, hue="series", hue_order=names, order=[str(group) for group in groups], legend=False, ax=ax,
        palette={name: look.colour for name, look in looks.items()}, saturation=1, ec="white", lw=0.3,
        errorbar=("pi", 100) if layer.interval else None, err_kws={"color": GREY, "lw": 1},
    )  # fmt: skip
    for container, name in zip(ax.containers, names, strict=False):
        _hatch_second(container, looks[name])
    for row in data[data[y].isna()].itertuples():
        at = groups.index(getattr(row, x)) - 0.4 + 0.8 * (names.index(str(row.series)) + 0.5) / len(names)
        ax.annotate(
            "n/a", (at, 0), (0, 3), textcoords="offset points", rotation=90, ha="center", va="bottom", fontsize=7,
            color=GREY,
        )  # fmt: skip
    every = -(-len(groups) // 16)
    labels = [f"P = {group}" if x == "parts" else str(group) for group in groups]
    ax.set_xticks(range(0, len(groups), every), labels[::every])
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))


def _hatch_second(patches: Any, look: Style) -> None:
    for patch in patches if look.dash != "-" else ():
        patch.set_hatch(HATCHED)


def _stacks(ax: Axes, panel: Chart, layer: Layer, figure: Figure) -> None:
    x, data = panel.x.column, layer.data.assign(drawn=layer.data[panel.x.column].fillna(0.0))
    totals = data.groupby("series", sort=False)["drawn"].sum()
    if panel.shares:
        data["drawn"] *= 100 / data["series"].map(totals).replace(0, math.nan)
    there = set(data["component"].dropna())
    names = [name for name in figure.looks if name in there]
    sns.histplot(
        data, y="series", weights="drawn", hue="component", hue_order=names[::-1], multiple="stack", discrete=True,
        palette={name: figure.looks[name].colour for name in names}, shrink=0.74 if len(totals) > 2 else 0.5, alpha=1,
        legend=False, ec="white", lw=0.4, ax=ax,
    )  # fmt: skip
    for place, (series, total) in enumerate(totals.items()):
        known = data.loc[data["series"] == series, x].notna().any()
        if not known or not panel.shares:
            text, at = significant(total) if known else "n/a", 0.0 if panel.shares else total
            ax.annotate(text, (at, place), (3, 0), textcoords="offset points", va="center", fontsize=7.5)
    labels = [textwrap.fill(str(name), 52, max_lines=2, placeholder=" …") for name in totals.index]
    ax.set_yticks(range(len(labels)), labels, fontsize=7.5)
    ax.set_ylim(len(labels) - 0.5, -0.5)
    ax.set_xlim(0, 100 if panel.shares else 1.22 * totals.max() or 1.0)
    ax.grid(visible=False, axis="y")
    ax.spines["left"].set_visible(False)


def _cells(ax: Axes, panel: Chart, layer: Layer, figure: Figure) -> None:
    """Draw one heat map; its numbers too, where they fit."""
    assert figure.colour
    shown = layer.data.pivot_table(figure.colour.column, panel.y.column, panel.x.column, sort=True)
    count, norm = len(shown), _norm(figure.colour)
    # Not seaborn's heatmap: it draws all panels anew for each of them.
    ax.pcolormesh(
        shown.mask(shown == 0), cmap=mpl.colormaps["cividis"].with_extremes(bad="none"), norm=norm, edgecolor="white",
        lw=0.3, rasterized=count > VECTOR,
    )  # fmt: skip
    columns = layer.data[[panel.x.column, panel.y.column, figure.colour.column]]
    for target, source, value in columns.itertuples(index=False) if count <= WRITTEN else ():
        ink = "#555555" if not value else "white" if norm(value) < 0.55 else "black"
        text = significant(value, 2)
        ax.text(target + 0.5, source + 0.5, text, ha="center", va="center", fontsize=7, color=ink)
    ax.set(aspect="equal", ylim=(count, 0))
    ax.grid(visible=False)
    every = max(1, math.ceil(count / WRITTEN))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_ticks(np.arange(0, count, every) + 0.5, [str(rank) for rank in range(0, count, every)])
    ax.title.set_fontsize(8)


DRAWERS: dict[str, Callable[[Axes, Chart, Layer, Figure], None]] = {
    "line": _lines, "steps": _lines, "path": _lines, "points": _points, "across": _levels, "up": _levels,
    "bar": _bars, "hist": _histogram, "stack": _stacks, "cells": _cells,
}  # fmt: skip


def _norm(colour: Axis) -> Normalize:
    return (LogNorm if colour.log else Normalize)(colour.low, colour.high)


def _axis(drawn: DrawnAxis, axis: Axis, panel: Chart, across: int) -> None:
    """Label a panel's axis and set its scale, ends and ticks; `across`: panels side by side."""
    ax, name, kind = drawn.axes, "x" if drawn is drawn.axes.xaxis else "y", panel.layers[0].kind
    drawn.set_label_text(axis.title)
    if kind == "cells" or (kind, name) in (("stack", "x"), ("stack", "y"), ("bar", "x")):
        return
    if axis.log:
        getattr(ax, f"set_{name}scale")("log", base=axis.base)
        few = name == "x" and across > MANY
        drawn.set_major_locator(LogLocator(subs=(1.0, 3.0), numticks=7) if few else LogLocator(subs=(1.0, 2.0, 5.0)))
    if axis.ticks:
        drawn.set_major_locator(FixedLocator(list(axis.ticks)))
    if axis.log or axis.ticks:
        drawn.set_minor_locator(NullLocator())
        drawn.set_major_formatter(FuncFormatter(lambda at, _: axis.ticks.get(at, "") if axis.ticks else f"{at:,g}"))
    elif axis.whole or (name == "x" and across > 1):
        drawn.set_major_locator(MaxNLocator(5, integer=axis.whole))
    low, high = axis.low, axis.high
    values = [
        value for layer in panel.layers if axis.column in layer.data for value in layer.data[axis.column].dropna()
    ]
    if axis.zero and min(values, default=0.0) >= 0:
        low = 0.0
        high = high or 1.02 * getattr(ax, f"get_{name}lim")()[1]  # room for a marker at the top
    if low is not None or high is not None:
        getattr(ax, f"set_{name}lim")(low, high)


def _lay_out(canvas: Canvas, figure: Figure, style: DrawingStyle) -> None:
    """Draw the legend in the first width in which no panel is too narrow; long labels of axes go into lines."""
    height, engine = canvas.get_figheight(), canvas.get_layout_engine()
    assert engine
    for width in style.widths:
        for old in canvas.legends:
            old.remove()
        canvas.set_size_inches(width, height)
        _legend(canvas, figure, width * style.letters)
        for drawn in canvas.legends:
            canvas.set_figheight(height + drawn.get_window_extent().height / canvas.dpi)
        engine.execute(canvas)
        panels = [ax.get_window_extent().width for ax in canvas.axes if ax.get_visible()]
        if min(panels, default=math.inf) / canvas.dpi > NARROWEST:
            break
    if len(style.widths) > 1:
        for ax in canvas.axes:
            box = ax.get_window_extent()
            for axis, side in ((ax.xaxis, box.width), (ax.yaxis, box.height)):
                room = max(12, int(side / canvas.dpi * LABEL_LETTERS))
                axis.set_label_text(textwrap.fill(axis.label.get_text(), room, break_long_words=False), linespacing=1.0)
        engine.execute(canvas)
    canvas.set_layout_engine(None)  # not again for each format


def _legend(canvas: Canvas, figure: Figure, letters: float) -> None:
    """Put the legend below everything, in as many columns as its names allow, rows filled evenly."""
    kinds = {layer.kind for layer in figure.layers}
    area, points = bool(kinds & {"bar", "hist", "stack"}), not kinds & {"line", "steps"}
    handles: dict[str, Artist] = {}
    for name, look in figure.looks.items():
        if area:
            handles[name] = Patch(facecolor=look.colour, hatch="" if look.dash == "-" else HATCHED)
        else:
            dash = "" if points else "-" if any(chart.dash for chart in figure.charts) else look.dash
            handles[name] = Line2D([], [], color=look.colour, marker=look.marker, ls=dash, ms=5.5, lw=1.4)
    handles |= {name: Line2D([], [], color=own.colour, ls=own.dash, lw=1.4) for name, own in figure.keys.items()}
    if not handles:
        return
    longest = min(LONGEST, int(letters) - HANDLE)
    names = [textwrap.shorten(name, longest, placeholder="…") if len(name) > longest else name for name in handles]
    most = max(1, int(letters / (max(map(len, names)) + HANDLE)))
    columns = -(-len(names) // -(-len(names) // most))
    canvas.legend(list(handles.values()), names, loc="outside lower center", ncols=columns, frameon=False)


def _hatch(canvas: Canvas) -> None:
    """Give every area that looks like an entry of the legend that entry's hatch."""
    entries = [entry for drawn in canvas.legends for entry in drawn.legend_handles if isinstance(entry, Patch)]
    bars = [bar for ax in canvas.axes for bar in ax.patches if isinstance(bar, Rectangle)]

    def kind(patch: Patch) -> tuple[str, str]:
        return to_hex(patch.get_facecolor()), patch.get_hatch() or ""

    kinds = list(dict.fromkeys(map(kind, entries)))
    for patch in (*entries, *bars):
        if (own := kind(patch)) in kinds:
            red, green, blue = to_rgb(own[0])
            dark = 0.3 * red + 0.59 * green + 0.11 * blue < 0.5
            patch.set_hatch(HATCHES[kinds.index(own) % len(HATCHES)])
            patch.set_hatchcolor("white" if dark else "black")
            patch.set_edgecolor("black")
            patch.set_linewidth(0.4)
