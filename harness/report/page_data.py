"""What the page draws from: figures and trials as JSON that its scripts read."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from harness.metrics import METRICS, Metric
from harness.report.columns import DERIVED
from harness.report.figure import Axis, Chart, Figure, Layer, guide_style
from harness.report.palette import CIVIDIS, Style, on_dark
from harness.report.sections import Section
from harness.report.table import heading, scale_of
from harness.report.values import values_of
from harness.results.stats import numbers

DIGITS = 6  # significant ones of a value
LINE = 1.4  # pixels that a dash's lengths are times
POINTS = 100  # of a learning curve; of more every second, third, ...
WHOLE = (
    Metric("training_time_s", "epoch time times epochs", "s", "Training time", "less"),
    Metric("training_bytes", "sent in an epoch times epochs", "B", "Bytes of the training", "less"),
)
"""Metrics of the whole training, which follow from an epoch's."""
OF_EPOCH = {"training_time_s": "epoch_time_s", "training_bytes": "counted_bytes"}
ACROSS, UP = ("training_time_s", "epochs"), ("test_at_best_val", "final_test", "epoch_time_s")
"""What a chart shows at first: of each the first that was measured."""


def in_element(value: object) -> str:
    """Return JSON that an HTML script element may hold."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def rounded(value: float | None) -> float | None:
    """Return a number as the page has it: six digits, None where it is not finite."""
    return float(f"{value:.{DIGITS}g}") if value is not None and math.isfinite(value) else None


def _some(**values: Any) -> dict[str, Any]:
    """Return the values that are not None, not empty, not false."""
    return {key: value for key, value in values.items() if value is not None and value != [] and value is not False}


def _rounded(values: Iterable[Any]) -> list[float | None]:
    return [None if pd.isna(value) else rounded(float(value)) for value in values]


def embedded_figure(figure: Figure, section: Section) -> str:
    """Return a figure of a section as JSON for a script element: layers as columns, series and looks by number."""
    series: dict[tuple[str, str], int] = {}
    looks: dict[Style, int] = {}
    rows = [[_panel(panel, figure, series, looks) for panel in row if panel] for row in figure.grid()]
    kinds = {layer.kind for layer in figure.layers}
    stacked = "stack" in kinds
    drawn = "area" if kinds & {"bar", "hist", "stack"} else "line" if kinds & {"line", "steps"} else "point"
    plain = any(chart.dash for chart in figure.charts)  # dashes are of something else than series
    entries = [
        _some(label=name, drawn=drawn, series=not stacked, style=_style(replace(look, dash="-") if plain else look))
        for name, look in figure.looks.items()
    ]
    entries += [_some(label=name, drawn="path", style=_style(look)) for name, look in figure.keys.items()]
    return in_element(
        {
            "title": figure.title,
            "dataset": section.name,
            "share": figure.share,
            "colour": _axis(figure.colour) | {"range": CIVIDIS} if figure.colour else None,
            "components": {n: [own.colour, on_dark(own.colour)] for n, own in figure.looks.items()} if stacked else {},
            "entries": entries,
            "rows": rows,
            "series": [{"label": label, "method": method} for label, method in series],
            "styles": [_style(look) for look in looks],
        }
    )


def _axis(axis: Axis) -> dict[str, Any]:
    plain = {name: getattr(axis, name) for name in ("title", "log", "zero", "whole")}
    ends = {name: rounded(getattr(axis, name)) for name in ("low", "high")}
    ticks = [[rounded(at), text] for at, text in axis.ticks.items()]
    return _some(**plain, **ends, ticks=ticks, base=axis.base if axis.log else None)


def _style(style: Style) -> dict[str, Any]:
    dash = [] if style.dash == "-" else [round(LINE * length, 1) for length in style.dash[1]]
    return _some(colour=style.colour, dark=on_dark(style.colour), shape=style.outline, dash=dash)


def _panel(panel: Chart, figure: Figure, series: dict[tuple[str, str], int], looks: dict[Style, int]) -> dict[str, Any]:
    kind = {"bar": "bars", "stack": "stack", "cells": "cells"}.get(panel.layers[0].kind, "plane")
    x, y = panel.x, panel.y
    if kind == "cells":  # the first rank is at the left and on top
        last = (panel.parts or 0) - 0.5
        x, y = replace(x, low=-0.5, high=last), replace(y, low=last, high=-0.5)
    return _some(
        kind=kind,
        heading=panel.title,
        parts=panel.parts,
        x=_axis(x),
        y=_axis(y),
        prefix="P = " if x.column == "parts" else None,
        shares=panel.shares,
        front=_style(guide_style((0, (4, 2)))) if panel.front else None,
        guides=[_some(x=_rounded(g.x), y=_rounded(g.y), style=_style(guide_style(g.dash))) for g in panel.guides],
        layers=[_layer(panel, layer, figure, series, looks) for layer in panel.layers],
    )


def _layer(
    panel: Chart, layer: Layer, figure: Figure, series: dict[tuple[str, str], int], looks: dict[Style, int]
) -> dict[str, Any]:
    """Return a layer's rows as columns; of a column of one value that value."""
    data, dashes = layer.data, panel.dashes()
    styles = [figure.look(layer, str(name)) for name in data["series"]]
    if dashes:
        styles = [replace(own, dash=dashes[value]) for own, value in zip(styles, data[panel.dash], strict=True)]
    names = zip(data["series"].astype(str), data["method"].astype(str), strict=True)
    columns: dict[str, list[Any]] = {
        "series": [series.setdefault(name, len(series)) for name in names],
        "style": [looks.setdefault(style, len(looks)) for style in styles],
        "x": _rounded(data.get(panel.x.column, ())),
        "y": _rounded(data.get(panel.y.column, ())) if layer.kind != "stack" else [],
        "value": _rounded(data[figure.colour.column]) if figure.colour else [],
    }
    for name in ("parts", "seeds"):
        columns[name] = [None if pd.isna(value) else int(value) for value in data.get(name, ())]
    for name in ("network", "who", "component"):
        columns[name] = [value if isinstance(value, str) and value else None for value in data.get(name, ())]
    if layer.interval:
        columns["sd"] = [len(layer.interval) == 1] * len(data)
        columns["low"], columns["high"] = map(_rounded, layer.ends(panel.y.column))
    if layer.kind == "hist":
        counts, edges = np.histogram(data[panel.x.column], bins=20)
        columns = {name: own[:1] * 20 for name, own in columns.items()}
        columns |= {"x": _rounded(edges[:-1]), "x2": _rounded(edges[1:]), "y": _rounded(counts)}
    count = len(columns["series"])
    compact = {name: own[0] if len(set(own)) == 1 else own for name, own in columns.items() if own}
    bare = layer.kind == "path"
    kind = "line" if bare else layer.kind
    return _some(kind=kind, band=layer.band, bare=bare, count=count, columns=_some(**compact))


