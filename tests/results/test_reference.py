"""The file of the reference workload's times: whole lines of any number of processes, merged once."""

from __future__ import annotations

import math
import multiprocessing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from harness.results.comparison import load_trials
from harness.results.environment import FILE, Measurement, machine, measurements, note
from harness.results.frames import load_results
from harness.results.record_store import ResultStore, merge_results

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def made(second: int, seconds: float = 0.01, on: str = "aaaaaaaa") -> Measurement:
    return Measurement(machine=on, when=START + timedelta(seconds=second), seconds=seconds, cores=2)


def add_many(directory: Path, number: int) -> None:
    for second in range(20):
        note(directory, [made(second, on=str(number))])


def test_lines_of_several_processes_are_all_whole(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=add_many, args=(tmp_path, number)) for number in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert len((tmp_path / FILE).read_bytes().splitlines()) == 80
    assert len(measurements(tmp_path)) == 80


def test_a_line_that_was_cut_off_costs_no_other(tmp_path: Path) -> None:
    note(tmp_path, [made(0)])
    with (tmp_path / FILE).open("ab") as file:
        file.write(b'{"machine": "aaaa')
    note(tmp_path, [made(9)])
    assert measurements(tmp_path) == [made(0), made(9)]


def test_results_suites_and_trials_have_their_measurements(tmp_path: Path, make_record) -> None:
    assert measurements(tmp_path) == []
    for suite, second in (("one", 5), ("two", 1)):
        ResultStore(tmp_path, suite).commit("abc", make_record("abc", suite=suite), [], "")
        note(tmp_path / suite, [made(second)])
    assert measurements(tmp_path) == [made(1), made(5)]
    assert measurements(tmp_path / "one") == measurements(tmp_path / "one" / "abc") == [made(5)]


def test_merged_results_have_the_measurements_of_all_once(tmp_path: Path, make_record) -> None:
    for place, second in (("a", 5), ("b", 1)):
        ResultStore(tmp_path / place, "one").commit(place, make_record(place, suite="one"), [], "")
        note(tmp_path / place / "one", [made(second), made(7)])
    for _ in range(2):
        merge_results(tmp_path / "out", [tmp_path / "a", tmp_path / "b"])
    assert measurements(tmp_path / "out") == [made(1), made(5), made(7)]
    assert len((tmp_path / "out" / "one" / FILE).read_bytes().splitlines()) == 3


@pytest.mark.parametrize(
    ("own", "wall", "found"),
    [
        (0.01, 2.0, 0.01),  # short: the one before is nearest
        (0.01, 50.0, 0.02),  # long: the next one is, though not that of other cores or another machine
        (0.02, 1.0, 0.02),  # measured while the trial's data were made
        (0.03, 600.0, 0.03),  # none of those there are
        (None, 50.0, None),
    ],
)
def test_a_trial_has_the_measurement_nearest_to_its_middle(
    tmp_path: Path, make_record, own: float | None, wall: float, found: float | None
) -> None:
    note(tmp_path / "one", [made(0), made(24, 0.5, on="bbbbbbbb"), made(40, 0.02)])
    note(tmp_path / "one", [made(25, 0.6).model_copy(update={"cores": 3})])
    fields = {"suite": "one", "started": START.isoformat(), "wall_s": wall, "environment": {"reference_s": own}}
    ResultStore(tmp_path, "one").commit("abc", make_record("abc", **fields), [], "")
    assert [trial.environment["reference_s"] for trial in load_trials(tmp_path)] == [found]
    assert load_results(tmp_path)["reference_s"].tolist() == pytest.approx([found or math.nan], nan_ok=True)


def test_a_time_that_cannot_be_is_no_measurement() -> None:
    with pytest.raises(ValueError, match="greater than 0"):
        made(0, seconds=0.0)


def test_a_machine_is_told_without_its_name() -> None:
    assert len(machine()) == 8
    assert int(machine(), 16) >= 0
