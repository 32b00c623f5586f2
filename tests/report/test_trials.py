"""The trials in the page: what a browser draws charts from."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from report.fake import METHODS
from report.measured import FULL, Write

from harness.report.palette import MARKERS
from harness.report.trials import SHAPES, embedded

ROOT = Path(__file__).parents[2]


def test_every_trial_has_its_numbers(write: Write) -> None:
    section = write((FULL, *METHODS[:2]), seeds=(0, 1), parts=(1, 2))
    (told,) = json.loads(embedded([section]))
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
        embedded([replace(section, frame=section.frame.assign(test_at_best_val=scores, best_val=np.nan))])
    )
    assert [value is None for value in told["values"]["test_at_best_val"]] == list(scores.isna())
    assert "best_val" not in told["metrics"]


def test_names_cannot_end_the_element(write: Write) -> None:
    section = replace(write((FULL, *METHODS[:2])), dataset="</script><script>alert(1)</script>")
    text = embedded([section])
    assert "<" not in text
    assert json.loads(text)[0]["dataset"] == section.name


def test_there_is_nothing_of_one_method(write: Write) -> None:
    assert json.loads(embedded([write((FULL,))])) == []


def test_every_marker_has_a_shape() -> None:
    assert set(SHAPES) == set(MARKERS)


def test_the_bundle_is_of_the_versions_that_are_pinned() -> None:
    pinned = json.loads((ROOT / "tools" / "vega" / "package.json").read_text())["dependencies"]
    first = (ROOT / "harness" / "report" / "static" / "vega.js").open(encoding="utf-8").readline()
    assert all(f"{name} {version}," in first for name, version in pinned.items())
    licences = (ROOT / "harness" / "report" / "static" / "LICENSES.txt").read_text(encoding="utf-8")
    assert all(f"{name} {version} (" in licences for name, version in pinned.items())
