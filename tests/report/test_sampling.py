"""What sampling and caching save, and staleness, in the report: each number traced to the stored epochs."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from report.fake import METHODS, Method, write_results
from report.measured import EPOCHS, FULL, WARMUP, change, psc, records, rows_of, section_tables

from harness.report import write_report
from harness.report.sections import Section, make_sections
from harness.report.sweeps import sweep
from harness.report.table import Table
from harness.report.views.network import OverlapView
from harness.report.views.sampling import CacheView, SamplingView
from harness.report.warnings import make_notes
from harness.results.frames import load_inputs

SPARSE = ("bns-gcn", {"rate": 0.75, "sampler": "bernoulli"})
VARIANTS: tuple[Method, ...] = (
    *(FULL, SPARSE, METHODS[0], ("pipelined", {})),
    *(psc(), psc(staleness=0, cache="none")),
)
CACHED = "psc-gcn (cache=inclusion, staleness=1)"
HALO = ("feature", "embedding", "gradient", "control")


def name_all(record: dict[str, Any]) -> None:
    """Have labels show every option, as those of trials do whose options are not the defaults."""
    record["declared"]["defaults"] = {}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sampling")
    write_results(path, methods=(FULL, psc()), parts=(1,), seeds=(0,), epochs=EPOCHS)
    write_results(path, methods=VARIANTS, parts=(2,), seeds=(0, 1), epochs=EPOCHS)
    change(path, name_all)
    return path


@pytest.fixture(scope="module")
def section(root: Path) -> Section:
    (section,) = make_sections(load_inputs(root))
    return section


@pytest.fixture(scope="module")
def tables(section: Section) -> dict[str, Table]:
    return section_tables(section)


def shown(table: Table, label: str) -> dict[str, str]:
    row = next(row for row in table.rows if row.label.startswith(label))
    return dict(zip(table.columns, (cell.text for cell in row.cells), strict=True))


def per_epoch(root: Path, record: dict[str, Any], columns: list[str], after: int = WARMUP) -> float:
    """Mean over epochs of the sum over ranks and columns, from the stored epochs."""
    rows = [r for r in rows_of(root, record) if r["epoch"] >= after]
    return sum(r[c] for r in rows for c in columns) / len({r["epoch"] for r in rows})


def cached(root: Path) -> list[dict[str, Any]]:
    found = records(root, "psc-gcn", 2)
    return [r for r in found if r["config"]["method"]["options"]["cache"] != "none"]


def test_shares_of_boundary_edges_and_bytes(root: Path, tables: dict[str, Table]) -> None:
    row = shown(tables["sampling"], CACHED)
    boundary, edges = 9_000 + 17, 2 * 500_000
    rows, drawn, predicted = (
        statistics.mean(per_epoch(root, record, [f"stat_{name}"]) for record in cached(root))
        for name in ("sampled_boundary", "drawn_edges", "expected_boundary")
    )
    assert int(row["Boundary rows"].replace(",", "")) == round(rows)
    assert row["Boundary asked for (%)"] == f"{100 * rows / boundary:.1f}"
    assert row["Predicted (%)"] == f"{100 * predicted / boundary:.1f}" == "71.8"  # 1 - 0.9^12
    assert row["Edges drawn (%)"] == f"{100 * drawn / edges:.1f}" == "10.0"
    scores = [100 * record["result"]["test_at_best_val"] for record in cached(root)]
    assert row["Test accuracy (%)"].startswith(f"{statistics.mean(scores):.2f} ± ")


def test_bytes_are_all_and_their_share_is_of_all(root: Path, tables: dict[str, Table]) -> None:
    sent = {}
    for method in ("full", "psc-gcn"):
        chosen = cached(root) if method == "psc-gcn" else records(root, method, 2)
        sums = [sum(record["result"][f"bytes_{purpose}"] for purpose in (*HALO, "model")) for record in chosen]
        sent[method] = statistics.mean(sums)
    row = shown(tables["sampling"], CACHED)
    assert float(row["Sent (MiB)"]) == pytest.approx(sent["psc-gcn"] / 2**20, abs=6e-3)
    halo = [sum(record["result"][f"bytes_{purpose}"] for purpose in HALO) for record in cached(root)]
    assert float(row["Halo bytes (MiB)"]) == pytest.approx(statistics.mean(halo) / 2**20, abs=6e-3)
    assert row["Share of full (%)"] == f"{100 * sent['psc-gcn'] / sent['full']:.1f}"
    full = shown(tables["sampling"], "full")
    assert (full["Boundary asked for (%)"], full["Edges drawn (%)"], full["Share of full (%)"]) == (
        *("100.0", "100.0", "100.0"),
    )


def test_methods_of_equal_bytes_stand_together(tables: dict[str, Table]) -> None:
    table = tables["sampling"]
    rows = [row for row in table.rows if row.cells]
    sent = [float(row.cells[table.columns.index("Sent (MiB)")].text) for row in rows]
    assert sent == sorted(sent, reverse=True)
    assert len(rows) == len(VARIANTS)  # of P = 2 alone
    labels = [row.label.split(" ")[0] for row in rows]
    assert labels.index("psc-gcn") == labels.index("bns-gcn") + 1  # that of rate 0.75
    told = shown(table, "bns-gcn (rate=0.75")
    assert (told["Edges drawn (%)"], told["Predicted (%)"]) == ("none", "none")
    assert told["Boundary asked for (%)"] == "75.0"


def test_a_note_says_what_edge_sampling_does_not_save(root: Path, section: Section) -> None:
    notes = {note.lead: note.text for note in make_notes(load_inputs(root), [section])}
    text = notes["Fewer edges are not as many fewer bytes:"]
    assert "at P = 2 draws 10.0 % of the edges and sends 71." in text


def test_hit_rates(root: Path, tables: dict[str, Table]) -> None:
    table = tables["cache"]
    assert [row.label for row in table.rows] == ["P = 2", CACHED]
    row, rates, last = shown(table, CACHED), [], []
    for record in cached(root):
        found, asked = (per_epoch(root, record, [f"stat_{name}"]) for name in ("cached_boundary", "sampled_boundary"))
        rates.append(100 * found / asked)
        ends = [per_epoch(root, record, [f"stat_{n}_boundary"], after=EPOCHS - 1) for n in ("cached", "sampled")]
        last.append(100 * ends[0] / ends[1])
    assert row["Hit rate (%)"].startswith(f"{statistics.mean(rates):.2f} ± ")
    assert (row["First epoch (%)"], row["Last epoch (%)"]) == ("0.0", f"{statistics.mean(last):.1f}")


def test_without_such_figures_there_are_no_such_tables(tmp_path: Path) -> None:
    """Neither of methods that sample nothing nor of records older than a method's figures."""
    write_results(tmp_path, methods=(FULL, METHODS[2], METHODS[0]), parts=(2,), seeds=(0,), epochs=6)
    change(tmp_path, lambda record: [record["result"].pop(name) for name in ("stats", "edges")])
    (section,) = sections = make_sections(load_inputs(tmp_path))
    assert not {"sampling", "cache", "overlap"} & set(section_tables(section))
    assert not any(view(section).figure() for view in (SamplingView, CacheView, OverlapView))
    assert not [note for note in make_notes(load_inputs(tmp_path), sections) if "Fewer edges" in note.lead]


