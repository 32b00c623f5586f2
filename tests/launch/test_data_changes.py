"""Changed data under the same name are another trial; the same data are not, wherever they lie."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launch.tiny import TESTS, Silent, write_ring
from support.tiers import tiered

from harness.data import prepared as store
from harness.launch.inputs import InputCache, on_todays_data
from harness.launch.runner import run_suite
from harness.launch.slots import RunOptions
from harness.results.record import read_record
from harness.results.record_store import ResultStore, read_suite
from harness.suite.expand import expand
from harness.suite.schema import Suite, TrialConfig

pytestmark = pytest.mark.timeout(120)


class Bench:
    """A suite of one data set, run with fake ranks."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch, **sections: Any) -> None:
        monkeypatch.setenv("HARNESS_CACHE", str(home / "cache"))
        self.suite = self.suite_of(**sections)
        self.home, self.data, self.cache = home, home / "data", home / "cache"
        write_ring(self.data)
        self.store = ResultStore(home / "results", "tiny")

    @staticmethod
    def suite_of(**sections: Any) -> Suite:
        own: dict[str, Any] = {"name": "tiny", "datasets": ["ring"], "methods": ["full"], "device": "cpu"}
        own |= {"train": {"epochs": 10, "threads": 1}, "partition": {"parts": 2, "method": "chunk"}}
        return Suite.model_validate(own | sections)

    def trials(self, *, build: bool = True) -> tuple[list[TrialConfig], list[str]]:
        every = expand(self.suite, data_dir=self.data)
        return on_todays_data(every, self.store, self.data, every if build else ())

    def run(self) -> list[str]:
        """Run what is left and return what was said."""
        trials, said = self.trials()
        options = RunOptions(data_dir=self.data, worker="launch.fake_worker", warm=False)
        assert run_suite(self.suite, trials, self.store, options, Silent()) == 0
        return said

    def change(self, **arrays: Any) -> None:
        """Write the file anew, some of its arrays changed, at another time."""
        file = self.data / "ring.npz"
        with np.load(file) as old:
            content = {name: arrays[name](old[name]) if name in arrays else old[name] for name in old.files}
        before = file.stat().st_mtime_ns
        np.savez(file, **content)
        os.utime(file, ns=(before + 10**9, before + 10**9))

    def records(self) -> dict[str, Any]:
        return {path.parent.name: read_record(path) for path in self.store.directory.glob("*/record.json")}


class Unwanted:
    calls = 0

    def __call__(self, *arguments: object, **options: object) -> Path:
        self.calls += 1
        raise AssertionError


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
    return Bench(tmp_path, monkeypatch)


@pytest.mark.slow
def test_changed_features_are_another_trial(bench: Bench) -> None:
    assert bench.run() == []
    [(first, record)] = bench.records().items()
    assert len(record.dataset["fingerprint"]) == len(record.partition_fingerprint) == 16
    bench.change(feat=lambda rows: rows + 1)
    [planned], [line] = bench.trials(build=False)
    assert planned.id == first
    assert (
        line == "'ring' has other files or parts than when 1 finished trial ran: a run looks whether they are the same"
    )
    assert bench.run() == [
        "1 finished trial ran on other data or another partition of 'ring': kept, and run again as other trials"
    ]
    (second,) = bench.records().keys() - {first}
    assert bench.records()[first] == record
    new = bench.records()[second]
    assert new.dataset["fingerprint"] != record.dataset["fingerprint"]
    assert new.partition_fingerprint == record.partition_fingerprint
    assert new.config["data"] == f"{new.dataset['fingerprint']}.{new.partition_fingerprint}"
    assert " data=" in new.label
    [trial], _ = bench.trials()
    assert trial.id == second  # done, too
    assert [kept.id for kept in read_suite(bench.store.directory / "suite.json").trials] == [second]


@pytest.mark.slow
def test_seeds_that_had_not_run_join_those_on_todays_data(bench: Bench) -> None:
    """Seeds 0 to 2 are one cell of the claims and of reports, whichever of them ran before the data changed."""
    bench.run()
    (first,) = bench.records()
    bench.change(feat=lambda rows: rows + 1)
    bench.suite = Bench.suite_of(seeds=[0, 1, 2], methods=["full", "graphsage"])
    bench.run()
    todays = {record.config["data"] for trial, record in bench.records().items() if trial != first}
    assert todays == {bench.records()[bench.trials()[0][0].id].data}
    assert len(bench.records()) == 1 + 6


