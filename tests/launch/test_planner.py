"""Plans: states and reasons, and the memory estimate against figures worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from launch.tiny import write_suite

from harness.launch.memory import GraphSize, MemoryEstimate, estimate, exact
from harness.launch.planner import PlannedTrial, plan
from harness.launch.progress import Silent
from harness.launch.runner import RunOptions, run_suite
from harness.models.spec import ModelSpec
from harness.results.store import ResultStore
from harness.suite.expand import expand
from harness.suite.load import load_suite

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


def test_states(suite_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = make_plan(suite_file)
    assert [planned.state for planned in before] == ["run", "run", "skip", "skip", "run", "run"]
    assert {planned.command for planned in before[2:4]} == {"harness data get reddit"}
    assert before[2].reason == "reddit is not here"
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    monkeypatch.setenv("FAKE_RANKS", '{"1": "diverged"}')
    suite = load_suite(suite_file)
    store = ResultStore(suite_file.parent / "results", suite.name)
    run_suite(suite, expand(suite)[:3], store, RunOptions(worker="launch.fake_worker"), Silent())
    after = make_plan(suite_file)
    assert [(p.state, p.done_status) for p in after[:3]] == [
        ("done", "ok"),
        ("done", "diverged"),
        ("skip", "skipped"),
    ]
    retried = make_plan(suite_file, retry=frozenset({"diverged"}))[1]
    assert (retried.state, retried.reason) == ("run", "again, was diverged")
    assert [p.state for p in make_plan(suite_file, fresh=True)[:3]] == ["run", "run", "skip"]
    assert before[1].memory.low < after[1].memory.low == after[1].memory.high < before[1].memory.high


def test_nothing_is_written(suite_file: Path) -> None:
    before = sorted(suite_file.parent.rglob("*"))
    make_plan(suite_file)
    assert sorted(suite_file.parent.rglob("*")) == before


SIZE = GraphSize(nodes=100, edges=1000, features=10, classes=3)
MODEL = ModelSpec(layers=2, linear_layers=1, hidden=8)
# Widths 10, 8 (graph), 8 (linear). Per inner node 3 * 26 = 78 values, per boundary node 18; float32.


def test_one_part_has_no_boundary() -> None:
    layers = 100 * 78 * 4
    rest = 4 * 100 * 10 + 8 * 101 + 8 * 101 + 8 * 1000
    found = estimate(SIZE, MODEL, 1, itemsize=4, full_graph=True)
    assert found == MemoryEstimate(layers + rest, layers + rest)


@pytest.mark.parametrize(("edges", "boundary"), [(1000, 75), (200, 50)])
def test_range_of_the_boundary(edges: int, boundary: int) -> None:
    """Four parts of 25 nodes: the rest of the graph is the most, unless the rank has fewer edges."""
    size = GraphSize(100, edges, 10, 3)
    inner = 25 * 78 * 4 + 4 * 25 * 10 + 8 * 26 + 8 * 26 + 8 * edges // 4
    per_boundary = 18 * 4 + 4 * 10 + 8
    found = estimate(size, MODEL, 4, itemsize=4, full_graph=True)
    assert found == MemoryEstimate(inner, inner + boundary * per_boundary)


def test_mini_batches_need_no_layer_of_the_whole_part() -> None:
    whole = estimate(SIZE, MODEL, 4, itemsize=8, full_graph=True)
    batches = estimate(SIZE, MODEL, 4, itemsize=8, full_graph=False)
    assert batches.high == whole.high
    assert batches.low == whole.low - 25 * 78 * 8


def test_a_known_partition_is_exact_and_of_the_largest_rank() -> None:
    rows = [
        {"part": 0, "inner": 25, "boundary": 5, "edges": 250},
        {"part": 1, "inner": 25, "boundary": 9, "edges": 250},
        {"part": "total", "inner": 50, "boundary": 14, "edges": 500},
    ]
    inner = 25 * 78 * 4 + 4 * 25 * 10 + 8 * 26 + 8 * 26 + 8 * 250
    found = exact(rows, SIZE, MODEL, itemsize=4, full_graph=True)
    assert found.low == found.high == inner + 9 * (18 * 4 + 4 * 10 + 8)
