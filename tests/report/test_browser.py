"""The page in a browser: what its script does, what it asks the network for, whether it can be read."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from report.fake import METHODS, write_results

from harness.report import write_report
from harness.report.drawing import Picture, style
from harness.report.page import PAPER, contrast, lightened
from harness.report.palette import COLOURS, PHASES, PURPOSES
from harness.report.views import ReportView

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra `test`)")

EVIL = "<script>alert('x')</script><img src=x onerror=alert(1)>$a_b$"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def _figure(view: ReportView) -> Picture | None:
    """Two of the figures: drawing all takes long."""
    with style():
        return view.figure() if view.name in ("time", "convergence") else None


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = write_results(
        tmp_path_factory.mktemp("browser"),
        datasets=[("digits", "real", ""), ("twin", "twin", EVIL)],
        methods=[*METHODS[:2], METHODS[3], (EVIL, {EVIL: 1.5})],
        seeds=(0,),
        epochs=10,
        environment={"cpu": EVIL},
        fails=lambda c: ("error", EVIL) if (c.method.name, c.dataset.name) == ("full", "twin") else None,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harness.report.views.draw", _figure)
        return write_report(root, root / "out", ("html",))


@pytest.fixture(scope="module")
def browser() -> Iterator[playwright.Browser]:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    with playwright.sync_playwright() as started:
        if not found and not Path(started.chromium.executable_path).is_file():
            pytest.skip("no Chromium on this machine: install one, or run `playwright install chromium`")
        launched = started.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def opened(browser: playwright.Browser, index: Path) -> Iterator[playwright.Page]:
    """The page, opened once; at the end it must have complained of nothing and asked for nothing."""
    page = browser.new_page(viewport={"width": 1400, "height": 900}, color_scheme="light")
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: said.append(dialog.message))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(index.as_uri())
    yield page
    page.close()
    assert said == []
    assert asked == [index.as_uri()]


@pytest.fixture
def page(opened: playwright.Page) -> playwright.Page:
    opened.evaluate("document.getElementById('reset').click()")
    opened.evaluate("document.querySelectorAll('details.fold').forEach(each => { each.open = true; })")
    return opened


def shown(page: playwright.Page, selector: str) -> int:
    """How many of the elements take up room."""
    return int(
        page.evaluate("s => [...document.querySelectorAll(s)].filter(e => e.getClientRects().length).length", selector)
    )


def tick(page: playwright.Page, key: str, value: str) -> None:
    page.evaluate(
        "([key, value]) => [...document.querySelectorAll(`input[data-filter=${key}]`)]"
        ".find(each => each.value === value).click()",
        [key, value],
    )


def test_filter_of_methods_acts_on_tables_and_figures(page: playwright.Page) -> None:
    rows, marks = "tr[data-method=full]", "g.mark[data-method=full]"
    others = shown(page, "g.mark[data-method=bns-gcn]")
    assert min(shown(page, rows), shown(page, marks), others) > 0
    tick(page, "method", "full")
    assert (shown(page, rows), shown(page, marks)) == (0, 0)
    assert shown(page, "g.mark[data-method=bns-gcn]") == others
    page.click("#reset")
    assert min(shown(page, rows), shown(page, marks)) > 0


def test_filter_of_one_variant(page: playwright.Page) -> None:
    label = page.get_attribute("tr[data-method=bns-gcn]", "data-series") or ""
    tick(page, "series", label)
    assert page.evaluate("document.querySelector('input[value=bns-gcn]').indeterminate")
    left = page.evaluate(
        "[...document.querySelectorAll('[data-method=bns-gcn]')].filter(e => e.getClientRects().length)"
        ".map(e => e.dataset.series)"
    )
    assert left
    assert label not in left


def test_filter_of_parts_acts_on_columns_rows_and_panels(page: playwright.Page) -> None:
    panels = shown(page, "g.mark[data-parts='1'] path")
    assert min(panels, shown(page, "td[data-parts='1']"), shown(page, "tr.sub[data-parts='1']")) > 0
    tick(page, "parts", "1")
    assert shown(page, "[data-parts='1']:not(.shared)") == 0
    assert shown(page, "td[data-parts='2']") > 0
    assert page.evaluate("document.querySelector('th.group').colSpan") == 1
    below = page.evaluate(
        "[...document.querySelectorAll('tr.sub[data-parts=\"1\"] + tr')].some(e => e.getClientRects().length)"
    )
    assert not below


def test_filter_of_data_sets_acts_on_sections_and_contents(page: playwright.Page) -> None:
    both = shown(page, "section")
    assert both == 4  # of each its leaderboard, and all else
    tick(page, "dataset", "digits")
    assert (shown(page, "section"), shown(page, "[data-dataset=digits]")) == (both / 2, 0)
    assert not page.is_visible("#nothing")
    page.evaluate("document.querySelector('.menu [data-none]').click()")
    assert page.is_visible("#nothing")


def column(table: playwright.Locator) -> list[float]:
    texts = table.evaluate("table => [...table.tBodies[0].rows].map(row => row.cells[1].innerText)")
    return [float(found[0]) if (found := re.search(r"[\d.]+$", text)) else math.inf for text in texts]


def test_sorting(page: playwright.Page) -> None:
    table = page.locator("section table:has(th.group)").nth(1)  # epoch time; best of P = 1 is not on top
    head = table.locator("th[data-column='0'] button")
    before = column(table)
    assert before != sorted(before)
    head.click()
    assert column(table) == sorted(before)
    assert table.locator("th[aria-sort=ascending]").count() == 1
    head.click()
    assert column(table) == sorted(before, reverse=True)
    head.click()
    assert column(table) == before


def test_a_link_of_the_contents_opens_what_it_names(page: playwright.Page) -> None:
    page.evaluate("document.querySelectorAll('details.fold').forEach(each => { each.open = false; })")
    heading = page.locator("section details.fold h3").first
    link = page.locator(f"nav a[href='#{heading.get_attribute('id')}']")
    for _ in range(2):  # the second time the address is that already
        link.click()
        page.wait_for_function("document.querySelectorAll('details.fold[open]').length === 1")
        assert heading.evaluate("each => each.closest('details').open")
        heading.evaluate("each => { each.closest('details').open = false; }")


def test_everything_is_opened_and_closed(page: playwright.Page) -> None:
    page.evaluate("document.querySelectorAll('details.fold').forEach(each => { each.open = false; })")
    count, height = page.locator("details.fold").count(), "document.documentElement.scrollHeight"
    low = page.evaluate(height)
    for opened in (count, 0):
        page.click("#unfold")
        assert page.locator("details.fold[open]").count() == opened
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details.fold[open]").count() == count
    assert page.evaluate(height) > low


def test_names_and_reasons_stay_text(page: playwright.Page) -> None:
    assert page.evaluate("document.scripts.length") == 1
    assert page.evaluate("document.images.length") == 0
    text = page.inner_text("main")
    assert EVIL in text  # of the failed trials' table, the method's name, the environment
    tick(page, "method", EVIL)
    assert page.evaluate("e => [...document.querySelectorAll('tr')].some(r => r.dataset.method === e)", EVIL)


READ = """
() => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (c) => { const l = c.slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * l[0] + 0.7152 * l[1] + 0.0722 * l[2]; };
  const behind = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor);
    if (c.length === 3 || c[3] > 0) return c; } return [255, 255, 255]; };
  let worst = [99, ""];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !e.getClientRects().length) continue;
    const [a, b] = [light(rgb(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => x - y);
    const ratio = (b + 0.05) / (a + 0.05);
    if (ratio < worst[0]) worst = [ratio, e.outerHTML.slice(0, 120)];
  }
  return worst;
}
"""


def test_text_can_be_read_in_light_and_dark(page: playwright.Page) -> None:
    papers = set()
    for _ in range(2):
        ratio, where = page.evaluate(READ)
        assert ratio >= 4.5, (ratio, where)  # WCAG 2.2, 1.4.3
        papers.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        page.click("#theme")
    assert len(papers) == 2


def test_figures_can_be_seen_on_a_dark_page(page: playwright.Page) -> None:
    for colour in (*COLOURS, *PHASES.values(), *PURPOSES.values()):
        assert contrast(lightened(colour), PAPER) >= 3.0  # WCAG 2.2, 1.4.11
    page.emulate_media(color_scheme="dark")
    page.evaluate("document.documentElement.dataset.theme = ''")
    seen = page.evaluate(
        'getComputedStyle(document.querySelector(\'.plot [fill="#490092"], .plot [fill="#222222"]\')).fill'
    )
    page.emulate_media(color_scheme="light")
    assert seen not in ("rgb(73, 0, 146)", "rgb(34, 34, 34)")


@pytest.mark.parametrize("width", [360, 800])
def test_nothing_is_wider_than_the_window(page: playwright.Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    wide = page.evaluate("document.documentElement.scrollWidth")
    page.set_viewport_size({"width": 1400, "height": 900})
    assert wide <= width
