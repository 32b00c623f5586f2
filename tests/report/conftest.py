"""Results that reports are made from."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from report.fake import METHODS, Method, write_results
from report.in_browser import EVIL
from report.measured import EPOCHS, FULL, PIPELINED, SKEWED, Write, one_section, section_tables

from harness.registry import find_plugins
from harness.report import write_report
from harness.report.sections import Section
from harness.report.table import Table
from harness.suite.schema import TrialConfig


@pytest.fixture(scope="session")
def results_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two data sets (one a twin), four variants, P = 1 and 2, three seeds; some trials fail."""

    def fails(config: TrialConfig) -> tuple[str, str] | None:
        if config.dataset.name == "twin" and config.method.name == "full" and config.partition.parts == 2:
            return "oom", "rank 1 killed\nout of memory"
        if config.dataset.name == "digits" and config.method.name == "graphsage" and config.seed == 2:
            return "diverged", "loss is NaN at epoch 3 <b>"
        return None

    return write_results(
        tmp_path_factory.mktemp("results"),
        datasets=[("digits", "real", ""), ("twin", "twin", "twin of reddit at scale 0.02")],
        fails=fails,
    )


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(methods: tuple[Method, ...] = (FULL,), **chosen: Any) -> Section:
        chosen = {"parts": (2,), "seeds": (0,), "epochs": EPOCHS} | chosen
        return one_section(write_results(tmp_path, methods=methods, **chosen))

    return written


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_results(
        tmp_path_factory.mktemp("measured"),
        methods=(FULL, METHODS[0], PIPELINED, SKEWED, METHODS[2]),
        seeds=(0, 1),
        epochs=EPOCHS,
        settings={"timing": "breakdown", "traffic": "verify"},
    )


@pytest.fixture(scope="session")
def section(root: Path) -> Section:
    return one_section(root)


@pytest.fixture(scope="session")
def tables(section: Section) -> dict[str, Table]:
    return section_tables(section)


BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra `test`)")
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    with playwright.sync_playwright() as started:
        if not found and not Path(started.chromium.executable_path).is_file():
            pytest.skip("no Chromium on this machine: install one, or run `playwright install chromium`")
        launched = started.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield launched
        launched.close()


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


@pytest.fixture(scope="session")
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
def opened(browser: Any, index: Path) -> Iterator[Any]:
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
def page(opened: Any) -> Any:
    opened.evaluate("document.getElementById('reset').click()")
    opened.evaluate("document.querySelectorAll('details.fold').forEach(each => { each.open = true; })")
    return opened
