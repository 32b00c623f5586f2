"""What goes wrong in a run stays in its trial, and a run that is stopped goes on where it was."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
from e2e.cli import CommandLine, records, stamps, trains, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SUITE = """\
name: trouble
datasets: [digits]
model: {layers: 1, hidden: 8}
train: {epochs: EPOCHS, eval_every: 0, threads: 1}
partition: {parts: 2}
methods: METHODS
seeds: SEEDS
device: cpu
timing: 'off'
timeouts: {trial_s: 60, collective_s: 30}
"""


def write(command: CommandLine, methods: str, epochs: int, seeds: str = "[0]") -> Path:
    """Write the suite; returns the directory of its results."""
    text = SUITE.replace("EPOCHS", str(epochs)).replace("METHODS", methods).replace("SEEDS", seeds)
    (command.directory / "trouble.yaml").write_text(text)
    return command.directory / "results" / "trouble"


def test_a_failing_method_fails_alone_and_can_be_retried(command: CommandLine) -> None:
    home = write(command, "['own.methods:Raising', 'own.methods:Dying', full]", epochs=3)
    first = command.run("run", "trouble.yaml")
    assert first.returncode == 1, first.stdout + first.stderr
    found = {record["config"]["method"]["name"]: record for record in records(home).values()}
    raised, died, ok = (found[name] for name in ("own.methods:Raising", "own.methods:Dying", "full"))
    assert (raised["status"], died["status"], ok["status"]) == ("error", "error", "ok")
    assert "RuntimeError: planted failure" in raised["reason"]
    assert "SIGKILL" in died["reason"]
    log = (home / raised["trial"] / "log.txt").read_text()
    assert "Traceback" in log
    assert "planted failure" in log
    assert raised["result"] == died["result"] == {}

    before = stamps(home)
    assert command.run("run", "trouble.yaml").returncode == 1  # failures are kept, and still said
    assert stamps(home) == before
    kept = {path: stamp for path, stamp in before.items() if ok["trial"] in path}
    again = command.run("run", "trouble.yaml", "--retry", "error", MENDED="1")
    assert again.returncode == 0, again.stdout + again.stderr
    assert {record["status"] for record in records(home).values()} == {"ok"}
    assert kept.items() <= stamps(home).items()


def test_a_killed_run_goes_on(command: CommandLine) -> None:
    ledger = command.directory / "ledger"
    home = write(command, "['own.methods:Slow']", epochs=4, seeds="[0, 1, 2]")
    runner = command.start("run", "trouble.yaml", LEDGER=str(ledger))
    wait_until(lambda: len(records(home)) == 1 and trains(home), runner)
    ranks = psutil.Process(runner.pid).children(recursive=True)
    runner.kill()
    runner.communicate()
    assert len(ranks) == 4  # and what forks them, and the heartbeat
    gone, alive = psutil.wait_procs(ranks, timeout=10)
    assert (len(gone), alive) == (4, [])
    first = stamps(home)
    assert len(records(home)) == 1

    again = command.run("run", "trouble.yaml", LEDGER=str(ledger))
    assert again.returncode == 0, again.stdout + again.stderr
    assert {r["config"]["seed"]: r["status"] for r in records(home).values()} == {0: "ok", 1: "ok", 2: "ok"}
    assert first.items() <= stamps(home).items()
    assert not list((home / ".staging").iterdir())
    lines = Counter(ledger.read_text().splitlines())
    assert lines == {"start 0": 1, "end 0": 1, "start 1": 2, "end 1": 1, "start 2": 1, "end 2": 1}


def test_ctrl_c(command: CommandLine) -> None:
    home = write(command, "['own.methods:Slow']", epochs=100)
    runner = command.start("run", "trouble.yaml", LEDGER=os.devnull)
    wait_until(lambda: trains(home), runner)
    ranks = psutil.Process(runner.pid).children(recursive=True)
    asked = time.monotonic()
    os.killpg(runner.pid, signal.SIGINT)
    _, err = runner.communicate(timeout=20)
    assert runner.returncode == 130
    assert time.monotonic() - asked < 10
    assert "interrupted: finished trials are kept" in err
    assert "Traceback" not in err
    assert psutil.wait_procs(ranks, timeout=5)[1] == []
    assert records(home) == {}
    assert not list((home / ".staging").iterdir())
