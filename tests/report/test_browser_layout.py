"""How the page is laid out, from a phone to a wide screen: a target, intervals, 14 methods with long names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from report.fake import write_results
from report.measured import change

from harness.report import write_report
from harness.runtime.method import METHODS

pytestmark = pytest.mark.slow

WIDTHS = (360, 390, 768, 976, 1280, 1440, 1920, 2560)
LONG = {"rate": 0.1, "cache": "inclusion", "capacity": 0.25, "importance_sampler": "degree-proportional"}


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = write_results(
        tmp_path_factory.mktemp("layout"),
        datasets=[("ogbn-products", "real", ""), ("reddit", "real", "")],
        methods=[(name, LONG) for name in METHODS.names()],
        parts=(2,),
        seeds=range(7),  # the fewest of which a median has an interval
        epochs=10,
        train={"target": 0.75},
        settings={"timing": "breakdown"},
        fails=lambda c: ("diverged", "loss is nan") if (c.method.name, c.seed) == ("vrgcn", 3) else None,
    )

    def declare(record: dict[str, Any]) -> None:
        name = record["config"]["method"]["name"]
        record["declared"] |= {"defaults": {}, "colour": METHODS.load(name).colour}

    change(root, declare)
    return write_report(root, root / "out", ("html",))


# Lines of text, drawings and controls that can be seen, without what a box that scrolls hides; pairs that overlap.
OVERLAPS = """() => {
  const scrolls = (e) => /auto|scroll|hidden|clip/.test(getComputedStyle(e).overflowX + getComputedStyle(e).overflowY);
  const clips = new Map();
  const clipOf = (e) => {
    if (!e || e === document.documentElement) return null;
    if (!clips.has(e)) {
      const outer = clipOf(e.parentElement);
      clips.set(e, e !== document.body && scrolls(e) ? cut(e.getBoundingClientRect(), outer) : outer);
    }
    return clips.get(e);
  };
  const cut = (a, b) => (b ? { left: Math.max(a.left, b.left), right: Math.min(a.right, b.right),
    top: Math.max(a.top, b.top), bottom: Math.min(a.bottom, b.bottom) } : a);
  const boxes = [];
  const add = (element, rect, what, inside) => {
    const { left, right, top, bottom } = cut(rect, clipOf(inside));
    if (!element.checkVisibility() || right - left <= 2 || bottom - top <= 2) return;
    boxes.push({ element, left, right, top, bottom, what });
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, parent = node.parentElement, range = document.createRange();
    if (!node.data.trim() || parent.closest(".tip, script, noscript")) continue;
    range.selectNodeContents(node);
    for (const rect of range.getClientRects()) add(parent, rect, node.data.trim().slice(0, 40), parent);
  }
  const drawn = "svg, img, input, select, button, figure, h2, h3, nav, .bar, .notes";
  for (const element of document.querySelectorAll(drawn)) {
    if (element.closest(".tip")) continue;
    add(element, element.getBoundingClientRect(), element.outerHTML.slice(0, 60), element.parentElement);
  }
  const common = (a, b, start, end) => Math.min(a[end], b[end]) - Math.max(a[start], b[start]);
  const near = (a, b) => common(a, b, "left", "right") > 1.5 && common(a, b, "top", "bottom") > 2.5;
  const where = (e) => ["left", "top", "right", "bottom"].map((side) => Math.round(e[side])).join(" ");
  const found = [];
  boxes.sort((a, b) => a.top - b.top);
  boxes.forEach((a, i) => {
    for (let j = i + 1; j < boxes.length && boxes[j].top < a.bottom; j += 1) {
      const b = boxes[j];
      if (a.element.contains(b.element) || b.element.contains(a.element)) continue;
      if (near(a, b)) found.push([a.what, b.what, `${where(a)} | ${where(b)}`]);
    }
  });
  return [boxes.length, found];
}"""
DRAW_ALL = """async () => {
  for (const each of document.querySelectorAll("details.fold")) each.open = true;
  for (const each of document.querySelectorAll("figure.table")) each.style.contentVisibility = "visible";
  plots.forEach(plotNow);
  charts.forEach(drawNow);
  finish();
  await Promise.all(charts.map((each) => each.done));
}"""


def opened(browser: Any, index: Path, width: int) -> Any:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme="light")
    page.goto(index.as_uri())
    page.evaluate(DRAW_ALL)
    return page


@pytest.mark.parametrize("width", WIDTHS)
def test_no_boxes_overlap_and_the_page_is_no_wider_than_the_window(browser: Any, crowded: Path, width: int) -> None:
    page = opened(browser, crowded, width)
    count, found = page.evaluate(OVERLAPS)
    wide = page.evaluate("document.documentElement.scrollWidth")
    page.close()
    assert count > 3000
    assert found == []
    assert wide <= width


def test_boxes_that_overlap_are_found(browser: Any, crowded: Path) -> None:
    """What stood here once: a table too wide for its column, over the chart next to it."""
    page = opened(browser, crowded, 1440)
    page.evaluate("""document.querySelectorAll(".columns").forEach(each => Object.assign(each.style,
      { display: "grid", gridTemplateColumns: "minmax(0, 3fr) minmax(22rem, 2fr)" }))""")
    page.evaluate(
        """document.querySelectorAll(".columns .scroll").forEach(each => { each.style.overflow = "visible"; })"""
    )
    _, found = page.evaluate(OVERLAPS)
    page.close()
    assert any("figure" in one or "svg" in one for one, *_ in found)


CELLS = "[...document.querySelectorAll('.columns figure.table')].map(each => {0})"
SHOWN = "[...each.querySelector('tbody tr').cells].filter(e => e.getClientRects().length).length"


@pytest.mark.parametrize("width", [360, 390])
def test_a_phone_shows_the_answer_without_scrolling_sideways(browser: Any, crowded: Path, width: int) -> None:
    page = opened(browser, crowded, width)
    columns = page.evaluate(CELLS.replace("{0}", "each.querySelector('tbody tr').cells.length"))
    room = "each.querySelector('.scroll').scrollWidth - each.querySelector('.scroll').clientWidth"
    assert len(columns) == 3  # over all data sets, and of each
    assert page.evaluate(CELLS.replace("{0}", SHOWN)) == [3, 3, 3]
    assert max(page.evaluate(CELLS.replace("{0}", room))) <= 0
    heads = page.evaluate("[...document.querySelectorAll('.columns')].at(-1).querySelector('thead').innerText")
    assert heads.split() == ["Method", "To", "75.0", "%", "(s)", "Behind"]
    for button in page.locator(".more").all():
        button.click()
    assert page.evaluate(CELLS.replace("{0}", SHOWN)) == columns
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()


def test_the_head_of_a_table_that_fits_stays_in_sight(browser: Any, crowded: Path) -> None:
    page = opened(browser, crowded, 1440)
    page.locator("figure.table.fits table").first.evaluate(
        "own => window.scrollTo(0, own.getBoundingClientRect().top + window.scrollY + own.offsetHeight / 2)"
    )
    head, bar = (page.locator(each).first.bounding_box() for each in ("figure.table.fits thead th.stub", ".bar"))
    page.close()
    assert bar["y"] == 0
    assert head["y"] == pytest.approx(bar["height"], abs=6)
