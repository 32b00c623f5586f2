"""The reference of classes and functions: what it names is there, and its examples run."""

from __future__ import annotations

import json
import pkgutil
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from docs.pages import DOCS, blocks

import harness
import harness.plugin
from harness.cli import main
from harness.registry import find_plugins
from harness.results.frames import load_results

PAGES = sorted((DOCS / "api").glob("*.md"))
SUITE = {
    "name": "examples",
    "datasets": [{"sbm": {"nodes": 200, "features": 8}}],
    "model": {"name": "neighbours", "hidden": 8},
    "train": {"epochs": 4, "eval_every": 2},
    "partition": {"parts": 2, "method": "stripes"},
    "methods": ["own-part", "two-neighbours", "alternating"],
    "device": "cpu",
}


def examples(name: str) -> str:
    """Return the code of a page."""
    return "\n\n".join(blocks(DOCS / "api" / f"{name}.md", "python"))


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The classes of the pages in a file."""
    file = tmp_path_factory.mktemp("examples") / "examples.py"
    file.write_text("\n\n".join(examples(name) for name in ("methods", "exchange", "others")))
    return file


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_describes_is_public(page: Path) -> None:
    public = {id(getattr(module, name)) for module in (harness, harness.plugin) for name in module.__all__}
    for name in re.findall(r"^::: (.*)$", page.read_text(), re.MULTILINE):
        assert id(pkgutil.resolve_name(name)) in public, f"{name} is not a name that plugins import"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_example_is_long(page: Path) -> None:
    for code in blocks(page, "python"):
        for one in re.split(r"^(?=class )", code, flags=re.MULTILINE):
            assert one.strip().count("\n") < 20


def test_the_examples_of_blocks_hold() -> None:
    exec(examples("graphs"), {})


def test_every_class_is_found_as_a_plugin(plugins: Path) -> None:
    assert {*find_plugins([str(plugins)])} == {
        *[("method", name) for name in SUITE["methods"]],
        *[("model", "neighbours"), ("partitioner", "stripes"), ("executor", "nice"), ("view", "peaks")],
    }


@pytest.mark.slow
def test_the_examples_run_together(plugins: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("examples.yaml").write_text(yaml.safe_dump(SUITE))
    with pytest.raises(SystemExit) as ended:
        main(["run", "examples.yaml", "--executor", "nice", "--plugin", str(plugins), "--report"])
    assert not ended.value.code
    found = load_results(Path("results/examples"))
    assert dict(zip(found["method"], found["status"], strict=True)) == dict.fromkeys(SUITE["methods"], "ok")
    assert "Memory and waiting" in Path("reports/examples/index.html").read_text()


@pytest.mark.slow
def test_the_lines_of_a_notebook_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made: dict[str, object] = {}
    exec(examples("python"), made)
    assert len(made["trials"]) == 4  # type: ignore[arg-type]
    assert made["scores"].notna().all(axis=None)  # type: ignore[attr-defined]
    assert (made["times"] > 0).all()  # type: ignore[operator]
    assert made["page"] == Path("reports/three/index.html")
    assert list(Path("reports/three/figures").glob("*.svg"))


@pytest.mark.slow
def test_the_notebook_of_the_gallery_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cells = json.loads((DOCS / "gallery" / "notebook.ipynb").read_text())["cells"]
    made: dict[str, Any] = {}
    for code in ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"):
        exec(code, made)
    assert set(made["trials"]["status"]) == {"ok"}
    for name in ("answer", "curves"):
        shown = made[name]._repr_html_()
        assert shown.startswith("<svg")
        assert all(method in shown for method in ("full", "bns-gcn", "graphsage"))
    assert made["page"] == Path("reports/notebook/index.html")
    with pytest.raises(harness.UserError, match="no figure 'answr'"):
        harness.plot("results/notebook", "answr")
