"""Figures for print: width, fonts, no title, and areas that differ without colours."""

from __future__ import annotations

import re

import pytest
from report.fake import METHODS, write_results
from report.measured import FULL, one_section

from harness.report.figure import Figure
from harness.report.printing import COLUMN, PAGE, PRINT, SCREEN, DrawingStyle, draw
from harness.report.sections import Section
from harness.report.views.convergence import ConvergenceView
from harness.report.views.time import EpochTimeView


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Section:
    """Four variants, three numbers of parts."""
    root = tmp_path_factory.mktemp("print")
    methods = (FULL, *METHODS[:3])
    return one_section(write_results(root, methods=methods, parts=(1, 2, 4), seeds=(0, 1), epochs=12))


def drawn(figure: Figure | None, style: DrawingStyle = PRINT) -> dict[str, bytes]:
    assert figure is not None
    return draw(figure, style)


@pytest.fixture(scope="module")
def bars(wide: Section) -> dict[str, bytes]:
    return drawn(EpochTimeView(wide).figure())


def inches(files: dict[str, bytes]) -> float:
    box = re.search(rb"/MediaBox \[ *0 0 ([\d.]+)", files["pdf"])
    assert box is not None
    return float(box[1]) / 72


@pytest.mark.slow
def test_a_figure_is_a_column_wide_and_more_only_for_panels(wide: Section, bars: dict[str, bytes]) -> None:
    panels = drawn(ConvergenceView(wide).figure())
    assert inches(bars) == pytest.approx(COLUMN)
    assert inches(panels) == pytest.approx(PAGE)
    assert b'width="234pt"' in bars["svg"]


def test_fonts_are_embedded_as_truetype(bars: dict[str, bytes]) -> None:
    assert b"/Type3" not in bars["pdf"]
    assert b"/FontFile2" in bars["pdf"]
    assert {name.decode() for name in re.findall(rb"/BaseFont /(?:\w+\+)?([\w-]+)", bars["pdf"])} == {
        "STIXGeneral-Regular"
    }


def test_areas_differ_without_colours(wide: Section, bars: dict[str, bytes]) -> None:
    hatches = set(re.findall(rb"url\(#(\w+)\)", bars["svg"]))
    clips = set(re.findall(rb'clipPath id="(\w+)"', bars["svg"]))
    assert len(hatches - clips) == len(wide.variants) - 1  # one has none


def test_only_the_screens_figure_has_a_title(wide: Section, bars: dict[str, bytes]) -> None:
    screen = drawn(EpochTimeView(wide).figure(), SCREEN)
    title = f"<!-- Throughput: {wide.title} -->".encode()
    assert title in screen["svg"]
    assert title not in bars["svg"]
    assert "pdf" not in screen
    assert b"url(#h" not in screen["svg"]


def test_equal_figures_are_equal_files(wide: Section, bars: dict[str, bytes]) -> None:
    assert drawn(EpochTimeView(wide).figure()) == bars