def test_a_sweep_is_a_line_a_choice_of_the_other_options(tmp_path: Path) -> None:
    policies = ("random", "inclusion")
    methods = [psc(cache=policy, capacity=share) for policy in policies for share in (0.5, 0.1)]
    write_results(tmp_path, methods=(FULL, *methods), parts=(2,), seeds=(0,), epochs=6)
    (section,) = make_sections(load_inputs(tmp_path))
    lines = {line.label: [x for x, _ in line.points] for line in sweep(section.variants, "capacity")}
    assert lines == {f"psc-gcn (cache={policy})": [0.1, 0.5] for policy in policies}
    assert sweep(section.variants, "staleness") == []
    picture = CacheView(section).figure()
    assert OverlapView(section).figure() is None
    assert picture is not None
    assert "capacity" in picture.title


def test_the_cache_by_epoch_where_nothing_is_swept(section: Section) -> None:
    picture = CacheView(section).figure()
    assert picture is not None
    assert "by epoch" in picture.title


@pytest.mark.slow
def test_staleness_within_a_network_and_across(tmp_path: Path) -> None:
    methods = (FULL, psc(staleness=0), psc(staleness=2))
    for network in (None, "1gbit"):
        settings = {"network": network}
        write_results(tmp_path, methods=methods, parts=(2,), seeds=(0,), epochs=6, settings=settings)
    change(tmp_path, _shaped)
    inputs = load_inputs(tmp_path)
    assert all(OverlapView(section).figure() for section in make_sections(inputs))
    times = inputs.results.query("method == 'psc-gcn'").groupby("network")["epoch_time_s"]
    write_report(tmp_path, tmp_path / "out", ("csv",))
    drawn = pd.read_csv(tmp_path / "out" / "figures" / "network-digits-sage-staleness.csv").dropna(
        subset="epoch_time_s"
    )
    assert set(drawn["network"]) == {"none", "1gbit"}
    for network, own in drawn.groupby("network"):  # a line each, not their means
        assert sorted(own["epoch_time_s"]) == pytest.approx(sorted(times.get_group(network)))


def _shaped(record: dict[str, Any]) -> None:
    """What a record must hold to be projected."""
    for rank in record["ranks"]:
        rank["traffic"] = []


def test_what_methods_remark_is_noted_once(tmp_path: Path) -> None:
    write_results(tmp_path, methods=(FULL,), parts=(2,), seeds=(0, 1), epochs=6)
    change(tmp_path, lambda record: [rank.update(remarks=["emulated"]) for rank in record["ranks"]])
    inputs = load_inputs(tmp_path)
    notes = [(note.lead, note.text) for note in make_notes(inputs, make_sections(inputs))]
    assert notes.count(("full:", "emulated")) == 1
