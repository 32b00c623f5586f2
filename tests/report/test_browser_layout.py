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
        parts=(1, 2),
        seeds=range(6),
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
    if (element.checkVisibility() && right - left > 2 && bottom - top > 2) boxes.push({ element, left, right, top, bottom, what });
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, parent = node.parentElement, range = document.createRange();
    if (!node.data.trim() || parent.closest(".tip, script, noscript")) continue;
    range.selectNodeContents(node);
    for (const rect of range.getClientRects()) add(parent, rect, node.data.trim().slice(0, 40), parent);
  }
  for (const element of document.querySelectorAll("svg, img, input, select, button, figure, h2, h3, nav, .bar, .notes")) {
    if (!element.closest(".tip")) add(element, element.getBoundingClientRect(), element.outerHTML.slice(0, 60), element.parentElement);
  }
  const near = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1.5 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 2.5;
  const found = [];
  boxes.sort((a, b) => a.top - b.top);
  boxes.forEach((a, i) => {
    for (let j = i + 1; j < boxes.length && boxes[j].top < a.bottom; j += 1) {
      const b = boxes[j];
      if (a.element.contains(b.element) || b.element.contains(a.element)) continue;
      if (near(a, b)) found.push([a.what, b.what, [a, b].map((e) => [e.left, e.top, e.right, e.bottom].map(Math.round).join(" ")).join(" | ")]);
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
