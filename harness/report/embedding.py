"""Figures as JSON in the page, whose script draws them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from harness.report.palette import CIVIDIS, Style, on_dark
from harness.report.plot import Axis, Entry, Mark, Panel, Plot, Series
from harness.report.sections import Section

DIGITS = 6  # significant ones of a value
SHAPES = {
    "o": "circle", "s": "square", "^": "triangle-up", "D": "diamond", "v": "triangle-down", "P": "cross",
    "X": "M-1,-0.5L-0.5,-1L0,-0.5L0.5,-1L1,-0.5L0.5,0L1,0.5L0.5,1L0,0.5L-0.5,1L-1,0.5L-0.5,0Z",
    "<": "triangle-left", ">": "triangle-right", "p": "M0,-1L0.952,-0.31L0.588,0.81L-0.588,0.81L-0.952,-0.31Z",
    "h": "M0,-1L0.866,-0.5L0.866,0.5L0,1L-0.866,0.5L-0.866,-0.5Z",
}  # fmt: skip
"""Vega's shapes, or their paths, of the markers of `palette`."""
LINE = 1.4  # pixels that a dash's lengths are times


def in_element(value: object) -> str:
    """Return JSON that an HTML script element may hold."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def rounded(value: float | None) -> float | None:
    """Return a number as the page has it: six digits, nothing where it is none."""
    return float(f"{value:.{DIGITS}g}") if value is not None and math.isfinite(value) else None


def embedded_plot(plot: Plot, section: Section) -> str:
    """Return a figure of a section as JSON for a script element.

    Series stand once, by number; of marks what is not as usual is left out.
    """
    found: dict[tuple[str, str], int] = {}

    def number(of: Series | None) -> int | None:
        return None if of is None else found.setdefault((of.label, of.method), len(found))

    rows = [[_panel(panel, number) for panel in row if panel] for row in plot.rows]
    entries = [_entry(entry, number(entry.of)) for entry in plot.entries]
    return in_element(
        {
            "title": plot.title,
            "dataset": section.name,
            "share": plot.share,
            "colour": _axis(plot.colour) | {"range": CIVIDIS} if plot.colour else None,
            "components": {name: [colour, on_dark(colour)] for name, colour in plot.components.items()},
            "entries": entries,
            "rows": rows,
            "series": [{"label": label, "method": method} for label, method in found],
        }
    )


def _some(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is there: not None, not empty, not false."""
    return {key: value for key, value in values.items() if value is not None and value != [] and value is not False}


def _numbers(values: Iterable[float | None]) -> list[float | None]:
    return [rounded(None if value is None else float(value)) for value in values]


def _axis(axis: Axis) -> dict[str, Any]:
    ticks = [[rounded(place), text] for place, text in axis.ticks.items()]
    own = {"title": axis.title, "log": axis.log, "zero": axis.zero, "whole": axis.whole, "ticks": ticks}
    return _some(own | {"low": rounded(axis.low), "high": rounded(axis.high), "base": axis.base if axis.log else None})


def _style(style: Style) -> dict[str, Any]:
    dash = [] if style.dash == "-" else [round(LINE * length, 1) for length in style.dash[1]]
    shown = {"colour": style.colour, "dark": on_dark(style.colour), "shape": SHAPES.get(style.marker)}
    return _some(shown | {"dash": dash})


def _panel(panel: Panel, number: Any) -> dict[str, Any]:
    return _some(
        {
            "kind": panel.kind,
            "heading": panel.heading,
            "parts": panel.parts,
            "x": _axis(panel.x),
            "y": _axis(panel.y),
            "groups": [list(group) for group in panel.groups],
            "shares": panel.shares,
            "marks": [_mark(mark, number) for mark in panel.marks],
        }
    )


def _mark(mark: Mark, number: Any) -> dict[str, Any]:
    return _some(
        {
            "kind": mark.kind,
            "of": number(mark.of),
            "parts": mark.parts,
            "network": mark.network,
            "x": _numbers(mark.x[1]),
            "y": _numbers(mark.y[1]),
            "low": _numbers(mark.low),
            "high": _numbers(mark.high),
            "value": _numbers(mark.value),
            "seeds": list(mark.seeds),
            "component": list(mark.more["component"]) if mark.kind == "stack" else [],
            "who": [variant.label for variant in mark.who],
            "band": mark.band,
            "bare": mark.bare,
            "style": _style(mark.look),
        }
    )


def _entry(entry: Entry, of: int | None) -> dict[str, Any]:
    return _some({"label": entry.label, "drawn": entry.drawn, "of": of, "style": _style(entry.style)})
