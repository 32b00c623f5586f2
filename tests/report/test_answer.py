"""Who reaches a suite's target soonest: the table against the epochs as they lie on disk."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from report.fake import METHODS, write_results
from report.measured import one_section, row, texts

from harness.report.summary import answer_sentence
from harness.report.views.answer import AnswerView
from harness.results.record_store import record_places
from harness.results.tuned import TunedMethod, Tuning, TuningTrial

SEEDS = (0, 1, 2, 3, 4)


def first_times(root: Path, method: str, target: float) -> dict[int, float | None]:
    """Seconds of the slowest rank up to the first score of at least the target, by seed, read without the project."""
    import json

    found: dict[int, float | None] = {}
    for place in record_places(root):
        record: dict[str, Any] = json.loads((place / "record.json").read_text())
        if record["config"]["method"]["name"] != method:
            continue
        epochs = pd.read_parquet(place / "epochs.parquet")
        taken, at = 0.0, None
        for _, rows in epochs.groupby("epoch"):
            taken += rows["epoch_time_s"].max()
            if at is None and (rows.loc[rows["rank"] == 0, "val_score"] >= target).any():  # alike on real ranks
                at = taken
        found[record["config"]["seed"]] = at
    return found


def view_of(tmp_path: Path, target: float | None, epochs: int = 30) -> AnswerView:
    methods = [METHODS[2], METHODS[3]]
    train = {} if target is None else {"target": target}
    write_results(tmp_path, methods=methods, parts=(2,), seeds=SEEDS, train=train, epochs=epochs)
    return AnswerView(one_section(tmp_path))


@pytest.mark.parametrize("share", [0.5, 0.97])
def test_the_times_are_those_of_the_epochs(share: float, tmp_path: Path) -> None:
    scores = [pd.read_parquet(p / "epochs.parquet")["val_score"].max() for p in record_places(
        write_results(tmp_path / "first", methods=METHODS[2:], parts=(2,), seeds=SEEDS))]  # fmt: skip
    target = round(float(share * max(scores)), 4)
    view = view_of(tmp_path / "second", target)
    table = view.table()
    assert table is not None
    for variant, method in ((v, v.method) for v in view.section.variants):
        known = first_times(tmp_path / "second", method, target)
        hits = [time for time in known.values() if time is not None]
        shown = texts(table, variant.label, 2)
        assert shown["Reach it"] == f"{len(hits)} of {len(SEEDS)}"
        own = view.times[variant, 2]
        assert sorted(own.reached.values()) == pytest.approx(sorted(hits))
        if len(hits) == len(SEEDS):
            assert own.median is not None
            assert own.median.centre == pytest.approx(np.median(hits))
    assert view.figure() is not None or not any(own.reached for own in view.times.values())


def test_a_failed_trial_counts_as_one_that_takes_longer(tmp_path: Path) -> None:
    write_results(
        tmp_path, methods=[METHODS[3]], parts=(2,), seeds=SEEDS, train={"target": 0.1},
        fails=lambda config: ("diverged", "loss is nan") if config.seed == 3 else None,
    )  # fmt: skip
    view = AnswerView(one_section(tmp_path))
    table = view.table()
    assert table is not None
    assert row(table, view.section.variants[0].label, 2).cells[0].text == "4 of 5"


def test_without_a_target_it_is_one_point_below_full(tmp_path: Path) -> None:
    view = view_of(tmp_path, None)
    own = view.section.ok[view.section.ok["method"] == "full"]["best_val"]
    assert view.section.target == pytest.approx(own.mean() - 0.01, abs=0.001)
    assert view.section.target is not None
    assert view.section.target <= own.mean() - 0.01
    table = view.table()
    assert table is not None
    assert f"{100 * view.section.target:.4g} % (1 point below what full reached)" in table.caption


def test_of_two_evaluations_there_is_no_answer(tmp_path: Path) -> None:
    view = view_of(tmp_path, None, epochs=10)
    assert view.table() is None
    assert view.figure() is None


@pytest.mark.parametrize(("spread", "sure"), [(0.01, True), (3.0, False)])
def test_a_lead_that_another_search_might_turn_is_not_sure(spread: float, sure: bool, tmp_path: Path) -> None:
    """The time to the target differs from one drawn setting to the next by so many powers of e."""
    view = view_of(tmp_path, 0.6)
    methods = tuple(
        TunedMethod(
            dataset="digits", method=method, target=0.6, chosen=None, study=None,
            tried=tuple(
                TuningTrial(
                    study=0, number=i, trial=str(i), point={"x": i}, best_val=0.9, wall_s=720.0,
                    target_s=math.exp(spread * i), trained_s=1e4,
                ) for i in range(10)
            ),
        ) for method in ("graphsage", "full")
    )  # fmt: skip
    searched = Tuning(search="demo-tuning", suite="demo", goal="time_to_target", sampler="random", methods=methods)
    table = AnswerView(replace(view.section, tuning=searched)).table()
    assert table is not None
    slow = row(table, next(v.label for v in view.section.variants if v.method == "graphsage"), 2)
    assert slow.cells[2].note == ("" if sure else "not significant")
    assert texts(table, slow.label, 2)["Search (h)"] == "2.00"
    assert ("for another search of the settings too" in table.caption) is True
    alone = view.table()
    assert alone is not None
    assert row(alone, slow.label, 2).cells[2].note == ""
    assert "Search (h)" not in alone.columns


def test_of_trials_that_are_not_timed_nobody_is_the_soonest(tmp_path: Path) -> None:
    view = view_of(tmp_path, 0.6)
    untimed = AnswerView(replace(view.section, epochs=view.section.epochs.assign(epoch_time_s=np.nan)))
    assert untimed.table() is None
    assert untimed.figure() is None
    assert untimed.order == []
    assert "as epochs were not timed" in answer_sentence(untimed.section, "digits")
