"""Phases, ranks, memory, utilisation, energy and bytes of the wire: each number traced to the records."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from report.fake import METHODS, NO_RAPL, Method, write_results

from harness.report import palette
from harness.report.inputs import load_inputs
from harness.report.notes import make_notes
from harness.report.sections import Section, make_sections
from harness.report.stacks import breakdown_figure
from harness.report.table import Row, Table
from harness.report.tables import section_tables
from harness.results.frames import load_epochs
from harness.results.record import Record
from harness.runtime.spec import PHASES

FULL: Method = ("full", {})
PIPELINED: Method = ("pipelined", {})
SKEWED: Method = ("skewed", {})
LEAKY: Method = ("leaky", {})
EPOCHS, WARMUP = 22, 2
Write = Callable[..., Section]


def row(table: Table, label: str, parts: int) -> Row:
    """The row of a method under the heading of a number of parts."""
    start = [r.label for r in table.rows].index(f"P = {parts}")
    return next(r for r in table.rows[start:] if r.label == label)


def texts(table: Table, label: str, parts: int) -> dict[str, str]:
    return dict(zip(table.columns, (c.text for c in row(table, label, parts).cells), strict=True))


def listed(table: Table) -> list[str]:
    return [r.label for r in table.rows]


def one_section(root: Path) -> Section:
    (section,) = make_sections(load_inputs(root))
    return section


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(methods: tuple[Method, ...] = (FULL,), **chosen: Any) -> Section:
        chosen = {"parts": (2,), "seeds": (0,), "epochs": EPOCHS} | chosen
        return one_section(write_results(tmp_path, methods=methods, **chosen))

    return written


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_results(
        tmp_path_factory.mktemp("measured"),
        methods=(FULL, METHODS[0], PIPELINED, SKEWED, METHODS[2]),
        seeds=(0, 1),
        epochs=EPOCHS,
        settings={"timing": "breakdown", "traffic": "verify"},
    )


@pytest.fixture(scope="module")
def section(root: Path) -> Section:
    return one_section(root)


@pytest.fixture(scope="module")
def tables(section: Section) -> dict[str, Table]:
    return section_tables(section)


def records(root: Path, method: str, parts: int) -> list[dict[str, Any]]:
    """The records as JSON, read without the project's code."""
    found = [json.loads(path.read_text()) for path in root.rglob("record.json")]
    return [
        r
        for r in found
        if (r["config"]["method"]["name"], r["config"]["partition"]["parts"]) == (method, parts)
    ]


def rows_of(root: Path, record: dict[str, Any]) -> list[dict[str, Any]]:
    """A trial's rows of epochs after warm-up."""
    frame = load_epochs(root / record["suite"] / record["trial"])
    rows: list[Any] = frame[frame["epoch"] >= WARMUP].to_dict("records")
    return rows


def slowest(rows: list[dict[str, Any]]) -> int:
    plain = [r for r in rows if r["timing"] == "plain"]
    ranks = sorted({r["rank"] for r in plain})
    return max(ranks, key=lambda k: statistics.median(r["epoch_time_s"] for r in plain if r["rank"] == k))


def phase(root: Path, method: str, name: str) -> float:
    """Mean over seeds of a phase in the epochs with barriers of the slowest rank, P = 2."""
    means = []
    for record in records(root, method, 2):
        rows = rows_of(root, record)
        own = [r for r in rows if r["rank"] == slowest(rows) and r["timing"] == "breakdown"]
        means.append(statistics.mean(r[f"time_{name}_s"] for r in own))
    return statistics.mean(means)


def test_every_phase_has_a_colour_and_they_differ() -> None:
    assert tuple(palette.PHASES) == PHASES
    assert len(set(palette.PHASES.values())) == len(PHASES)