@pytest.mark.slow
def test_what_is_asked_for_is_made_and_told_and_nothing_else(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The changed data set is prepared already, by a trial of other parts; of these there is no partition yet."""
    bench.suite = Bench.suite_of(partition={"parts": [2, 3], "method": "chunk"})
    bench.run()
    bench.change(**dict.fromkeys(("train_mask", "val_mask", "test_mask"), lambda nodes: np.roll(nodes, 1)))
    every = expand(bench.suite, data_dir=bench.data)
    told: list[str] = []

    def look(**options: Any) -> list[str | None]:
        trials, _ = on_todays_data(every, bench.store, bench.data, report=told.append, **options)
        return [trial.data and trial.data[:16] for trial in trials]

    with monkeypatch.context() as patch:
        patch.setattr("harness.launch.inputs.prepare", fail := Unwanted())
        assert look() == [None, None]
    assert (fail.calls, told) == (0, [])
    first, second = look(making=every[:1])
    assert (len(first or ""), second) == (16, None)
    assert told.pop() == "partitioning ring into 2 (chunk)"
    made = sorted(bench.cache.rglob("*"))
    assert look() == look(making=every[:1]) == [first, None]
    assert sorted(bench.cache.rglob("*")) == made
    assert look(making=every) == [first, first]
    assert told[-1] == "partitioning ring into 3 (chunk)"


@pytest.mark.slow
def test_data_that_are_as_they_were_have_their_results_again(bench: Bench) -> None:
    before = (bench.data / "ring.npz").read_bytes()
    bench.run()
    (first,) = bench.records()
    bench.change(label=lambda own: 1 - own)
    bench.run()
    assert len(bench.records()) == 2
    (bench.data / "ring.npz").write_bytes(before)
    [trial], said = bench.trials()
    assert (trial.id, said) == (first, [])


@pytest.mark.slow
def test_the_same_content_in_other_files_is_the_same_data(bench: Bench) -> None:
    bench.run()
    bench.change()
    shutil.rmtree(bench.cache)
    assert bench.run() == []
    assert len(bench.records()) == 1


@pytest.mark.slow
def test_finished_trials_stand_when_their_data_are_gone(bench: Bench) -> None:
    bench.run()
    shutil.rmtree(bench.cache)
    trials, said = bench.trials()
    assert ([trial.data for trial in trials], said) == ([None], [])
    assert not bench.cache.exists()  # the files are those of the record: nothing was read


@pytest.mark.slow
@pytest.mark.parametrize("cache", tiered([True, False], [False]))
def test_generated_data_are_known_by_what_generated_them(bench: Bench, cache: bool) -> None:
    bench.suite = Bench.suite_of(datasets=[{"sbm": {"nodes": 60}}])
    bench.run()
    if not cache:
        shutil.rmtree(bench.cache)
    trials, said = bench.trials()
    assert ([trial.data for trial in trials], said) == ([None], [])
    assert bench.cache.exists() is cache


def test_another_partition_in_a_file_of_the_same_name_is_another_trial(tmp_path: Path, bench: Bench) -> None:
    parts = tmp_path / "parts.npy"
    np.save(parts, np.arange(12) % 2)
    bench.suite = Bench.suite_of(partition={"parts": 2, "method": "file", "file": str(parts)})
    bench.run()
    (first,) = bench.records()
    np.save(parts, np.arange(12) // 6)
    assert len(bench.run()) == 1
    (second,) = bench.records().keys() - {first}
    records = bench.records()
    assert records[first].dataset["fingerprint"] == records[second].dataset["fingerprint"]
    assert records[first].partition_fingerprint != records[second].partition_fingerprint


@pytest.mark.slow
def test_records_without_fingerprints_are_kept(bench: Bench) -> None:
    bench.run()
    (first,) = bench.records()
    path = bench.store.directory / first / "record.json"
    record = read_record(path)
    dataset = {key: value for key, value in record.dataset.items() if key not in ("fingerprint", "prepared")}
    path.write_text(record.model_copy(update={"dataset": dataset, "partition_fingerprint": None}).to_json())
    bench.change(feat=lambda rows: rows + 1)
    assert bench.run() == []
    assert list(bench.records()) == [first]


def test_all_is_read_once_for_fingerprints_that_cannot_be_kept(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    [trial] = expand(bench.suite, data_dir=bench.data)
    kept = InputCache(bench.data).get(trial, print).fingerprint
    files = list(bench.cache.rglob("fingerprint.json"))
    assert len(files) == 2
    for file in files:
        file.unlink()
    read: list[Path] = []

    def full(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, path)

    monkeypatch.setattr(store, "write_whole", full)
    monkeypatch.setattr(store, "hash_file", lambda path, hash_=store.hash_file: read.append(path) or hash_(path))
    inputs = InputCache(bench.data)
    assert {inputs.get(trial, print).fingerprint for _ in range(3)} == {kept}
    assert sorted(set(read)) == sorted(read)
    assert any(path.name == "features.npy" for path in read)
