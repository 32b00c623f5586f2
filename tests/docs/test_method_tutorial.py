"""The tutorial, as it is written: what it starts from, its method, its suite."""

from __future__ import annotations

from pathlib import Path

import pytest
from docs.pages import TUTORIALS, block

from harness.check import Subject, check_methods
from harness.registry import find_plugins
from harness.runtime.method import METHODS, Family
from harness.scaffold import new_method
from harness.suite.expand import expand
from harness.suite.suite_file import load_suite

FAMILIES: tuple[Family, ...] = ("full-graph", "mini-batch")
LIMIT_S = 200  # the machine may be busy


@pytest.fixture
def method(tmp_path: Path) -> Path:
    """The package of the first step with the page's code in it."""
    new_method("by-degree", "full-graph", tmp_path)
    file = tmp_path / "by-degree" / "by_degree.py"
    assert file.is_file()
    file.write_text(block("method", "python"))
    return file


def test_the_method_is_short() -> None:
    assert block("method", "python").count("\n") < 60


def test_the_suite_names_the_method_by_its_file(method: Path, tmp_path: Path) -> None:
    (tmp_path / "by-degree.yaml").write_text(block("method", "yaml"))
    trials = expand(load_suite(tmp_path / "by-degree.yaml"), device="cpu")
    assert len(trials) == 10
    assert "ten trials" in (TUTORIALS / "method.md").read_text()
    files = {trial.method.name: trial.plugin and trial.plugin.file for trial in trials}
    assert files == {"full": None, "bns-gcn": None, "by-degree": method}
    assert find_plugins(["by-degree/by_degree.py"], tmp_path).keys() == {("method", "by-degree")}


@pytest.mark.slow
def test_the_method_and_what_it_starts_from_pass_the_check(method: Path, tmp_path: Path) -> None:
    files = [method]
    for family in FAMILIES:
        files.append(new_method(f"new-{family}", family, tmp_path)[0])
    found = find_plugins(map(str, files))
    methods = {Subject(name, source): METHODS.load(name, source) for (_, name), source in found.items()}
    reports = check_methods(methods, worlds=[3], limit_s=LIMIT_S)
    assert [report.method for report in reports] == ["by-degree", "new-full-graph", "new-mini-batch"]
    for report in reports:
        states = {finding.check: finding.state for finding in report.findings}
        assert set(states.values()) == {"ok"}, "\n".join(report.lines)
        assert {"runs", "exact", "unbiased", "bytes"} <= states.keys()