def test_phases_are_those_of_the_epochs_with_barriers(root: Path, tables: dict[str, Table]) -> None:
    table = tables["breakdown"]
    assert table.columns == tuple(p for p in (*PHASES, "Total"))
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
            costs.append(
                100 * (statistics.median(longest["breakdown"]) / statistics.median(longest["plain"]) - 1)
            )
    assert f"the barriers change its median by {min(costs):+.1f} % to {max(costs):+.1f} %" in table.caption
    assert "those without barriers" in tables["time"].caption


def test_the_papers_sums(root: Path, tables: dict[str, Table]) -> None:
    shown = texts(tables["sums"], "skewed", 2)
    assert list(shown) == ["compute", "communication", "wait", "reduce", "Total"]
    communication = phase(root, "skewed", "comm") + phase(root, "skewed", "swap")
    assert float(shown["communication"]) == pytest.approx(communication, abs=6e-4)
    rest = [p for p in PHASES if p not in ("comm", "swap", "wait", "reduce")]
    assert float(shown["compute"]) == pytest.approx(sum(phase(root, "skewed", p) for p in rest), abs=6e-4)
    assert shown["Total"] == texts(tables["breakdown"], "skewed", 2)["Total"]


def test_without_barriers_there_is_no_wait_to_show(write: Write) -> None:
    tables = section_tables(write())
    assert "wait" not in {*tables["breakdown"].columns, *tables["sums"].columns}
    assert "waits for slower ones is inside comm and reduce" in tables["breakdown"].caption


def test_whole_epochs_have_no_phases(write: Write) -> None:
    section = write(settings={"timing": "wall"})
    tables = section_tables(section)
    assert not {"breakdown", "sums", "overlap"} & set(tables)
    assert breakdown_figure(section) is None
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
    assert listed(table) == ["P = 2", "pipelined"]
    results = [record["result"] for record in records(root, "pipelined", 2)]
    busy, exposed = (statistics.mean(r[f"comm_{name}_s"] for r in results) for name in ("busy", "exposed"))
    size = 1e-3 if "(ms" in table.title else 1.0
    shown = texts(table, "pipelined", 2)
    assert float(shown["Busy"]) == pytest.approx(busy / size, rel=1e-2)
    assert float(shown["Exposed"]) == pytest.approx(exposed / size, rel=1e-2)
    assert float(shown["Hidden (%)"]) == pytest.approx(100 * (1 - exposed / busy), abs=0.06)
    assert "overlap" not in section_tables(write())


def test_ranks(root: Path, tables: dict[str, Table]) -> None:
    table = tables["ranks"]
    assert "P = 1" not in listed(table)
    medians = []
    for record in records(root, "full", 2):
        plain = [r for r in rows_of(root, record) if r["timing"] == "plain"]
        medians.append(
            [statistics.median(r["epoch_time_s"] for r in plain if r["rank"] == k) for k in (0, 1)]
        )
    size = 1e-3 if "(ms" in table.title else 1.0
    shown = texts(table, "full", 2)
    by_rank = [statistics.mean(trial[k] for trial in medians) / size for k in (0, 1)]
    assert [float(each) for each in shown["Ranks 0, 1, …"].split(", ")] == pytest.approx(by_rank, rel=5e-3)
    for head, of in (("Slowest", max), ("Mean", statistics.mean), ("Fastest", min)):
        assert float(shown[head]) == pytest.approx(statistics.mean(map(of, medians)) / size, rel=5e-3)
    imbalance = statistics.mean(max(trial) / statistics.mean(trial) for trial in medians)
    assert float(shown["Imbalance"]) == pytest.approx(imbalance, abs=6e-3)
    assert "maximum over ranks" in table.caption


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


@pytest.mark.parametrize("noisy", [True, False])
def test_noise_is_flagged_with_its_width(write: Write, tmp_path: Path, noisy: bool) -> None:
    write()
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
    assert (marked, len(found)) == (("‡", 1) if noisy else ("", 0))
    assert not noisy or "full at P = 2 (6.5 %)" in found[0]


