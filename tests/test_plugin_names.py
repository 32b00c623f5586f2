"""Plugins import from `harness` and `harness.plugin`."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import harness
import harness.plugin

ROOT = Path(__file__).parents[1]


def test_every_name_is_there_once() -> None:
    assert all(getattr(module, name) is not None for module in (harness, harness.plugin) for name in module.__all__)
    assert not {*harness.__all__} & {*harness.plugin.__all__}
    assert len(harness.__all__) < 40


@pytest.mark.parametrize(
    "file", [*ROOT.glob("methods/**/*.py"), *ROOT.glob("harness/scaffold/templates/*.py")], ids=str
)
def test_methods_import_only_public_names(file: Path) -> None:
    allowed = {"harness", "harness.plugin", "harness.check", "harness_methods"}
    found = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ImportFrom)]
    modules = {node.module for node in found if node.module and node.module.split(".")[0].startswith("harness")}
    assert {module for module in modules if not module.startswith("harness_methods")} <= allowed


def test_public_names_import_no_torch() -> None:
    script = "import sys, harness, harness.plugin; print('torch' in sys.modules, 'numpy' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["False", "False"]
