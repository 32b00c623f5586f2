"""Results of several suites in one table: by what affects training, each trial once, beside stored baselines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from report.fake import write_results
from report.measured import change

from harness.report import write_report
from harness.report.page import make_report
from harness.report.sections import Section, make_sections, with_needed_baselines
from harness.report.sweeps import find_workloads
from harness.report.values import values_of
from harness.report.views.answer import AnswerView
from harness.results.frames import load_inputs

FULL, BNS, MINE = ("full", {}), ("bns-gcn", {"rate": 0.1}), ("graphsage", {"fanouts": [7]})


def later(record: dict[str, Any]) -> None:
    """Make a record one of a later run, of another score."""
    record["started"] = "2031-01-01T00:00:00+00:00"
    record["result"]["best_val"] = 0.125


def one(*places: Path, baselines: tuple[Path, ...] = ()) -> Section:
    (section,) = make_sections(with_needed_baselines(load_inputs(list(places), baselines)))
    return section


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    return write_results(tmp_path / "stored", suite="theirs", methods=[FULL, BNS], parts=[2])


def test_a_new_suite_stands_beside_the_old_one(stored: Path, tmp_path: Path) -> None:
    mine = write_results(tmp_path / "mine", suite="mine", methods=[MINE], parts=[2], train={"target": 0.5})
    section = one(stored, mine)
    assert section.suites == ("mine", "theirs")
    assert ("suites", "mine, theirs") in section.facts
    assert {variant.method for variant in section.variants} == {"full", "bns-gcn", "graphsage"}
    assert [stat.n for stat in values_of(section, "best_val").values()] == [3, 3, 3]
    assert section.extra == ""


def test_what_affects_training_keeps_them_apart(stored: Path, tmp_path: Path) -> None:
    for name, settings in {
        "epochs": {"epochs": 10},
        "rate": {"train": {"lr": 0.5}},
        "timing": {"settings": {"timing": "breakdown"}},
        "stops": {"train": {"target": 0.5, "stop_at_target": True}},
    }.items():
        other: Any = write_results(tmp_path / name, suite=name, methods=[MINE], parts=[2], **settings)
        assert len(make_sections(load_inputs([stored, other]))) == 2, name


def test_trials_of_a_search_stand_apart_from_what_it_chose(stored: Path, tmp_path: Path) -> None:
    search = {"tuning": {"study": 0, "rungs": []}}
    other = write_results(tmp_path / "search", suite="theirs-tuning", methods=[FULL], parts=[2], settings=search)
    found = make_sections(load_inputs([stored, other]))
    assert [section.extra for section in found] == ["", "search=settings"]


def test_a_trial_that_two_suites_have_run_counts_once(stored: Path, tmp_path: Path) -> None:
    again = write_results(tmp_path / "again", suite="mine", methods=[FULL, MINE], parts=[2], train={"target": 0.5})
    same = write_results(tmp_path / "same", suite="same", methods=[FULL], parts=[2])
    change(same, later)
    section = one(stored, again, same)
    full = next(variant for variant in section.variants if variant.method == "full")
    stat = values_of(section, "best_val")[full, 2]
    assert (stat.n, stat.mean) == (3, 0.125)  # of the suite that ran last


def test_targets_of_several_suites_are_one(stored: Path, tmp_path: Path) -> None:
    """Most ask for 0.3: who asks for another score, or none, is judged by that one, by its epochs."""
    mine = write_results(tmp_path / "mine", suite="mine", methods=[MINE], parts=[2], train={"target": 0.3})
    more = write_results(
        tmp_path / "more", suite="more", methods=[("vrgcn", {})], seeds=[7, 8], parts=[2], train={"target": 0.9}
    )
    section = one(stored, mine, more)
    assert section.target == 0.3
    times = AnswerView(section).times
    assert {variant.method for variant, _ in times} == {"full", "bns-gcn", "graphsage", "vrgcn"}
    asked = section.frame.set_index("method")["time_to_target_s"]
    assert asked.drop("graphsage").isna().all()


@pytest.mark.slow
def test_stored_baselines_are_shown_where_they_stand_beside_ones_own(stored: Path, tmp_path: Path) -> None:
    others = [("digits", "real", ""), ("cora", "real", "")]
    stored = write_results(tmp_path / "stored2", suite="theirs", methods=[FULL, BNS], parts=[2], datasets=others)
    mine = write_results(tmp_path / "mine", suite="mine", methods=[FULL, MINE], parts=[2])
    change(stored, later)
    section = one(mine, baselines=(stored,))
    assert section.dataset == "digits"
    means = {variant.method: stat.mean for (variant, _), stat in values_of(section, "best_val").items()}
    assert means["bns-gcn"] == 0.125
    assert means["full"] != 0.125, "one's own run of a trial is shown, whenever the stored one ran"
    assert len(make_sections(load_inputs([mine, stored]))) == 2
    report = make_report(with_needed_baselines(load_inputs([mine], [stored])))
    assert report.title == "mine, theirs"
    page = write_report(mine, tmp_path / "out", ["md"], baselines=[stored]).read_text()
    assert "cora" not in page
    assert "bns-gcn" in page


def test_suites_that_share_one_have_one_profile(tmp_path: Path) -> None:
    """Suite `a` on digits, `b` on digits and cora, `c` on flickr alone: two data sets are together."""
    of = {"a": ["digits"], "b": ["digits", "cora"], "c": ["flickr"]}
    places = [
        write_results(
            tmp_path / suite,
            suite=suite,
            methods=[FULL if suite == "b" else MINE],
            parts=[2],
            datasets=[(name, "real", "") for name in names],
            train={"target": 0.3},
        )
        for suite, names in of.items()
    ]
    (found,) = find_workloads(make_sections(load_inputs(places)))
    assert [section.dataset for section in found.sections] == ["cora", "digits"]
    assert found.section.suites == ("b", "a")


@pytest.mark.slow
def test_machines_that_differ_are_told(stored: Path, tmp_path: Path) -> None:
    def leads(place: Path) -> list[str]:
        return [f"{note.lead} {note.text}" for note in make_report(load_inputs([stored, place])).notes]

    here = write_results(tmp_path / "here", suite="mine", methods=[MINE], parts=[2])
    other = write_results(tmp_path / "other", suite="mine", methods=[MINE], parts=[2], environment={"cpu": "another"})
    assert not [line for line in leads(here) if "Machines" in line]
    (told,) = [line for line in leads(other) if "Machines" in line]
    assert told == "Machines of several kinds: digits · sage. Their times are not comparable; bytes and scores are."
