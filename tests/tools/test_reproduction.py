"""The page of the papers' tables and figures: complete, up to date, and made of the suites' verdicts."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
from report.fake import write_results
from ruamel.yaml import YAML

from harness.results.record import Record
from harness.results.record_store import kept, write_suite
from harness.suite.schema import Suite, TrialConfig
from harness.suite.suite_file import load_suite
from tools.reproduction import ITEMS, PAGE, VERDICTS, Item, main, read_papers, read_runs, render

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
ROMAN = {"I": 1, "II": 2, "III": 3, "IV": 4, "V": 5}
SUITE = """\
name: demo-twin
datasets: [digits]
partition: {parts: 2}
methods:
  - full
  - bns-gcn: {rate: 0.1}
device: cpu
claims:
  - name: a tenth | is sent
    source: Paper, Figure 1
    metric: bytes_feature
    of: {method: bns-gcn}
    over: {method: full}
    expect: {at_most: 0.2}
  - name: nothing is sent
    source: Paper, Figure 12
    metric: bytes_feature
    of: {method: bns-gcn}
    over: {method: full}
    expect: {at_most: 0.05}
  - name: accuracy of a method that was not run
    source: Paper, Figure 12
    metric: test_at_best_val
    of: {method: full, seed: 7}
    expect: {at_least: 0.5}
"""
DATA = {
    "item": [
        {"item": "Figure 1", "shows": "bytes", "twin": ["demo-twin"], "claims": ["Figure 1"]},
        {"item": "Figure 12", "shows": "more", "twin": ["demo-twin"], "claims": ["Figure 12"]},
        {"item": "Figure 3", "shows": "a drawing", "why": "a drawing"},
    ]
}


@functools.cache
def shipped() -> dict[str, Suite]:
    return {path.stem: load_suite(path) for path in (ROOT / "suites" / "papers").glob("*.yaml")}


def test_the_page_is_what_the_data_and_the_kept_verdicts_make() -> None:
    page = render(read_papers(DOCS / ITEMS), read_runs(DOCS / VERDICTS), shipped())
    assert (DOCS / PAGE).read_text() == page, "run python -m tools.reproduction"


def test_every_suite_of_a_paper_is_on_the_page_as_what_it_runs_on() -> None:
    listed = [pair for paper in read_papers(DOCS / ITEMS).papers for i in paper.items for pair in i.suites()]
    assert {name for _, name in listed} == set(shipped())
    for kind, name in listed:
        assert any(dataset.name == "twin" for dataset in shipped()[name].datasets) == (kind == "twin"), name
        assert name.endswith("-twin") == (kind == "twin")


def test_no_figure_or_table_is_left_out() -> None:
    counts = {"BNS-GCN": (6, 2), "PSC-GCN": (8, 3), "Skewed sampling": (5, 2), "DGS": (10, 5), "GraphSAINT": (8, 3)}
    papers = {paper.name: paper for paper in read_papers(DOCS / ITEMS).papers}  # of comparisons there are some tables
    for paper in (papers[name] for name in counts):
        figures, tables = counts[paper.name]
        numbered = [item.item.split() for item in paper.items if not item.item.endswith("graphs")]
        found = sorted((kind, ROMAN.get(number) or int(number)) for kind, number in numbered)
        assert found == [
            *(("Figure", number) for number in range(1, figures + 1)),
            *(("Table", number) for number in range(1, tables + 1)),
        ]


def test_a_claim_is_counted_for_the_figure_that_its_source_names() -> None:
    item = Item(item="Table I", shows="", claims=("Table I", "section 2"))
    assert item.counts("PSC-GCN, Table I (94.9K)")
    assert item.counts("BNS-GCN, section 2 (swaps)")
    assert not item.counts("PSC-GCN, Table II")
    assert Item(item="Table I", shows="").counts("anything")


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data file, a suite with its results, and the command run on them."""
    monkeypatch.chdir(tmp_path)
    Path("docs").mkdir()
    Path("suites").mkdir()
    write_data(DATA["item"])
    Path("suites/demo-twin.yaml").write_text(SUITE)
    write_results(Path("results"), methods=(("full", {}), ("bns-gcn", {"rate": 0.1})), parts=(2,), seeds=(0,))
    Path("results/demo").rename("results/demo-twin")
    for path in Path("results").glob("*/*/record.json"):
        record = Record.model_validate_json(path.read_text())
        path.write_text(record.model_copy(update={"suite": "demo-twin"}).to_json())
    keep(Path("suites/demo-twin.yaml"))
    return tmp_path


