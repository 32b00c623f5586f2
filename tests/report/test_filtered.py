"""Winners follow the filters: what is left is judged as if nothing else had been run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from report.fake import METHODS, write_results

from harness.report import write_report

pytestmark = pytest.mark.slow

Cells = dict[str, list[list[Any]]]
CHOSEN: dict[str, Any] = {
    "datasets": [("digits", "real", ""), ("cora", "real", ""), ("citeseer", "real", "")],
    "parts": (2,),
    "seeds": (0, 1, 2),
    "epochs": 25,
    "train": {"target": 0.8},
}
CELLS = """() => {
  const found = {};
  for (const figure of document.querySelectorAll("figure.table")) {
    const title = figure.querySelector("figcaption b").textContent.replace(/Table \\d+\\. /, "");
    const heads = [...figure.querySelectorAll("th[data-column]")].filter((e) => e.getClientRects().length);
    for (const row of figure.querySelectorAll("tbody tr:not(.sub)")) {
      if (!row.getClientRects().length) continue;
      const own = [...row.cells].slice(1).filter((e) => e.getClientRects().length);
      const cells = own.map((cell) => [cell.textContent.trim(), cell.classList.contains("best")]);
      found[`${title}: ${row.cells[0].textContent} of ${heads.length}`] = cells;
    }
  }
  return found;
}"""
STATIC = """text => [...new DOMParser().parseFromString(text, "text/html").querySelectorAll("figure.table td")].map(
  (cell) => [cell.textContent.trim(), cell.className])"""
NOW = """() => [...document.querySelectorAll("figure.table td")].map(
  (cell) => [cell.textContent.trim(), cell.className.replace(/ ?\\boff\\b/, "")])"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("filtered")


def report(root: Path, **chosen: Any) -> Path:
    root.mkdir()
    write_results(root, **CHOSEN | {"methods": METHODS} | chosen)
    return write_report(root, root / "out", ("html",))


@pytest.fixture(scope="module")
def whole(place: Path) -> Path:
    return report(place / "whole")


def cells(browser: Any, index: Path, *ticked: tuple[str, str]) -> Cells:
    """What the tables of a page say after boxes of its filters were ticked, all sections open."""
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(index.as_uri())
    page.evaluate("document.querySelectorAll('details.fold').forEach(each => { each.open = true; })")
    for key, value in ticked:
        page.evaluate(
            "([key, value]) => [...document.querySelectorAll(`input[data-filter=${key}]`)]"
            ".find(each => each.value === value).click()",
            [key, value],
        )
    found: Cells = page.evaluate(CELLS)
    page.close()
    assert not errors
    return found


def verdict(cell: list[Any], whole: bool) -> list[Any]:
    """What of a cell says who is best: numbers may be in another unit where another method's is the largest."""
    text, best = cell
    return [text if whole or "×" in text or "fastest" in text else "", best]


def as_sure_at_most(text: str, alone: str) -> bool:
    """Whether a cell's text is another's, or the same said less surely."""
    cautious = text.replace("not significant", "").strip()
    return alone in (text, cautious)


def bold(cells: Cells) -> dict[tuple[str, int], set[str]]:
    """The rows that are bold, by table and column."""
    found: dict[tuple[str, int], set[str]] = {}
    for row, own in cells.items():
        for column, (_, best) in enumerate(own):
            found.setdefault((row.split(": ")[0], column), set()).update([row] if best else [])
    return found


def test_all_that_is_shown_is_judged_as_the_report_does(browser: Any, whole: Path) -> None:
    page = browser.new_page()
    page.goto(whole.as_uri())
    assert page.evaluate(NOW) == page.evaluate(STATIC, whole.read_text())
    assert any("best" in classes for _, classes in page.evaluate(NOW))
    page.close()


# What is left is told apart with the certainty of all that were run: of two alone it would take less.
@pytest.mark.parametrize("method", ["full", "graphsage"])
def test_without_a_method_tables_are_those_of_a_report_without_it(
    browser: Any, place: Path, whole: Path, method: str
) -> None:
    left = cells(browser, whole, ("method", method))
    alone = cells(browser, report(place / method, methods=[each for each in METHODS if each[0] != method]))
    judged = [row for row in left if row.startswith(("Fastest to target", "Leaderboard"))]
    assert len(judged) > 6
    for row in judged:
        whole_table = "over all data sets" in row
        for cell, other in zip(left[row], alone[row], strict=True):
            assert as_sure_at_most(verdict(cell, whole_table)[0], verdict(other, whole_table)[0]), (row, cell, other)
    mine, theirs = ({row: own[row] for row in judged} for own in (left, alone))
    sets = [(own, bold(theirs)[place]) for place, own in bold(mine).items()]
    assert all(own >= other or not own for own, other in sets)  # nothing is bold where all may be the best
    assert sum(own == other for own, other in sets) > len(sets) / 2


def test_without_a_data_set_the_profile_is_of_the_others(browser: Any, place: Path, whole: Path) -> None:
    left = cells(browser, whole, ("dataset", "cora"))
    others = [each for each in CHOSEN["datasets"] if each[0] != "cora"]
    alone = cells(browser, report(place / "others", datasets=others))
    judged = [row for row in left if row.startswith("Fastest to target over all")]
    assert judged
    assert {row: left[row] for row in judged} == {row: alone[row] for row in judged}


def test_what_comes_back_is_judged_again(browser: Any, whole: Path) -> None:
    assert cells(browser, whole, ("method", "full"), ("method", "full")) == cells(browser, whole)


def test_a_view_is_kept_and_comes_back(browser: Any, whole: Path) -> None:
    page = browser.new_page()
    page.goto(whole.as_uri())
    page.evaluate("[...document.querySelectorAll('input[data-filter=method]')].find(e => e.value === 'full').click()")
    page.click("#views summary")
    page.fill("#views input", "without <full>")
    page.click("#views button:text('Save')")
    page.reload()
    assert page.is_hidden("#reset") is False
    page.click("#reset")
    page.click("#views summary")
    page.click("#views a:text('without <full>')")
    page.wait_for_function("!document.querySelector('input[value=full]').checked")
    page.click("#views li button")
    assert page.query_selector("#views li") is None
    page.close()
