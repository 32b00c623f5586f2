"""Memory, use, energy and bytes in the report: every figure is traced to its record."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest
from report.fake import NO_RAPL, write_results
from report.measured import EPOCHS, FULL, Write, change, listed, one_section, records, rows_of, section_tables, texts

from harness.report.table import Table


def test_memory_by_source_and_the_model(root: Path, tables: dict[str, Table]) -> None:
    table = tables["memory_sources"]
    assert table.columns == ("Peak RSS", "Peak PSS", "Memory model")  # nothing of GPUs
    assert "(GiB)" in table.title
    found = records(root, "graphsage", 2)
    shown = texts(table, "graphsage", 2)
    for head, key in (("Peak RSS", "peak_rss_bytes"), ("Peak PSS", "peak_pss_bytes")):
        peaks = [max(rank["meters"][key] for rank in record["ranks"]) for record in found]
        assert float(shown[head]) == pytest.approx(statistics.mean(peaks) / 2**30, abs=6e-3)
    model = [max(sum(rank["memory_model"].values()) for rank in record["ranks"]) for record in found]
    assert float(shown["Memory model"]) == pytest.approx(statistics.mean(model) / 2**30, abs=6e-4)
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
    shown = float(texts(table, "full", 2)["CPU (cores)"])
    assert shown == pytest.approx(statistics.mean(shares), abs=6e-3)


def test_gpu(tmp_path: Path) -> None:
    write_results(tmp_path, methods=(FULL,), parts=(2,), seeds=(0,), epochs=EPOCHS, settings={"device": "cuda"})
    tables = section_tables(one_section(tmp_path))
    (record,) = records(tmp_path, "full", 2)
    memory = texts(tables["memory_sources"], "full", 2)
    assert list(memory) == ["Peak RSS", "Peak PSS", "NVML", "NVML, whole GPU", "CUDA allocator", "Memory model"]
    assert float(memory["NVML"]) == 3.5
    assert float(memory["NVML, whole GPU"]) == 6.0
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
    assert shown["GPU clock (MHz)"] == "1,650"
    assert float(shown["GPU slowed (%)"]) == 25
    assert "Not available" not in table.caption


def test_bytes_at_the_loopback(root: Path, tables: dict[str, Table]) -> None:
    table = tables["network_traffic"]
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
    shown = texts(tables["network_traffic"], "full", 2)
    (record,) = records(tmp_path, "full", 2)
    assert float(shown["Estimated"]) == pytest.approx(record["result"]["wire_estimate_bytes"] / 2**20, abs=6e-3)
    assert float(shown["Estimated"]) > float(shown["Counted"])
    assert shown["Seen at"] == "eth0 (one rank each)"


def test_bytes_where_ranks_share_a_link(write: Write, tmp_path: Path) -> None:
    write(settings={"network": "1gbit", "traffic": "verify"})

    def share(record: dict[str, Any]) -> None:
        record["result"]["wire_ratio"] = None
        for rank in record["ranks"]:
            rank["traffic_check"]["network"] = "one"

    change(tmp_path, share)
    table = section_tables(one_section(tmp_path))["network_traffic"]
    shown = texts(table, "full", 2)
    assert (shown["Ratio"], shown["Seen at"]) == ("not available", "eth0 (several ranks together)")
    assert "No ratio where ranks share a host's link" in table.caption


def test_estimates_need_no_check(write: Write) -> None:
    shown = texts(section_tables(write(settings={"network": "1gbit"}))["network_traffic"], "full", 2)
    assert list(shown) == ["Counted", "Estimated"]
    assert shown["Counted"] != "0"


def test_records_of_an_older_harness(write: Write, tmp_path: Path) -> None:
    """Without the new figures their tables are left out; none of them becomes a 0."""
    write()
    kept = ("epoch_time_s", "epochs", "best_val", "test_at_best_val", "imbalance", "peak_memory_bytes", "noisy")

    def age(record: dict[str, Any]) -> None:
        result = record["result"] | {"noisy": False}
        record["result"] = {k: v for k, v in result.items() if k in kept or k.startswith(("time_", "bytes_"))}
        record["ranks"] = [{"rank": rank["rank"]} for rank in record["ranks"]]
        for key in ("timing", "traffic", "network"):
            record["config"].pop(key)

    change(tmp_path, age)
    section = one_section(tmp_path)
    tables = section_tables(section)
    expected = {
        "answer",
        "accuracy",
        "time",
        "ranks",
        "breakdown",
        "traffic",
        "memory",
        "targets",
        "pareto",
        "partition",
    }
    assert set(tables) == expected
    shown = texts(tables["ranks"], "full", 2)
    assert shown.pop("Imbalance") != "0"
    assert set(shown.values()) == {"not available"}
    assert tables["time"].rows[0].cells[0].mark == ""
