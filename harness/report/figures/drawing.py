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

from harness.report.figures.look import Look, fit, look, looking
from harness.report.figures.marks import Drawing, Series, mark, mark_panel, with_attributes
from harness.report.palette import Dash, Style
from harness.report.trials.sections import Section

LONGEST = 72  # characters of a name in a legend
MARKERS = 12  # of a line of many points; at most twice as many
HANDLE = 6  # characters that an entry is longer than its name


@dataclass(frozen=True)
class Picture:
    """A drawn figure: `alt` is its text for those who cannot see it, `data` the numbers that it shows.

    `pdf` is empty where the look has none. `data` has a row a drawn point or bar, with `series`,
    `method`, `parts` and what `mark` was given. In `svg` the elements of marked artists have the class
    `mark` and the attributes `data-series`, `data-method` and `data-parts` (the last two empty where they are
    of any).
    """

    name: str
    title: str
    caption: str
    alt: str
    data: pd.DataFrame
    svg: bytes
    pdf: bytes = b""


@contextlib.contextmanager
def style(chosen: Look | None = None) -> Iterator[None]:
    """Draw and save within this: seaborn's style in a look (default: that around it), restored afterwards."""
    with looking(chosen), mpl.rc_context(dict[Any, Any]({**sns.axes_style("whitegrid"), **look().rc})):
        yield


def short(name: str, width: int = LONGEST) -> str:
    """Return a name that fits a legend."""
    name = " ".join(name.split())
    return name if len(name) <= width else name[: width - 1] + "…"


def new_figure(height: float, section: Section, what: str) -> Drawing:
    """Return a figure `height` inches high on a screen, titled with what it shows and of which data.

    A look may do without the title, and has a height of its own.
    """
    layout = ConstrainedLayoutEngine(wspace=0.05, hspace=0.04)  # neighbours' tick labels stay apart
    figure = Drawing(figsize=(look().widths[0], height * look().height), layout=layout)
    FigureCanvasAgg(figure)
    if look().titled:
        title = textwrap.wrap(f"{what}: {section.title}", 110)
        figure.suptitle("\n".join(title), fontsize=10.5, fontweight="bold")
    return figure


def save(figure: Drawing, section: Section, kind: str, title: str, caption: str) -> Picture:
    """Return the figure in the formats of the look; equal figures give equal bytes."""
    fit(figure, _draw_legend)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # is laid out now, not again for each format
    made = {name: _written(figure, name) for name in look().formats}
    return Picture(
        name=f"{section.anchor}-{kind}",
        title=title,
        caption=caption,
        alt=f"{title}, {section.title}; the numbers are in the tables of this section and in the CSV files",
        data=figure.data(),
        **made | {"svg": with_attributes(made["svg"])},
    )


def _written(figure: Figure, name: str) -> bytes:
    dates = {"svg": ("Date", "Creator"), "pdf": ("CreationDate", "Creator", "Producer")}
    written = io.BytesIO()
    figure.savefig(written, format=name, metadata=dict.fromkeys(dates.get(name, ())))
    return written.getvalue()


def _columns(labels: Sequence[str], width: float) -> int:
    """Return how many columns of a legend fit `width` inches, its rows filled evenly."""
    lengths = [len(short(label)) + HANDLE for label in labels]
    for most in range(len(labels), 1, -1):
        rows = -(-len(labels) // most)
        starts = range(0, len(labels), rows)
        if sum(max(lengths[i : i + rows]) for i in starts) <= width * look().letters:
            return len(starts)
    return 1


def legend_rows(section: Section) -> int:
    """Return how many lines a legend of the section's variants has."""
    return -(-len(section.variants) // _columns([v.label for v in section.variants], look().widths[0]))


def legend(figure: Drawing, handles: Sequence[Artist], labels: Sequence[str], series: Sequence[Series] = ()) -> None:
    """Put a legend below everything, in as many columns as its labels allow; entry i is of `series[i]`."""
    figure.entries = handles, labels, series


def _draw_legend(figure: Drawing) -> None:
    if not figure.entries:
        return
    handles, labels, series = figure.entries
    width = figure.get_figwidth()
    named = [short(label, min(LONGEST, int(width * look().letters) - HANDLE)) for label in labels]
    for most in range(_columns(named, width), 0, -1):
        columns = -(-len(named) // -(-len(named) // most))
        drawn = figure.legend(handles, named, loc="outside lower center", ncols=columns, frameon=False)
        if columns == 1 or drawn.get_window_extent().width <= width * figure.dpi:
            break
        drawn.remove()
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
    """Draw points joined by a line, in another `dash` if one is given; of many points some have markers.

    `x` and `y`: what they are called in the figure's data, unit included, and their values; `more`: further
    columns of the data.
    """
    drawn = ax.plot(
        list(x[1]),
        list(y[1]),
        color=style.colour,
        linestyle=dash or style.dash,
        marker=style.marker,
        markevery=max(1, len(y[1]) // MARKERS),
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
