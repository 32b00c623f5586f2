"""Charts and figures on the page in a browser: what they draw, say, and do after a filter."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from report.in_browser import CHART, EVIL, PLOT, choose, drawn, ends, plotted, points, shown, tick, until

pytestmark = pytest.mark.slow

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra `test`)")


@pytest.fixture(scope="module")
def means(index: Path) -> pd.DataFrame:
    """Means of the trials on the first data set in two parts, from the records alone."""
    records = [json.loads(path.read_text()) for path in index.parents[1].glob("*/*/record.json")]
    own = [r for r in records if r["status"] == "ok" and r["config"]["dataset"]["name"] == "digits"]
    rows = [
        {
            "method": record["config"]["method"]["name"],
            "parts": record["config"]["partition"]["parts"],
            "epoch": record["result"]["epoch_time_s"],
            "training": record["result"]["epoch_time_s"] * record["result"]["epochs"],
            "test": 100 * record["result"]["test_at_best_val"],
        }
        for record in own
    ]
    return pd.DataFrame(rows).query("parts == 2")


def test_a_chart_shows_the_trials(page: playwright.Page, means: pd.DataFrame) -> None:
    points = drawn(page)
    assert page.locator(f"{CHART} .chart svg").count() >= 1
    assert sorted(point["y"] for point in points) == pytest.approx(sorted(means["test"]), rel=1e-5)
    scale = max(point["x"] for point in points) / means["training"].max()  # seconds, or milliseconds
    assert sorted(point["x"] for point in points) == pytest.approx(sorted(scale * means["training"]), rel=1e-5)
    assert round(scale, 4) in (1, 1000)


def test_axes_are_chosen_and_the_address_keeps_them(page: playwright.Page, means: pd.DataFrame, index: Path) -> None:
    drawn(page)
    choose(page, "x", "test_at_best_val")
    choose(page, "y", "epoch_time_s")
    choose(page, "parts", "1")
    for box in ("logx", "logy"):
        page.locator(f"{CHART} input[data-chart={box}]").first.check()
    points = drawn(page)
    assert {point["parts"] for point in points} == {1}
    assert page.context.browser is not None
    other = page.context.browser.new_page(viewport={"width": 1400, "height": 900})
    other.goto(page.url)
    assert {point["parts"] for point in drawn(other)} == {1}
    assert drawn(other) == points
    assert other.locator("select[data-chart=y]").first.input_value() == "epoch_time_s"
    other.close()
    choose(page, "parts", "2")
    assert sorted(point["x"] for point in drawn(page)) == pytest.approx(sorted(means["test"]), rel=1e-5)
    page.evaluate("Object.keys(chosen).forEach(key => setChosen(key, ''))")
    assert page.url == f"{index.as_uri()}#"


def test_filters_act_on_the_points_and_their_front(page: playwright.Page) -> None:
    def front(points: list[dict[str, Any]]) -> set[str]:
        return {
            own["method"]
            for own in points
            if not any(
                each["x"] <= own["x"] and each["y"] >= own["y"] and (each["x"], each["y"]) != (own["x"], own["y"])
                for each in points
            )
        }

    before = drawn(page)
    assert {point["method"] for point in before if point["front"]} == front(before)
    (first, *_) = sorted(front(before))
    method = page.evaluate("label => embedded[0].variants.find(each => each.label === label).method", first)
    tick(page, "method", method)
    left = drawn(page)
    assert 0 < len(left) < len(before)
    assert not any(point["method"] == first for point in left)
    assert {point["method"] for point in left if point["front"]} == front(left)
    assert f"no-method={method}" in page.url or "no-method" in page.url


def test_curves_are_drawn_when_the_trials_are_opened(page: playwright.Page, means: pd.DataFrame) -> None:
    page.evaluate("document.querySelectorAll('details.fold').forEach(each => { each.open = false; })")
    fold = page.locator("details.fold:has(figure[data-curves-of])").first
    assert not fold.locator("figure.live").count()
    fold.locator("summary").click()
    fold.locator("figure.live .chart svg").wait_for()
    curve = "charts.find(each => each.curves).points"
    assert page.evaluate(f"new Set({curve}.map(each => each.trial)).size") == len(means)
    last = page.evaluate(f"Math.max(...{curve}.map(each => each.x))")
    fold.locator("select[data-chart=curve]").select_option("1")
    until(page, f"() => Math.max(...{curve}.map(each => each.x)) !== {last}")
    assert shown(page, "details.fold[open] tr[data-method=full]") > 0
    tick(page, "method", "full")
    assert shown(page, "details.fold[open] tr[data-method=full]") == 0
    until(page, f"() => !{curve}.some(each => each.method === 'full')")
    page.evaluate("setChosen('curve', '')")


def test_a_point_says_what_it_is(page: playwright.Page) -> None:
    points = drawn(page)
    symbols = page.locator(f"{CHART} .chart").first.locator(".mark-symbol.role-mark path")
    symbols.last.hover()
    box = page.locator(f"{CHART} .tip").first
    box.wait_for()
    said = box.inner_text()
    assert any(point["method"] in said for point in points)
    assert "P = 2" in said
    page.mouse.move(0, 0)


@pytest.fixture(scope="module")
def epochs(index: Path) -> dict[tuple[str, int], list[float]]:
    """Seconds an epoch of the first data set's trials by method's label and parts, from the records alone."""
    found: dict[tuple[str, int], list[float]] = {}
    for path in index.parents[1].glob("*/*/record.json"):
        record = json.loads(path.read_text())
        config = record["config"]
        if record["status"] == "ok" and config["dataset"]["name"] == "digits":
            name = config["method"]["name"]
            label = f"bns-gcn (rate={config['method']['options']['rate']})" if name == "bns-gcn" else name
            found.setdefault((label, config["partition"]["parts"]), []).append(record["result"]["epoch_time_s"])
    return found


def test_a_figure_is_drawn_when_it_is_opened(browser: playwright.Browser, index: Path) -> None:
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.goto(index.as_uri())
    page.wait_for_selector(CHART)
    assert page.locator("figure.plotted").count() > 20
    assert not page.locator("figure[data-plotted]").count()
    fold = page.locator("details.fold:has(a[download='digits-sage-throughput.csv'])")
    fold.locator("summary").click()
    fold.locator("figure[data-plotted] svg.marks").first.wait_for()
    assert page.locator("figure[data-plotted]").count() == 1
    page.close()


def test_every_figure_is_drawn(page: playwright.Page) -> None:
    """And none complains: see `opened`."""
    for figure in page.locator("figure.plotted").all():
        figure.scroll_into_view_if_needed()
        figure.locator("svg.marks").first.wait_for()
        assert figure.evaluate("own => plots.find(each => each.figure === own).points.length") > 0
    assert page.locator("figure.plotted[data-plotted]").count() == page.locator("figure.plotted").count()


def test_a_figure_shows_the_trials(page: playwright.Page, epochs: dict[tuple[str, int], list[float]]) -> None:
    shown = points(page, "throughput", "each.kind === 'bar'")
    bars = {(bar["series"], bar["parts"]): bar["y"] for bar in shown}
    assert len(epochs) == 8
    for key, (seconds,) in epochs.items():
        if EVIL not in key[0]:
            assert bars[key] == pytest.approx(1 / seconds, rel=1e-5)
    drawn = page.locator(PLOT.format("throughput")).locator("svg.marks").first.locator(".mark-rect.role-mark path")
    tall = [box["height"] for path in drawn.all() if (box := path.bounding_box())]
    first = sorted(bar["y"] for bar in shown)
    assert [each / max(tall) for each in sorted(tall)] == pytest.approx([y / first[-1] for y in first], abs=0.03)


def test_a_figure_says_what_is_pointed_at(page: playwright.Page) -> None:
    place = plotted(page, "throughput")
    bars = page.locator(PLOT.format("throughput")).locator("svg.marks").first.locator(".mark-rect.role-mark path")
    bars.last.hover()
    box = page.locator(PLOT.format("throughput")).locator(".tip")
    box.wait_for()
    said = box.inner_text()
    bar = page.evaluate("place => plots[place].points.filter(each => each.kind === 'bar' && each.seeds)", place)
    assert any(each["series"] in said and f"P = {each['parts']}" in said for each in bar)
    assert re.search(r"Throughput \(epochs / s\): [\d.,]+\n.*one seed", said, re.DOTALL)
    assert page.evaluate("interval({ y: 2, low: 1.5, high: 2.5, sd: true })") == " ± 0.5"
    assert page.evaluate("interval({ y: 2, low: 1, high: 2.5 })") == " [1, 2.5]"
    assert page.evaluate("interval({ y: 2, low: null, high: null })") == ""
    page.mouse.move(0, 0)


def test_filters_act_on_figures_and_their_axes(page: playwright.Page) -> None:
    before, top = points(page, "throughput", "each.kind === 'bar'"), ends(page, "throughput")
    fastest = max(before, key=lambda bar: bar["y"])
    tick(
        page,
        "method",
        page.evaluate("label => embedded[0].variants.find(each => each.label === label).method", fastest["series"]),
    )
    left = points(page, "throughput", "each.kind === 'bar'")
    assert 0 < len(left) < len(before)
    assert fastest["series"] not in {bar["series"] for bar in left}
    assert ends(page, "throughput") < top
    names = page.locator(PLOT.format("throughput")).locator(".legend > *").all_inner_texts()
    assert fastest["series"] not in names
    assert set(names) == {bar["series"] for bar in left}
    page.click("#reset")
    tick(page, "parts", "1")
    assert {bar["parts"] for bar in points(page, "throughput", "each.kind === 'bar'")} == {2}
    assert {point["parts"] for point in points(page, "convergence", "each.parts")} == {2}
    page.click("#reset")
    for method in {bar["series"].split(" (")[0] for bar in before} - {EVIL.split(" (")[0]}:
        tick(page, "method", method)
    tick(page, "method", EVIL)
    plotted(page, "throughput")
    assert page.locator(f"{PLOT.format('throughput')}.empty").count() == 1


def test_a_panel_keeps_its_view_and_the_last_filter_wins(page: playwright.Page) -> None:
    place = plotted(page, "memory")
    before = points(page, "memory", "each.kind === 'bar'")
    page.evaluate("place => { window.views = plots[place].shown.map(each => each.view); }", place)
    boxes = "[...document.querySelectorAll('input[data-filter=method]')]"
    full, other = (f"{boxes}.find(each => each.value === '{name}')" for name in ("full", "bns-gcn"))
    at_once = page.evaluate(
        f"""place => {{
      {full}.click(); {full}.click(); {other}.click();
      return plots[place].shown[0].view.data("points").length;
    }}""",
        place,
    )
    assert at_once >= len(before)  # pictures follow what is on the screen at once
    after = points(page, "memory", "each.kind === 'bar'")
    left = {bar["series"] for bar in before if not bar["series"].startswith("bns-gcn")}
    assert {bar["series"] for bar in after} == left
    assert page.evaluate("place => plots[place].shown.every((each, i) => each.view === window.views[i])", place)
    assert page.evaluate("waiting.length") == 0


def test_a_filter_brings_back_an_axis_that_a_reader_moved(page: playwright.Page) -> None:
    place = plotted(page, "pareto")
    domain = "place => plots[place].shown[0].view.scale('x').domain()"
    there = page.evaluate(domain, place)
    marks = page.locator(PLOT.format("pareto")).locator("svg.marks").first
    marks.scroll_into_view_if_needed()
    marks.hover()
    page.keyboard.down("Control")
    page.mouse.wheel(0, -200)
    page.keyboard.up("Control")
    until(page, f"([place, there]) => String(({domain})(place)) !== there", [place, ",".join(map(str, there))])
    page.mouse.move(0, 0)
    tick(page, "method", "full")
    tick(page, "method", "full")
    plotted(page, "pareto")
    assert page.evaluate(domain, place) == pytest.approx(there)


def test_the_front_is_of_what_is_left(page: playwright.Page) -> None:
    def front(found: list[dict[str, Any]]) -> set[tuple[float, float]]:
        return {
            (own["x"], own["y"])
            for own in found
            if not any(
                each["x"] <= own["x"] and each["y"] >= own["y"] and (each["x"], each["y"]) != (own["x"], own["y"])
                for each in found
            )
        }

    def drawn_front() -> set[tuple[float, float]]:
        return {(each["x"], each["y"]) for each in points(page, "pareto", "each.kind === 'front'")}

    before, line = points(page, "pareto", "each.kind === 'points'"), drawn_front()
    assert line == front(before)
    assert {(each["x"], each["y"]) for each in before if each["filled"]} == line
    best = next(each for each in before if each["filled"])
    tick(page, "method", EVIL if EVIL in best["series"] else best["series"].split(" (")[0])
    after = points(page, "pareto", "each.kind === 'points'")
    assert len(after) < len(before)
    assert drawn_front() == front(after) != line


def test_a_click_in_a_figures_legend_leaves_one_bright(page: playwright.Page) -> None:
    plotted(page, "memory")
    figure = page.locator(PLOT.format("memory"))
    button = figure.locator(".legend button").first
    bars = figure.locator("svg.marks").first.locator(".mark-rect.role-mark path")

    def opacities() -> set[float]:
        return {float(bar.get_attribute("opacity") or 1) for bar in bars.all()}

    assert opacities() == {1.0}
    button.focus()
    page.keyboard.press("Enter")
    assert button.get_attribute("aria-pressed") == "true"
    assert min(opacities()) < 0.2 < max(opacities()) == 1.0
    button.click()
    assert opacities() == {1.0}


def test_hostile_names_are_text_in_figures(page: playwright.Page) -> None:
    plotted(page, "breakdown")
    figure = page.locator(PLOT.format("breakdown"))
    names = figure.locator("svg.marks").first.locator(".role-axis-label text").all_text_contents()
    assert any(EVIL[:12] in name for name in names)
    assert any(EVIL in name for name in page.locator(f"{PLOT.format('memory')} .legend > *").all_inner_texts())
    assert page.evaluate("[...document.images].every(each => each.alt.startsWith('Drawn elsewhere'))")


def test_figures_have_the_colours_of_the_page(page: playwright.Page) -> None:
    fills = []
    for _ in range(2):
        plotted(page, "throughput")
        bars = page.locator(PLOT.format("throughput")).locator("svg.marks").first.locator(".mark-rect.role-mark path")
        fills.append({bar.get_attribute("fill") for bar in bars.all()})
        page.click("#theme")
    light, dark = fills
    assert "#222222" in light - dark  # black is not seen on a dark page


def test_on_paper_all_that_is_open_is_drawn_in_light_colours(browser: playwright.Browser, index: Path) -> None:
    page = browser.new_page(viewport={"width": 1400, "height": 900}, color_scheme="dark")
    page.goto(index.as_uri())
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.locator("figure.plotted:not([data-plotted])").count() == 0
    fills = (
        page.locator(PLOT.format("throughput"))
        .locator(".mark-rect.role-mark path")
        .evaluate_all("all => all.map(each => each.getAttribute('fill'))")
    )
    assert "#222222" in fills
    page.close()
