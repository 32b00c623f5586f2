"""Figures as data: their numbers, their axes, and what page and print make of them."""

from __future__ import annotations

import itertools
import json
import math

import pytest
from matplotlib.figure import Figure

from harness.report import printing
from harness.report.embedding import embedded_plot
from harness.report.palette import variant_styles
from harness.report.plot import Axis, Mark, Panel, Plot, amount_axis, cost_axis, line_entries, places_of, value_axis
from harness.report.sections import Section
from harness.report.variants import Variant

HOSTILE = Variant("[]", "</script><b>", '</script>"x"', variant_styles(["mine"])[0])
OTHER = Variant("[1]", "other", "other", variant_styles(["mine", "other"])[1])


def plot(*panels: Panel, **more: object) -> Plot:
    entries = line_entries(mark.of for panel in panels for mark in panel.marks if mark.of)
    return Plot("digits-x", "X", "Made.", "digits", (panels,), 3.0, entries, **more)  # type: ignore[arg-type]


def line(of: Variant, parts: int, y: list[float], **more: object) -> Panel:
    mark = Mark("line", of, parts, ("epoch", list(range(1, len(y) + 1))), ("score", y), **more)  # type: ignore[arg-type]
    return Panel(Axis("Epoch"), Axis("Score"), (mark,), parts)


def test_data_have_a_row_a_number() -> None:
    told = line(HOSTILE, 2, [5.0, 7.0], seeds=[3, 2], more={"network": "none"})
    guide = Mark("across", y=("", [1.0]))
    silent = Mark("line", OTHER, 2, ("epoch", [1]), ("score", [9.0]), told=False)
    data = plot(told, Panel(Axis("Epoch"), Axis("Score"), (guide, silent), 2)).data
    assert list(data.columns) == ["series", "method", "parts", "network", "epoch", "score", "seeds"]
    assert data.drop(columns=["series", "method"]).to_numpy().tolist() == [[2, "none", 1, 5, 3], [2, "none", 2, 7, 2]]
    assert set(data["method"]) == {HOSTILE.method}
    assert plot(Panel(Axis(""), Axis(""), ())).data.empty


def test_axes_of_amounts() -> None:
    assert amount_axis("s", [1.0, 9.0]).log
    assert amount_axis("s", [1.0, 7.0]).zero
    assert amount_axis("s", [0.0, 7.0]).zero  # a logarithm has no 0
    assert cost_axis("s", [1.0, 3.0]).zero
    assert not cost_axis("s", [2.0, 3.0]).zero
    assert value_axis("rate", [0.01, 0.1]).ticks == {0.01: "0.01", 0.1: "0.1"}
    assert value_axis("rate", [0.01, 0.1]).log
    assert not value_axis("rate", [0.0, 0.1]).log


def test_bars_stand_beside_one_another_around_their_groups_place() -> None:
    marks = tuple(Mark("bar", of, place, ("", [place]), ("s", [1.0])) for place in (0, 1) for of in (HOSTILE, OTHER))
    groups = (("P = 1", 1), ("P = 2", 2))
    found = places_of(Panel(Axis(""), Axis(""), (*marks, marks[0]), kind="bars", groups=groups))
    for place, count in ((0, 3), (1, 2)):
        own = [(left, left + width) for mark, left, width in found if mark.x[1][0] == place]
        assert len(own) == count
        assert all(end < start for (_, end), (start, _) in itertools.pairwise(own))
        assert (own[0][0] + own[-1][1]) / 2 == pytest.approx(place)


def test_what_is_embedded_is_what_is_drawn(section: Section) -> None:
    text = embedded_plot(plot(line(HOSTILE, 2, [5.0, math.nan]), line(OTHER, 4, [1 / 3])), section)
    assert "<" not in text
    told = json.loads(text)
    assert told["dataset"] == section.name
    assert told["series"] == [{"label": each.label, "method": each.method} for each in (HOSTILE, OTHER)]
    first, second = told["rows"][0]
    assert first["marks"][0]["y"] == [5, None]
    assert second["marks"][0] | {"style": {}} == {
        "kind": "line", "of": 1, "parts": 4, "x": [1], "y": [0.333333], "style": {}
    }  # fmt: skip
    assert second["heading"] == "P = 4"


def test_panels_with_one_axis_show_all_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Figure] = []

    def keep(figure: Figure) -> dict[str, bytes]:
        kept.append(figure)
        return {"svg": b""}

    monkeypatch.setattr(printing, "finish", keep)
    low, high = line(HOSTILE, 2, [1.0, 2.0]), line(OTHER, 4, [50.0, 60.0])
    for panels in ((low, high), (high, low)):
        printing.draw_plot(plot(*panels, share=("none", "all")))
        for ax in kept[-1].axes:
            bottom, top = ax.get_ylim()
            assert bottom <= 1.0 < 60.0 <= top
