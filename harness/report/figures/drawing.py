"""What all figures share: seaborn's style without global state, size, title, legend, files."""

from __future__ import annotations

import contextlib
import io
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from harness.report.figures.marks import Drawing, Series, mark, mark_panel, with_attributes
from harness.report.palette import Dash, Style
from harness.report.trials.sections import Section

WIDTH = 10.0  # inches; the page shows figures at this width
_RC = {
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "legend.fontsize": 8.5,
    "text.parse_math": False,  # a `$` in a name is a `$`
    "svg.hashsalt": "harness",  # equal figures are equal files
    "svg.fonttype": "path",
}


@dataclass(frozen=True)
class Picture:
    """A drawn figure: `alt` is its text for those who cannot see it, `data` the numbers that it shows.

    `data` has a row a drawn point or bar, with `series`, `method`, `parts` and what `mark` was given. In
    `svg` the elements of marked artists have the class `mark` and the attributes `data-series`,
    `data-method` and `data-parts` (the last two empty where they are of any).
    """

    name: str
    title: str
    caption: str
    alt: str
    svg: bytes
    png: bytes
    data: pd.DataFrame


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Draw and save within this: seaborn's style, restored afterwards."""
    with mpl.rc_context(dict[Any, Any]({**sns.axes_style("whitegrid"), **_RC})):
        yield


def short(name: str, width: int = 72) -> str:
    """Return a name that fits a legend."""
    name = " ".join(name.split())
    return name if len(name) <= width else name[: width - 1] + "…"


def new_figure(height: float, section: Section, what: str) -> Drawing:
    """Return a figure `height` inches high, titled with what it shows and of which data."""
    layout = ConstrainedLayoutEngine(wspace=0.05, hspace=0.04)  # neighbours' tick labels stay apart
    figure = Drawing(figsize=(WIDTH, height), layout=layout)
    FigureCanvasAgg(figure)
    figure.suptitle(
        "\n".join(textwrap.wrap(f"{what}: {section.title}", 110)), fontsize=10.5, fontweight="bold"
    )
    return figure


def save(figure: Drawing, section: Section, kind: str, title: str, caption: str) -> Picture:
    """Return the figure as SVG and PNG; equal figures give equal bytes."""
    svg, png = io.BytesIO(), io.BytesIO()
    figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    figure.savefig(png, format="png", dpi=150)
    return Picture(
        name=f"{section.anchor}-{kind}",
        title=title,
        caption=caption,
        alt=f"{title}, {section.title}; the numbers are in the tables of this section and in the CSV files",
        svg=with_attributes(svg.getvalue()),
        png=png.getvalue(),
        data=figure.data(),
    )


def _columns(labels: list[str]) -> int:
    """Return how many columns of a legend fit the width, its rows filled evenly."""
    fitting = max(1, min(len(labels), 150 // (max(len(short(label)) for label in labels) + 6)))
    return -(-len(labels) // -(-len(labels) // fitting))


def legend_rows(section: Section) -> int:
    """Return how many lines a legend of the section's variants has."""
    return -(-len(section.variants) // _columns([v.label for v in section.variants]))


def legend(
    figure: Figure, handles: Sequence[Artist], labels: list[str], series: Sequence[Series] = ()
) -> None:
    """Put a legend below everything, in as many columns as its labels allow; entry i is of `series[i]`."""
    named = [short(label) for label in labels]
    drawn = figure.legend(handles, named, loc="outside lower center", ncols=_columns(labels), frameon=False)
    for entry, text, own in zip(drawn.legend_handles, drawn.get_texts(), series, strict=False):
        mark([entry, text], own)


def panel(ax: Axes, parts: int, title: str = "") -> None:
    """Say that a panel is of `parts`, in its title too, which is `P = parts` unless another is given."""
    ax.set_title(title or f"P = {parts}")
    mark_panel(ax, parts)


def draw_line(
    ax: Axes,
    of: Series,
    parts: int | None,
    x: tuple[str, Sequence[float]],
    y: tuple[str, Sequence[float]],
    *,
    style: Style,
    dash: Dash | None = None,
    more: Mapping[str, Any] | None = None,
) -> None:
    """Draw points joined by a line, in another `dash` if one is given.

    `x` and `y`: what they are called in the figure's data, unit included, and their values; `more`: further
    columns of the data.
    """
    drawn = ax.plot(
        list(x[1]),
        list(y[1]),
        color=style.colour,
        linestyle=dash or style.dash,
        marker=style.marker,
        markersize=5.5,
        markeredgecolor="white",
        markeredgewidth=0.75,
        lw=1.4,
    )
    mark(drawn, of, parts, {x[0]: list(x[1]), y[0]: list(y[1]), **(more or {})})
    sns.despine(ax=ax)


def line_handle(style: Style, dash: Dash | None = None) -> Line2D:
    """Return what the legend shows for a line."""
    dash = dash or style.dash
    return Line2D([], [], color=style.colour, linestyle=dash, marker=style.marker, markersize=5.5, lw=1.4)