def write_data(items: list[dict[str, object]]) -> None:
    papers = {"papers": [{"name": "Paper", "title": "A paper", "items": items}]}
    YAML(typ="safe").dump(papers, Path("docs", ITEMS))


def keep(file: Path) -> None:
    records = sorted(Path("results").glob("*/*/record.json"))
    trials = [TrialConfig.model_validate(json.loads(path.read_text())["config"]) for path in records]
    write_suite(Path("results/demo-twin"), kept(load_suite(file), trials))


def run(*results: str) -> None:
    main([*results, "--docs", "docs", "--suites", "suites"])


def test_results_become_verdicts_and_verdicts_the_page(made: Path) -> None:
    run()
    before = Path("docs", PAGE).read_text()
    assert "twin planned" in before
    assert "2 planned only, 1 not reproduced" in before
    run("results")
    page = Path("docs", PAGE).read_text()
    rows = {line.split(" | ")[0]: line for line in page.splitlines()}
    assert rows["| Figure 1"].endswith("`demo-twin` | twin run: 1 of 1 claim holds |")
    assert rows["| Figure 12"].endswith("| twin run: 0 of 1 claim holds, 1 not measured |")
    assert rows["| Figure 3"].endswith("|  | not reproduced: a drawing |")
    assert "| `demo-twin` | nothing is sent | at most 0.05 × | 0.1" in page
    assert "a tenth" not in page  # it holds
    assert "Example CPU" in page
    Path("results").rename("elsewhere")
    run()  # of what is kept
    assert Path("docs", PAGE).read_text() == page


def test_verdicts_from_before_they_stated_how_often_they_err_are_indicated(made: Path) -> None:
    """Of bytes, which are exact, they stand."""
    run("results")
    kept_verdicts = json.loads(Path("docs", VERDICTS).read_text())
    for verdict in kept_verdicts["runs"]["demo-twin"]["verdicts"]:
        del verdict["stated"]
        verdict["state"] = "holds"
    Path("docs", VERDICTS).write_text(json.dumps(kept_verdicts))
    run()
    page = Path("docs", PAGE).read_text()
    assert "twin run: 1 of 1 claim holds |" in page
    assert "twin run: 1 of 2 claims hold, 1 indicated |" in page


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([{"item": "Figure 1", "shows": "bytes"}], "Figure 1: has neither suites nor a reason"),
        ([{"item": "Figure 1", "shows": "bytes", "twin": ["other"]}], "no such suite 'other'"),
        ([{"item": "Figure 1", "shows": "bytes", "twins": ["demo-twin"]}], "reproduction.yaml: papers.0"),
    ],
)
def test_a_mistake_in_the_data_file_is_one_line(
    made: Path, capsys: pytest.CaptureFixture[str], items: list[dict[str, object]], message: str
) -> None:
    write_data(items)
    with pytest.raises(SystemExit) as exited:
        run()
    error = capsys.readouterr().err
    assert (exited.value.code, len(error.splitlines())) == (2, 1)
    assert message in error


def test_verdicts_of_claims_that_the_suite_no_longer_has_are_refused(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("results")
    Path("suites/demo-twin.yaml").write_text(SUITE.replace("nothing is sent", "little is sent"))
    for arguments, message in (((), "kept verdicts are not of its claims"), (("results",), "not the claims of")):
        with pytest.raises(SystemExit):
            run(*arguments)
        assert message in capsys.readouterr().err
