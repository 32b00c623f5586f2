"""A trial that stands still is ended before its time limit, and the rank that the others wait for is named."""

from __future__ import annotations

import os

import pytest
from e2e.cli import CommandLine, ranks_of, records, trains, wait_until
from e2e.test_trouble import write

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_the_rank_that_the_others_wait_for_is_named_with_its_stack(command: CommandLine) -> None:
    home = write(command, "['own.methods:Stuck']", epochs=20)
    found = command.run("run", "trouble.yaml", "--set", "timeouts.progress_s=7", timeout_s=250)
    assert found.returncode == 1, found.stdout + found.stderr
    (record,) = records(home).values()
    assert record["status"] == "timeout"
    assert record["reason"].startswith("rank 1 hung for ")
    assert record["reason"].endswith(" s in epoch 3, while ranks [0] waited for it; stacks of all ranks are in the log")
    log = (home / record["trial"] / "log.txt").read_text()
    one, two = log.split("==== rank 1 ====")
    assert "_comes_to_no_end" in two
    assert "_comes_to_no_end" not in one
    assert "comm.py" in one


def test_it_is_named_too_where_its_peers_end_first(command: CommandLine) -> None:
    home = write(command, "['own.methods:Stuck']", epochs=20)
    found = command.run("run", "trouble.yaml", "--set", "timeouts.collective_s=6", timeout_s=250)
    assert found.returncode == 1, found.stdout + found.stderr
    (record,) = records(home).values()
    assert (record["status"], record["reason"].partition(" for ")[0]) == ("timeout", "rank 1 hung")
    assert "_comes_to_no_end" in (home / record["trial"] / "log.txt").read_text()


def test_a_stopped_rank_is_told_from_one_that_hangs(command: CommandLine) -> None:
    home = write(command, "['own.methods:Slow']", epochs=400)
    runner = command.start("run", "trouble.yaml", "--set", "timeouts.progress_s=10", LEDGER=os.devnull)
    wait_until(lambda: trains(home, epochs=4), runner)
    ranks_of(runner)[0].suspend()
    out, err = runner.communicate(timeout=250)
    assert runner.returncode == 1, out + err
    (record,) = records(home).values()
    assert record["status"] == "timeout"
    assert "rank 0 was stopped for " in record["reason"]
    assert "while ranks [1] waited for it" in record["reason"]
