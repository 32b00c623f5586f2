"""The short form of the matrix: some two dozen faults of a fixed seed on real runs, and the oracle finds nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.__main__ import drawn, every
from tests.faults.oracle import OUTCOMES

ROOT = Path(__file__).resolve().parents[2]
SIGNALS = "SIGKILL to|SIGTERM to|SIGHUP to|SIGABRT to|SIGSTOP to all|SIGSTOP to the runner|exits 0 early|raises"
KEPT = "a record: cut|a record: deleted|a lease: cut|suite.json: cut|partitions: one bit|checkpoints: cut|fills: data"


def matrix(out: Path, *options: str) -> str:
    """Return what the matrix printed; it must have found nothing."""
    command = [sys.executable, "-m", "tests.faults", "--out", str(out), "--jobs", "2", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def tried(table: str) -> int:
    """Return how many faults struck; the table says that nothing came of them."""
    found = re.search(r"^all +(\d+)((?: +\d+)+)$", table, re.MULTILINE)
    assert found, table
    assert found[2].split() == ["0"] * len(OUTCOMES)
    return int(found[1])


@pytest.mark.slow
def test_signals_and_ranks_that_fail(tmp_path: Path) -> None:
    assert tried(matrix(tmp_path, "--seed", "1", "--count", "15", "--chain", "3", "--only", SIGNALS)) >= 10


@pytest.mark.slow
def test_what_is_kept_is_damaged(tmp_path: Path) -> None:
    assert tried(matrix(tmp_path, "--seed", "1", "--count", "7", "--only", KEPT)) >= 5


def test_kinds_are_drawn_evenly_and_by_the_seed() -> None:
    kinds = every()
    names = [kind.name for kind in kinds]
    assert len(set(names)) == len(names)
    for seed in 0, 1:
        drawing = drawn(kinds, seed)
        first = [next(drawing).name for _ in kinds]
        assert sorted(first) == sorted(names)
        again = drawn(kinds, seed)
        assert [next(again).name for _ in kinds] == first
    assert first != names
