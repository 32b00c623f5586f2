"""`harness advise`, as a user asks it of a graph."""

from __future__ import annotations

import re

import pytest
from e2e.cli import CommandLine, records

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

SUITE = """\
name: few
datasets: sbm
methods: [full, graphsage: {fanouts: 4, batch_size: 64}]
model: {name: sage, layers: 2, hidden: 16}
partition: {method: metis, parts: [1, 2]}
train: {epochs: 12, eval_every: 1, threads: 1}
exclude: [{method: graphsage, parts: 1}]
seeds: [0, 1]
device: cpu
"""
ASKED = ["advise", "digits", "--suite", "few.yaml", "--budget", "6 s"]
MINE = """\
from harness_methods.full import Full


class Mine(Full):
    name = "mine"
"""
LACKING = r"\S+ [KM]iB, may not fit in 1000 B"
ROW = re.compile(rf"^(\S+)(?: \(.*\))? +([14]) +(\d+) +(\S+) +([\d-]+) +({LACKING})? +(\S+) ", re.M)


def test_it_ranks_what_is_here_and_the_users_own_on_machines_that_are_not(command: CommandLine) -> None:
    (command.directory / "few.yaml").write_text(SUITE)
    (command.directory / "mine.py").write_text(MINE)
    asked = [*ASKED, "--on", "4xcore/2,1gbit,1KB", "--target", "-5pt", "--plugin", "mine.py"]
    done = command.run(*asked)
    assert done.returncode == 0, done.stdout + done.stderr
    found = records(command.directory / "results" / "advise-digits")
    assert len(found) == 10  # graphsage in two parts, full and mine in one, too; two seeds
    assert {record["config"]["partition"]["parts"] for record in found.values()} == {1, 2}
    assert "Predicted for 4 ranks on 2 hosts at 1 Gbit/s, not measured (off by 16 % in the median" in done.stdout
    assert "(5 points below what full reached)" in done.stdout
    rows = {(name, int(parts)): cells for name, parts, *cells in ROW.findall(done.stdout)}
    assert {("full", 4), ("graphsage", 4), ("mine", 4)} <= rows.keys() <= {(n, p) for n, _ in rows for p in (1, 4)}
    for (_, parts), (seeds, epoch, share, memory, _) in rows.items():
        assert int(seeds) == 2
        assert float(epoch) > 0
        assert (share.isdecimal(), "may not fit in 1000 B" in memory) == (parts == 4, parts == 4)
    again = command.run(*asked)  # nothing runs again, and it says the same
    assert again.returncode == 0, again.stdout + again.stderr
    assert "10 done already, 0 to run" in again.stdout
    assert again.stdout[again.stdout.index("Predicted") :] == done.stdout[done.stdout.index("Predicted") :]


def test_a_target_in_a_number_ends_the_trials_that_reach_it(command: CommandLine) -> None:
    (command.directory / "few.yaml").write_text(SUITE)
    asked = [*ASKED, "--on", "4xcore,10gbit", "--target", "0.2", "--price", "3600", "--set", "methods=[full]"]
    done = command.run(*asked)
    assert done.returncode == 0, done.stdout + done.stderr
    found = records(command.directory / "results" / "advise-digits").values()
    assert {record["result"]["stopped"] for record in found} == {"target"}
    assert re.search(r"on digits, 4 CPU ranks: full .* reaches 20 % first, in", done.stdout), done.stdout
    # A second of a host costs 1: of one rank on one, and of four on four.
    found = re.findall(r"^full +(\d) .* ([\d.e-]+) +([\d.e-]+) +\S*may be the fastest$", done.stdout, re.M)
    costs = {int(parts): float(cost) / float(seconds) for parts, seconds, cost in found}
    assert costs == {1: pytest.approx(1, rel=0.01), 4: pytest.approx(4, rel=0.01)}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--on", "4xcore,10gbit", "--target", "90"], "--target: '90' is no score (a fraction such as 0.9, or -1pt)"),
        (["--on", "4xcore,10gbit", "--budget", "9 trials"], "--budget: '9 trials' is no time (e.g. '45 min' or '2 h')"),
        (["--on", "8xA100,25gbit"], "--on: '8xA100,25gbit' are no machines (such as 16xcore,10gbit,"),
    ],
)
def test_a_mistake_is_one_line(command: CommandLine, given: list[str], said: str) -> None:
    done = command.run("advise", "digits", *given)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
