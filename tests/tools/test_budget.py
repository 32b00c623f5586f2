"""The product's size is counted as git lists it, and one line says by how much it is over."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools.budget import main, size


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name, text in {
        "harness/a.py": "1\n2\n",
        "harness/deep/b.py": "1\n",
        "methods/c.py": "1\n2\n3\n",
        "harness/page.js": "1\n",
        "tests/d.py": "1\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for command in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    (tmp_path / "harness/unknown.py").write_text("1\n")
    return tmp_path


@pytest.mark.parametrize(
    ("modules", "lines", "over"),
    [
        (3, 6, ""),
        (2, 6, "3 modules (limit 2)"),
        (3, 4, "6 lines (limit 4)"),
        (1, 5, "3 modules (limit 1) and 6 lines (limit 5)"),
    ],
)
def test_it_is_held_to_its_limits(
    repository: Path, capsys: pytest.CaptureFixture[str], modules: int, lines: int, over: str
) -> None:
    (repository / "budget.toml").write_text(f"modules = {modules}\nlines = {lines}\n")
    assert main([str(repository)]) == bool(over)
    out, err = capsys.readouterr()
    assert out == f"product: 3 of at most {modules} modules, 6 of at most {lines} lines\n"
    assert err == (f"error: the product has {over}: shrink it, or raise budget.toml\n" if over else "")


def test_a_deleted_file_does_not_count(repository: Path) -> None:
    (repository / "methods/c.py").unlink()
    assert size(repository) == {"modules": 2, "lines": 3}
