"""The written report: complete, self-contained, escaped, well-formed."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
import pandas as pd
import pytest
from report.fake import METHODS, write_results

from harness.report import write_report
from harness.report.figures.by_section import throughput_figure
from harness.report.figures.drawing import style
from harness.report.page.write import to_csv
from harness.report.trials.inputs import load_inputs
from harness.report.trials.sections import make_sections
from harness.results.frames import load_epochs, load_results

EVIL = "<script>alert('x')</script>|$a_b$"


class Page(HTMLParser):
    """What a browser would see: elements with their attributes, and the text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "link", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.text.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def out(results_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("report") / "new" / "place"
    before = dict(mpl.rcParams)
    assert write_report(results_dir, target) == target / "index.html"
    assert dict(mpl.rcParams) == before  # nothing global is left changed
    return target


@pytest.fixture(scope="module")
def page(out: Path) -> Page:
    return Page((out / "index.html").read_text(encoding="utf-8"))


def test_files(out: Path) -> None:
    names = {path.name for path in out.iterdir()}
    assert names == {"index.html", "report.md", "results.csv", "epochs.csv", "figures"}
    kinds = {"throughput", "breakdown", "traffic", "sampling", "memory", "convergence"}
    expected = {f"{d}-sage-{k}.{e}" for d in ("digits", "twin") for k in kinds for e in ("svg", "png")}
    assert {path.name for path in (out / "figures").iterdir()} == expected
    for path in (out / "figures").glob("*.svg"):
        ElementTree.parse(path)


def test_page_loads_nothing_from_elsewhere(page: Page, out: Path) -> None:
    assert not {tag for tag, _ in page.elements} & {"script", "link", "iframe", "object", "base"}
    for _, attributes in page.elements:
        assert not any(name.startswith("on") for name in attributes)
        source = attributes.get("src")
        assert source is None or source.startswith("data:image/svg+xml;base64,")
    styles = re.findall(r"<style>(.*?)</style>", (out / "index.html").read_text(), re.DOTALL)
    assert styles
    assert not any("url(" in style or "@import" in style for style in styles)
    for link in page.all("a"):
        href = link["href"] or ""
        assert href.startswith("#") or (out / href).is_file()


def test_page_is_whole(page: Page) -> None:
    assert page.open == []
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    linked = {link["href"] for link in page.all("a")}
    assert {f"#{name}" for name in ids} <= linked
    assert len(page.all("img")) == 12
    assert all(image["alt"] for image in page.all("img"))


def test_page_says_what_a_reader_must_know(page: Page) -> None:
    text = " ".join(" ".join(page.text).split())
    assert "5 of 48 trials did not end well (3 oom, 2 diverged)" in text
    for expected in [
        "rank 1 killed out of memory",
        "loss is NaN at epoch 3 <b>",  # as text, not as an element
        "twin of reddit at scale 0.02",
        "Example CPU @ 2.4 GHz",
        "0123456789abcdef",
        "uncommitted changes yes",
        "GPU none",
        "16.0 GiB",
    ]:
        assert expected in text
    assert not re.search(r"\b(nan|None|NaT)\b", text.replace("loss is NaN", ""))


def test_a_twin_is_never_shown_without_its_label(out: Path, page: Page) -> None:
    markdown = (out / "report.md").read_text(encoding="utf-8")
    for line in re.findall(r"^## twin.*$", markdown, re.MULTILINE):
        assert "twin of reddit at scale 0.02" in line
    named = [image["alt"] or "" for image in page.all("img") if "twin" in (image["alt"] or "")]
    assert len(named) == 6
    assert all("twin of reddit at scale 0.02" in alt for alt in named)


def test_markdown_tables_are_well_formed(out: Path) -> None:
    lines = (out / "report.md").read_text(encoding="utf-8").split("\n")
    tables: list[list[str]] = [[]]
    for line in lines:
        if line.startswith("|"):
            tables[-1].append(line)
        elif tables[-1]:
            tables.append([])
    tables = [table for table in tables if table]
    assert len(tables) == 3 + 2 * 12  # overview, failures, environment; twelve a section
    for table in tables:
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in table}
        assert len(widths) == 1
        assert re.fullmatch(r"\|( :?--:? \|| :-- \|)+", table[1])
    for figure in re.findall(r"\]\((figures/[^)]+)\)", "\n".join(lines)):
        assert (out / figure).is_file()


