"""The shipped suites, planned on a machine that has none of their data."""

from __future__ import annotations

import re
from itertools import product

import pytest
from e2e.cli import SUITES, CommandLine

pytestmark = pytest.mark.timeout(150)
APART = {"anchor", "network", "reddit"}
REST = sorted(path.stem for path in SUITES.glob("*.yaml") if path.stem not in APART)


@pytest.mark.parametrize("name", REST)
def test_plans_without_data(name: str, command: CommandLine) -> None:
    planned = command.run("plan", str(SUITES / f"{name}.yaml"))
    assert planned.returncode == 0, planned.stderr
    (counts,) = re.findall(r"(\d+) trials: 0 done, (\d+) to run, (\d+) skipped", planned.stdout)
    total, to_run, skipped = map(int, counts)
    listed = re.findall(r"^[0-9a-f]{12}  (run|skip) +\S.* P=\d.*$", planned.stdout, re.MULTILINE)
    assert (listed.count("run"), listed.count("skip")) == (to_run, skipped)
    assert len(listed) == total > 0
    assert (to_run, skipped) == ((total, 0) if name == "quickstart" else (0, total))
    # Not every publisher has a link to download from; then it says where the files go.
    ways = re.findall(r"^get the missing data: (harness data get|put its files into) ", planned.stdout, re.MULTILINE)
    assert bool(ways) == (skipped > 0)
    assert not list(command.directory.iterdir())


def test_shaped_networks_are_run_or_say_what_they_lack(command: CommandLine) -> None:
    planned = command.run("plan", str(SUITES / "network.yaml"))
    assert planned.returncode == 0
    rows = re.findall(r"^[0-9a-f]{12}  (run|skip) +(\S.*)$", planned.stdout, re.MULTILINE)
    assert len(rows) == 8
    for state, row in rows:
        shaped = re.search(r" (unlimited|1gbit|100mbit) seed=", row) is not None
        assert (state == "skip") == bool(re.search(r"network \S+ needs ", row))
        assert shaped or state == "run"


def test_reddit_lists_its_trials(command: CommandLine) -> None:
    planned = command.run("plan", str(SUITES / "reddit.yaml"))
    assert planned.returncode == 0
    what = r"reddit sage-4x256 bns-gcn\(.*\brate=(\S+)\) P=(\d) seed=0"
    row = rf"^[0-9a-f]{{12}}  skip +{what} .*[GM]iB +reddit is not here$"
    listed = re.findall(row, planned.stdout, re.MULTILINE)
    assert sorted(listed) == sorted(product(("1", "0.1", "0.01", "0"), "248"))
    assert "12 trials: 0 done, 0 to run, 12 skipped" in planned.stdout
    assert "harness data get reddit" in planned.stdout


def test_a_suite_of_the_users_own_file_says_which(command: CommandLine) -> None:
    planned = command.run("plan", str(SUITES / "anchor.yaml"))
    assert planned.returncode == 2
    assert re.search(r"anchor\.yaml:\d+: .*'case50k'", planned.stderr)
    assert "Traceback" not in planned.stderr
