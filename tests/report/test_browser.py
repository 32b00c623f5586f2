"""The page in a browser: what its script does, what it asks the network for, whether it can be read."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from report.fake import METHODS, write_results
from support.networks import write_networks

from harness.registry import find_plugins
from harness.report import write_report
from harness.report.palette import COLOURS, PAPER, PHASES, PURPOSES, contrast, lightened

pytestmark = pytest.mark.slow

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra `test`)")

EVIL = "<script>alert('x')</script><img src=x onerror=alert(1)>$a_b$"


PLUGIN = '''
from harness import ReportView


class Drawn(ReportView):
    """A figure that matplotlib draws."""

    name = "drawn"
    title = "Drawn elsewhere"
    question = "Is it on the page?"

    def figure(self):
        import seaborn

        return seaborn.relplot(x=[1, 2], y=[3.0, 4.0], kind="line").figure
'''


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
    (root / "views.py").write_text(PLUGIN)
    return write_report(root, root / "out", ("html",), plugins=find_plugins([str(root / "views.py")]))


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


def until(page: playwright.Page, test: str, arg: object = None) -> None:
    """Wait until a function of the page holds; Playwright's own waiting evaluates text, which the page forbids."""
    wait = f"""async (arg) => {{
      const holds = {test};
      for (let i = 0; i < 1000 && !holds(arg); i += 1) await new Promise((done) => setTimeout(done, 10));
      return holds(arg);
    }}"""
    assert page.evaluate(wait, arg)


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


CHART = "figure[data-chart-of].live"
MEANS = "charts[0].points.filter(each => each.kind === 'mean')"


def drawn(page: playwright.Page) -> list[dict[str, Any]]:
    """The points of the first chart that are means, once they are drawn."""
    page.locator("figure[data-chart-of]").first.scroll_into_view_if_needed()
    page.wait_for_selector(CHART)
    until(page, "() => !called && !charts[0].due")
    page.evaluate("charts[0].done")
    return list(page.evaluate(MEANS))


def choose(page: playwright.Page, key: str, value: str) -> None:
    page.locator(f"{CHART} select[data-chart={key}]").first.select_option(value)


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


PLOT = "figure.plotted:has(a[download='digits-sage-{}.csv'])"


def plotted(page: playwright.Page, kind: str) -> int:
    """Bring a figure of the first data set into sight and return its place among the page's."""
    figure = page.locator(PLOT.format(kind))
    figure.scroll_into_view_if_needed()
    place = int(figure.evaluate("own => plots.findIndex(each => each.figure === own)"))
    until(page, "place => plots[place].seen && !plots[place].due && !plots[place].left", arg=place)
    return place


def points(page: playwright.Page, kind: str, test: str) -> list[dict[str, Any]]:
    """What a figure's first panel draws now, of what passes a test."""
    drawn = f"place => plots[place].shown[0].view.data('points').filter(each => {test}).map(each => ({{ ...each }}))"
    return list(page.evaluate(drawn, plotted(page, kind)))


def ends(page: playwright.Page, kind: str) -> float:
    """The highest number at the vertical axis of a figure's first panel."""
    plotted(page, kind)
    texts = page.locator(PLOT.format(kind)).locator("svg.marks").first.locator(".role-axis-label text")
    return max(float(text.replace(",", "")) for text in texts.all_text_contents() if re.fullmatch(r"[\d.,]+", text))


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
    assert page.evaluate("[...document.scripts].filter(each => !each.type).length") == 3  # the page's own
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


def test_choosing_a_network_changes_sentence_and_table(browser: playwright.Browser, tmp_path: Path) -> None:
    """Made-up trials: at 1 Gbit/s `full` waits for its bytes, over NVLink it has the shortest epoch."""
    options: dict[str, Any] = {"compute": {"full": 0.10, "bns-gcn": 0.11}, "payload": 100, "scored": True}
    results = write_networks(tmp_path, [None], (0, 1, 2), **options)
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.goto(write_report(results, tmp_path / "out", ("html",)).as_uri())
    places = (".lead", "#answer + section figcaption b", "#answer + section tbody tr:first-child th")
    visible = "s => [...document.querySelectorAll(s)].filter(e => e.getClientRects().length).map(e => e.textContent)"
    seen: dict[str, list[list[str]]] = {}
    for name in ("measured", "1gbit", "nvlink", "measured"):
        page.select_option("#on", name)
        found = [page.evaluate(visible, at) for at in places]
        sentences, titles, first = found
        assert len(sentences) == len(first) == 1
        projected = name != "measured"
        assert sentences[0].startswith("Projected to ") == projected
        assert ("projected to" in titles[0]) == projected
        assert page.is_visible("#projected") == projected
        assert page.is_visible("[data-chart-of]") != projected
        assert seen.setdefault(name, found) == found  # at the end as it was
    assert seen["1gbit"][2] == ["bns-gcn (rate=0.1), P = 2"]
    assert seen["nvlink"][2] == seen["measured"][2] == ["full, P = 2"]
    assert "bns-gcn (rate=0.1) reaches 75 % first" in seen["1gbit"][0][0]
    assert "full on 2 ranks reaches 75 % first" in seen["nvlink"][0][0]
    page.close()
