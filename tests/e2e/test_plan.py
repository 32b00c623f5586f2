"""The shipped suites, planned on a machine that has none of their data."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from e2e.cli import SUITES

from harness.cli import main

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]
Plan = Callable[[str], tuple[int, str, str]]
APART = {"advise", "anchor", "large", "network", "reddit", "scaling"}
REST = sorted(path.stem for path in SUITES.glob("*.yaml") if path.stem not in APART)


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Plan:
    """Plan a shipped suite in this process, in an empty directory; returns the exit code, the output, the errors.

    That `harness plan` starts is seen in test_run.py.
    """

    def planned(name: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exited:
            main(["plan", str(SUITES / f"{name}.yaml")])
        return int(exited.value.code or 0), *capsys.readouterr()

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HARNESS_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    return planned


@pytest.mark.parametrize("name", REST)
def test_plans_without_data(name: str, plan: Plan, tmp_path: Path) -> None:
    code, out, err = plan(name)
    assert code == 0, err
    (counts,) = re.findall(r"(\d+) trials: 0 done, (\d+) to run, (\d+) skipped", out)
    total, to_run, skipped = map(int, counts)
    listed = re.findall(r"^[0-9a-f]{12}  (run|skip) +\S.* P=\d.*$", out, re.MULTILINE)
    assert (listed.count("run"), listed.count("skip")) == (to_run, skipped)
    assert len(listed) == total > 0
    assert (to_run, skipped) == ((total, 0) if name == "quickstart" else (0, total))
    # Not every publisher has a link to download from; then it says where the files go.
    ways = re.findall(r"^get the missing data: (harness data get|Download from) ", out, re.MULTILINE)
    assert bool(ways) == (skipped > 0)
    assert not list(tmp_path.iterdir())


def test_shaped_networks_are_run_or_say_what_they_lack(plan: Plan) -> None:
    code, out, _ = plan("network")
    assert code == 0
    rows = re.findall(r"^[0-9a-f]{12}  (run|skip) +(\S.*)$", out, re.MULTILINE)
    assert len(rows) == 8
    for state, row in rows:
        shaped = re.search(r" (unlimited|1gbit|100mbit) seed=", row) is not None
        assert (state == "skip") == bool(re.search(r"network \S+ needs ", row))
        assert shaped or state == "run"


def test_reddit_lists_its_trials(plan: Plan) -> None:
    code, out, _ = plan("reddit")
    assert code == 0
    what = r"reddit sage-4x256 bns-gcn\(rate=(\S+)\) P=(\d) seed=0"
    row = rf"^[0-9a-f]{{12}}  skip +{what} .*[GM]iB +reddit is not here$"
    listed = re.findall(row, out, re.MULTILINE)
    assert sorted(listed) == sorted(product(("0.1", "0.01"), "24"))
    assert "147 trials: 0 done, 0 to run, 147 skipped" in out
    assert "harness data get reddit" in out


def test_a_suite_of_the_users_own_file_says_which(plan: Plan) -> None:
    code, _, err = plan("anchor")
    assert code == 2
    assert re.search(r"anchor\.yaml:\d+: .*'case50k'", err)
    assert "Traceback" not in err
