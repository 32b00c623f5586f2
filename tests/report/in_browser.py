"""What tests do on a page that a browser shows."""

from __future__ import annotations

import re
from typing import Any

EVIL = "<script>alert('x')</script><img src=x onerror=alert(1)>$a_b$"


def shown(page: Any, selector: str) -> int:
    """How many of the elements take up room."""
    return int(
        page.evaluate("s => [...document.querySelectorAll(s)].filter(e => e.getClientRects().length).length", selector)
    )


def tick(page: Any, key: str, value: str) -> None:
    page.evaluate(
        "([key, value]) => [...document.querySelectorAll(`input[data-filter=${key}]`)]"
        ".find(each => each.value === value).click()",
        [key, value],
    )


def until(page: Any, test: str, arg: object = None) -> None:
    """Wait until a function of the page holds; Playwright's own waiting evaluates text, which the page forbids."""
    wait = f"""async (arg) => {{
      const holds = {test};
      for (let i = 0; i < 1000 && !holds(arg); i += 1) await new Promise((done) => setTimeout(done, 10));
      return holds(arg);
    }}"""
    assert page.evaluate(wait, arg)


CHART = "figure[data-chart-of].live"
MEANS = "charts[0].points.filter(each => each.kind === 'mean')"


def drawn(page: Any) -> list[dict[str, Any]]:
    """The points of the first chart that are means, once they are drawn."""
    page.locator("figure[data-chart-of]").first.scroll_into_view_if_needed()
    page.wait_for_selector(CHART)
    until(page, "() => !called && !charts[0].due")
    page.evaluate("charts[0].done")
    return list(page.evaluate(MEANS))


def choose(page: Any, key: str, value: str) -> None:
    page.locator(f"{CHART} select[data-chart={key}]").first.select_option(value)


PLOT = "figure.plotted:has(a[download='digits-sage-{}.csv'])"


def plotted(page: Any, kind: str) -> int:
    """Bring a figure of the first data set into sight and return its place among the page's."""
    figure = page.locator(PLOT.format(kind))
    figure.scroll_into_view_if_needed()
    place = int(figure.evaluate("own => plots.findIndex(each => each.figure === own)"))
    until(page, "place => plots[place].seen && !plots[place].due && !plots[place].left", arg=place)
    return place


def points(page: Any, kind: str, test: str) -> list[dict[str, Any]]:
    """What a figure's first panel draws now, of what passes a test."""
    drawn = f"place => plots[place].shown[0].view.data('points').filter(each => {test}).map(each => ({{ ...each }}))"
    return list(page.evaluate(drawn, plotted(page, kind)))


def ends(page: Any, kind: str) -> float:
    """The highest number at the vertical axis of a figure's first panel."""
    plotted(page, kind)
    texts = page.locator(PLOT.format(kind)).locator("svg.marks").first.locator(".role-axis-label text")
    return max(float(text.replace(",", "")) for text in texts.all_text_contents() if re.fullmatch(r"[\d.,]+", text))
