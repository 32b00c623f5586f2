"""A disk that is full, or fails, is told in one line, whatever the command was doing."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from launch.tiny import fake_ranks, write_suite
from support.tiers import tiered

from harness import errors
from harness.cli import main

TESTS = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a suite and its data, as the working directory; ranks are fake."""
    write_suite(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HARNESS_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
    fake_ranks(monkeypatch)
    return tmp_path


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", place], capture_output=True)
    if mounted.returncode:
        pytest.skip("no file system can be mounted here (needs root)")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def fill(place: Path) -> None:
    with (place / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1024))
    assert os.statvfs(place).f_bavail == 0


def one_line(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that ends with exit code 2, and return the line it says."""
    with pytest.raises(SystemExit) as exited:
        main(arguments)
    said = capsys.readouterr().err
    assert exited.value.code == 2, said
    assert said.startswith("error: ")
    assert said.count("\n") == 1, said
    return said


SMALL = ("--set", "partition.parts=[1]", "--set", "seeds=[0]")


def test_a_disk_that_is_full_at_the_start(home: Path, small_disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (small_disk / "r").mkdir()
    fill(small_disk)
    said = one_line(capsys, "run", "tiny.yaml", "--results", str(small_disk / "r"), *SMALL)
    assert "No space left on device" in said
    assert str(small_disk) in said


def test_a_disk_that_is_full_under_the_cache(
    home: Path, small_disk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_CACHE", str(small_disk))
    fill(small_disk)
    said = one_line(capsys, "partition", "ring", "--parts", "2", "--method", "chunk")
    assert said.startswith(f"error: {small_disk}/")
    assert "No space left on device (make room there, or name another directory)" in said


@pytest.mark.slow
def test_a_report_on_a_full_disk(home: Path, small_disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", "tiny.yaml", *SMALL])
    assert not ended.value.code
    capsys.readouterr()
    fill(small_disk)
    said = one_line(capsys, "report", "results", "--out", str(small_disk / "out"))
    assert "No space left on device (make room there, or name another directory)" in said


def test_files_that_may_not_grow(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (127, hard))
    try:
        said = one_line(capsys, "run", "tiny.yaml", *SMALL)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert said.startswith(f"error: {Path('results', 'tiny', 'suite.json')}: File too large (raise `ulimit -f`, or ")


@pytest.mark.parametrize("number", [errno.EIO, errno.EDQUOT])
def test_locks_that_fail(
    home: Path, number: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", failing)
    said = one_line(capsys, "run", "tiny.yaml", *SMALL)
    assert os.strerror(number) in said
    said = one_line(capsys, "partition", "ring", "--parts", "2", "--method", "chunk")
    assert ".lock: " in said
    assert os.strerror(number) in said


@pytest.mark.parametrize("number", tiered([errno.ENOLCK, errno.ENOSYS], [errno.ENOLCK]))
def test_file_systems_without_locks_are_used_as_they_are(
    home: Path, number: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", failing)
    with pytest.raises(SystemExit) as ended:
        main(["run", "tiny.yaml", *SMALL])
    assert not ended.value.code, capsys.readouterr().err


def test_what_the_system_says() -> None:
    told = errors.of_system(OSError(errno.ENOSPC, "No space left on device", "/x/y"))
    assert str(told) == "/x/y: No space left on device (make room there, or name another directory)"
    told = errors.of_system(OSError("Error writing: No space left on device"))  # as pyarrow raises it
    assert told is not None
    assert errors.of_system(FileNotFoundError(errno.ENOENT, "No such file", "/x")) is None  # ours: with a traceback
    assert errors.of_system(OSError("odd")) is None
