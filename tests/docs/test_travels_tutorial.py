"""The tutorial of what travels, as it is written: its method and its suite."""

from __future__ import annotations

from pathlib import Path

import pytest
from docs.pages import block

from harness.check import Subject, check_methods
from harness.registry import find_plugins
from harness.runtime.method import METHODS
from harness.suite.expand import expand
from harness.suite.suite_file import load_suite

LIMIT_S = 200  # the machine may be busy
CHANGES = {"bytes": ("header=4", "header=0"), "unbiased": ("127 + up)", "127 + 0.5)")}


@pytest.fixture
def method(tmp_path: Path) -> Path:
    """The page's code in a file."""
    file = tmp_path / "int8.py"
    file.write_text(block("travels", "python"))
    return file


def states(method: Path) -> dict[str, str]:
    """Check the method and return each check's state."""
    source = find_plugins([str(method)])["method", "int8"]
    (report,) = check_methods({Subject("int8", source): METHODS.load("int8", source)}, worlds=[3], limit_s=LIMIT_S)
    return {finding.check: finding.state for finding in report.findings}


def test_the_suite_compares_it_over_a_slow_network(method: Path) -> None:
    (method.parent / "int8.yaml").write_text(block("travels", "yaml"))
    trials = expand(load_suite(method.parent / "int8.yaml"), device="cpu")
    files = {trial.method.name: trial.plugin and trial.plugin.file for trial in trials}
    assert files == {"full": None, "int8": method, "pipegcn": None}


@pytest.mark.slow
def test_the_method_holds_all_that_it_claims(method: Path) -> None:
    found = states(method)
    assert {check for check, state in found.items() if state == "ok"} == found.keys() - {"exact"}
    assert {"bytes", "unbiased", "trouble", "resumes"} <= found.keys()


@pytest.mark.slow
@pytest.mark.parametrize("check", CHANGES)
def test_the_changes_that_the_page_proposes_fail(check: str, method: Path) -> None:
    right, wrong = CHANGES[check]
    assert right in method.read_text()
    method.write_text(method.read_text().replace(right, wrong))
    assert {name for name, state in states(method).items() if state == "FAIL"} == {check}
