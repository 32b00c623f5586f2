"""The numbers of the page against computations of their own from the stored epochs."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report import fake
from report.fake import METHODS, write_results
from report.measured import section_tables

from harness.report.sections import Section, make_sections
from harness.report.table import Cell, Table, mark_best
from harness.report.warnings import make_notes
from harness.results.frames import load_epochs, load_inputs, load_results

WARMUP = 3  # of 30 epochs: a tenth
Key = tuple[str, str, int]  # data set, method with rate, parts


@pytest.fixture(scope="module")
def sections(results_dir: Path) -> dict[str, Section]:
    return {section.dataset: section for section in make_sections(load_inputs(results_dir))}


@pytest.fixture(scope="module")
def trials(results_dir: Path) -> dict[Key, list[dict[str, Any]]]:
    """The ok trials with their epochs as plain lists, by what a table's cell stands for."""
    epochs: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in load_epochs(results_dir).to_dict("records"):
        epochs[row["trial"]].append(row)
    found: dict[Key, list[dict[str, Any]]] = defaultdict(list)
    for row in load_results(results_dir).to_dict("records"):
        if row["status"] == "ok":
            rate = row["options"].get("rate")
            name = row["method"] if rate is None else f"{row['method']} (rate={rate:g})"
            found[row["dataset"], name, int(row["parts"])].append({**row, "rows": epochs[row["trial"]]})
    return found


def cell(table: Table, heading: str, label: str) -> Cell:
    row = next(row for row in table.rows if row.label == label)
    return row.cells[table.columns.index(heading)]


def by_epoch(trial: dict[str, Any], key: str) -> dict[int, list[float]]:
    found: dict[int, list[float]] = defaultdict(list)
    for row in trial["rows"]:
        found[row["epoch"]].append(row[key])
    return found


def epoch_time(trial: dict[str, Any]) -> float:
    times = by_epoch(trial, "epoch_time_s")
    return statistics.median(max(values) for epoch, values in times.items() if epoch >= WARMUP)


@pytest.mark.quick(1)
@pytest.mark.parametrize("label", ["full", "bns-gcn (rate=0.1)", "bns-gcn (rate=0.01)", "graphsage"])
@pytest.mark.parametrize("parts", [1, 2])
def test_accuracy(sections: dict[str, Section], trials: dict[Key, Any], label: str, parts: int) -> None:
    table = section_tables(sections["digits"])["accuracy"]
    best = []
    for trial in trials["digits", label, parts]:
        evaluated = [r for r in trial["rows"] if r["rank"] == 0 and not math.isnan(r["val_score"])]
        best.append(max((r["val_score"], r["test_score"]) for r in evaluated))
    for position, name in enumerate(["Validation", "Test"]):
        scores = [100 * pair[position] for pair in best]
        found = cell(table, f"{name} accuracy (%) P = {parts}", label)
        assert found.text == f"{statistics.mean(scores):.2f} ± {statistics.stdev(scores):.2f}"
        assert found.note == ("n=2" if label == "graphsage" else "")


@pytest.mark.parametrize("parts", [1, 2])
def test_epoch_time_and_speed_up(sections: dict[str, Section], trials: dict[Key, Any], parts: int) -> None:
    table = section_tables(sections["digits"])["time"]
    means = {}
    for label in ["full", "bns-gcn (rate=0.1)", "bns-gcn (rate=0.01)", "graphsage"]:
        times = [epoch_time(trial) for trial in trials["digits", label, parts]]
        means[label] = statistics.mean(times)
        mean, deviation = cell(table, f"Epoch time (s) P = {parts}", label).text.split(" ± ")
        assert float(mean) == pytest.approx(means[label], abs=5e-4)
        assert float(deviation) == pytest.approx(statistics.stdev(times), abs=5e-4)
    for label, mean in means.items():
        expected = means["full"] / mean
        assert float(cell(table, f"Speed-up (×) P = {parts}", label).text) == pytest.approx(expected, abs=6e-3)
    fastest = min(means, key=lambda label: means[label])
    bold = [row.label for row in table.rows if row.cells[parts - 1].best]
    assert bold == [fastest]


