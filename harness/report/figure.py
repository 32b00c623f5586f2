"""Figures as data: tidy frames, and how their columns are drawn. The page and print draw the same description."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Protocol

import pandas as pd

from harness.report.palette import DASHES, PHASES, SPARE, Dash, Style
from harness.report.sections import Section
from harness.report.values import Values
from harness.report.variants import Variant
from harness.results.stats import Stat

SOFT = "#777777"  # of reference lines
DASHED: Dash = (0, (5, 2))
DOTTED: Dash = (0, (1, 1.2))
LOG_FROM = 8.0  # largest / smallest amount from which on an axis is logarithmic
WRITTEN = 8  # rows of a heat map up to which each cell shows its number

Kind = Literal["line", "steps", "path", "points", "across", "up", "bar", "hist", "stack", "cells"]
Sharing = Literal["none", "row", "all"]


class Series(Protocol):
    """A line of the legend, such as a method's variant; `method` is "" if it is of none."""

    @property
    def label(self) -> str: ...  # noqa: D102

    @property
    def method(self) -> str: ...  # noqa: D102

    @property
    def style(self) -> Style: ...  # noqa: D102


@dataclass(frozen=True)
class Axis:
    """The encoding of a column as an axis; `label`: its text, unit included.

    `low`, `high`: ends, where the data do not decide; `zero`: it begins at 0; `ticks`: the only ticks, by position;
    `whole`: ticks are whole numbers; `base`: of a logarithmic scale.
    """

    column: str
    label: str
    log: bool = False
    zero: bool = False
    low: float | None = None
    high: float | None = None
    ticks: Mapping[float, str] = field(default_factory=dict)
    whole: bool = False
    base: int = 10

    @property
    def title(self) -> str:
        """The label, which names a logarithmic scale where ticks alone do not show it."""
        return f"{self.label}, log scale" if self.log and not self.ticks else self.label


@dataclass(frozen=True)
class Layer:
    """A tidy frame and the mark that draws its rows, at the columns that the chart's axes name.

    `data` has the columns `series`, `method` and `parts` (see `tidy`). If there are columns of these names, `seeds` is
    the number of seeds behind a value, `network` and `who` (a variant's label) are what the page filters by, `front`
    says which points are filled, and `component` names the pieces of stacks. Bars and stacks without a value are "n/a".

    `kind`: `line`, `steps` (level until the next point), `path` (a line without markers), `points`; `across`, `up`: a
    line through the panel at each y or x; `bar`: a group a value of x; `hist`: how many rows have which x; `stack`: a
    horizontal bar a series, a piece a component; `cells`: a square a row, coloured by value.
    `interval`: column of a deviation to both sides, or columns of the lower and the upper end; `band`: it is an area,
    not a whisker. `style`, `dash`: look of all rows, where it is not that of the series. `exported`: the rows are part
    of the figure's CSV file.
    """

    data: pd.DataFrame
    kind: Kind = "line"
    interval: tuple[str, ...] = ()
    band: bool = False
    style: Style | None = None
    dash: Dash | None = None
    exported: bool = True

    def ends(self, y: str) -> tuple[pd.Series[float], pd.Series[float]]:
        """Return the lower and upper ends of the rows' intervals; NaN where there is none."""
        if len(self.interval) == 1:
            spread = pd.to_numeric(self.data[self.interval[0]])
            return self.data[y] - spread, self.data[y] + spread
        low, high = (pd.to_numeric(self.data[name]) for name in self.interval)
        return low, high


@dataclass(frozen=True)
class Guide:
    """A reference line that belongs to no series: at each `x`, at each `y`, or through points."""

    x: Sequence[float] = ()
    y: Sequence[float] = ()
    dash: Dash = DASHED


