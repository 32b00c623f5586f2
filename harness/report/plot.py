"""Figures as data: what is drawn of whom, where and between which axes; the page draws them, and print does."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Protocol, TypeVar

import pandas as pd

from harness.report.palette import Dash, Style
from harness.report.sections import Section
from harness.report.variants import Variant
from harness.results.stats import Stat


class Series(Protocol):
    """What a mark is of: a method's variant, or a line of several."""

    @property
    def label(self) -> str:
        """Its name in the legend."""

    @property
    def method(self) -> str:
        """The method's name."""


class Styled(Series, Protocol):
    """A series with a look."""

    @property
    def style(self) -> Style:
        """Its colour, marker and dash."""


StyledT = TypeVar("StyledT", bound=Styled)
Column = tuple[str, Sequence[Any]]
"""Values and what the figure's data call them, unit included; "": they are not among these."""
NO_COLUMN: Column = ("", ())
Kind = Literal["line", "steps", "points", "across", "up", "front", "bar", "bins", "stack", "cells"]
SOFT = "#777777"  # of what helps to read
DASHED: Dash = (0, (5, 2))
DOTTED: Dash = (0, (1, 1.2))
WRITTEN = 8  # rows of cells, up to which each has its number
WIDE = 8.0  # largest / smallest from which on an axis is logarithmic


def guide(dash: Dash = DASHED) -> Style:
    """Return the look of a line that helps to read and is nobody's."""
    return Style(SOFT, "", dash)


@dataclass(frozen=True)
class Axis:
    """An axis: `zero`: it begins at 0; `low`, `high`: its ends, where the data do not say them.

    `ticks`: its only ticks, by place; `whole`: they stand at whole numbers; `base`: of a logarithmic one.
    """

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
        """The label, which says what the ticks alone do not."""
        return f"{self.label}, log scale" if self.log and not self.ticks else self.label


@dataclass(frozen=True)
class Mark:
    """Numbers of one series in a panel, all drawn in one way.

    `line`, `steps` (level until the next point), `points`: at `x` and `y`, whiskers or a `band` from `low` to `high`;
    `across`, `up`: a line through the panel at each `y` or `x`; `front`: steps along the points that no other beats,
    less `x` and more `y` being better; `bar`: of the group number `x`, as high as `y` (no value: "n/a");
    `bins`: bars between the edges `x`; `stack`: a bar along `x`, a piece a component, as long as `value` together (no
    value: "n/a"); `cells`: squares of `value` in column `x` and row `y`.

    `of`: None for what helps to read; `parts`: None for any; `network`: None for any. `seeds`: behind each value;
    `more`: further columns of the figure's data, values or one for all; `style`: where it is not that of the series;
    `bare`: a line without markers; `hollow`: points; `who`: the variant of each point, where the series has several;
    `told`: whether it is in the figure's data.
    """

    kind: Kind
    of: Styled | None = None
    parts: int | None = None
    x: Column = NO_COLUMN
    y: Column = NO_COLUMN
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()
    value: Sequence[float] = ()
    seeds: Sequence[int] = ()
    more: Mapping[str, Any] = field(default_factory=dict)
    style: Style | None = None
    band: bool = False
    bare: bool = False
    hollow: bool = False
    network: str | None = None
    who: Sequence[Variant] = ()
    told: bool = True

    @property
    def look(self) -> Style:
        """How it is drawn."""
        return self.style or (self.of.style if self.of else guide())

    def rows(self) -> list[dict[str, Any]]:
        """Return a row a drawn number: series, method, parts and its columns; none of what shows no number."""
        if not self.told or self.of is None:
            return []
        named = {name: list(values) for name, values in (self.x, self.y) if name}
        named |= {"seeds": list(self.seeds)} if self.seeds else {}
        named |= {key: list(value) for key, value in self.more.items() if isinstance(value, list | tuple)}
        alike = {key: value for key, value in self.more.items() if key not in named}
        own = {"series": self.of.label, "method": self.of.method, "parts": self.parts}
        return [own | alike | dict(zip(named, row, strict=True)) for row in zip(*named.values(), strict=True)]


@dataclass(frozen=True)
class Panel:
    """Marks between two axes; `parts`: None where it is of several.

    `groups` of bars: a name each, and the number of parts that it is of, if of one. `shares`: stacks are all 100 %
    long. `title`: the default says the parts.
    """

    x: Axis
    y: Axis
    marks: tuple[Mark, ...]
    parts: int | None = None
    title: str = ""
    kind: Literal["plane", "bars", "stack", "cells"] = "plane"
    groups: tuple[tuple[str, int | None], ...] = ()
    shares: bool = False

    @property
    def heading(self) -> str:
        """What stands above it."""
        return self.title or ("" if self.parts is None else f"P = {self.parts}")


Drawn = Literal["line", "point", "area", "path"]


@dataclass(frozen=True)
class Entry:
    """A line of the legend; `of`: whose it is, None where it is of no series alone."""

    label: str
    style: Style
    drawn: Drawn = "line"
    of: Series | None = None


Sharing = Literal["none", "row", "all"]


