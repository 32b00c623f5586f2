"""Plans: states and reasons, and where the memory estimate takes a partition from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from launch.tiny import Silent, write_suite

from harness.data.partition.cached import ensure_partitioned
from harness.data.registry import prepare
from harness.launch.hardware import Capacity
from harness.launch.planner import PlannedTrial, Shortage, plan, total
from harness.launch.runner import run_suite
from harness.launch.slots import RunOptions
from harness.metrics import PURPOSES
from harness.results.frames import load_results
from harness.results.record_store import ResultStore
from harness.suite.expand import expand
from harness.suite.suite_file import load_suite

TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture
def suite_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = write_suite(tmp_path)
    monkeypatch.setenv("HARNESS_DATA", str(tmp_path / "data"))
    text = file.read_text().replace("[ring]", "[ring, reddit, sbm]").replace("[0, 1, 2]", "[0]")
    file.write_text(text)
    return file


def make_plan(file: Path, **options) -> list[PlannedTrial]:
    suite = load_suite(file)
    store = ResultStore(file.parent / "results", suite.name)
    return plan(expand(suite), store, RunOptions(**options))


def assert_known(before: PlannedTrial, after: PlannedTrial) -> None:
    """The ranks' real sizes are less than was assumed before they were known."""
    assert 0 < total(after.largest) < total(before.largest)


@pytest.mark.slow
def test_states(suite_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = make_plan(suite_file)
    assert [planned.state for planned in before] == ["run", "run", "skip", "skip", "run", "run"]
    assert {planned.command for planned in before[2:4]} == {"harness data get reddit"}
    assert before[2].reason == "reddit is not here"
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
    monkeypatch.setenv("FAKE_RANKS", '{"1": "diverged"}')
    suite = load_suite(suite_file)
    store = ResultStore(suite_file.parent / "results", suite.name)
    run_suite(suite, expand(suite)[:3], store, RunOptions(worker="launch.fake_worker"), Silent())
    after = make_plan(suite_file)
    assert [(p.state, p.done_status) for p in after[:3]] == [("done", "ok"), ("done", "diverged"), ("skip", "skipped")]
    retried = make_plan(suite_file, retry=frozenset({"diverged"}))[1]
    assert (retried.state, retried.reason) == ("run", "again, was diverged")
    assert [p.state for p in make_plan(suite_file, fresh=True)[:3]] == ["run", "run", "skip"]
    assert_known(before[1], after[1])


def test_nothing_is_written(suite_file: Path) -> None:
    before = sorted(suite_file.parent.rglob("*"))
    make_plan(suite_file)
    assert sorted(suite_file.parent.rglob("*")) == before


def test_a_partition_in_the_cache_is_found(suite_file: Path) -> None:
    before = make_plan(suite_file)
    trial = before[1].trial
    ensure_partitioned(prepare(trial.dataset), trial.partition, inductive=False)
    assert_known(before[1], make_plan(suite_file)[1])


def test_an_inductive_trial_needs_both_partitions(suite_file: Path) -> None:
    suite_file.write_text(suite_file.read_text().replace("train: {", "train: {inductive: true, "))
    before = make_plan(suite_file)
    trial = before[1].trial
    ensure_partitioned(prepare(trial.dataset), trial.partition, inductive=True)
    assert_known(before[1], make_plan(suite_file)[1])


@pytest.mark.parametrize("partitioner", ["metis", "kaminpar"])
def test_a_twins_plan_holds_before_its_partition_is_known(tmp_path: Path, partitioner: str) -> None:
    """Its boundary is the published set's, its training nodes are their share; parts are taken to be equal."""
    if partitioner == "kaminpar":
        pytest.importorskip("kaminpar")
    file = write_suite(tmp_path)
    text = file.read_text().replace("[ring]", "[{twin: {of: ogbn-papers100m, scale: 0.0005}}]").replace("[1, 2]", "4")
    text = text.replace("chunk", partitioner).replace("epochs: 10", "inductive: false, epochs: 10")
    file.write_text(text.replace("[full]", "[full, {graphsage: {fanouts: 3}}]").replace("[0, 1, 2]", "[0]"))
    before = make_plan(file)
    trial = before[0].trial
    ensure_partitioned(prepare(trial.dataset), trial.partition, inductive=False)
    for early, late in zip(before, make_plan(file), strict=True):
        assert 0.95 * total(late.largest) < total(early.largest) < 1.5 * total(late.largest)
    assert before[0].sent is None


def test_trials_too_large_for_the_machine(suite_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks of a trial count, each on its own; the ring fits everywhere here."""
    needed = sum(map(total, make_plan(suite_file)[3].memory))
    assert needed > 2 * 4 * 100_000 * 602
    for machine, fits in ((needed - 1, False), (needed, True)):
        monkeypatch.setattr("harness.launch.planner.capacity", lambda size=machine: Capacity(size))
        ring, reddit = make_plan(suite_file)[1::2][:2]
        assert ring.shortage is None
        assert reddit.shortage == (None if fits else Shortage(needed, machine, "this machine", by_evaluation=True))


@pytest.mark.slow
def test_the_bytes_of_an_epoch_are_those_that_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A known partition's are exact; where boundary nodes are drawn they are the mean."""
    file = write_suite(tmp_path)
    methods = "[full, pipegcn, {bns-gcn: {rate: 0.5}}, {cagnet: {rate: 0.5}}, graphsage]"
    text = file.read_text().replace("[full]", methods).replace("[0, 1, 2]", "[0]").replace("[1, 2]", "3")
    file.write_text(text.replace("[ring]", "[{sbm: {nodes: 3000}}]").replace("epochs: 10", "epochs: 12"))
    suite = load_suite(file)
    run_suite(suite, expand(suite), ResultStore(file.parent / "results", suite.name), RunOptions(), Silent())
    planned = {each.trial.method.name: each.sent for each in make_plan(file)}
    results = load_results(file.parent / "results").set_index("method")
    assert set(results["status"]) == {"ok"}
    counted = sum(results[f"bytes_{purpose}"] for purpose in PURPOSES)
    assert planned["graphsage"] is None
    assert planned["full"] == counted["full"]
    assert planned["pipegcn"] == counted["pipegcn"]
    for name in ("bns-gcn", "cagnet"):
        assert planned[name] == pytest.approx(counted[name], rel=0.03)
        assert planned[name] != counted["full"]
