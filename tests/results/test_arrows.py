"""Which packages may import which: results know nothing of what is made of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import harness

FORBIDDEN = {
    "suite": ("results", "claims", "report", "launch", "cli"),
    "results": ("claims", "report", "launch", "cli"),
    "claims": ("report", "launch", "cli"),
    "report": ("launch", "cli"),
}


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("package", FORBIDDEN)
def test_arrows_point_one_way(package: str) -> None:
    root = Path(harness.__file__).parent / package
    barred = tuple(f"harness.{other}" for other in FORBIDDEN[package])
    found = {
        (path.name, module)
        for path in root.rglob("*.py")
        for module in imported(path)
        if any(module == name or module.startswith(f"{name}.") for name in barred)
    }
    assert not found
