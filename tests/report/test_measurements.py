"""Phases, ranks, overlap and flags in the report: each number traced to the records."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from report.fake import write_results
from report.measured import (
    EPOCHS,
    FULL,
    LEAKY,
    WARMUP,
    Write,
    change,
    listed,
    phase,
    records,
    rows_of,
    section_tables,
    texts,
)

from harness.metrics import PHASES
from harness.report import palette
from harness.report.sections import Section, make_sections
from harness.report.table import Table
from harness.report.values import component_columns
from harness.report.views.breakdown import BreakdownView
from harness.report.warnings import make_notes
from harness.results.frames import load_inputs


def test_every_phase_has_a_colour_and_they_differ() -> None:
    assert tuple(palette.PHASES) == PHASES
    assert len(set(palette.PHASES.values())) == len(PHASES)


def test_phases_are_those_of_the_epochs_with_barriers(root: Path, tables: dict[str, Table]) -> None:
    table = tables["breakdown"]
    assert table.columns == ("Total", *PHASES)
    shown = texts(table, "skewed", 2)
    for name in ("forward", "comm", "wait", "explain", "swap"):
        assert float(shown[name]) == pytest.approx(phase(root, "skewed", name), abs=6e-4)
        assert float(shown[name]) > 0
    assert texts(table, "full", 2)["explain"] == "0"  # measured, and nothing
    costs = []
    for method in ("full", "bns-gcn", "pipelined", "skewed", "graphsage"):
        for record in records(root, method, 2):
            longest: dict[str, list[float]] = {"plain": [], "breakdown": []}
            rows = rows_of(root, record)
            for epoch in range(WARMUP, EPOCHS):
                mine = [r for r in rows if r["epoch"] == epoch]
                longest[mine[0]["timing"]].append(max(r["epoch_time_s"] for r in mine))
            costs.append(100 * (statistics.median(longest["breakdown"]) / statistics.median(longest["plain"]) - 1))
    assert f"the barriers change its median by {min(costs):+.1f} % to {max(costs):+.1f} %" in table.caption
    assert "those without barriers" in tables["time"].caption


def test_without_barriers_there_is_no_wait_to_show(write: Write) -> None:
    tables = section_tables(write())
    assert "wait" not in tables["breakdown"].columns
    assert "waits for slower ones is inside comm and reduce" in tables["breakdown"].caption


def test_whole_epochs_have_no_phases(write: Write) -> None:
    section = write(settings={"timing": "wall"})
    tables = section_tables(section)
    assert not {"breakdown", "overlap"} & set(tables)
    assert BreakdownView(section).figure() is None
    assert "timing: wall" in tables["time"].caption
    assert float(tables["time"].rows[0].cells[0].text) > 0


def test_ways_of_timing_are_never_averaged(tmp_path: Path) -> None:
    for settings in ({"timing": "plain"}, {"timing": "wall"}, {"traffic": "verify"}):
        write_results(tmp_path, methods=(FULL,), parts=(2,), seeds=(0,), epochs=6, settings=settings)
    sections = make_sections(load_inputs(tmp_path))
    assert {s.extra for s in sections} == {
        "timing=plain, traffic=count",
        "timing=wall, traffic=count",
        "timing=plain, traffic=verify",
    }
    assert all(dict(s.facts).keys() >= {"timing", "traffic"} for s in sections)


def test_overlapped_communication(root: Path, tables: dict[str, Table], write: Write) -> None:
    table = tables["overlap"]
    assert "P = 1" not in listed(table)
    waited = texts(table, "full", 2)  # beside them those that wait for every exchange
    assert (waited["Hidden"], waited["Exposed / busy (%)"]) == ("0", "100.0")
    results = [record["result"] for record in records(root, "pipelined", 2)]
    busy, exposed = (statistics.mean(r[f"comm_{name}_s"] for r in results) for name in ("busy", "exposed"))
    size = 1e-3 if "(ms" in table.title else 1.0
    shown = texts(table, "pipelined", 2)
    assert float(shown["Busy"]) == pytest.approx(busy / size, rel=1e-2)
    assert float(shown["Exposed"]) == pytest.approx(exposed / size, rel=1e-2)
    assert float(shown["Hidden"]) == pytest.approx((busy - exposed) / size, rel=1e-2)
    assert float(shown["Exposed / busy (%)"]) == pytest.approx(100 * exposed / busy, abs=0.06)
    compute = statistics.mean(r["sum_compute_s"] for r in results)
    assert float(shown["Compute"]) == pytest.approx(compute / size, rel=1e-2)
    assert "overlap" not in section_tables(write())


def test_ranks(root: Path, tables: dict[str, Table]) -> None:
    table = tables["ranks"]
    assert "P = 1" not in listed(table)
    medians = []
    for record in records(root, "full", 2):
        plain = [r for r in rows_of(root, record) if r["timing"] == "plain"]
        medians.append([statistics.median(r["epoch_time_s"] for r in plain if r["rank"] == k) for k in (0, 1)])
    size = 1e-3 if "(ms" in table.title else 1.0
    shown = texts(table, "full", 2)
    by_rank = [statistics.mean(trial[k] for trial in medians) / size for k in (0, 1)]
    assert [float(each) for each in shown["Ranks 0, 1, …"].split(", ")] == pytest.approx(by_rank, rel=5e-3)
    for head, of in (("Slowest", max), ("Mean", statistics.mean), ("Fastest", min)):
        assert float(shown[head]) == pytest.approx(statistics.mean(map(of, medians)) / size, rel=5e-3)
    imbalance = statistics.mean(max(trial) / statistics.mean(trial) for trial in medians)
    assert float(shown["Imbalance"]) == pytest.approx(imbalance, abs=6e-3)
    assert "the slowest rank of each epoch" in table.caption


def test_many_ranks_are_not_listed(write: Write) -> None:
    shown = texts(section_tables(write(parts=(20,), epochs=6))["ranks"], "full", 20)
    assert shown["Ranks 0, 1, …"] == "20 ranks"


def test_doubtful_timings_are_flagged_and_stay(tmp_path: Path) -> None:
    write_results(tmp_path, methods=(FULL, LEAKY), parts=(2,), seeds=(0,), epochs=6)
    inputs = load_inputs(tmp_path)
    (section,) = sections = make_sections(inputs)
    table = section_tables(section)["time"]
    full, leaky = (row.cells[0] for row in table.rows)
    assert "§" in leaky.mark
    assert "§" not in full.mark
    assert "†" in full.mark  # 5 epochs after warm-up
    assert min(float(full.text), float(leaky.text)) > 0
    assert "† fewer than 6 timed epochs" in table.caption
    notes = {note.lead: note.text for note in make_notes(inputs, sections)}
    assert "digits · sage: full at P = 2 (5); leaky at P = 2 (5)" in notes["Too short: 2 trials"]
    (record,) = records(tmp_path, "leaky", 2)
    residue = 100 * record["result"]["residue"]
    assert f"leaky at P = 2 ({residue:.1f} %)" in notes["Phases do not add up: 1 trial"]
    assert "full at" not in notes["Phases do not add up: 1 trial"]


def test_what_a_method_remarks_on_its_trials_is_noted_once(tmp_path: Path) -> None:
    write_results(tmp_path, methods=(FULL, LEAKY), parts=(2,), seeds=(0, 1), epochs=6)
    inputs = load_inputs(tmp_path)
    told = {
        key: record.model_copy(update={"ranks": [rank | {"remarks": ["on its own"]} for rank in record.ranks]})
        if record.config["method"]["name"] == "leaky"
        else record
        for key, record in inputs.records.items()
    }
    notes = make_notes(replace(inputs, records=told), make_sections(inputs))
    assert [note.text for note in notes if note.lead == "leaky:"] == ["on its own"]
    assert not [note for note in notes if note.lead == "full:"]


def test_flagged_trials_are_marked_beside_their_time(root: Path, write: Write, tmp_path: Path) -> None:
    write()
    change(tmp_path, lambda record: record.update(flags=["cores: 2 of 1 (ranks [0, 1])"]))
    inputs = load_inputs(tmp_path)
    sections = make_sections(inputs)
    assert section_tables(sections[0])["time"].rows[0].cells[0].mark.endswith("¶")
    (found,) = [note.text for note in make_notes(inputs, sections) if note.lead.startswith("Flagged")]
    assert "full at P = 2 (cores: 2 of 1 (ranks [0, 1]))" in found
    old = load_inputs(root)
    assert not [note for note in make_notes(old, make_sections(old)) if note.lead.startswith("Flagged")]


@pytest.mark.parametrize(("noisy", "seeds"), [(True, 2), (False, 2), (True, 3)])
def test_noise_of_few_seeds_is_flagged_with_its_width(write: Write, tmp_path: Path, noisy: bool, seeds: int) -> None:
    write(seeds=tuple(range(seeds)))
    figures = {
        "epoch_time_s": 1.0,
        "epoch_time_low_s": 0.995,
        "epoch_time_high_s": 1.06 if noisy else 1.04,
        "noisy": noisy,
    }
    change(tmp_path, lambda record: record["result"].update(figures))
    inputs = load_inputs(tmp_path)
    sections = make_sections(inputs)
    marked = section_tables(sections[0])["time"].rows[0].cells[0].mark
    found = [note.text for note in make_notes(inputs, sections) if note.lead.startswith("Noisy")]
    shown = noisy and seeds < 3  # of three and more their deviation shows it
    assert (marked, len(found)) == (("‡", 1) if shown else ("", 0))
    assert not shown or "full at P = 2 (6.5 %)" in found[0]


def test_a_time_to_the_target_is_no_phase(section: Section) -> None:
    before = component_columns(section, "phase")
    times = {"time_to_target_s": 1.0, "time_to_target_with_setup_s": 2.0}
    assert component_columns(replace(section, frame=section.frame.assign(**times)), "phase") == before
