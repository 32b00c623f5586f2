"""The page in a browser: what its script does, what it asks the network for, whether it can be read."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from report.in_browser import EVIL, points, shown, tick

from harness.report.palette import COLOURS, PAPER, PHASES, PURPOSES, contrast, lightened

pytestmark = pytest.mark.slow

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra `test`)")


def test_filter_of_methods_acts_on_tables_and_figures(page: playwright.Page) -> None:
    rows = "tr[data-method=full]"

    def bars(method: str) -> int:
        return len(points(page, "throughput", f"each.method === '{method}'"))

    others = bars("bns-gcn")
    assert min(shown(page, rows), bars("full"), others) > 0
    tick(page, "method", "full")
    assert (shown(page, rows), bars("full")) == (0, 0)
    assert bars("bns-gcn") == others
    page.click("#reset")
    assert min(shown(page, rows), bars("full")) > 0


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
    assert points(page, "throughput", "each.parts === 1")
    assert min(shown(page, "td[data-parts='1']"), shown(page, "tr.sub[data-parts='1']")) > 0
    tick(page, "parts", "1")
    assert shown(page, "[data-parts='1']") == 0
    assert not points(page, "throughput", "each.parts === 1")
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
    texts = table.evaluate("table => [...table.tBodies[0].rows].map(row => row.cells[1].textContent.trim())")
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
        playwright.expect(page.locator("details.fold[open]")).to_have_count(1)
        assert heading.evaluate("each => each.closest('details').open")
        heading.evaluate("each => { each.closest('details').open = false; }")


def test_a_link_of_the_contents_ends_at_what_it_names(page: playwright.Page) -> None:
    """Also where all sections are open, so that much on the way is drawn when it comes near."""
    page.evaluate("document.querySelectorAll('details.fold').forEach(each => { each.open = true; })")
    links = page.evaluate("[...document.querySelectorAll('nav ul ul a')].map(each => each.getAttribute('href'))")
    for link in links[3::8]:
        page.evaluate("window.scrollTo(0, 0)")
        page.locator(f"nav a[href='{link}']").click()
        page.wait_for_timeout(300)
        assert 0 <= page.locator(link).bounding_box()["y"] < 120


def test_everything_is_opened_and_closed(page: playwright.Page) -> None:
    page.evaluate("document.querySelectorAll('details.fold').forEach(each => { each.open = false; })")
    count, height = page.locator("details.fold").count(), "document.documentElement.scrollHeight"
    low = page.evaluate(height)
    for opened in (count, 0):
        page.click("#unfold")
        assert page.locator("details.fold[open]").count() == opened
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.locator("details.fold[open]").count() == count
    assert page.evaluate(height) > low


def test_without_scripts_the_tables_are_there_and_a_line_says_what_is_not(
    browser: playwright.Browser, index: Path
) -> None:
    page = browser.new_context(java_script_enabled=False).new_page()
    page.goto(index.as_uri())
    assert "--format svg,pdf-figures" in page.inner_text("noscript")
    page.locator("details.fold:has(a[download='digits-sage-throughput.csv']) summary").click()
    assert page.locator("details[open] td").first.is_visible()
    assert page.locator("details[open] figure.plotted figcaption").is_visible()
    page.context.close()


def test_names_and_reasons_stay_text(page: playwright.Page) -> None:
    assert page.evaluate("[...document.scripts].filter(each => !each.type).length") == 5  # the page's own
    assert page.evaluate("[...document.images].every(each => each.alt.startsWith('Drawn elsewhere'))")
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


BROKEN = """() => {
  const broken = [];
  for (const cell of document.querySelectorAll("tbody th")) {
    const text = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT).nextNode();
    for (const { 0: word, index } of text && cell.getClientRects().length ? text.data.matchAll(/\\S+/g) : []) {
      const range = document.createRange();
      range.setStart(text, index);
      range.setEnd(text, index + word.length);
      if (range.getClientRects().length > 1 && word.length < 20) broken.push(word);
    }
  }
  return broken;
}"""


def test_a_phone_shows_the_answer_first_and_breaks_no_word_of_a_name(browser: playwright.Browser, index: Path) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.goto(index.as_uri())
    page.evaluate("document.querySelectorAll('details.fold').forEach(each => { each.open = true; })")
    assert page.evaluate(BROKEN) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate("document.querySelector('main tbody tr').getBoundingClientRect().top") < 844
    page.close()