def change(root: Path, how: Callable[[dict[str, Any]], object]) -> None:
    """Change the records as a newer or older harness might have written them."""
    for path in root.rglob("record.json"):
        record = json.loads(path.read_text())
        how(record)
        path.write_text(Record.model_validate(record).to_json())


def test_memory_by_source_and_the_model(root: Path, tables: dict[str, Table]) -> None:
    table = tables["memory_sources"]
    assert table.columns == ("Peak RSS", "Peak PSS", "Model")  # nothing of GPUs
    assert "(GiB)" in table.title
    found = records(root, "graphsage", 2)
    shown = texts(table, "graphsage", 2)
    for head, key in (("Peak RSS", "peak_rss_bytes"), ("Peak PSS", "peak_pss_bytes")):
        peaks = [max(rank["meters"][key] for rank in record["ranks"]) for record in found]
        assert float(shown[head]) == pytest.approx(statistics.mean(peaks) / 2**30, abs=6e-3)
    model = [max(sum(rank["memory_model"].values()) for rank in record["ranks"]) for record in found]
    assert float(shown["Model"]) == pytest.approx(statistics.mean(model) / 2**30, abs=6e-4)
    assert "every 2 s" in table.caption

    parts = tables["memory_model"]
    assert "(MiB)" in parts.title
    shown = texts(parts, "graphsage", 2)
    needs = max(found[0]["ranks"], key=lambda rank: sum(rank["memory_model"].values()))["memory_model"]
    assert {k: float(v) for k, v in shown.items() if k != "Total"} == {k: v / 2**20 for k, v in needs.items()}
    assert float(shown["Total"]) == sum(needs.values()) / 2**20
    assert texts(parts, "full", 2)["sampled blocks"] == "none"


def test_what_cannot_be_had_is_named_and_is_never_zero(tables: dict[str, Table]) -> None:
    table = tables["use"]
    assert not any("GPU" in head for head in table.columns)
    energy = [r.cells[table.columns.index("CPU energy (J)")].text for r in table.rows if r.cells]
    assert set(energy) == {"not available"}
    assert f"Not available: CPU energy (J) ({NO_RAPL})." in table.caption
    assert "local rank 0" not in table.caption  # that another rank counts is no gap


def test_cpu_use(root: Path, tables: dict[str, Table]) -> None:
    table = tables["use"]
    shares = []
    for record in records(root, "full", 2):
        plain = [r for r in rows_of(root, record) if r["timing"] == "plain"]
        ranks = [[r for r in plain if r["rank"] == rank] for rank in (0, 1)]
        used = [sum(r["cpu_s"] for r in own) / sum(r["epoch_time_s"] for r in own) for own in ranks]
        shares.append(statistics.mean(used))
    shown = float(texts(table, "full", 2)["CPU (cores a rank)"])
    assert shown == pytest.approx(statistics.mean(shares), abs=6e-3)


def test_gpu(tmp_path: Path) -> None:
    write_results(
        tmp_path, methods=(FULL,), parts=(2,), seeds=(0,), epochs=EPOCHS, settings={"device": "cuda"}
    )
    tables = section_tables(one_section(tmp_path))
    (record,) = records(tmp_path, "full", 2)
    memory = texts(tables["memory_sources"], "full", 2)
    assert list(memory) == ["Peak RSS", "Peak PSS", "NVML", "CUDA allocator", "Model"]
    assert float(memory["NVML"]) == 3.5
    assert float(memory["CUDA allocator"]) == 2.5
    table = tables["use"]
    shown = texts(table, "full", 2)
    rows = rows_of(tmp_path, record)
    joules = [statistics.mean(r["energy_gpu_j"] for r in rows if r["rank"] == rank) for rank in (0, 1)]
    assert float(shown["GPU energy (J)"]) == pytest.approx(sum(joules), rel=5e-3)
    own = statistics.mean(r["energy_cpu_j"] for r in rows if r["rank"] == 0)
    assert float(shown["CPU energy (J)"]) == pytest.approx(own, rel=5e-3)
    assert float(shown["GPU utilisation (%)"]) == pytest.approx(65.0)
    assert float(shown["GPU power (W)"]) == pytest.approx(410.0)
    assert "Not available" not in table.caption


