"""Explanations, what they save and what is remarked on them, in the report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report.fake import STEPS, Method, write_results
from report.measured import FULL, Write, change, listed, one_section, section_tables, texts

from harness.report.sections import Section, make_sections
from harness.report.views.background import ExplanationsView
from harness.report.warnings import make_notes
from harness.results.frames import load_inputs

EPOCHS = 8


def sage(fanouts: int | list[int] = 64, **options: Any) -> Method:
    return "graphsage", {"fanouts": fanouts, "batch_size": 32, "feature_rate": 1.0} | options


def dgs(variant: str = "both", period: int = 30, fanouts: int = 64) -> Method:
    return "dgs", {"variant": variant, "period": period, "fanouts": fanouts, "feature_rate": 0.85}


OFTEN, SELDOM = "dgs (period=30)", "dgs (period=2000)"


def explained(section: Section, **figures: Any) -> Section:
    """The section whose trials of period 30 tell figures; those of 2000 tell nothing."""
    often = set(section.frame.loc[section.frame["options"].map(lambda o: o.get("period") == 30), "trial"])
    epochs = section.epochs
    mine = epochs["trial"].isin(often)
    told = {
        f"stat_{name}": np.where(mine, value(epochs) if callable(value) else value, np.nan)
        for name, value in figures.items()
    }
    return replace(section, epochs=epochs.assign(**told))


def once(rank: int, epoch: int, value: float) -> Any:
    """A figure that one rank tells in one epoch, and nobody in any other."""
    return lambda epochs: np.where((epochs["rank"] == rank) & (epochs["epoch"] == epoch), value, np.nan)


def test_totals_of_all_ranks_and_epochs_whoever_tells_when(write: Write) -> None:
    """Rank 0 explains in epoch 0, rank 1 fails in epoch 5: no epoch in which both tell anything."""
    section = explained(
        write((FULL, dgs(), dgs(period=2000)), epochs=EPOCHS),
        explanations=once(0, 0, 3),
        explain_failed=once(1, 5, 1),
        explain_unmoved=once(0, 1, 6),
        explain_late=once(1, 5, 2),
        explain_s=lambda e: np.where(e["rank"] == 0, 0.5, 0.25),
        explain_cpu_s=once(0, 0, 2.0),
        explain_loss=once(0, 0, 0.75),
        explain_sn=once(0, 0, 1.2),
        explain_sf=once(1, 2, 1.8),
        explain_bytes=once(0, 0, 6 * 2**20),
        guided_steps=lambda e: np.where(e["epoch"] < EPOCHS / 2, np.nan, STEPS),
        mask_age=lambda e: np.where(e["epoch"] < EPOCHS / 2, np.nan, 4.5 * STEPS),
    )
    tables = section_tables(section)
    table = tables["explanations"]
    shown = texts(table, OFTEN, 2)
    assert [shown[head] for head in ("Explanations", "Failed", "Unmoved", "Left out")] == ["3", "1", "6", "2"]
    seconds = EPOCHS * (0.5 + 0.25)
    assert float(shown["Each (s)"]) == pytest.approx(seconds / 10, abs=6e-3)
    assert float(shown["CPU (s)"]) == pytest.approx(2 / 10)
    assert float(shown["Loss"]) == pytest.approx(0.75 / 3)
    assert float(shown["Held (MiB)"]) == 2
    assert (shown["SN"], shown["SF"]) == ("0.40", "0.60")
    trained = section.epochs.loc[section.epochs["stat_explain_s"].notna(), "epoch_time_s"].sum()
    assert float(shown["Of epochs (%)"]) == pytest.approx(100 * seconds / trained, abs=0.06)
    assert (float(shown["Guided steps (%)"]), float(shown["Age (steps)"])) == (50.0, 4.5)


def test_what_is_never_due_is_0_and_has_no_mean(write: Write) -> None:
    section = explained(write((FULL, dgs(), dgs(period=2000)), epochs=EPOCHS), explanations=1)
    table = ExplanationsView(section).table()
    assert table is not None
    assert listed(table) == ["P = 2", OFTEN, SELDOM]
    shown = texts(table, SELDOM, 2)
    assert [shown[head] for head in ("Explanations", "Failed", "Left out")] == ["0", "0", "0"]
    assert [shown[head] for head in ("Each (s)", "CPU (s)", "Loss", "Age (steps)")] == ["none"] * 4
    assert (shown["Of epochs (%)"], shown["Guided steps (%)"]) == ("0", "0")


def test_there_is_a_table_if_all_fail_and_none_without_any(write: Write) -> None:
    section = write((FULL, dgs()), epochs=EPOCHS)
    assert ExplanationsView(section).table() is None
    table = ExplanationsView(explained(section, explain_failed=once(1, 3, 1), explain_s=once(1, 3, 0.25))).table()
    assert table is not None
    shown = texts(table, "dgs", 2)
    assert (shown["Explanations"], shown["Failed"], shown["Each (s)"]) == ("0", "1", "0.250")


def test_bytes_saved_against_the_graphsage_most_alike(write: Write, tmp_path: Path) -> None:
    whole, less = sage(), sage(feature_rate=0.85)
    write((FULL, whole, less, sage([5, 5]), dgs(), dgs(fanouts=5)), epochs=6)
    sent = {(64, "graphsage", 1.0): 1000, (64, "graphsage", 0.85): 900, (5, "graphsage", 1.0): 500}
    sent |= {(64, "dgs", 0.85): 700, (5, "dgs", 0.85): 600}

    def send(record: dict[str, Any]) -> None:
        options, result = record["config"]["method"]["options"], record["result"]
        purposes = {"feature": 0.5, "control": 0.1, "model": 0.4, "swap": 7.0, "embedding": 0, "gradient": 0}
        if options:
            fanout = options["fanouts"] if options["fanouts"] == 64 else 5
            total = sent[fanout, record["config"]["method"]["name"], options["feature_rate"]]
            result.update({f"bytes_{name}": 2**20 * total * share for name, share in purposes.items()})
            result["stats"] = {"remote_nodes": total, "input_nodes": 2000}

    change(tmp_path, send)
    tables = section_tables(one_section(tmp_path))
    nodes = {label: texts(tables["batches"], f"dgs ({label})", 2) for label in ("fanouts=64", "fanouts=5")}
    assert [row["Saved (×)"] for row in nodes.values()] == [f"{1000 / 700:.2f}", f"{500 / 600:.2f}"]
    table = tables["traffic"]
    assert table.columns[-3:] == ("Saved of full (%)", "Saved of graphsage (%)", "swap, not sent")
    size = 2**30 if "GiB" in table.title else 2**20
    shown = {label: texts(table, label, 2) for label in listed(table) if not label.startswith("P =")}
    saved = {label: row["Saved of graphsage (%)"] for label, row in shown.items() if label != "full"}
    assert saved == {
        "graphsage (fanouts=64, feature_rate=1)": "0.0",
        "graphsage (fanouts=64, feature_rate=0.85)": "10.0",
        "graphsage (fanouts=[5,5], feature_rate=1)": "0.0",
        "dgs (fanouts=64)": "30.0",
        "dgs (fanouts=5)": "-20.0",  # of 500, not of 1000
    }
    assert shown["full"]["Saved of graphsage (%)"] == "n/a"
    assert shown["full"]["Saved of full (%)"] == "0.0"
    total = {label: float(row["Total"].replace(",", "")) for label, row in shown.items()}
    of_full = 100 * (1 - total["dgs (fanouts=64)"] / total["full"])  # of rounded cells
    assert float(shown["dgs (fanouts=64)"]["Saved of full (%)"].replace(",", "")) == pytest.approx(of_full, rel=0.1)
    assert total["dgs (fanouts=64)"] == pytest.approx(700 * 2**20 / size, abs=6e-4)


def test_without_others_nothing_is_held_against_graphsage(write: Write, tmp_path: Path) -> None:
    write((FULL, sage()), epochs=6)
    change(tmp_path, lambda record: record["result"].update(stats={"remote_nodes": 10, "input_nodes": 20}))
    assert section_tables(one_section(tmp_path))["traffic"].columns[-1] == "Saved of full (%)"


def test_training_nodes_a_second(write: Write, tmp_path: Path) -> None:
    write((FULL, sage()), epochs=6)

    def train(record: dict[str, Any]) -> None:
        found = {"stats": {"remote_nodes": 10, "input_nodes": 20}, "train_nodes_per_s": 41_570.0}
        record["result"].update(found)

    change(tmp_path, train)
    table = section_tables(one_section(tmp_path))["batches"]
    assert float(texts(table, "graphsage", 2)["Trained (1000/s)"]) == pytest.approx(41.57, abs=0.06)


def test_remarks_that_differ_in_numbers_are_one(tmp_path: Path) -> None:
    """Seed 0: ranks 0 and 1 say 2 and 10; seed 1: nothing."""
    write_results(tmp_path, methods=(FULL, dgs()), parts=(2,), seeds=(0, 1), epochs=6)

    def fail(record: dict[str, Any]) -> None:
        if record["config"]["method"]["name"] == "dgs" and record["config"]["seed"] == 0:
            for rank, count in zip(record["ranks"], (2, 10), strict=True):
                rank["remarks"] = [f"{count} failed (the last: loss is 0.5 at step 7)"]

    change(tmp_path, fail)
    inputs = load_inputs(tmp_path)
    notes = [note.text for note in make_notes(inputs, make_sections(inputs)) if note.lead == "dgs:"]
    assert notes == ["2 to 10 failed (the last: loss is 0.5 at step 7) (1 of 2 trials)"]


def test_it_is_said_that_drawing_from_others_is_free(write: Write, tmp_path: Path) -> None:
    """Of mini-batch methods that read remote nodes, unless owners draw for others."""
    write((FULL, sage(), dgs()), epochs=6)

    def tell(remote: int, **options: Any) -> list[str]:
        def told(record: dict[str, Any]) -> None:
            record["result"]["stats"] = {"remote_nodes": remote}
            if record["config"]["method"]["name"] == "graphsage":
                record["config"]["method"]["options"].update(options)

        change(tmp_path, told)
        inputs = load_inputs(tmp_path)
        return [note.text for note in make_notes(inputs, make_sections(inputs)) if "is free" in note.lead]

    [text] = tell(10)
    assert "so that dgs, graphsage send features and the ids of nodes only" in text
    assert tell(0) == []
    [text] = tell(10, topology="owner")
    assert "so that dgs send" in text
