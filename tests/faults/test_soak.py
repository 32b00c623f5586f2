"""The short form of the soak, and what its slopes say of series that are made up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.faults.soak import Sample, slope

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_thirty_trials_leave_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.faults.soak", "--trials", "30", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "30 of 30 trials, 1 processes" in done.stdout


def series(slope_: float, noise: float, processes: int = 1) -> list[Sample]:
    rng = np.random.default_rng(0)
    return [
        Sample(process, trials, 0.0, {"MB": 100 * process + slope_ * trials + noise * rng.normal()})
        for process in range(processes)
        for trials in range(0, 500, 5)
    ]


@pytest.mark.parametrize(
    ("added", "noise", "verdict"),
    [(0.0, 0.0, "flat"), (0.0, 3.0, "flat"), (0.02, 3.0, "GROWS"), (0.02, 0.0, "GROWS"), (0.0, 300.0, "cannot tell")],
)
def test_slopes_are_those_that_were_put_in(added: float, noise: float, verdict: str) -> None:
    for processes in 1, 3:
        found = slope(series(added, noise, processes), "MB")
        assert found.low <= added + 1e-12
        assert found.high >= added - 1e-12
        assert found.verdict(10, 1000) == verdict


def test_few_samples_tell_nothing() -> None:
    assert slope(series(1.0, 0.0)[:2], "MB").verdict(10, 1000) == "cannot tell"
