"""The page of large graphs: slopes, what is read from them, and the page of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from launch.tiny import Silent

from harness.data.catalog import BOUNDARIES, published
from harness.launch.runner import run_suite
from harness.launch.slots import RunOptions
from harness.results.record_store import ResultStore
from harness.suite.expand import expand
from harness.suite.suite_file import load_suite
from tools.large import MACHINES, TARGET, Line, Run, line, sent_by_machine, write

SUITE = Path(__file__).resolve().parents[2] / "suites" / "large.yaml"
SIZES = (10**6, 10**7, 4 * 10**7, 10**8, 3 * 10**8)


def made(method: str, entries: int, sent: float = 0.0) -> Run:
    """A run whose epochs take entries^1.1 and whose memory is in proportion, above what processes have."""
    epoch = 1e-8 * entries**1.1
    return Run(method, entries // 13, entries, 0.05, 4, epoch, epoch, epoch, 10.0 * entries, 1.0, 1.0, sent, 0.0)


def test_a_slope_is_that_of_the_largest_graphs() -> None:
    found = line([made("full", size) for size in reversed(SIZES)], lambda run: run.epoch_s)
    assert found.entries == SIZES
    assert found.slope == pytest.approx(1.1)
    bent = Line(SIZES, (5.0, 5.0, *(size / 1e7 for size in SIZES[2:])))  # floors of small graphs say nothing
    assert bent.slope == pytest.approx(1.0)


def test_between_graphs_a_line_and_beyond_them_the_slope() -> None:
    found = line([made("full", size) for size in SIZES], lambda run: run.epoch_s)
    for entries in (2 * 10**7, 10**8, published()[TARGET].info.edges):
        assert found.at(entries) == pytest.approx(1e-8 * entries**1.1)


def test_remote_rows_grow_with_the_boundary_or_with_the_other_machines() -> None:
    entries, boundary = 3 * 10**8, BOUNDARIES[TARGET].by_parts[MACHINES]
    rank = 1000.0  # bytes of one of 4 ranks, with 75 million entries
    assert sent_by_machine(made("full", entries, 4 * rank), MACHINES, 37.5e6) == pytest.approx(500 * boundary / 0.05)
    drawn = sent_by_machine(made("graphsaint", entries, 4 * rank), MACHINES, 75e6)
    assert drawn == pytest.approx(rank * (63 / 64) / (3 / 4))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_page_of_a_run(tmp_path: Path) -> None:
    text = SUITE.read_text()
    for scale, small in {"0.0007": "0.0002", "0.0021": "0.0003", "0.007": "0.0004"}.items():
        text = text.replace(f"scale: {scale}}}", f"scale: {small}}}")
    left_out = ("exclude:", *(f"scale: {scale}}}" for scale in (0.021, 0.07, 0.21)))
    kept = [row for row in text.splitlines(keepends=True) if not any(each in row for each in left_out)]
    file = tmp_path / "large.yaml"
    file.write_text("".join(kept).replace("parts: 4", "parts: 2").replace("size: 8000", "size: 800"))
    suite = load_suite(file)
    store = ResultStore(tmp_path / "results", suite.name)
    run_suite(suite, expand(suite), store, RunOptions(), Silent())
    page, image = write(store.directory, tmp_path)
    assert image.stat().st_size > 1000
    rows = [row.split(" | ") for row in page.read_text().splitlines() if row.startswith("| `")]
    names = {row[0].strip("|` ") for row in rows}
    assert names == {"graphsage", "dgs", "graphsaint", "clustergcn", "bns-gcn", "sign"}
    assert [len(row) for row in rows] == [5] * 25 + [6] * 6  # a name, three graphs and a slope; then what is beyond
    memory = {row[0].strip("|` "): list(map(float, row[1:4])) for row in rows[6:12]}
    assert all(0.3 < size < 10 for sizes in memory.values() for size in sizes)  # GB of two processes
    with pytest.raises(SystemExit, match="no finished trials"):
        write(tmp_path / "none", tmp_path)
