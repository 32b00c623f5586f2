"""The short form of the matrix: twenty faults of a fixed seed on real runs, and the oracle finds nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.__main__ import drawn, every
from tests.faults.oracle import OUTCOMES

ROOT = Path(__file__).resolve().parents[2]
KINDS = [
    "SIG(KILL|TERM|HUP|ABRT|STOP) to (the runner|all)$",
    "SIG(KILL|TERM|ABRT) to a rank",
    "SIGKILL to a helper",
    "a rank (exits|raises)",
    "a record: (cut|deleted)",
    "epochs of a record: deleted",
    "(a lease|checkpoints|partitions): cut",
    "suite.json: cut",
    "fills: data",
]


def matrix(out: Path, *options: str) -> str:
    """Return what the matrix printed; it must have found nothing."""
    command = [sys.executable, "-m", "tests.faults", "--out", str(out), "--jobs", "2", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=560, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def tried(table: str) -> int:
    """Return how many faults struck; the table says that nothing came of them."""
    found = re.search(r"^all +(\d+)((?: +\d+)+)$", table, re.MULTILINE)
    assert found, table
    assert found[2].split() == ["0"] * len(OUTCOMES)
    return int(found[1])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_dozen_faults(tmp_path: Path) -> None:
    assert tried(matrix(tmp_path, "--seed", "1", "--count", "12", "--chain", "4", "--only", "|".join(KINDS))) >= 11


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
