"""A place to run commands in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from launch.tiny import write_suite

from harness.launch import machines

TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a suite and its data, as the working directory; ranks are fake."""
    write_suite(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HARNESS_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
    monkeypatch.setenv("COLUMNS", "200")
    real = machines.run_group
    monkeypatch.setattr(
        machines, "run_group", lambda *args, **options: real(*args, **options | {"worker": "launch.fake_worker"})
    )
    return tmp_path
