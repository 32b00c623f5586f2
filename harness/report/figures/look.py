"""Looks: what a figure is drawn for, a page on a screen or a paper's column in print."""

from __future__ import annotations

import contextlib
import math
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.patches import Patch, Rectangle
from matplotlib.text import Text

from harness.report.figures.marks import Drawing

COLUMN, PAGE = 3.25, 7.0  # inches: a column of two, and both
LABEL_LETTERS = 22  # of an axis' label that are an inch long in print
NARROWEST = 1.15  # inches of a panel in print; below that the figure takes the next width
HATCHES = ("", "////", "....", "\\\\\\\\", "xxxx", "----", "oo", "||||", "++++", "////....", "\\\\\\\\----")
SHARED = {
    "text.parse_math": False,  # a `$` in a name is a `$`
    "svg.hashsalt": "harness",  # equal figures are equal files
    "svg.fonttype": "path",
    "text.hinting": "none",  # laid out with the widths that letters have in SVG and PDF
}


@dataclass(frozen=True)
class Look:
    """How figures are drawn.

    `widths`: inches, of which the first is taken in which no panel is too narrow; `height`: what a height on
    a screen is times, the legend apart; `letters`: about how many of a legend are an inch wide; `hatched`:
    areas have hatches too, for print without colours; `rc`: matplotlib's parameters.
    """

    widths: tuple[float, ...]
    height: float
    letters: float
    titled: bool
    hatched: bool
    formats: tuple[str, ...]
    rc: Mapping[str, Any]


SCREEN = Look(
    widths=(10.0,),
    height=1.0,
    letters=15,
    titled=True,
    hatched=False,
    formats=("svg",),
    rc=SHARED
    | {
        "font.family": "DejaVu Sans",  # comes with matplotlib, as do the fonts below
        "font.size": 9,
        "axes.titlesize": 10,
        "axes.labelsize": 9,
        "legend.fontsize": 8.5,
    },
)
PRINT = Look(
    widths=(COLUMN, PAGE),
    height=0.5,
    letters=24,
    titled=False,
    hatched=True,
    formats=("svg", "pdf"),
    rc=SHARED
    | {
        "font.family": ["STIXGeneral", "DejaVu Serif"],  # like Times
        "font.size": 8,
        "axes.titlesize": 8,
        "axes.labelsize": 8,
        "xtick.labelsize": 7,
        "ytick.labelsize": 7,
        "legend.fontsize": 7,
        "pdf.fonttype": 42,  # TrueType: what publishers ask for
        "axes.edgecolor": "#555555",
        "axes.linewidth": 0.6,
        "grid.linewidth": 0.4,
        "hatch.linewidth": 0.5,
        "axes.titlepad": 3,
        "axes.labelpad": 2,
        "xtick.major.pad": 2,
        "ytick.major.pad": 2,
        "legend.columnspacing": 1.0,
        "legend.handlelength": 1.6,
        "legend.labelspacing": 0.3,
        "legend.borderpad": 0.2,
    },
)
_LOOK: ContextVar[Look] = ContextVar("look", default=SCREEN)


def look() -> Look:
    """Return the look that figures are drawn in here."""
    return _LOOK.get()


@contextlib.contextmanager
def looking(chosen: Look | None) -> Iterator[None]:
    """Draw in a look within this; None: in that around it."""
    token = _LOOK.set(chosen or look())
    try:
        yield
    finally:
        _LOOK.reset(token)


def fit(figure: Drawing, draw_legend: Callable[[Drawing], None]) -> None:
    """Draw the legend, and give the figure the width, the height and the hatches that the look has."""
    if len(look().widths) > 1:
        _choose_width(figure, draw_legend)
    else:
        draw_legend(figure)
    if look().hatched:
        _hatch(figure)


def _choose_width(figure: Drawing, draw_legend: Callable[[Drawing], None]) -> None:
    """Take the first width in which no panel is too narrow; long labels of axes go into lines."""
    height, labels = figure.get_figheight(), _labels(figure)
    for width in look().widths:
        for old in figure.legends:
            old.remove()
        figure.set_size_inches(width, height)
        draw_legend(figure)
        for drawn in figure.legends:
            figure.set_figheight(height + drawn.get_window_extent().height / figure.dpi)
        figure.draw_without_rendering()
        panels = [ax.get_window_extent() for ax in figure.axes if ax.get_visible()]
        if min((panel.width for panel in panels), default=math.inf) / figure.dpi > NARROWEST:
            break
    for label, text, panel, side in labels:
        room = getattr(panel.get_window_extent(), side) / figure.dpi
        label.set_text(textwrap.fill(text, max(12, int(room * LABEL_LETTERS)), break_long_words=False))
        label.set_linespacing(1.0)
    figure.draw_without_rendering()


def _labels(figure: Drawing) -> list[tuple[Text, str, Axes, str]]:
    """Return the labels of all axes: each with its text, its panel and the side that it stands along."""
    found = []
    for ax in figure.axes:
        found += [(ax.xaxis.label, ax.get_xlabel(), ax, "width"), (ax.yaxis.label, ax.get_ylabel(), ax, "height")]
    return [each for each in found if each[1]]


def _hatch(figure: Drawing) -> None:
    """Give every area that looks like one of the legend's entries that entry's hatch."""
    entries = [entry for drawn in figure.legends for entry in drawn.legend_handles if isinstance(entry, Patch)]
    bars = [bar for ax in figure.axes for bar in ax.patches if isinstance(bar, Rectangle)]
    kinds = list(dict.fromkeys(map(_kind, entries)))
    for patch in (*entries, *bars):
        if (kind := _kind(patch)) in kinds:
            red, green, blue = to_rgb(kind[0])
            dark = 0.3 * red + 0.59 * green + 0.11 * blue < 0.5
            patch.set_hatch(HATCHES[kinds.index(kind) % len(HATCHES)])
            patch.set_hatchcolor("white" if dark else "black")
            patch.set_edgecolor("black")
            patch.set_linewidth(0.4)


def _kind(patch: Patch) -> tuple[str, str]:
    return to_hex(patch.get_facecolor()), patch.get_hatch() or ""
