"""Marks: a figure's data are what it draws, and its elements can be told apart in the page."""

from __future__ import annotations

import io
import re

import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from harness.report.drawing import Drawing, mark, mark_panel, with_attributes
from harness.report.palette import variant_styles
from harness.report.variants import Variant

HOSTILE = Variant("[]", "a\"><script>alert('1')</script>", 'x "y" <&> (p=1)', variant_styles(["mine"])[0])


@pytest.fixture
def figure() -> Drawing:
    drawing = Drawing()
    FigureCanvasAgg(drawing)
    ax = drawing.subplots()
    points = {"epoch": [1, 2], "score": pd.Series([5, 7]), "network": "none"}
    mark_panel(ax, 2)
    mark(ax.bar(0, 3.5), HOSTILE, 2, {"seconds": 3.5, "sd": None})
    mark(ax.plot([1, 2], [5, 7]), HOSTILE, 2, points)
    return drawing


def test_data_have_a_row_a_point(figure: Drawing) -> None:
    data = figure.data()
    assert list(data.columns) == ["series", "method", "parts", "seconds", "sd", "epoch", "score", "network"]
    assert data["score"].dropna().tolist() == [5, 7]
    assert data["network"].dropna().tolist() == ["none", "none"]
    assert set(data["series"]) == {HOSTILE.label}
    assert set(data["parts"]) == {2}


def test_hostile_names_stay_text_and_no_id_is_left(figure: Drawing) -> None:
    file = io.BytesIO()
    figure.savefig(file, format="svg")
    svg = with_attributes(file.getvalue()).decode()
    assert "<script" not in svg
    assert 'id="mark' not in svg
    marks = re.findall(r'<g class="mark" data-series="([^"]*)" data-method="([^"]*)" data-parts="2">', svg)
    assert ("", "") in marks  # the panel
    assert len(marks) == 3


def test_a_figure_without_marks_has_no_data() -> None:
    assert Drawing().data().empty
