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

from harness.report.sections import Section
from harness.report.summary import _named as named
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


@pytest.mark.quick(1)
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
def test_a_lead_that_another_search_might_turn_is_said_to_be_one(spread: float, sure: bool, tmp_path: Path) -> None:
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
    section = replace(view.section, tuning=searched)
    table = AnswerView(section).table()
    assert table is not None
    slow = row(table, next(v.label for v in view.section.variants if v.method == "graphsage"), 2)
    assert slow.cells[2].note == ""
    said = answer_sentence(section, "digits")
    assert ("After another search of the settings" in said) is not sure
    assert bool(AnswerView(section).open_to_search) is not sure
    assert "another search" not in answer_sentence(view.section, "digits")
    assert texts(table, slow.label, 2)["Search (h)"] == "2.00"
    assert "with the settings that the search found" in table.caption
    alone = view.table()
    assert alone is not None
    assert row(alone, slow.label, 2).cells[2].note == ""
    assert "Search (h)" not in alone.columns


def test_methods_that_were_tuned_are_named_without_their_settings(tmp_path: Path) -> None:
    """Where each has one row; two rows of a method are told apart."""
    write_results(tmp_path, methods=METHODS[:2], parts=(2,), seeds=SEEDS, train={"target": 0.4}, epochs=30)
    section = one_section(tmp_path)
    searched = Tuning(search="t", suite="demo", goal="time_to_target", sampler="random", methods=())
    tuned, key = replace(section, tuning=searched), (section.variants[0], 2)
    assert named(AnswerView(section), key) == named(AnswerView(tuned), key) == key[0].label != "bns-gcn"
    alone = [replace(each, variants=section.variants[:1]) for each in (section, tuned)]
    assert [named(AnswerView(each), key) for each in alone] == [key[0].label, "bns-gcn"]


def test_of_trials_that_are_not_timed_nobody_is_the_soonest(tmp_path: Path) -> None:
    view = view_of(tmp_path, 0.6)
    untimed = AnswerView(replace(view.section, epochs=view.section.epochs.assign(epoch_time_s=np.nan)))
    assert untimed.table() is None
    assert untimed.figure() is None
    assert untimed.order == []
    assert "as epochs were not timed" in answer_sentence(untimed.section, "digits")


def planted(section: Section, seconds: dict[str, tuple[float, ...]]) -> AnswerView:
    """The section with trials that take so long to 90 %, by method and seed; -t: not there after t seconds."""
    rows = []
    for trial, method, seed in zip(section.ok["trial"], section.ok["method"], section.ok["seed"], strict=True):
        taken = seconds[method][seed]
        for epoch in range(4):
            score = 0.9 if epoch == 3 and taken > 0 else 0.1
            rows.append({"trial": trial, "rank": 0, "epoch": epoch, "epoch_time_s": abs(taken) / 4, "val_score": score})
    return AnswerView(replace(section, epochs=pd.DataFrame(rows)))


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Section:
    place, train = tmp_path_factory.mktemp("three"), {"target": 0.9}
    return one_section(write_results(place, methods=METHODS[1:], parts=(2,), seeds=SEEDS, train=train))


Against = dict[tuple[str, str], str]


def against(view: AnswerView) -> Against:
    """What each row says of each, by their methods."""
    cells, order = view.distances(view.rows), [*view.order, *(key for key in view.rows if key not in view.order)]
    found: Against = {}
    for key, cell in cells.items():
        assert cell.against is not None
        found |= {(key[0].method, base[0].method): said for base, said in zip(order, cell.against, strict=True)}
    return found


NOISE = (1.0, 1.1, 0.9, 1.05, 0.97)


def test_every_row_says_how_long_it_takes_against_every_other(three: Section) -> None:
    steady = [t * (1 + 0.02 * (-1) ** i) for i, t in enumerate(NOISE)]
    own = {"full": NOISE, "graphsage": tuple(2 * t for t in steady), "bns-gcn": (0.4, 3.0, 1.2, 0.7, 2.2)}
    view = planted(three, own)
    found = against(view)
    assert found["full", "full"] == "="
    longer, sooner = found["graphsage", "full"], found["full", "graphsage"]
    ratio = np.median(own["graphsage"]) / np.median(NOISE)
    said, bound = longer.split(", surely at least ")
    assert said == f"{ratio:.2f} ×"
    assert 1.8 < float(bound.removesuffix(" ×")) <= ratio
    turned, other = sooner.split(", surely at most ")
    assert turned == f"{1 / ratio:.2f} ×"
    assert 1 / ratio <= float(other.removesuffix(" ×")) < 1 / 1.8
    assert float(other[:4]) * float(bound[:4]) == pytest.approx(1, abs=0.02)
    ratio = np.median(own["bns-gcn"]) / np.median(NOISE)
    assert found["bns-gcn", "full"] == f"{ratio:.2f} ×"  # not significant: no more is said
    table = view.table()
    assert table is not None
    behind = {r.label.split(" ")[0]: (r.cells[2].text, r.cells[2].note) for r in table.rows if r.cells}
    assert behind["full"] == ("fastest", "not significant")
    assert behind["graphsage"] == (said, "")
    assert behind["bns-gcn"] == (f"{ratio:.2f} ×", "not significant")


def test_of_a_row_that_does_not_arrive_a_bound_is_said(three: Section) -> None:
    """Three of five seeds had not arrived after 8 s, so that the median is more than that."""
    view = planted(three, {"full": NOISE, "graphsage": (4.0, -8.0, -8.0, 5.0, -8.0), "bns-gcn": (-0.3,) * 5})
    found = against(view)
    for pair, start in ((("graphsage", "full"), "at least 8.00 ×"), (("full", "graphsage"), "at most 0.13 ×")):
        said, _, bound = found[pair].partition(", surely at ")
        assert said == start
        assert bound.startswith(("least", "most"))
        end, size = float(bound.split()[1]), float(start.split()[2])
        assert 1 < end <= size if size > 1 else size <= end < 1
    for pair in (("bns-gcn", "full"), ("full", "bns-gcn"), ("graphsage", "bns-gcn"), ("bns-gcn", "graphsage")):
        assert found[pair] == "n/a"  # it was trained for less time than the others took: nothing is known


def test_of_rows_without_a_common_seed_nothing_is_said(three: Section) -> None:
    apart = three.frame[(three.frame["method"] == "full") != (three.frame["seed"] > 1)]
    view = planted(replace(three, frame=apart), dict.fromkeys(("full", "graphsage", "bns-gcn"), NOISE))
    found = against(view)
    assert found["graphsage", "full"] == found["full", "graphsage"] == ""
    assert found["graphsage", "bns-gcn"].endswith(" ×")
