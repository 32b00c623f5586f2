"""What a killed process leaves below TMPDIR the next run removes, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from harness.launch.process import clean_scratch, scratch

CODE = """\
import sys
from harness.launch.process import scratch
with scratch() as directory:
    (directory / "log-0.txt").write_text("x")
    print(directory.name, flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def names(base: Path) -> set[str]:
    return {path.name for path in base.iterdir()}


def start() -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen([sys.executable, "-c", CODE], stdin=-1, stdout=-1, text=True, env=os.environ)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def test_what_a_killed_process_left_is_removed(base: Path) -> None:
    killed, left = start()
    living, kept = start()
    killed.kill()
    killed.communicate()
    others = {"harness-mine", "harness-1-2-x", f"harness-77-{killed.pid}-5-x"}
    for name in others:
        (base / name).mkdir()
    with scratch() as own:
        assert names(base) == {left, kept, own.name, *others}
        clean_scratch()
        assert names(base) == {kept, own.name, *others}
    living.communicate("")
    assert names(base) == others


def test_a_link_is_not_followed(base: Path) -> None:
    killed, left = start()
    killed.kill()
    killed.communicate()
    (base / left).rename(base / "elsewhere")
    (base / left).symlink_to(base / "elsewhere")
    clean_scratch()
    assert (base / "elsewhere" / "log-0.txt").read_text() == "x"