def embedded_trials(sections: Iterable[Section]) -> str:
    """Return the trials that ended well of each section as JSON that an HTML script element may hold.

    Of each section that has trials to compare: its anchor and name, its variants as they are drawn, its metrics with
    unit and direction, and a column of values in that unit for each of them, a value a trial.
    """
    return in_element([_section(section) for section in sections if section.compared_parts is not None])


def _section(section: Section) -> dict[str, Any]:
    curves = section.curves
    section = replace(section, frame=with_whole(section.frame))
    frame = section.ok
    labels = {variant.key: number for number, variant in enumerate(section.variants)}
    metrics, columns = {}, {}
    for metric in measured(section):
        size, unit = scale_of(metric, values_of(section, metric.name))
        metrics[metric.name] = {"title": heading(metric, unit), "better": metric.better}
        columns[metric.name] = [rounded(value / size) for value in numbers(frame[metric.name])]
    return {
        "anchor": section.anchor,
        "dataset": section.name,
        "parts": section.compared_parts,
        "variants": [{"label": v.label, "method": v.method, **_style(v.style)} for v in section.variants],
        "metrics": metrics,
        "across": next((name for name in ACROSS if name in metrics), ""),
        "up": next((name for name in UP if name in metrics), ""),
        "trials": {
            "trial": frame["trial"].astype(str).tolist(),
            "variant": [labels[key] for key in frame["variant"]],
            "parts": frame["parts"].astype(int).tolist(),
            "network": frame["network"].fillna("").astype(str).tolist() if "network" in frame else [""] * len(frame),
            "seed": frame["seed"].astype(int).tolist(),
        },
        "values": columns,
        "curves": [_curve(curves.get(str(trial))) for trial in frame["trial"]],
        "score": f"Validation {section.metric} (%)",
    }


def _curve(curve: pd.DataFrame | None) -> list[list[float | None]]:
    """Return epochs, training seconds and validation scores (%) of a trial's evaluations, thinned to `POINTS`."""
    if curve is None:
        return [[], [], []]
    kept = curve.iloc[:: -(-len(curve) // POINTS) or 1]
    return [_rounded(kept["epoch"]), _rounded(kept["time_s"]), _rounded(100 * kept["score"].astype(float))]


def with_whole(frame: pd.DataFrame) -> pd.DataFrame:
    """Return trials with the columns of `WHOLE`, as far as an epoch's are there."""
    made: Mapping[str, Any] = {
        name: numbers(frame[column]) * numbers(frame["epochs"])
        for name, column in OF_EPOCH.items()
        if column in frame and "epochs" in frame
    }
    return frame.assign(**made)


def measured(section: Section) -> list[Metric]:
    """Return the metrics of which some trial has a number, the most asked for first, then in the order of columns."""
    first = ("test_at_best_val", "best_val", "training_time_s", "epoch_time_s", "counted_bytes")
    known = {metric.name: metric for metric in (*WHOLE, *METRICS.values(), *DERIVED, *section.declared.values())}
    order = [*first, *(name for name in known if name not in first)]
    frame, of_trials = section.ok, ("parts", "seed", "repeat")
    return [
        known[name]
        for name in order
        if name in frame and name in known and name not in of_trials and known[name].value == "number"
        and frame[name].notna().any()
    ]  # fmt: skip
