"""Drawing: styles of a screen and of print, axes, legends, and what every drawn mark stands for."""

from __future__ import annotations

import contextlib
import html
import io
import json
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote, unquote

import matplotlib as mpl
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.container import Container
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter, Locator, LogLocator, NullLocator

from harness.report.palette import Dash, Style
from harness.report.plot import Picture, Series
from harness.report.sections import Section

_PREFIX = "mark:"
_MARKED = re.compile(rb' id="mark:([^"]*)"')


class Drawing(Figure):
    """A figure that knows what numbers its marks show, and what its legend has: handles, labels, series."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.columns = dict.fromkeys(("series", "method", "parts"))  # that `shown` may have, as they came
        self.shown: list[dict[str, Any]] = []
        self.entries: tuple[Sequence[Artist], Sequence[str], Sequence[Series]] | None = None

    def data(self) -> pd.DataFrame:
        """Return a row a mark: series, method, parts, and what it shows."""
        columns = {name: [row.get(name, math.nan) for row in self.shown] for name in self.columns}
        return pd.DataFrame({name: pd.Series(own, dtype=object).infer_objects() for name, own in columns.items()})


def mark(
    artists: Artist | Iterable[Any], of: Series, parts: int | None = None, values: Mapping[str, Any] | None = None
) -> None:
    """Say what artists (containers of some included) stand for.

    `values`: columns of the figure's data by name, unit included; numbers, text, or sequences of one length;
    None for what shows no number of its own.
    """
    tag = _tag(of.label, of.method, parts)
    flat = list(_flat(artists))
    for artist in flat:
        artist.set_gid(tag)
    if values:
        lists = {key: list(value) for key, value in values.items() if isinstance(value, list | tuple | pd.Series)}
        figure = flat[0].get_figure(root=True)
        assert isinstance(figure, Drawing)
        who = {"series": of.label, "method": of.method, "parts": parts}
        rows = [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)] if lists else [{}]
        figure.columns |= dict.fromkeys(values)
        figure.shown += [{**who, **values, **row} for row in rows]


def mark_panel(ax: Axes, parts: int) -> None:
    """Say that all of a panel is of one number of parts."""
    ax.set_gid(_tag("", "", parts))


def with_attributes(svg: bytes) -> bytes:
    """Return a figure with its marks as attributes of the elements instead of ids, which must be unique."""

    def attributes(found: re.Match[bytes]) -> bytes:
        series, method, parts = json.loads(unquote(found[1].decode()))
        named = {"series": series, "method": method, "parts": "" if parts is None else str(parts)}
        written = "".join(f' data-{key}="{html.escape(value)}"' for key, value in named.items())
        return f' class="mark"{written}'.encode()

    return _MARKED.sub(attributes, svg)


def _tag(series: str, method: str, parts: int | None) -> str:
    return _PREFIX + quote(json.dumps([series, method, parts]))


def _flat(artists: Artist | Iterable[Any]) -> Iterable[Artist]:
    if isinstance(artists, Container):
        yield from artists.get_children()
    elif isinstance(artists, Artist):
        yield artists
    else:
        for each in artists:
            yield from _flat(each)


COLUMN, PAGE = 3.25, 7.0  # inches: a column of two, and both
LABEL_LETTERS = 22  # of an axis' label that are an inch long in print
NARROWEST = 1.15  # inches of a panel in print; below that the figure takes the next width
HATCHES = ("", "////", "....", "\\\\\\\\", "xxxx", "----", "oo", "||||", "++++", "////....", "\\\\\\\\----")
GREY, DARK = ".8", ".15"
SHARED = {
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "patch.edgecolor"), "white"),
    **dict.fromkeys(("axes.edgecolor", "grid.color"), GREY),
    **dict.fromkeys(("axes.labelcolor", "text.color", "xtick.color", "ytick.color"), DARK),
    **dict.fromkeys(("axes.grid", "axes.axisbelow", "patch.force_edgecolor"), True),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "xtick.bottom", "ytick.left"), False),
    "lines.solid_capstyle": "round",
    "text.parse_math": False,  # a `$` in a name is a `$`
    "svg.hashsalt": "harness",  # equal figures are equal files
    "svg.fonttype": "path",
    "text.hinting": "none",  # laid out with the widths that letters have in SVG and PDF
}


@dataclass(frozen=True)
class DrawingStyle:
    """How figures are drawn; the defaults are a screen's.

    `widths`: inches, of which the first is taken in which no panel is too narrow; `height`: what a height on
    a screen is times, the legend apart; `letters`: about how many of a legend are an inch wide; `hatched`:
    areas have hatches too, for print without colours; `rc`: matplotlib's parameters.
    """

    widths: tuple[float, ...] = (10.0,)
    height: float = 1.0
    letters: float = 15
    titled: bool = True
    hatched: bool = False
    formats: tuple[str, ...] = ("svg",)
    rc: Mapping[str, Any] = field(
        default_factory=lambda: (
            SHARED
            | {
                "font.family": "DejaVu Sans",
                "axes.titlesize": 10,
                "legend.fontsize": 8.5,
            }  # the font is matplotlib's own
            | dict.fromkeys(("font.size", "axes.labelsize"), 9)
        )
    )


SCREEN = DrawingStyle()
PRINT = DrawingStyle(
    widths=(COLUMN, PAGE),
    height=0.5,
    letters=24,
    titled=False,
    hatched=True,
    formats=("svg", "pdf"),
    rc=SHARED
    | {
        "font.family": ["STIXGeneral", "DejaVu Serif"],  # like Times; both come with matplotlib
        **dict.fromkeys(("font.size", "axes.titlesize", "axes.labelsize"), 8),
        **dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), 7),
        "pdf.fonttype": 42,  # TrueType: what publishers ask for
        "axes.edgecolor": "#555555",
        "axes.linewidth": 0.6,
        "grid.linewidth": 0.4,
        "hatch.linewidth": 0.5,
        "axes.titlepad": 3,
        **dict.fromkeys(("axes.labelpad", "xtick.major.pad", "ytick.major.pad"), 2),
        "legend.columnspacing": 1.0,
        "legend.handlelength": 1.6,
        "legend.labelspacing": 0.3,
        "legend.borderpad": 0.2,
    },
)
_STYLE: ContextVar[DrawingStyle] = ContextVar("style", default=SCREEN)


def current_style() -> DrawingStyle:
    """Return the style that figures are drawn in here."""
    return _STYLE.get()


def _choose_width(figure: Drawing) -> None:
    """Draw the legend in the first width in which no panel is too narrow; long labels of axes go into lines."""
    height = figure.get_figheight()
    axes = [(axis.label, ax, side) for ax in figure.axes for axis, side in ((ax.xaxis, "width"), (ax.yaxis, "height"))]
    labels = [(label, label.get_text(), ax, side) for label, ax, side in axes if label.get_text()]
    for width in current_style().widths:
        for old in figure.legends:
            old.remove()
        figure.set_size_inches(width, height)
        _draw_legend(figure)
        for drawn in figure.legends:
            figure.set_figheight(height + drawn.get_window_extent().height / figure.dpi)
        _lay_out(figure)
        panels = [ax.get_window_extent() for ax in figure.axes if ax.get_visible()]
        if min((panel.width for panel in panels), default=math.inf) / figure.dpi > NARROWEST:
            break
    for label, text, panel, side in labels:
        room = getattr(panel.get_window_extent(), side) / figure.dpi
        label.set_text(textwrap.fill(text, max(12, int(room * LABEL_LETTERS)), break_long_words=False))
        label.set_linespacing(1.0)
    _lay_out(figure)


def _lay_out(figure: Drawing) -> None:
    """Give panels and legend their places, which takes less than half of what drawing them does."""
    engine = figure.get_layout_engine()
    assert engine
    engine.execute(figure)


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


LONGEST = 72  # characters of a name in a legend
MARKERS = 12  # of a line of many points; at most twice as many
_DATES = {"svg": ("Date", "Creator"), "pdf": ("CreationDate", "Creator", "Producer")}  # and makers: not written
HANDLE = 6  # characters that an entry is longer than its name


@contextlib.contextmanager
def style(chosen: DrawingStyle | None = None) -> Iterator[None]:
    """Draw and save within this: the style of a page (default: that around it), restored afterwards."""
    token = _STYLE.set(chosen or current_style())
    try:
        with mpl.rc_context(dict[Any, Any](current_style().rc)):
            yield
    finally:
        _STYLE.reset(token)


def short(name: str, width: int = LONGEST) -> str:
    """Return a name that fits a legend."""
    name = " ".join(name.split())
    return name if len(name) <= width else name[: width - 1] + "…"


def new_figure(height: float, section: Section, what: str, *, legend: bool = False) -> Drawing:
    """Return a figure `height` inches high on a screen, titled with what it shows and of which data.

    A style may do without the title, and has a height of its own. `legend`: one of the section's variants adds to it.
    """
    labels = [variant.label for variant in section.variants] if legend else []
    return begin(height, f"{what}: {section.title}", labels)


def begin(height: float, title: str, labels: Sequence[str]) -> Drawing:
    """Return a figure of this height and title on a screen, made higher for a legend of so many labels."""
    rows = -(-len(labels) // _columns(labels, current_style().widths[0])) if labels else 0
    height = (height + 0.2 * rows) * current_style().height
    layout = ConstrainedLayoutEngine(wspace=0.05, hspace=0.04)  # neighbours' tick labels stay apart
    figure = Drawing(figsize=(current_style().widths[0], height), layout=layout)
    FigureCanvasAgg(figure)
    if current_style().titled:
        figure.suptitle("\n".join(textwrap.wrap(title, 110)), fontsize=10.5, fontweight="bold")
    return figure


def save(figure: Drawing, section: Section, kind: str, title: str, caption: str) -> Picture:
    """Return the figure in the formats of the style; equal figures give equal bytes."""
    name = f"{section.anchor}-{kind}"
    alt = f"{title}, {section.title}; the numbers are in the tables of this section and in the CSV files"
    return Picture(name, title, caption, alt, figure.data(), **finish(figure))


def finish(figure: Drawing) -> dict[str, bytes]:
    """Lay a figure out and return it in the formats of the style, by name."""
    if len(current_style().widths) > 1:
        _choose_width(figure)
    else:
        _draw_legend(figure)
    if current_style().hatched:
        _hatch(figure)
    _lay_out(figure)
    figure.set_layout_engine(None)  # not again for each format
    made = {}
    for name in current_style().formats:
        written = io.BytesIO()
        figure.savefig(written, format=name, metadata=dict.fromkeys(_DATES[name]))
        made[name] = written.getvalue()
    return made | {"svg": with_attributes(made["svg"])}


def _columns(labels: Sequence[str], width: float) -> int:
    """Return how many columns of a legend fit `width` inches, its rows filled evenly."""
    lengths = [len(short(label)) + HANDLE for label in labels]
    for most in range(len(labels), 1, -1):
        rows = -(-len(labels) // most)
        starts = range(0, len(labels), rows)
        if sum(max(lengths[i : i + rows]) for i in starts) <= width * current_style().letters:
            return len(starts)
    return 1


def legend(figure: Drawing, handles: Sequence[Artist], labels: Sequence[str], series: Sequence[Series] = ()) -> None:
    """Put a legend below everything, in as many columns as its labels allow; entry i is of `series[i]`."""
    figure.entries = handles, labels, series


def _draw_legend(figure: Drawing) -> None:
    if not figure.entries:
        return
    handles, labels, series = figure.entries
    width = figure.get_figwidth()
    named = [short(label, min(LONGEST, int(width * current_style().letters) - HANDLE)) for label in labels]
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
    drawn = plot_line(ax, x[1], y[1], replace(style, dash=dash or style.dash))
    mark(drawn, of, parts, {x[0]: list(x[1]), y[0]: list(y[1]), **(more or {})})


def plot_line(
    ax: Axes, x: Sequence[float], y: Sequence[float], style: Style, markers: int = MARKERS, size: float = 5.5
) -> list[Line2D]:
    """Plot a line without saying what it is of; some points have markers, `markers` of many at least."""
    return ax.plot(
        list(x),
        list(y),
        color=style.colour,
        linestyle=style.dash,
        marker=style.marker,
        markevery=max(1, len(y) // markers),
        markersize=size,
        markeredgecolor="white",
        markeredgewidth=0.75,
        lw=1.4,
    )


def line_handle(style: Style, dash: Dash | None = None, size: float = 5.5, width: float = 1.4) -> Line2D:
    """Return what the legend shows for a line."""
    dash = dash or style.dash
    return Line2D([], [], color=style.colour, linestyle=dash, marker=style.marker, markersize=size, lw=width)


def set_ticks(axis: Axis, places: Locator | None = None, text: Callable[[float], str] = "{:,g}".format) -> None:
    """Give an axis ticks at these places alone, without exponents; None: at round ones of a logarithmic scale."""
    axis.set_major_locator(places or LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