@dataclass(frozen=True)
class Chart:
    """Layers between two axes, a panel a value of the column `facet` ("parts", "series"; "": one panel).

    `guides`: reference lines of every panel; `title`, `parts`: heading and number of parts of the only panel; `front`:
    the points that no other surpasses (less x, more y) are joined and filled; `dash`: column whose values have dashes
    of their own, in place of the series'; `shares`: stacks are shares of their total (%).
    """

    layers: tuple[Layer, ...]
    x: Axis
    y: Axis
    facet: str = "parts"
    guides: tuple[Guide, ...] = ()
    title: str = ""
    parts: int | None = None
    front: bool = False
    dash: str = ""
    shares: bool = False

    def panels(self) -> list[Chart]:
        """Return a chart without facets for each panel, by rising number of parts or as series come."""
        if not self.facet:
            return [self]
        found = dict.fromkeys(value for layer in self.layers for value in layer.data[self.facet])
        panels = []
        for value in sorted(found) if self.facet == "parts" else found:
            own = tuple(replace(each, data=each.data[each.data[self.facet] == value]) for each in self.layers)
            parts = int(own[0].data["parts"].iloc[0]) if self.facet == "series" else int(value)
            title = f"P = {parts}" if self.facet == "parts" else f"{value}\nP = {parts}"
            panels.append(replace(self, layers=own, facet="", title=title, parts=parts))
        return panels

    def dashes(self) -> dict[Any, Dash]:
        """Return the dash of each value of the column `dash`."""
        values = dict.fromkeys(value for layer in self.layers for value in layer.data[self.dash]) if self.dash else ()
        return {value: DASHES[i % len(DASHES)] for i, value in enumerate(sorted(values))}


@dataclass(frozen=True)
class Figure:
    """Rows of charts (None: an empty place), and a legend; `subject`: data set and model of the trials.

    `height`: inches of the panels on a screen; `looks`: the legend's looks, by series or by component; `keys`: its
    further lines, of marks of no single series; `share`: panels with one range of x, and of y; `colour`: the scale of
    cells' colours, and the column that they show; `wrap`: largest number of panels side by side (0: any).
    """

    name: str
    title: str
    caption: str
    subject: str
    rows: tuple[tuple[Chart | None, ...], ...]
    height: float
    looks: Mapping[str, Style] = field(default_factory=dict)
    keys: Mapping[str, Style] = field(default_factory=dict)
    share: tuple[Sharing, Sharing] = ("none", "none")
    colour: Axis | None = None
    wrap: int = 0

    @property
    def alt(self) -> str:
        """The text for readers who cannot see it."""
        return f"{self.title}, {self.subject}; the numbers are in the tables of this section and in the CSV files"

    @property
    def layers(self) -> list[Layer]:
        """The layers of all charts."""
        return [layer for chart in self.charts for layer in chart.layers]

    @property
    def charts(self) -> list[Chart]:
        """All charts, row by row."""
        return [chart for row in self.rows for chart in row if chart]

    @cached_property
    def data(self) -> pd.DataFrame:
        """The values that it shows: a row each, with series, method, parts and the columns of the layers."""
        known: dict[int, pd.DataFrame] = {}
        for chart in self.charts:
            for layer in chart.layers:
                if layer.exported:
                    value = chart.x.column if layer.kind == "stack" else chart.y.column
                    gaps = layer.kind in ("bar", "stack")
                    known.setdefault(id(layer.data), layer.data.dropna(subset=[value]) if gaps else layer.data)
        rows = [row for own in known.values() for row in own.to_dict("records")]
        names = dict.fromkeys(("series", "method", "parts", *(name for own in known.values() for name in own.columns)))
        return pd.DataFrame(rows, columns=list(names))

    def grid(self) -> list[list[Chart | None]]:
        """Return the panels row by row; one number of parts has one column where every row is one chart."""
        rows = [[panel for chart in row for panel in (chart.panels() if chart else [None])] for row in self.rows]
        if self.wrap:
            (row,) = rows
            return [list(row[i : i + self.wrap]) for i in range(0, len(row), self.wrap)]
        if (
            len(rows) > 1
            and all(len(row) == 1 for row in self.rows)
            and all(chart.facet == "parts" for chart in self.charts)
        ):
            counts = sorted({panel.parts for row in rows for panel in row if panel and panel.parts is not None})
            return [[next((p for p in row if p and p.parts == count), None) for count in counts] for row in rows]
        return [list(row) for row in rows]

    def look(self, layer: Layer, series: str) -> Style:
        """Return the look of a series' rows in a layer."""
        own = layer.style or self.looks.get(series) or guide_style()
        return replace(own, dash=layer.dash) if layer.dash else own


