"""The page on paper: the answer first, few pages, nothing cut off at the right."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from report.fake import METHODS, write_results

from harness.report import write_report

pytestmark = pytest.mark.slow

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra `test`)")

MOST = 12  # pages of a report of the quickstart's size
FIRST = ["h1", ".lead", "#answer", "section figure.table", "section figure[data-chart-of]", "#summary"]
WIDTH = 718  # CSS pixels between the margins of A4 (210 mm - 20 mm)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As the quickstart: six variants, one rank and two, three seeds, all views."""
    skewed = {"version": "skewed", "distortion": 4, "base": "sage", "cache": "degree", "switch": True}
    saint = {"size": 1500, "frontier": 200}
    methods = (*METHODS, ("skewed", skewed), ("graphsaint", saint))
    root = write_results(tmp_path_factory.mktemp("print"), methods=methods, seeds=(0, 1, 2))
    return write_report(root, root / "out", ("html",))


@pytest.fixture(scope="module")
def printed(browser: playwright.Browser, index: Path) -> dict[str, Any]:
    """The PDF, and what of the page in its width sticks out."""
    page = browser.new_page(viewport={"width": 1280, "height": 720})
    page.goto(index.as_uri())
    pdf = page.pdf(format="A4", prefer_css_page_size=True)
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    page.set_viewport_size({"width": WIDTH, "height": 1047})
    places = page.evaluate(
        """(FIRST) => {
          const right = (each) => each.getBoundingClientRect().right + window.scrollX;
          const top = (each) => document.querySelector(each).getBoundingClientRect().top + window.scrollY;
          const all = [...document.querySelectorAll("main table, main svg, main img, main th, main td")];
          return { tables: document.querySelectorAll("table").length,
                   folded: document.querySelectorAll("details.fold:not([open])").length,
                   wide: Math.max(...all.filter((each) => each.getClientRects().length).map(right)),
                   order: FIRST.map(top) };
        }""",
        FIRST,
    )
    page.close()
    return {"pdf": pdf, **places}


def pages(pdf: bytes) -> int:
    return len(re.findall(rb"/Type\s*/Page\b", pdf))


def test_it_needs_few_pages(printed: dict[str, Any]) -> None:
    assert printed["folded"] == 0
    assert printed["tables"] > 12
    assert 3 < pages(printed["pdf"]) <= MOST


def test_the_answer_comes_first_on_the_first_page(printed: dict[str, Any]) -> None:
    assert printed["order"] == sorted(printed["order"])
    assert printed["order"][4] < 1047  # its picture, too


def test_nothing_is_cut_off_at_the_right(printed: dict[str, Any]) -> None:
    assert printed["wide"] <= WIDTH + 1
