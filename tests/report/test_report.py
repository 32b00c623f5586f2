"""The written report: complete, self-contained, escaped, well-formed."""

from __future__ import annotations

import base64
import hashlib
import io
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

from harness.errors import UserError
from harness.report import write_report
from harness.report.page import to_csv
from harness.report.printing import draw
from harness.report.sections import make_sections
from harness.report.views.time import EpochTimeView
from harness.results.frames import load_epochs, load_inputs, load_results

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
        if tag not in ("meta", "img", "link", "br", "wbr", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("style", "script"):
            self.text.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def out(results_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("report") / "new" / "place"
    before = dict(mpl.rcParams)
    assert write_report(results_dir, target, ("html", "md", "csv", "svg")) == target / "index.html"
    assert dict(mpl.rcParams) == before  # nothing global is left changed
    return target


@pytest.fixture(scope="module")
def page(out: Path) -> Page:
    return Page((out / "index.html").read_text(encoding="utf-8"))


def test_files(out: Path) -> None:
    names = {path.name for path in out.iterdir()}
    assert names == {"index.html", "report.md", "results.csv", "epochs.csv", "figures"}
    kinds = {"throughput", "scaling", "breakdown", "traffic", "sampling", "layers", "memory", "use"}
    kinds |= {"convergence", "targets", "pareto", "options", "partition"}
    drawn = {path.stem for path in (out / "figures").glob("*.svg")}
    assert {f"{data}-sage-{kind}" for data in ("digits", "twin") for kind in kinds} <= drawn
    written = {f"{stem}.{kind}" for stem in drawn for kind in ("svg", "csv")}
    assert {path.name for path in (out / "figures").iterdir()} == written
    for path in (out / "figures").glob("*.svg"):
        ElementTree.parse(path)


def test_page_loads_nothing_from_elsewhere(page: Page, out: Path) -> None:
    assert not {tag for tag, _ in page.elements} & {"img", "link", "iframe", "object", "base", "image"}
    for _, attributes in page.elements:
        assert not any(name.startswith("on") or name in ("src", "style") for name in attributes)
        assert not any("url(" in (value or "").replace("url(#", "") for value in attributes.values())
    text = (out / "index.html").read_text(encoding="utf-8")
    policy = next(meta["content"] for meta in page.all("meta") if meta.get("http-equiv")) or ""
    assert policy.startswith("default-src 'none';")
    for tag, count in (("style", 1), ("script", 3)):  # allowed by what each is, and by nothing else
        contents = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        assert len(contents) == count
        digests = [base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() for content in contents]
        allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
        assert f"{tag}-src {allowed};" in policy
        own = [content for content in contents if not content.startswith("// vega ")]
        assert not any(
            word in content for content in own for word in ("url(", "@import", "fetch(", "eval(", "innerHTML")
        )
    for link in page.all("a"):
        href = link["href"] or ""
        assert href.startswith(("#", "data:text/csv;")) or (out / href).is_file()


def test_page_is_whole(page: Page, out: Path) -> None:
    assert page.open == []
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    linked = {link["href"] for link in page.all("a")}
    assert {f"#{heading['id']}" for tag in ("h2", "h3") for heading in page.all(tag) if "id" in heading} <= linked
    charts = [figure for figure in page.all("figure") if "data-chart-of" in figure]
    assert len(plots_in(out)) + len(charts) == len(list((out / "figures").glob("*.svg")))


def plots_in(out: Path) -> dict[str, dict[str, Any]]:
    """The figures that the page draws, by the name of their CSV."""
    text = (out / "index.html").read_text(encoding="utf-8")
    found = re.findall(
        r'<figure class="plotted"><script type="application/json">(.*?)</script>.*?download="([^"]*).csv"',
        text,
        re.DOTALL,
    )
    return {name: json.loads(data) for data, name in found}


def test_figures_in_the_page_can_be_told_apart(out: Path, page: Page) -> None:
    plot = plots_in(out)["digits-sage-memory"]
    assert {own["method"] for own in plot["series"]} == {"full", "bns-gcn", "graphsage"}
    layers = [layer for row in plot["rows"] for panel in row for layer in panel["layers"]]
    assert {parts for layer in layers for parts in layer["columns"]["parts"]} == {1, 2}
    link = next(own for own in page.all("a") if own.get("download") == "digits-sage-memory.csv")
    numbers = base64.b64decode((link["href"] or "").partition("base64,")[2])
    assert numbers == (out / "figures" / "digits-sage-memory.csv").read_bytes()
    assert set(pd.read_csv(io.BytesIO(numbers))["method"]) == {"full", "bns-gcn", "graphsage"}


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
    named = [plot["dataset"] for name, plot in plots_in(out).items() if name.startswith("twin")]
    assert len(named) >= 6
    assert all("twin of reddit at scale 0.02" in name for name in named)
    captions = re.findall(r"<b>Figure [^<]*twin[^<]*</b>", (out / "index.html").read_text(encoding="utf-8"))
    assert len(captions) > len(named)
    assert all("twin of reddit at scale 0.02" in caption for caption in captions)


def test_markdown_tables_are_well_formed(out: Path) -> None:
    lines = (out / "report.md").read_text(encoding="utf-8").split("\n")
    tables: list[list[str]] = [[]]
    for line in lines:
        if line.startswith("|"):
            tables[-1].append(line)
        elif tables[-1]:
            tables.append([])
    tables = [table for table in tables if table]
    assert len(tables) >= 2 + 2 * 12  # failures, environment; those of the sections
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


@pytest.mark.slow
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
    index = write_report(root, tmp_path / "out", ("html", "md", "svg"))
    page = Page(index.read_text(encoding="utf-8"))
    assert len([script for script in page.all("script") if "type" not in script]) == 3
    assert EVIL in " ".join(page.text)
    assert any(own["method"] == EVIL for plot in plots_in(index.parent).values() for own in plot["series"])
    assert all(path.parent == tmp_path / "out" / "figures" for path in (tmp_path / "out").rglob("*.svg"))
    markdown = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert "<script" not in markdown
    table = next(part for part in markdown.split("\n\n") if part.startswith("| Method"))
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


def test_equal_results_give_equal_files(results_dir: Path, out: Path) -> None:
    section = make_sections(load_inputs(results_dir))[0]
    figure = EpochTimeView(section).figure()
    assert figure
    assert draw(figure)["svg"] == (out / "figures" / "digits-sage-throughput.svg").read_bytes()


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
    monkeypatch.setattr(
        "harness.report.write.write_files", lambda make, inputs, out, formats, pool: seen.append(out) or out
    )
    write_report(results_dir / "demo")
    assert seen == [Path("reports/demo")]


def test_several_directories(tmp_path: Path) -> None:
    """A trial of both is the one that started last, with its epochs; others are of where they are."""
    chosen: dict[str, Any] = {"methods": METHODS[:1], "parts": (2,), "epochs": 6}
    first = write_results(tmp_path / "a", seeds=(0, 1), **chosen)
    second = write_results(tmp_path / "b", seeds=(1, 2), **chosen)
    for path in second.rglob("record.json"):
        path.write_text(path.read_text().replace("2025-01-01T10", "2025-01-01T11"))
    for path in second.rglob("epochs.parquet"):
        pd.read_parquet(path).assign(loss=7.0).to_parquet(path)
    for order in ([first, second], [second, first, first]):
        inputs = load_inputs(order)
        hours = inputs.results.set_index("seed")["started"].str[11:13]
        assert dict(hours) == {0: "10", 1: "11", 2: "11"}
        assert inputs.repeated == 1
        seeds = inputs.epochs["trial"].map(inputs.results.set_index("trial")["seed"])
        assert len(seeds) == 3 * 2 * 6
        assert set(seeds[inputs.epochs["loss"] == 7.0]) == {1, 2}
        assert {record.started[11:13] for record in inputs.records.values()} == {"10", "11"}
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty: holds no finished trial"):
        load_inputs([first, tmp_path / "empty"])


def test_formats(tmp_path: Path) -> None:
    root = write_results(tmp_path / "results", methods=METHODS[:1], parts=(1,), seeds=(0,), epochs=1)
    assert write_report(root, tmp_path / "out", ("md",)) == tmp_path / "out" / "report.md"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["report.md"]
    with pytest.raises(UserError, match=r"no format 'htlm' \(did you mean 'html'\?\)"):
        write_report(root, tmp_path / "out", ("htlm",))


def test_csv_of_mappings_and_gaps() -> None:
    frame = pd.DataFrame({"a": [{"k": [1, 2]}, None], "b": [1.5, float("nan")]})
    assert to_csv(frame).decode() == 'a,b\n"{""k"": [1, 2]}",1.5\n,\n'


def test_no_cell_of_a_csv_file_is_a_formula() -> None:
    frame = pd.DataFrame({"name": ["=1+1", "@sum", "-", "-1.5", "plain"], "value": [-1.0, 2, 3, 4, 5]})
    assert to_csv(frame).decode().splitlines()[1:] == ["'=1+1,-1.0", "'@sum,2.0", "-,3.0", "-1.5,4.0", "plain,5.0"]


def test_only_a_page_that_is_followed_renews_itself(tmp_path: Path) -> None:
    root = write_results(tmp_path / "results", methods=METHODS[:1], parts=(2,), seeds=(0,))
    for renewed_s in (10, None):
        page = write_report(root, tmp_path / "report", ["html"], renewed_s=renewed_s).read_text()
        assert ('<meta http-equiv="refresh" content="10">' in page) is (renewed_s == 10)