@dataclass(frozen=True)
class Picture:
    """A figure that a plugin draws with matplotlib, or a library on top of it; `draw` returns it."""

    name: str
    title: str
    caption: str
    alt: str
    draw: Callable[[], Any]


def guide_style(dash: Dash = DASHED) -> Style:
    """Return the look of a line that belongs to no series."""
    return Style(SOFT, "", dash)


def make_figure(
    section: Section,
    kind: str,
    title: str,
    caption: str,
    rows: Iterable[Sequence[Chart | None] | Chart],
    height: float,
    *,
    series: Iterable[Series] | None = None,
    keys: Mapping[str, Style] | None = None,
    **more: Any,
) -> Figure:
    """Return a figure of a section's trials; `kind`: the end of its name, `more`: further fields of `Figure`.

    `series`: lines of the legend, in order (default: the section's variants that the data have); `keys`: its further
    lines, to which those of the charts' dashes are added.
    """
    charts = tuple((row,) if isinstance(row, Chart) else tuple(row) for row in rows)
    keys = dict(keys or {})
    for chart in (chart for row in charts for chart in row if chart):
        names = {"parts": "P = ", "network": "network "}
        keys |= {f"{names[chart.dash]}{value}": guide_style(dash) for value, dash in chart.dashes().items()}
    found = Figure(f"{section.anchor}-{kind}", title, caption, section.title, charts, height, keys=keys, **more)
    if found.looks or found.colour:
        return found
    there = {name for layer in found.layers for name in layer.data["series"]}
    shown = section.variants if series is None else series
    return replace(found, looks={each.label: each.style for each in shown if each.label in there})


def tidy(rows: Iterable[tuple[Series, int | None, Mapping[str, Any]]]) -> pd.DataFrame:
    """Return a frame with the columns `series`, `method`, `parts`, and those of the rows.

    A row is of a series, a number of parts (None: any), and values by column: lists of one length, or one for all.
    """
    found: list[dict[str, Any]] = []
    names: dict[str, None] = dict.fromkeys(("series", "method", "parts"))
    for of, parts, values in rows:
        names |= dict.fromkeys(values)
        lists = {name: list(value) for name, value in values.items() if isinstance(value, list | tuple)}
        alike = {"series": of.label, "method": of.method, "parts": parts, **values}
        several = zip(*lists.values(), strict=True) if lists else [()]
        found += [{**alike, **dict(zip(lists, own, strict=True))} for own in several]
    return pd.DataFrame(found, columns=list(names))


def lines(own: Mapping[Any, Mapping[Any, float]], x: Axis, y: Axis) -> pd.DataFrame:
    """Return a frame of lines: heights by position on the x axis, of a series and a number of parts (or None)."""
    return tidy((of, parts, {x.column: list(at), y.column: list(at.values())}) for (of, parts), at in own.items())


def deviation(stat: Stat, unit: float = 1.0) -> dict[str, Any]:
    """Return the columns `sd` and `seeds` of a mean: its standard deviation, and the seeds behind it."""
    return {"sd": None if stat.std is None else stat.std / unit, "seeds": stat.n}


def spans_far(amounts: Iterable[float]) -> bool:
    """Return whether amounts, but for zeros, need a logarithmic axis."""
    own = [amount for amount in amounts if amount]
    return bool(own) and max(own) > LOG_FROM * min(own) > 0


def amount_axis(column: str, label: str, amounts: Sequence[float] = ()) -> Axis:
    """Return an axis of amounts: from 0, or logarithmic where they span far."""
    wide = min(amounts, default=0.0) > 0 and spans_far(amounts)
    return Axis(column, label, log=wide, zero=not wide)


