"""The trials in the page: what a browser draws charts from."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from report.fake import METHODS, write_results
from report.measured import FULL, Write, one_section

from harness.report import write_report
from harness.report.page import trials_table
from harness.report.page_data import POINTS, embedded_trials
from harness.report.palette import MARKERS, OUTLINES
from harness.results.stats import MISSING

ROOT = Path(__file__).parents[2]


def test_every_trial_has_its_numbers(write: Write) -> None:
    section = write((FULL, *METHODS[:2]), seeds=(0, 1), parts=(1, 2))
    (told,) = json.loads(embedded_trials([section]))
    frame = section.ok
    assert told["trials"]["trial"] == list(frame["trial"])
    assert told["trials"]["parts"] == list(frame["parts"])
    labels = {variant.key: variant.label for variant in section.variants}
    assert [told["variants"][i]["label"] for i in told["trials"]["variant"]] == [
        labels[key] for key in frame["variant"]
    ]
    assert told["values"]["test_at_best_val"] == pytest.approx(list(100 * frame["test_at_best_val"]), rel=1e-5)
    seconds = {"s": 1.0, "ms": 1e3}[told["metrics"]["training_time_s"]["title"].split("(")[1].rstrip(")")]
    whole = seconds * frame["epoch_time_s"] * frame["epochs"]
    assert told["values"]["training_time_s"] == pytest.approx(list(whole), rel=1e-5)
    assert told["metrics"]["training_time_s"]["better"] == "less"
    assert (told["across"], told["up"], told["parts"]) == (
        "training_time_s",
        "test_at_best_val",
        section.compared_parts,
    )
    assert set(told["values"]) == set(told["metrics"])
    assert not {"parts", "seed", "label", "peak_memory_source"} & set(told["metrics"])


def test_what_was_not_measured_is_no_number(write: Write) -> None:
    section = write((FULL, *METHODS[:2]), seeds=(0, 1))
    scores = section.frame["test_at_best_val"].where(section.frame["seed"] > 0)
    (told,) = json.loads(
        embedded_trials([replace(section, frame=section.frame.assign(test_at_best_val=scores, best_val=np.nan))])
    )
    assert [value is None for value in told["values"]["test_at_best_val"]] == list(scores.isna())
    assert "best_val" not in told["metrics"]


def test_names_cannot_end_the_element(write: Write) -> None:
    section = replace(write((FULL, *METHODS[:2])), dataset="</script><script>alert(1)</script>")
    text = embedded_trials([section])
    assert "<" not in text
    assert json.loads(text)[0]["dataset"] == section.name


def test_there_is_nothing_of_one_method(write: Write) -> None:
    assert json.loads(embedded_trials([write((FULL,))])) == []


def test_every_marker_has_a_shape() -> None:
    assert set(OUTLINES) == set(MARKERS)


def test_the_bundle_is_of_the_versions_that_are_pinned() -> None:
    pinned = json.loads((ROOT / "tools" / "vega" / "package.json").read_text())["dependencies"]
    first = (ROOT / "harness" / "report" / "static" / "vega.js").open(encoding="utf-8").readline()
    assert all(f"{name} {version}," in first for name, version in pinned.items())
    licences = (ROOT / "harness" / "report" / "static" / "LICENSES.txt").read_text(encoding="utf-8")
    assert all(f"{name} {version} (" in licences for name, version in pinned.items())


@pytest.mark.slow
def test_every_trial_stands_in_the_table_with_its_files(tmp_path: Path) -> None:
    write_results(
        tmp_path / "a b",
        methods=(FULL, *METHODS[:2]),
        parts=(1, 2),
        seeds=(0, 1),
        fails=lambda c: ("oom", "rank 1 <killed>") if (c.method.name, c.seed) == ("full", 1) else None,
    )
    page = write_report(tmp_path / "a b", tmp_path / "out" / "deep", formats=("html",))
    found = {path.parent.name: json.loads(path.read_text()) for path in tmp_path.glob("*/*/*/record.json")}
    links = [unquote(link) for link in re.findall(r'href="([^"#]*/(?:record\.json|log\.txt))"', page.read_text())]
    assert len(links) == 2 * len(found)
    assert {Path(link).parent.name for link in links} == set(found)
    assert all((page.parent / link).resolve().parent.is_dir() for link in links)
    assert all((page.parent / link).is_file() for link in links if link.endswith("record.json"))
    section = one_section(tmp_path / "a b")
    table = trials_table(section, {})
    by_trial = {row.cells[-2].text: row.cells for row in table.rows}
    assert by_trial.keys() == found.keys()
    for trial, (parts, seed, status, val, *_) in by_trial.items():
        record = found[trial]
        told = record["config"]["partition"]["parts"], record["config"]["seed"], record["status"]
        assert (int(parts.text), int(seed.text), status.text) == told
        assert status.note == (record["reason"] or "")
        assert (val.text == MISSING) == (record["status"] != "ok")
    assert not any(cell.link for row in table.rows for cell in row.cells)


def test_a_curve_is_thinned_to_what_a_page_holds(tmp_path: Path) -> None:
    write_results(tmp_path, methods=(FULL, *METHODS[:2]), parts=(2,), seeds=(0,), epochs=450)
    (told,) = json.loads(embedded_trials([one_section(tmp_path)]))
    evaluated = one_section(tmp_path).epochs.query("rank == 0").groupby("trial")["val_score"].count()
    for trial, (epochs, seconds, scores) in zip(told["trials"]["trial"], told["curves"], strict=True):
        assert len(epochs) == len(seconds) == len(scores) <= POINTS
        assert len(epochs) == evaluated[trial] or len(epochs) > POINTS / 2
        assert seconds == sorted(seconds)
