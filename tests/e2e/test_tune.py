"""`harness tune`: killed and gone on with, and what it leaves behind."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from e2e.cli import CommandLine, records, trains, wait_until

pytestmark = pytest.mark.slow

SUITE = """name: tiny
datasets: [digits]
model: {layers: 2, hidden: 8}
train: {epochs: 4, eval_every: 1, threads: 1}
partition: {parts: 2}
methods: [bns-gcn]
seeds: [0, 1, 2, 3, 4]
device: cpu
timing: wall
tuning:
  budget: {trials: 2}
  studies: 2
"""


def chosen(results: Path) -> list[Any]:
    found = json.loads((results / "tiny-tuning" / "tuning.json").read_text())
    points = {tried["trial"]: tried["point"] for row in found["methods"] for tried in row["tried"]}
    return [(row["method"], len(row["tried"]), row["chosen"], points[row["chosen"]]) for row in found["methods"]]


def test_killed_at_random_and_restarted_it_chooses_the_same(command: CommandLine) -> None:
    """The whole group is killed, twice, with no chance to clean up."""
    (command.directory / "s.yaml").write_text(SUITE)
    search = "tune", "s.yaml", "--search-only"
    whole = command.run(*search, "--results", "whole", timeout_s=200)
    assert whole.returncode == 0, whole.stderr
    rng = random.Random(0)
    results = command.directory / "killed" / "tiny-tuning"
    for _ in range(2):
        before = len(records(results))
        process = command.start(*search, "--results", "killed")
        wait_until(lambda before=before: trains(results) or len(records(results)) > before, process)  # type: ignore[misc]
        time.sleep(rng.random() / 2)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    rest = command.run(*search, "--results", "killed", timeout_s=200)
    assert rest.returncode == 0, rest.stderr
    assert chosen(command.directory / "killed") == chosen(command.directory / "whole")
    ended = records(results)
    assert len(ended) == 2 * 2
    assert all(record["config"]["tuning"] for record in ended.values())
    assert all(record["result"]["test_at_best_val"] is None for record in ended.values())


def test_the_chosen_settings_are_trained_with_fresh_seeds(command: CommandLine) -> None:
    """And a second call finds all done."""
    (command.directory / "s.yaml").write_text(
        SUITE.replace("trials: 2", "trials: 1").replace("studies: 2", "studies: 1\n  default_first: false")
    )
    done = command.run("tune", "s.yaml", timeout_s=200)
    assert done.returncode == 0, done.stderr
    assert "search: 1 trial for each method and data set, 1 in all\n" in done.stdout
    assert "then the chosen settings with 5 seeds: 5 trials\n" in done.stdout
    final = records(command.directory / "results" / "tiny-tuned")
    assert sorted(r["config"]["seed"] for r in final.values()) == [0, 1, 2, 3, 4]
    rates = {row[0]: row[3]["train.lr"] for row in chosen(command.directory / "results")}
    for record in final.values():
        assert record["config"]["train"]["lr"] == rates[record["config"]["method"]["name"]]
        assert record["result"]["test_at_best_val"] is not None
    search, tuned = (command.directory / "results" / name / "tuning.json" for name in ("tiny-tuning", "tiny-tuned"))
    assert search.read_text() == tuned.read_text(), "results tell what their settings cost"
    again = command.run("tune", "s.yaml", timeout_s=100)
    assert again.returncode == 0, again.stderr
    assert "5 trials, 5 done already, 0 to run" in again.stdout
    plan = command.run("plan", "results/tiny-tuning/tuned.yaml")
    assert "5 trials: 5 done" in plan.stdout


def test_an_interrupted_search_says_how_to_go_on(command: CommandLine) -> None:
    (command.directory / "s.yaml").write_text(SUITE)
    process = command.start("tune", "s.yaml")
    wait_until(lambda: trains(command.directory / "results" / "tiny-tuning"), process)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted: finished trials are kept; the same command goes on with the rest" in err
    assert "Traceback" not in err


def test_a_mistake_is_one_line_and_leaves_nothing(command: CommandLine) -> None:
    (command.directory / "s.yaml").write_text(SUITE.replace("trials: 2", "trials: 0"))
    refused = command.run("tune", "s.yaml")
    assert refused.returncode == 2
    assert refused.stderr == "error: s.yaml:11: tuning.budget.trials: bad value 0: must be greater than or equal to 1\n"
    assert not (command.directory / "results").exists()