def cost_axis(label: str, amounts: Sequence[float]) -> Axis:
    """Return an axis of costs: logarithmic where they span far, else from 0 if that is near."""
    wide = spans_far(amounts)
    near = min(amounts, default=0.0) < max(amounts, default=0.0) / 2
    return Axis(label, label, log=wide, zero=near and not wide)


def value_axis(column: str, label: str, values: Sequence[float]) -> Axis:
    """Return an axis with a tick for each of a setting's values, ascending; logarithmic where they span far."""
    names = {value: f"{value:,g}" for value in values}
    return Axis(column, label, log=values[0] > 0 and spans_far(values), ticks=names)


MEANS = "bar: mean over seeds, whisker: ± sample standard deviation"


@dataclass(frozen=True)
class BarRow:
    """A row of bars: values in units of `unit`, and the value of a method without effect."""

    label: str
    values: Values
    unit: float = 1.0
    base: float | None = None


def against_baseline(section: Section, values: Values, ratio: Callable[[float, float], float]) -> Values:
    """Return `ratio(own mean, the baseline's)` at equal numbers of parts; none if baselines alone have values."""
    base = {parts: stat.mean for (variant, parts), stat in values.items() if variant == section.baseline}
    found = {
        (variant, parts): Stat(ratio(stat.mean, base[parts]), None, stat.n)
        for (variant, parts), stat in values.items()
        if base.get(parts)
    }
    return found if any(not variant.is_baseline("full-graph") for variant, _ in found) else {}


def grouped_bars(section: Section, kind: str, title: str, caption: str, shown: Sequence[BarRow]) -> Figure:
    """Return rows of bars: a group a number of parts, a bar a variant; `kind`: the end of the figure's name."""
    charts = []
    for bars in shown:

        def values(key: tuple[Variant, int], bars: BarRow = bars) -> dict[str, Any]:
            stat = bars.values.get(key)
            return {bars.label: stat.mean / bars.unit, **deviation(stat, bars.unit)} if stat else {bars.label: None}

        data = tidy((v, parts, values((v, parts))) for parts in section.parts for v in section.tried(parts))
        guides = () if bars.base is None else (Guide(y=[bars.base], dash=(0, (4, 2)) if bars.base else "-"),)
        x, y = Axis("parts", "Number of parts P (= ranks)"), Axis(bars.label, bars.label, zero=True)
        charts.append(Chart((Layer(data, "bar", ("sd",)),), x, y, "", guides))
    return make_figure(section, kind, title, caption, charts, 0.8 + 2.6 * len(shown), share=("all", "none"))


def stacked_bars(
    section: Section,
    kind: str,
    title: str,
    caption: str,
    values: Mapping[str, Values],
    known: Mapping[str, str],
    scale: tuple[float, str],
) -> Figure:
    """Return horizontal stacked bars of components, a panel a number of parts; shares below if these are times.

    `kind`: the end of the figure's name; `known`: components' colours; `scale`: size of the unit, and the axis' label.
    """
    spare = itertools.cycle(SPARE)  # of phases or purposes that are not known here
    looks = {name: Style(known[name] if name in known else next(spare), "", "-") for name in values}
    size, label = scale
    shown = sorted({parts for found in values.values() for (_, parts), stat in found.items() if stat.mean})

    def pieces(key: tuple[Variant, int]) -> dict[str, Any]:
        own = {name: found[key].mean / size for name, found in values.items() if key in found}
        drawn = {name: value for name, value in own.items() if value} or own
        return {label: list(drawn.values()) or None, "component": list(drawn) or None}

    data = tidy((v, parts, pieces((v, parts))) for parts in shown for v in section.variants)
    y = Axis("series", "")
    charts = [Chart((Layer(data, "stack"),), Axis(label, label, zero=True), y)]
    if known is PHASES:
        charts.append(replace(charts[0], x=Axis(label, "Share of the epoch (%)", zero=True), shares=True))
    height = 1.1 + len(charts) * (0.75 + 0.26 * len(section.variants))
    return make_figure(section, kind, title, caption, charts, height, looks=looks)