def test_traffic_is_the_sum_over_ranks_of_a_mean_epoch(sections: dict[str, Section], trials: dict[Key, Any]) -> None:
    table = section_tables(sections["digits"])["traffic"]
    assert "MiB" in table.title
    assert "swap" not in table.columns
    chosen = trials["digits", "bns-gcn (rate=0.1)", 2]
    row = [row for row in table.rows if row.label == "bns-gcn (rate=0.1)"][1]
    total, end = 0.0, table.columns.index("Saved of full (%)")
    for purpose in table.columns[1:end]:
        sums = [[sum(v) for v in by_epoch(trial, f"bytes_{purpose}").values()] for trial in chosen]
        expected = statistics.mean(statistics.mean(s) for s in sums) / 2**20
        total += expected
        assert float(row.cells[table.columns.index(purpose)].text) == pytest.approx(expected, abs=6e-4)
    assert float(row.cells[0].text) == pytest.approx(total, abs=6e-4)
    alone = next(row for row in table.rows if row.label == "full")
    assert {c.text for c in alone.cells[:end]} == {"0"}  # P = 1: nothing sent is a figure, not a gap


def test_breakdown_adds_up_to_the_slowest_ranks_mean_epoch(
    sections: dict[str, Section], trials: dict[Key, Any]
) -> None:
    table = section_tables(sections["digits"])["breakdown"]
    assert "(s per epoch)" in table.title
    means = []
    for trial in trials["digits", "full", 2]:
        timed = [r for r in trial["rows"] if r["epoch"] >= WARMUP]
        ranks = [[r["epoch_time_s"] for r in timed if r["rank"] == rank] for rank in (0, 1)]
        means.append(statistics.mean(max(ranks, key=statistics.median)))
    row = [row for row in table.rows if row.label == "full"][1]
    assert float(row.cells[0].text) == pytest.approx(statistics.mean(means), abs=6e-4)
    assert sum(float(c.text) for c in row.cells[1:]) == pytest.approx(float(row.cells[0].text), abs=5e-3)


def test_a_phase_reaches_its_least_time_over_its_own(sections: dict[str, Section]) -> None:
    section = sections["digits"]
    assert "rates" not in section_tables(section)
    frame = section.frame
    known = frame["method"] != "graphsage"
    least = {"least_forward_s": (frame["time_forward_s"] / 2).where(known), "least_comm_s": 0.0 * frame["time_comm_s"]}
    least |= {"least_fetch_s": frame["time_forward_s"].where(known)}  # behind other phases: they have no fetches
    table = section_tables(replace(section, frame=frame.assign(**least)))["rates"]
    assert [head for group in table.groups for head in group.columns] == ["forward (%)", "Epoch (%)"]
    labels = {row.label for row in table.rows if row.cells}
    assert "full" in labels
    assert not any("graphsage" in label for label in labels)
    assert {row.cells[0].text for row in table.rows if row.cells} == {"50"}
    assert table.caption.endswith("not in the least ones.")
    least["least_forward_s"] *= 3
    table = section_tables(replace(section, frame=frame.assign(**least)))["rates"]
    assert {row.cells[0].text for row in table.rows if row.cells} == {"150"}
    assert "Above 100: the machine was slower when its rates were measured" in table.caption


