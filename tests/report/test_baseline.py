"""A baseline that the page's reader chooses: every row is compared with it in place of the fastest."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from report.fake import METHODS, write_results

from harness.report import write_report
from harness.report.sections import make_sections
from harness.report.views.answer import AnswerView
from harness.results.frames import load_inputs

pytestmark = pytest.mark.slow

COLUMNS = """() => [...document.querySelectorAll("figure.table:has([data-against])")].map((figure) => {
  const at = figure.querySelector("[data-against]").cellIndex;
  figure.style.contentVisibility = "visible";
  const rows = [...figure.querySelectorAll("tbody tr[data-name]")].filter((row) => row.getClientRects().length);
  return {
    dataset: figure.closest("section").dataset.dataset,
    head: [...figure.querySelectorAll("thead th")][at].textContent,
    cells: Object.fromEntries(rows.map((row) => [row.dataset.name, row.cells[at].textContent.trim()])),
    bold: [...figure.querySelectorAll("td.best")].map((cell) => cell.textContent),
  };
})"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four rows that surely differ, of three seeds; of another data set two of them in other parts."""
    place = tmp_path_factory.mktemp("baseline")
    write_results(place, methods=METHODS[1:], seeds=(0, 1, 2), epochs=25, train={"target": 0.8})
    other = [("cora", "real", "")]
    write_results(place, datasets=other, methods=METHODS[2:], parts=(4,), epochs=25, train={"target": 0.8})
    return place


@pytest.fixture(scope="module")
def index(root: Path) -> Path:
    return write_report(root, root / "out", ("html",))


@pytest.fixture
def page(browser: Any, index: Path) -> Any:
    opened = browser.new_page(viewport={"width": 1440, "height": 900})
    errors: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.goto(index.as_uri())
    opened.evaluate("document.querySelectorAll('details.fold').forEach(each => { each.open = true; })")
    yield opened
    opened.close()
    assert not errors


Columns = dict[str, list[dict[str, Any]]]


def columns(page: Any) -> Columns:
    """The columns of distances by data set: of its leaderboard, and of the table of its target."""
    found: Columns = {}
    for own in page.evaluate(COLUMNS):
        found.setdefault(own.pop("dataset"), []).append(own)
    return found


def medians(root: Path, dataset: str) -> dict[str, float]:
    """Median seconds to the target by row."""
    (section,) = (own for own in make_sections(load_inputs(root)) if own.dataset == dataset)
    found = AnswerView(section).medians
    return {f"{variant.label}, P = {parts}": own.centre for (variant, parts), own in found.items() if own}


def test_every_row_is_compared_with_the_baseline(page: Any, root: Path) -> None:
    usual, known = columns(page), medians(root, "digits")
    assert len(known) == len(usual["digits"][0]["cells"]) == 6
    slowest = max(known, key=lambda name: known[name])
    page.select_option("#baseline", slowest)
    now = columns(page)
    assert now["cora"] == usual["cora"]  # it has no such row
    for own, before in zip(now["digits"], usual["digits"], strict=True):
        assert own["head"] == f"Against {slowest}"
        assert own["bold"] == before["bold"]
        assert own["cells"].pop(slowest) == "1 × (baseline)"
        for name, said in own["cells"].items():
            ratio = known[name] / known[slowest]
            assert float(said.removeprefix("not significant ").split(" ×")[0]) == pytest.approx(ratio, abs=0.005)
            assert ("surely at most" in said) is not said.startswith("not significant ")
    assert sum("surely" in said for said in now["digits"][0]["cells"].values()) > 2
    assert page.is_visible("#against")
    page.select_option("#baseline", "")
    assert columns(page) == usual
    assert page.is_hidden("#against")


def test_the_baseline_stays_when_it_is_filtered_out_and_when_the_page_is_loaded_anew(page: Any) -> None:
    name = next(iter(columns(page)["digits"][0]["cells"]))
    page.select_option("#baseline", name)
    whole = columns(page)["digits"][0]["cells"]
    box = f"input[data-filter=method][value='{name.partition(' (')[0].partition(',')[0]}']"
    page.evaluate("box => document.querySelector(box).click()", box)
    left = columns(page)["digits"][0]
    assert left["head"] == f"Against {name}"
    assert name not in left["cells"]
    assert left["cells"].items() < whole.items()
    page.reload()
    page.evaluate("document.querySelectorAll('details.fold').forEach(each => { each.open = true; })")
    assert columns(page)["digits"][0] == left
    page.click("#reset")
    assert columns(page)["digits"][0]["cells"] == whole
    assert page.input_value("#baseline") == name


def test_an_address_with_a_row_that_is_not_there_compares_with_the_fastest(page: Any, index: Path) -> None:
    usual = columns(page)
    page.goto("about:blank")
    page.goto(f"{index.as_uri()}#?baseline=nobody")
    page.evaluate("document.querySelectorAll('details.fold').forEach(each => { each.open = true; })")
    assert columns(page) == usual
    assert page.input_value("#baseline") == ""


def test_a_sorted_column_stays_sorted(page: Any) -> None:
    table = page.locator("figure.table:has([data-against]) table").first
    table.locator("th:has-text('Behind') button").click()
    names = list(columns(page)["digits"][0]["cells"])
    for name in names[1], names[-1]:
        page.select_option("#baseline", name)
        said = list(columns(page)["digits"][0]["cells"].values())
        ratios = [float(re.search(r"[\d.]+", each)[0]) for each in said]  # type: ignore[index]
        assert 1 in ratios
        assert ratios == sorted(ratios)


@pytest.mark.parametrize("width", [390, 1440])
def test_the_column_fits(page: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.select_option("#baseline", list(columns(page)["digits"][0]["cells"])[-1])
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    wide = "e => e.scrollWidth - e.clientWidth"
    assert page.locator("figure.table:has([data-against]) .scroll").first.evaluate(wide) <= 0


def test_of_one_row_there_is_nothing_to_choose(browser: Any, tmp_path: Path) -> None:
    write_results(tmp_path, methods=METHODS[3:], parts=(2,), epochs=25, train={"target": 0.8})
    page = browser.new_page()
    page.goto(write_report(tmp_path, tmp_path / "out", ("html",)).as_uri())
    assert page.locator("[data-against]").count() == 1
    assert page.locator("#baseline").count() == 0
    page.close()