def test_bytes_at_the_loopback(root: Path, tables: dict[str, Table]) -> None:
    table = tables["wire"]
    assert "P = 1" not in listed(table)
    checks = [[rank["traffic_check"] for rank in record["ranks"]] for record in records(root, "full", 2)]
    counted = statistics.mean(sum(c["counted_sent_bytes"] for c in trial) for trial in checks) / EPOCHS
    seen = statistics.mean(trial[0]["sent_bytes"] for trial in checks) / EPOCHS
    shown = texts(table, "full", 2)
    assert "MiB" in table.title
    assert list(shown) == ["Counted", "Interface", "Ratio", "Seen at"]
    assert float(shown["Counted"]) == pytest.approx(counted / 2**20, abs=6e-3)
    assert float(shown["Interface"]) == pytest.approx(seen / 2**20, abs=6e-3)
    assert shown["Ratio"] == "1.050"
    assert shown["Seen at"] == "lo (all ranks and other programs)"
    total = float(texts(tables["traffic"], "full", 2)["Total"])
    assert float(shown["Counted"]) == pytest.approx(total, abs=6e-3)


def test_bytes_of_a_network(write: Write, tmp_path: Path) -> None:
    tables = section_tables(write(settings={"network": "1gbit", "traffic": "verify"}))
    shown = texts(tables["wire"], "full", 2)
    (record,) = records(tmp_path, "full", 2)
    assert float(shown["Estimated"]) == pytest.approx(
        record["result"]["wire_estimate_bytes"] / 2**20, abs=6e-3
    )
    assert float(shown["Estimated"]) > float(shown["Counted"])
    assert shown["Seen at"] == "eth0 (one rank each)"


def test_bytes_where_ranks_share_a_link(write: Write, tmp_path: Path) -> None:
    write(settings={"network": "1gbit", "traffic": "verify"})

    def share(record: dict[str, Any]) -> None:
        record["result"]["wire_ratio"] = None
        for rank in record["ranks"]:
            rank["traffic_check"]["network"] = "one"

    change(tmp_path, share)
    table = section_tables(one_section(tmp_path))["wire"]
    shown = texts(table, "full", 2)
    assert (shown["Ratio"], shown["Seen at"]) == ("not available", "eth0 (several ranks together)")
    assert "No ratio where ranks share a host's link" in table.caption


def test_estimates_need_no_check(write: Write) -> None:
    shown = texts(section_tables(write(settings={"network": "1gbit"}))["wire"], "full", 2)
    assert list(shown) == ["Counted", "Estimated"]
    assert shown["Counted"] != "0"


def test_records_of_an_older_harness(write: Write, tmp_path: Path) -> None:
    """Without the new figures their tables are left out; none of them becomes a 0."""
    write()
    kept = (
        "epoch_time_s",
        "epochs",
        "best_val",
        "test_at_best_val",
        "imbalance",
        "peak_memory_bytes",
        "noisy",
    )

    def age(record: dict[str, Any]) -> None:
        result = record["result"]
        record["result"] = {k: v for k, v in result.items() if k in kept or k.startswith(("time_", "bytes_"))}
        record["ranks"] = [{"rank": rank["rank"]} for rank in record["ranks"]]
        for key in ("timing", "traffic", "network"):
            record["config"].pop(key)

    change(tmp_path, age)
    section = one_section(tmp_path)
    tables = section_tables(section)
    assert set(tables) == {"accuracy", "time", "ranks", "breakdown", "traffic", "memory", "partition"}
    shown = texts(tables["ranks"], "full", 2)
    assert shown.pop("Imbalance") != "0"
    assert set(shown.values()) == {"not available"}
    assert tables["time"].rows[0].cells[0].mark == ""