def test_csv_round_trip(out: Path, results_dir: Path) -> None:
    read = pd.read_csv(out / "results.csv")
    frame = load_results(results_dir)
    assert list(read.columns) == list(frame.columns)
    assert [json.loads(options) for options in read["options"]] == list(frame["options"])
    for column in ("epoch_time_s", "best_val", "bytes_feature", "peak_memory_bytes", "seed"):
        pd.testing.assert_series_equal(read[column], frame[column], check_dtype=False)
    assert read.loc[read["status"] == "oom", "epoch_time_s"].isna().all()
    epochs = pd.read_csv(out / "epochs.csv")
    expected = load_epochs(results_dir)
    assert len(epochs) == len(expected)
    pd.testing.assert_series_equal(epochs["epoch_time_s"], expected["epoch_time_s"])


def test_names_are_escaped(tmp_path: Path) -> None:
    root = write_results(
        tmp_path / "results",
        datasets=[(EVIL, "generated", EVIL)],
        methods=[(EVIL, {"note": EVIL, EVIL: 1.5}), METHODS[3]],
        parts=(2,),
        seeds=(0,),
        epochs=6,
        environment={"cpu": EVIL, EVIL: EVIL},
    )
    index = write_report(root, tmp_path / "out")
    page = Page(index.read_text(encoding="utf-8"))
    assert not page.all("script")
    assert EVIL in " ".join(page.text)
    assert all(path.parent == tmp_path / "out" / "figures" for path in (tmp_path / "out").rglob("*.svg"))
    markdown = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert "<script" not in markdown
    table = next(part for part in markdown.split("\n\n") if part.startswith("| Method"))
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


def test_equal_results_give_equal_files(results_dir: Path, out: Path) -> None:
    section = make_sections(load_inputs(results_dir))[0]
    with style():
        picture = throughput_figure(section)
    assert picture
    assert picture.svg == (out / "figures" / "digits-sage-throughput.svg").read_bytes()


def test_nothing_but_failures(tmp_path: Path) -> None:
    root = write_results(
        tmp_path / "results",
        methods=METHODS[:1],
        parts=(2,),
        seeds=(0,),
        fails=lambda config: ("skipped", "digits is not here; get it with: harness data get digits"),
    )
    text = write_report(root, tmp_path / "out").read_text(encoding="utf-8")
    assert "No trial ended well" in text
    assert "harness data get digits" in text


def test_a_trial_without_figures(tmp_path: Path) -> None:
    """One epoch, never evaluated: gaps are n/a, there is no convergence figure and no table of scores."""
    root = write_results(tmp_path / "results", methods=METHODS[:1], parts=(1,), seeds=(0,), epochs=1)
    text = write_report(root, tmp_path / "out").read_text(encoding="utf-8")
    assert "n/a" in text
    assert not list((tmp_path / "out" / "figures").glob("*convergence*"))
    assert "by method and number of parts P" not in text


def test_default_place(results_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("harness.report.page.write.write_files", lambda r, i, out, f: seen.append(out) or out)
    write_report(results_dir / "demo")
    assert seen == [Path("reports/demo")]


def test_csv_of_mappings_and_gaps() -> None:
    frame = pd.DataFrame({"a": [{"k": [1, 2]}, None], "b": [1.5, float("nan")]})
    assert to_csv(frame).decode() == 'a,b\n"{""k"": [1, 2]}",1.5\n,\n'