@dataclass(frozen=True)
class Plot:
    """A figure: rows of panels, None where a place is empty, and a legend. `subject`: whose numbers it shows.

    `height`: inches of the panels on a screen; `share`: which panels have one range, across and up; `colour`: the
    scale of `cells`' colours; `components`: the colours of stacks' pieces.
    """

    name: str
    title: str
    caption: str
    subject: str
    rows: tuple[tuple[Panel | None, ...], ...]
    height: float
    entries: tuple[Entry, ...] = ()
    share: tuple[Sharing, Sharing] = ("none", "none")
    colour: Axis | None = None
    components: Mapping[str, str] = field(default_factory=dict)

    @property
    def alt(self) -> str:
        """Its text for those who cannot see it."""
        return f"{self.title}, {self.subject}; the numbers are in the tables of this section and in the CSV files"

    @property
    def marks(self) -> list[Mark]:
        """All marks, row by row."""
        return [mark for row in self.rows for panel in row if panel for mark in panel.marks]

    @cached_property
    def data(self) -> pd.DataFrame:
        """The numbers that it shows, a row each: series, method, parts, and what the marks name."""
        rows = [row for mark in self.marks for row in mark.rows()]
        names = dict.fromkeys(("series", "method", "parts", *(name for row in rows for name in row)))
        columns = {name: [row.get(name, math.nan) for row in rows] for name in names}
        return pd.DataFrame({name: pd.Series(own, dtype=object).infer_objects() for name, own in columns.items()})


@dataclass(frozen=True)
class Picture:
    """A figure that is drawn: `alt` is its text for those who cannot see it, `data` the numbers that it shows.

    `pdf` is empty where the style has none. `data` has a row a drawn point or bar, with `series`, `method`, `parts`
    and what its marks name. In `svg` the elements of marked artists have the class `mark` and the attributes
    `data-series`, `data-method` and `data-parts` (the last two empty where they are of any).
    """

    name: str
    title: str
    caption: str
    alt: str
    data: pd.DataFrame
    svg: bytes
    pdf: bytes = b""


def make_plot(
    section: Section,
    kind: str,
    title: str,
    caption: str,
    rows: Iterable[Iterable[Panel | None]],
    height: float,
    *,
    entries: Sequence[Entry] | None = None,
    **more: Any,
) -> Plot:
    """Return a figure of a section's trials; `kind`: the end of its name; `more`: further fields of `Plot`.

    `entries`: of the legend; None: the series, in the order of their first marks.
    """
    panels = tuple(tuple(row) for row in rows)
    plot = Plot(f"{section.anchor}-{kind}", title, caption, section.title, panels, height, **more)
    if entries is None:
        entries = line_entries(mark.of for mark in plot.marks if mark.of)
    return replace(plot, entries=tuple(entries))


def line_entries(shown: Iterable[Styled], drawn: Drawn = "line") -> tuple[Entry, ...]:
    """Return the legend's entries of series, each once."""
    found = {(each.label, each.method): each for each in shown}
    return tuple(Entry(each.label, each.style, drawn, each) for each in found.values())


def line_row(
    lines: Mapping[tuple[StyledT, int], Mapping[Any, float]],
    x: tuple[str, Axis],
    y: tuple[str, Axis],
    *,
    kind: Literal["line", "steps"] = "line",
    beside: Sequence[Mark] = (),
) -> list[Panel]:
    """Return panels of lines, one a number of parts.

    `lines`: heights by place on the x axis, of a series and number of parts; `x`, `y`: what both are called in the
    figure's data, unit included, and axes; `beside`: marks of every panel.
    """
    panels = []
    for parts in sorted({parts for _, parts in lines}):
        own = [
            Mark(kind, series, parts, (x[0], list(line)), (y[0], list(line.values())))
            for (series, count), line in lines.items()
            if count == parts
        ]
        panels.append(Panel(x[1], y[1], (*beside, *own), parts))
    return panels


def whiskers(stat: Stat, unit: float = 1.0) -> dict[str, Any]:
    """Return `low` and `high` of a mark of one mean, a standard deviation apart from it, and the seeds behind it."""
    if stat.std is None:
        return {"seeds": [stat.n]}
    ends = ((stat.mean - stat.std) / unit, (stat.mean + stat.std) / unit)
    return {"low": [ends[0]], "high": [ends[1]], "seeds": [stat.n]}


def spans_far(amounts: Iterable[float]) -> bool:
    """Whether amounts, those that are 0 aside, need a logarithmic axis."""
    own = [amount for amount in amounts if amount]
    return bool(own) and max(own) > WIDE * min(own) > 0


def amount_axis(label: str, amounts: Sequence[float] = ()) -> Axis:
    """Return an axis of amounts: from 0, or logarithmic where they span far."""
    wide = min(amounts, default=0.0) > 0 and spans_far(amounts)
    return Axis(label, log=wide, zero=not wide)


def cost_axis(label: str, amounts: Sequence[float]) -> Axis:
    """Return an axis of costs: logarithmic where they span far, else from 0 if that is near."""
    wide = spans_far(amounts)
    near = min(amounts, default=0.0) < max(amounts, default=0.0) / 2
    return Axis(label, log=wide, zero=near and not wide)


def value_axis(label: str, values: Sequence[float]) -> Axis:
    """Return an axis with a tick for each of a setting's values, ascending; logarithmic where they span far."""
    names = {value: f"{value:,g}" for value in values}
    return Axis(label, log=values[0] > 0 and spans_far(values), ticks=names)


FEW = 4  # groups
FILLED, WIDEST = 0.84, 0.21  # of a group: by its bars, and by one of them where groups are few


def places_of(panel: Panel) -> list[tuple[Mark, float, float]]:
    """Return the bars of a panel, each with its left end and width on an axis where group i stands at i."""
    marks = [mark for mark in panel.marks if mark.kind == "bar"]
    groups = [[mark for mark in marks if mark.x[1][0] == place] for place in range(len(panel.groups))]
    most = max(map(len, groups), default=1)
    slot = min(FILLED / most, WIDEST) if len(groups) <= FEW and panel.parts is None else FILLED / most
    return [
        (mark, place - slot * len(own) / 2 + (i + 0.04) * slot, 0.92 * slot)
        for place, own in enumerate(groups)
        for i, mark in enumerate(own)
    ]
