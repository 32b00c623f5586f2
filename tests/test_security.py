"""docs/security.md: each line's tests exist; and what has no other test."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "security.md").read_text()
ROWS = [line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("| ")][1:]
OBJECTS = {
    *("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"),
    *("send_object_list", "recv_object_list", "_object_to_tensor", "_tensor_to_object"),
}


def functions(file: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)}


def test_every_threat_names_tests_that_exist() -> None:
    assert len(ROWS) > 15
    for threat, _, tests in ROWS:
        named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", tests)
        assert named, threat
        assert len(named) == tests.count("`") // 2, threat
        for file, test in named:
            assert test in functions(ROOT / file), f"{file}::{test}"


@pytest.mark.slow
def test_nothing_exchanges_python_objects() -> None:
    """torch pickles them: who reaches a rank's port would have it run code."""
    files = [file for package in ("harness", "methods") for file in (ROOT / package).rglob("*.py")]
    assert len(files) > 100
    for file in files:
        tree = ast.parse(file.read_text())
        used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        used |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        used |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
        assert not used & OBJECTS, file
