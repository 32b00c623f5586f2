"""The documentation's site in a browser: no page complains or loads anything from elsewhere, and the search finds."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from docs.pages import DOCS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra `test`)")
pytest.importorskip("material", reason="mkdocs-material is not installed (extra `docs`)")


class Quiet(SimpleHTTPRequestHandler):
    """Serves files and says nothing."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """The directory of the built site, and its address."""
    built = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(built)]
    subprocess.run(command, cwd=DOCS.parent, check=True, timeout=200)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(built)))
    Thread(target=server.serve_forever, daemon=True).start()
    yield built, f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def test_every_page_loads_without_an_error_and_the_search_finds(browser: Any, site: tuple[Path, str]) -> None:
    built, address = site
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    said: list[str] = []
    page.on("pageerror", lambda error: said.append(f"{page.url}: {error}"))
    page.on("console", lambda message: said.append(f"{page.url}: {message.text}") if message.type == "error" else None)
    page.on(
        "response",
        lambda found: said.append(f"{page.url}: {found.url} {found.status}") if found.status >= 400 else None,
    )
    page.on("request", lambda request: None if request.url.startswith((address, "data:")) else said.append(request.url))
    pages = sorted(built.rglob("*.html"))
    assert len(pages) > 50
    for each in pages:
        page.goto(address + each.relative_to(built).as_posix())
        assert page.title()
    page.goto(address)
    page.fill("input.md-search__input", "boundary")
    page.wait_for_selector(".md-search-result__item")
    page.close()
    assert said == []
