"""The marks of methods, a colour and a shape: told apart by all eyes, and the same wherever a method is drawn."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.markers import MarkerStyle
from numpy.typing import NDArray
from report.fake import write_results
from report.measured import one_section

from harness.report import write_report
from harness.report.page_data import embedded_figure, embedded_trials
from harness.report.palette import COLOURS, OUTLINES, Style, variant_styles
from harness.report.printing import PRINT, SCREEN, DrawingStyle, _panels
from harness.report.sections import Section
from harness.report.views.leaderboard import LeaderboardView
from harness.runtime.method import METHODS

COLOUR_OF = {name: METHODS.load(name).colour for name in METHODS.names()}
# Machado, Oliveira and Fernandes (2009), "A physiologically-based model for simulation of color vision deficiency",
# IEEE TVCG 15(6), severity 1.0, of linear RGB.
EYES = {
    "all cones": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])  # sRGB, D65
ALIKE = ("oph", "Dd")  # shapes that are hard to tell apart when small
APART = 20.0  # CIE76; 2.3 is just noticeable with both colours side by side


def lab(colour: str, eye: str) -> NDArray[np.float64]:
    """CIELAB of a colour as an eye sees it."""
    srgb = np.array(list(bytes.fromhex(colour[1:]))) / 255
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    seen = TO_XYZ @ np.clip(np.array(EYES[eye]) @ linear, 0, 1) / TO_XYZ.sum(axis=1)
    x, y, z = np.where(seen > (6 / 29) ** 3, np.cbrt(seen), seen / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def difference(one: str, other: str, eye: str) -> float:
    return float(np.linalg.norm(lab(one, eye) - lab(other, eye)))


def shape(style: Style) -> object:
    return next((group for group in ALIKE if isinstance(style.marker, str) and style.marker in group), style.marker)


def styles(names: list[str]) -> dict[str, Style]:
    return dict(zip(names, variant_styles(names, COLOUR_OF), strict=True))


def test_the_colours_are_measured_as_published() -> None:
    """Against CIELAB of sRGB red, and what is known of a red and a green that protanopes confuse."""
    assert lab("#ff0000", "all cones") == pytest.approx([53.24, 80.09, 67.20], abs=0.1)
    assert lab("#ffffff", "deuteranopia") == pytest.approx([100, 0, 0], abs=0.1)
    assert difference("#a08800", "#cc7a00", "protanopia") < difference("#a08800", "#cc7a00", "all cones") / 2


@pytest.mark.parametrize("eye", EYES)
def test_every_two_methods_differ_in_shape_or_clearly_in_colour(eye: str) -> None:
    found = styles(sorted(COLOUR_OF))
    assert len(found) == len({(s.colour, s.marker) for s in found.values()}) == 20
    for one, other in itertools.combinations(found, 2):
        mine, yours = found[one], found[other]
        apart = difference(mine.colour, yours.colour, eye)
        assert shape(mine) != shape(yours) or apart >= APART, f"{one} and {other}: {apart:.1f}"


def test_shapes_that_look_alike_are_compared_by_colour() -> None:
    """Else the test above could not fail."""
    found = [shape(style) for style in styles(sorted(COLOUR_OF)).values()]
    assert len(set(found)) < len(found)


def test_a_method_has_its_mark_in_every_report() -> None:
    together = styles(sorted(COLOUR_OF))
    for name in COLOUR_OF:
        several = variant_styles(["mine", "other", name, name, *reversed(COLOUR_OF)], COLOUR_OF)
        assert styles([name])[name] == together[name] == several[2]
        assert together[name].dash == "-"
        assert several[3] not in together.values()
    assert {style.colour for style in together.values()} <= set(COLOURS)


def test_variants_of_other_data_sets_have_the_mark_of_their_method() -> None:
    """With settings tuned on each data set a method is another variant there, and the same method."""
    datasets = [{"cora"}, {"digits"}, {"cora", "digits"}, {"cora"}]
    found = variant_styles(["dgs", "dgs", "dgs", "ladies"], COLOUR_OF, datasets)
    assert found[0] == found[1] == styles(["dgs"])["dgs"]
    assert found[3] == styles(["ladies"])["ladies"]
    assert found[2] not in (found[0], found[3])


def test_of_two_methods_that_want_one_colour_the_first_has_it() -> None:
    first, second = variant_styles(["full", "mine"], COLOUR_OF | {"mine": COLOUR_OF["full"]})
    assert first == styles(["full"])["full"]
    assert second.colour != first.colour


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    own = {"rate": 0.1, "cache": "none", "capacity": 0.1}
    return write_results(
        tmp_path_factory.mktemp("marks"), methods=[(name, own) for name in METHODS.names()],
        parts=(2,), seeds=(0,), epochs=10,
    )  # fmt: skip


@pytest.fixture(scope="module")
def section(root: Path) -> Section:
    return one_section(root)


def mark(style: Style) -> tuple[str, str | None]:
    return style.colour, style.outline


@pytest.mark.parametrize("style", [SCREEN, PRINT], ids=["svg", "pdf"])
def test_drawings_have_the_marks(section: Section, style: DrawingStyle) -> None:
    """What matplotlib draws, of which both formats are written."""
    figure = LeaderboardView(section).figure()
    assert figure is not None
    (axes,) = _panels(figure, style).axes
    points = axes.collections[0]
    drawn = zip(points.get_facecolors(), points.get_paths(), strict=True)
    found = {
        ("#" + bytes((255 * colour[:3]).round().astype(int).tolist()).hex(), vertices(path)) for colour, path in drawn
    }
    assert found == {(v.style.colour, vertices(marker_path(v.style.marker))) for v in section.variants}
    assert len(found) == 20


def marker_path(marker: Any) -> Any:
    own = MarkerStyle(marker)
    return own.get_path().transformed(own.get_transform())


def vertices(path: Any) -> tuple[float, ...]:
    return tuple(path.vertices.round(4).ravel().tolist())


@pytest.mark.slow
def test_the_page_has_the_marks(section: Section, root: Path) -> None:
    expected = {variant.label: mark(variant.style) for variant in section.variants}
    (charts,) = json.loads(embedded_trials([section]))
    assert {each["label"]: (each["colour"], each["shape"]) for each in charts["variants"]} == expected
    figure = LeaderboardView(section).figure()
    assert figure is not None
    entries = json.loads(embedded_figure(figure, section))["entries"]
    looks = {each["label"]: (each["style"]["colour"], each["style"].get("shape")) for each in entries}
    assert {label: looks[label] for label in expected} == expected
    page = write_report(root, root / "out", ("html",)).read_text()
    swatches = set(re.findall(r'<path d="([^"]+)" fill="(#\w{6})"/></svg>', page))
    assert {(colour, outline) for outline, colour in swatches} == set(expected.values())


def test_paths_are_the_markers_of_print() -> None:
    """Corners of a path for the page lie where matplotlib's do, up to the size."""
    for marker, path in OUTLINES.items():
        if marker in ("o", "*"):  # curves, and a star whose centre is no corner
            continue
        theirs = marker_path(marker).vertices
        wide, tall = np.ptp(theirs, axis=0)
        here = corners(path)
        assert np.ptp(here, axis=0)[0] / np.ptp(here, axis=0)[1] == pytest.approx(wide / tall, abs=0.12), marker
        assert len(np.unique(here.round(3), axis=0)) == len(np.unique(theirs.round(3), axis=0)), marker


def corners(path: str) -> NDArray[np.float64]:
    x = y = 0.0
    found = []
    for kind, text in re.findall(r"([MLHV])([^MLHVZ]*)", path):
        numbers = [float(each) for each in text.split(",")]
        x = numbers[0] if kind != "V" else x
        y = numbers[-1] if kind != "H" else y
        found.append((x, y))
    return np.array(found)
