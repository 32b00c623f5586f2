"""A place to run commands in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from launch.tiny import fake_ranks, write_suite

TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a suite and its data, as the working directory; ranks are fake."""
    write_suite(tmp_path, shared=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HARNESS_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
    monkeypatch.setenv("COLUMNS", "200")
    fake_ranks(monkeypatch)
    return tmp_path