def test_memory(sections: dict[str, Section], trials: dict[Key, Any]) -> None:
    table = section_tables(sections["digits"])["memory"]
    assert "Source: VmHWM." in table.caption
    assert "1 GiB = 1,073,741,824 bytes" in table.caption
    peaks = {
        label: statistics.mean(t["peak_memory_bytes"] for t in trials["digits", label, 2])
        for label in ("full", "bns-gcn (rate=0.1)")
    }
    mean = cell(table, "Peak memory (GiB) P = 2", "bns-gcn (rate=0.1)").text.split(" ±")[0]
    assert float(mean) == pytest.approx(peaks["bns-gcn (rate=0.1)"] / 2**30, abs=6e-3)
    above = {
        label: statistics.mean(t["peak_above_base_bytes"] for t in trials["digits", label, 2])
        for label in ("full", "bns-gcn (rate=0.1)")
    }
    relative = 100 * above["bns-gcn (rate=0.1)"] / above["full"]
    assert float(cell(table, "Relative (%) P = 2", "bns-gcn (rate=0.1)").text) == pytest.approx(relative, abs=0.06)


def test_a_failed_cell_says_so_and_is_never_zero(sections: dict[str, Section]) -> None:
    tables = section_tables(sections["twin"])
    for name, heading in [
        ("accuracy", "Test accuracy (%) P = 2"),
        ("time", "Epoch time (s) P = 2"),
        ("memory", "Peak memory (GiB) P = 2"),
    ]:
        found = cell(tables[name], heading, "full")
        assert (found.text, found.note, found.best) == ("n/a", "oom", False)
    assert cell(tables["time"], "Speed-up (×) P = 2", "graphsage").text == "n/a"
    row = [row for row in tables["traffic"].rows if row.label == "full"][1]
    assert {c.text for c in row.cells} == {"n/a"}


def test_partition(sections: dict[str, Section]) -> None:
    rows = section_tables(sections["digits"])["partition"].rows
    assert [[c.text for c in row.cells] for row in rows] == [
        ["20,000", "0", "0.00", "1.00"],
        ["20,000", "9,017", "0.45", "1.00"],
    ]


@pytest.mark.parametrize(
    ("boundaries", "shown"), [((400, 0, 400), "1.50"), ((1000, 0, 500), "2.00"), ((1010, 0, 500), "2.01")]
)
def test_the_largest_boundary_over_the_mean_is_shown_and_warned_of_above_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, boundaries: tuple[int, ...], shown: str
) -> None:
    monkeypatch.setattr(fake, "_boundary", lambda parts, rank: boundaries[rank])
    inputs = load_inputs(write_results(tmp_path, methods=METHODS[:2], parts=(3,), seeds=(0,)))
    sections = make_sections(inputs)
    (row,) = section_tables(sections[0])["partition"].rows
    assert [cell.text for cell in row.cells][1::2] == [f"{sum(boundaries):,}", shown]
    notes = [note.text for note in make_notes(inputs, sections) if note.lead == "Unbalanced boundaries:"]
    warned = (
        "digits · sage, metis, 3 parts: the largest boundary is 2.01 times the mean, and a synchronous epoch waits "
    )
    warned += "for it (try fewer parts or another partitioner)."
    assert notes == ([warned] if shown == "2.01" else [])


@pytest.mark.parametrize(
    ("ranks", "bold"),
    [
        ([(1, ()), (0, ()), (2, ())], "-x-"),
        ([(1, (0,)), (0, ()), (2, (1,)), None], "xx--"),  # of the best alone
        ([(1, (0,)), (0, ()), (2, (0, 1))], "---"),  # all of them: nothing is known
        ([(0, ()), (0, ())], "--"),
        ([(2, (1,)), (1, ()), (3, (1, 2)), (4, (2, 3))], "xxx-"),  # the best is filtered out
        ([(0, ()), None], "--"),
    ],
)
def test_bold_are_the_best_and_what_does_not_differ(ranks: list[tuple[int, tuple[int, ...]] | None], bold: str) -> None:
    cells = [Cell() if own is None else Cell("1.00", rank=own[0], ties=own[1]) for own in ranks]
    assert "".join("x" if cell.best else "-" for cell in mark_best(cells)) == bold
