"""Kernels compiled where the package may be written to, else where its user may write."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.caches import keep_kernels_where_one_can_write, private_directory

READ_ONLY = """
set -e
mount --bind "$PACKAGE" "$PACKAGE"; mount -o remount,ro,bind "$PACKAGE"
mount --bind "$HOME" "$HOME"; mount -o remount,ro,bind "$HOME"
exec "$PYTHON" -c "$CODE"
"""
CODE = """
import os, harness
from harness.data.graph import GraphData
import numba
print(numba.config.CACHE_DIR)
"""


@pytest.fixture
def writable(monkeypatch: pytest.MonkeyPatch) -> set[Path]:
    """The places that may be written to; all others are refused."""
    places: set[Path] = set()
    monkeypatch.setattr(os, "access", lambda path, _: Path(path) in places)
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    return places


def test_beside_the_code_if_that_may_be_written(writable: set[Path]) -> None:
    import harness

    writable.add(Path(harness.__file__).parent)
    keep_kernels_where_one_can_write()
    assert "NUMBA_CACHE_DIR" not in os.environ


def test_else_in_the_cache_directory_else_in_one_of_its_own(
    writable: set[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    keep_kernels_where_one_can_write()
    assert os.environ["NUMBA_CACHE_DIR"] == str(tmp_path / f"harness-numba-{os.getuid()}")
    assert (tmp_path / f"harness-numba-{os.getuid()}").stat().st_mode & 0o777 == 0o700
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    writable.add(tmp_path / "cache" / "numba")
    keep_kernels_where_one_can_write()
    assert os.environ["NUMBA_CACHE_DIR"] == str(tmp_path / "cache" / "numba")
    monkeypatch.setenv("NUMBA_CACHE_DIR", "own")
    keep_kernels_where_one_can_write()
    assert os.environ["NUMBA_CACHE_DIR"] == "own"


def test_a_directory_that_somebody_else_may_have_made_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"x-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    assert private_directory(tmp_path, "x") != tmp_path / f"x-{os.getuid()}"
    assert not list((tmp_path / "elsewhere").iterdir())
    assert private_directory(tmp_path, "y") == private_directory(tmp_path, "y") == tmp_path / f"y-{os.getuid()}"


@pytest.mark.root
def test_with_the_package_and_the_home_read_only(tmp_path: Path) -> None:
    """As installed by an administrator: nothing beside the code can be written, nor at home."""
    import harness

    home, temporary = tmp_path / "home", tmp_path / "tmp"
    home.mkdir()
    temporary.mkdir()
    variables = {"PACKAGE": str(Path(harness.__file__).parent), "PYTHON": sys.executable, "CODE": CODE}
    variables |= {"HOME": str(home), "TMPDIR": str(temporary), "PATH": os.environ["PATH"]}
    command = ["unshare", "--mount", "sh", "-c", READ_ONLY]
    done = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert Path(done.stdout.strip()) == temporary / f"harness-numba-{os.getuid()}"
