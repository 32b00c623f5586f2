"""A trial that was cut off goes on from its last checkpoint, in other processes, and its record shows no other bits."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from e2e.cli import CommandLine, ranks_of, records, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SUITE = """\
name: cut
datasets: [digits]
model: {layers: 2, hidden: 8}
train: {epochs: 40, eval_every: 7, threads: 1, checkpoint: 5 epochs}
partition: {parts: 2}
methods: [METHOD]
device: cpu
retries: RETRIES
timeouts: {trial_s: 100, collective_s: 30}
"""
HOLDING = "'own.methods:Holding'"


def write(command: CommandLine, method: str, retries: int = 0) -> Path:
    (command.directory / "cut.yaml").write_text(SUITE.replace("METHOD", method).replace("RETRIES", str(retries)))
    return command.directory / "results" / "cut"


def started(command: CommandLine, home: Path, done: int = 10) -> subprocess.Popen[str]:
    """Start a run, and return once both ranks have kept a checkpoint after `done` epochs; they go no further."""
    runner = command.start("run", "cut.yaml", HOLD=str(done + 2))
    wait_until(lambda: len(list(home.glob(f".checkpoints/*/*/rank?-{done:08d}-*"))) == 2, runner)
    return runner


def the_record(home: Path) -> dict[str, Any]:
    (record,) = records(home).values()
    return record


def told(home: Path) -> tuple[Any, ...]:
    """Return what the bits of a trial show: weights, losses, scores and bytes of each epoch and rank."""
    record = the_record(home)
    assert record["status"] == "ok", record["reason"]
    epochs = pd.read_parquet(home / record["trial"] / "epochs.parquet").sort_values(["rank", "epoch"])
    kept = [name for name in epochs if name in ("epoch", "rank", "loss", "lr") or name.endswith("_score")]
    kept += [name for name in epochs if name.startswith("bytes_")]
    sent = sorted(
        (rank["rank"], *row.values()) for rank in record["ranks"] for row in rank["traffic"] if row["scope"] == "epoch"
    )
    scores = [record["result"][name] for name in ("best_val", "test_at_best_val", "best_epoch", "epochs", "checksum")]
    return epochs[kept].fillna(-1).values.tolist(), sent, scores


@pytest.fixture(scope="module")
def uncut(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    command = CommandLine(tmp_path_factory.mktemp("uncut"), tmp_path_factory.getbasetemp() / "cache")
    home = write(command, HOLDING)
    found = command.run("run", "cut.yaml")
    assert found.returncode == 0, found.stdout + found.stderr
    assert not list(home.glob(".checkpoints*"))
    return told(home)


def test_a_killed_rank_is_started_again_with_the_others(command: CommandLine, uncut: tuple[Any, ...]) -> None:
    home = write(command, HOLDING, retries=1)
    runner = started(command, home, 20)
    ranks_of(runner)[1].kill()
    out, err = runner.communicate(timeout=100)
    assert runner.returncode == 0, out + err
    assert "was killed by signal 9 (SIGKILL); started again, 1 of 1 times at most (`retries`)" in out
    assert told(home) == uncut
    record = the_record(home)
    assert [flag for flag in record["flags"] if flag.startswith("resumed")] == [
        "resumed: went on from a checkpoint after 20 epochs (ranks [0, 1])"
    ]
    assert [[each["epochs"] for each in rank["resumed"]] for rank in record["ranks"]] == [[20], [20]]
    assert not list(home.glob(".checkpoints*"))


def test_a_rank_that_dies_without_retries_ends_the_trial_and_a_retry_goes_on(
    command: CommandLine, uncut: tuple[Any, ...]
) -> None:
    home = write(command, HOLDING)
    runner = started(command, home, 20)
    ranks_of(runner)[0].kill()
    runner.communicate(timeout=100)
    assert runner.returncode == 1
    assert the_record(home)["status"] == "error"
    again = command.run("run", "cut.yaml", "--retry", "error")
    assert again.returncode == 0, again.stdout + again.stderr
    assert told(home) == uncut
    assert the_record(home)["wall_s"] > the_record(home)["ranks"][0]["earlier_s"] > 0


def test_an_ended_run_goes_on_when_it_is_run_again_twice(command: CommandLine, uncut: tuple[Any, ...]) -> None:
    home = write(command, HOLDING)
    for done, number in ((10, signal.SIGKILL), (20, signal.SIGTERM)):
        runner = started(command, home, done)
        runner.send_signal(number)
        runner.communicate(timeout=60)
        assert not records(home)
    again = command.run("run", "cut.yaml")
    assert again.returncode == 0, again.stdout + again.stderr
    assert told(home) == uncut
    assert [each["epochs"] for each in the_record(home)["ranks"][0]["resumed"]] == [10, 20]


def test_fresh_begins_anew(command: CommandLine, uncut: tuple[Any, ...]) -> None:
    home = write(command, HOLDING)
    runner = started(command, home)
    runner.kill()
    runner.communicate()
    fresh = command.run("run", "cut.yaml", "--fresh")
    assert fresh.returncode == 0, fresh.stdout + fresh.stderr
    assert "goes on" not in fresh.stdout
    assert told(home) == uncut
    assert not the_record(home)["ranks"][0]["resumed"]


def test_a_changed_plugin_begins_anew(command: CommandLine, uncut: tuple[Any, ...]) -> None:
    code = command.directory / "mine.py"
    code.write_text("from own.methods import Holding\n\n\nclass Mine(Holding):\n    name = 'mine'\n")
    home = write(command, "mine")
    with (command.directory / "cut.yaml").open("a") as suite:
        suite.write("plugins: [mine.py]\n")
    runner = started(command, home)
    runner.kill()
    runner.communicate()
    with code.open("a") as file:
        file.write("# changed\n")
    again = command.run("run", "cut.yaml")
    assert again.returncode == 0, again.stdout + again.stderr
    assert "an earlier checkpoint is of other data, code or libraries: training starts anew" in again.stdout
    assert told(home) == uncut


def test_what_cannot_be_written_is_flagged_and_training_goes_on(command: CommandLine, uncut: tuple[Any, ...]) -> None:
    home = write(command, HOLDING)
    home.mkdir(parents=True)
    (home / ".checkpoints").touch()  # a file where a directory is to be
    found = command.run("run", "cut.yaml")
    assert found.returncode == 0, found.stdout + found.stderr
    assert "checkpoint: could not be written: " in "\n".join(the_record(home)["flags"])
    assert told(home) == uncut


def test_off_keeps_none(command: CommandLine, uncut: tuple[Any, ...]) -> None:
    home = write(command, HOLDING)
    found = command.run("run", "cut.yaml", "--set", "train.checkpoint=off")
    assert found.returncode == 0, found.stdout + found.stderr
    assert told(home) == uncut
    assert "checkpoint" not in the_record(home)["ranks"][0]["spans"]["between"]
