"""What is written has the user's umask, and is nobody else's to change."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from launch.tiny import TESTS, Silent, write_suite

from harness.cli import main
from harness.launch.runner import run_suite
from harness.launch.slots import RunOptions
from harness.results.record_store import ResultStore
from harness.suite.expand import expand
from harness.suite.suite_file import load_suite

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.parametrize(("umask", "expected"), [(0o000, 0o664), (0o022, 0o644), (0o077, 0o600)], indirect=["umask"])
def test_the_command_line_narrows_an_open_umask_and_no_other(
    umask: int, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["new", "suite", "mine"])
    assert stat.S_IMODE((tmp_path / "mine.yaml").stat().st_mode) == expected


@pytest.mark.slow
@pytest.mark.parametrize("umask", [0o027, 0o002], indirect=True)
def test_records_caches_and_what_ranks_write(umask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
    monkeypatch.setenv("FAKE_RANKS", "{}")
    monkeypatch.setenv("HARNESS_DATA", str(tmp_path / "data"))
    suite = load_suite(write_suite(tmp_path))
    trials = expand(suite)[2:4]
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    options = RunOptions(data_dir=tmp_path / "data", worker="launch.fake_worker")
    store = ResultStore(tmp_path / "results", suite.name)
    assert run_suite(suite, trials, store, options, Silent()) == 0
    written = [path for place in ("results", "cache") for path in (tmp_path / place).rglob("*")]
    assert {"record.json", "epochs.parquet", "suite.json", "meta.json", "parts.npy"} <= {path.name for path in written}
    wide = {path: oct(path.stat().st_mode) for path in written if path.stat().st_mode & (umask | 0o002)}
    assert not wide
