"""Who reads what a run prints, or closes the terminal, does not reach the trials."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from e2e.cli import COMMAND, CommandLine, records

from harness.results.record_store import read_epochs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
SUITE = """\
name: small
datasets: [digits]
model: {name: sage, layers: 2, hidden: 8}
train: {epochs: EPOCHS, eval_every: 0, threads: 1}
methods: [full]
seeds: [0, 1]
device: cpu
"""


def test_a_run_whose_reader_goes_away_goes_on(command: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SUITE.replace("EPOCHS", "3"))
    run = command.start("run", "small.yaml", "--results", "results")
    assert run.stdout is not None
    assert run.stdout.readline().startswith("2 trials")
    run.stdout.close()
    assert run.wait(timeout=150) == 0
    assert [record["status"] for record in records(tmp_path / "results" / "small").values()] == ["ok", "ok"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="has no disk that is always full")
def test_a_full_disk_under_what_is_printed_ends_nothing(command: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SUITE.replace("EPOCHS", "3"))
    with open("/dev/full", "w") as full:
        run = subprocess.run(
            [COMMAND, "run", "small.yaml", "--results", "results"],
            cwd=tmp_path, env={**os.environ, "HARNESS_CACHE": str(command.cache)}, stdout=full, timeout=150,
        )  # fmt: skip
    assert run.returncode == 0
    assert len(records(tmp_path / "results" / "small")) == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_closed_terminal_ends_a_run_as_an_interrupt_does(number: int, command: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SUITE.replace("EPOCHS", "1000000"))
    run = command.start("run", "small.yaml", "--results", "results")
    assert run.stdout is not None
    while not run.stdout.readline().startswith("[1/2]"):
        assert run.poll() is None
    time.sleep(2)
    run.send_signal(number)
    _, said = run.communicate(timeout=60)
    assert (run.returncode, said.splitlines()[-1]) == (
        130, "interrupted: finished trials are kept; the same command goes on with the rest",
    )  # fmt: skip
    assert not records(tmp_path / "results" / "small")


def test_nohup_spares_a_run(command: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SUITE.replace("EPOCHS", "3"))
    command.prefix = ("nohup",)
    run = command.start("run", "small.yaml", "--results", "results")
    assert run.stdout is not None
    while not run.stdout.readline().startswith("[1/2]"):
        assert run.poll() is None
    run.send_signal(signal.SIGHUP)
    out, err = run.communicate(timeout=150)
    assert run.returncode == 0, out + err


def test_a_trial_that_its_limit_ends_keeps_its_epochs(command: CommandLine, tmp_path: Path) -> None:
    text = SUITE.replace("EPOCHS", "1000000").replace("seeds: [0, 1]", "timeouts: {trial_s: 15, collective_s: 10}")
    (tmp_path / "small.yaml").write_text(text.replace("datasets", "partition: {parts: 2}\ndatasets"))
    assert command.run("run", "small.yaml", "--results", "results").returncode == 1
    (record,) = (tmp_path / "results" / "small").glob("[!.]*/record.json")
    assert json.loads(record.read_text())["status"] == "timeout"
    epochs = read_epochs(record.with_name("epochs.parquet"))
    for rank in 0, 1:
        own = epochs[epochs["rank"] == rank]
        assert list(own["epoch"]) == list(range(len(own)))
        assert len(own) > 10
