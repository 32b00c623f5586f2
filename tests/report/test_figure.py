"""Figures as data: their numbers, their axes, and what page and print make of them."""

from __future__ import annotations

import json
import math
from typing import Any

import matplotlib as mpl
import pandas as pd
import pytest

from harness.report import printing
from harness.report.figure import (
    Axis,
    Chart,
    Figure,
    Guide,
    Layer,
    amount_axis,
    cost_axis,
    make_figure,
    tidy,
    value_axis,
)
from harness.report.page_data import embedded_figure
from harness.report.palette import variant_styles
from harness.report.sections import Section
from harness.report.variants import Variant

HOSTILE = Variant("[]", "</script><b>", '</script>"x"', variant_styles(["mine"])[0])
OTHER = Variant("[1]", "other", "other", variant_styles(["mine", "other"])[1])
X, Y = Axis("epoch", "Epoch"), Axis("score", "Score")


def line(of: Variant, parts: int, y: list[float], **more: Any) -> pd.DataFrame:
    return tidy([(of, parts, {"epoch": list(range(1, len(y) + 1)), "score": y, **more})])


def figure(section: Section, *layers: Layer, guides: tuple[Guide, ...] = (), **more: Any) -> Figure:
    chart = Chart(layers, X, Y, guides=guides)
    return make_figure(section, "x", "X", "Made.", [chart], 3.0, series=(HOSTILE, OTHER), **more)


def test_data_have_a_row_a_number(section: Section) -> None:
    exported = line(HOSTILE, 2, [5.0, 7.0], network="none", seeds=[3, 2])
    silent = Layer(line(OTHER, 2, [9.0]), exported=False)
    data = figure(section, Layer(exported), silent, guides=(Guide(y=[1.0]),)).data
    assert list(data.columns) == ["series", "method", "parts", "epoch", "score", "network", "seeds"]
    assert data.drop(columns=["series", "method"]).to_numpy().tolist() == [[2, 1, 5, "none", 3], [2, 2, 7, "none", 2]]
    assert set(data["method"]) == {HOSTILE.method}


def test_axes_of_amounts() -> None:
    assert amount_axis("s", "s", [1.0, 9.0]).log
    assert amount_axis("s", "s", [1.0, 7.0]).zero
    assert amount_axis("s", "s", [0.0, 7.0]).zero  # a logarithm has no 0
    assert cost_axis("s", [1.0, 3.0]).zero
    assert not cost_axis("s", [2.0, 3.0]).zero
    assert value_axis("rate", "rate", [0.01, 0.1]).ticks == {0.01: "0.01", 0.1: "0.1"}
    assert value_axis("rate", "rate", [0.01, 0.1]).log
    assert not value_axis("rate", "rate", [0.0, 0.1]).log


def test_what_is_embedded_is_what_is_drawn(section: Section) -> None:
    data = pd.concat([line(HOSTILE, 2, [5.0, math.nan]), line(OTHER, 4, [1 / 3])])
    text = embedded_figure(figure(section, Layer(data)), section)
    assert "<" not in text
    told = json.loads(text)
    assert told["dataset"] == section.name
    assert told["series"] == [{"label": each.label, "method": each.method} for each in (HOSTILE, OTHER)]
    first, second = told["rows"][0]
    assert first["layers"][0]["columns"]["y"] == [5, None]
    assert second["layers"] == [
        {"kind": "line", "count": 1, "columns": {"series": 1, "style": 1, "x": 1, "y": 0.333333, "parts": 4}}
    ]
    assert second["heading"] == "P = 4"


def test_panels_with_one_axis_show_all_of_each(section: Section) -> None:
    low, high = line(HOSTILE, 2, [1.0, 2.0]), line(OTHER, 4, [50.0, 60.0])
    with mpl.rc_context():
        for data in (pd.concat([low, high]), pd.concat([high, low])):
            drawn = printing._panels(figure(section, Layer(data), share=("none", "all")), printing.SCREEN)
            for ax in drawn.axes:
                bottom, top = ax.get_ylim()
                assert bottom <= 1.0 < 60.0 <= top


def test_a_bar_without_a_value_is_named(section: Section) -> None:
    data = tidy([(HOSTILE, 2, {"score": 3.0, "sd": 0.5}), (OTHER, 2, {"score": None, "sd": None})])
    own = make_figure(
        section, "x", "X", "Made.", [Chart((Layer(data, "bar", ("sd",)),), Axis("parts", "P"), Y, "")], 3.0,
        series=(HOSTILE, OTHER),
    )  # fmt: skip
    assert list(own.data["series"]) == [HOSTILE.label]
    (ax,) = printing._panels(own, printing.SCREEN).axes
    assert [text.get_text() for text in ax.texts] == ["n/a"]
    (bar,) = [patch for patch in ax.patches if patch.get_height() > 0]  # type: ignore[attr-defined]
    assert bar.get_height() == pytest.approx(3.0)  # type: ignore[attr-defined]
    ends = [sorted(own) for line in ax.lines if len(own := list(line.get_ydata())) == 2]
    assert ends[0] == pytest.approx([2.5, 3.5])
