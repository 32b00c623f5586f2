"""Trials on a real Slurm and a real Ray cluster, while runners, jobs and nodes are killed at random: each ends once.

A few trials on Slurm, or as many as the environment variable HARNESS_TEST_TRIALS says, then on Ray too (12 s a trial).
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from launch.executors.conftest import MakeSuite, Suite
from support.ray_cluster import OwnRay
from support.slurm import OwnSlurm

TRIALS = int(os.environ.get("HARNESS_TEST_TRIALS", "6"))
LOGGED = Path(__file__).with_name("logged.py")
SUITE = f"""\
name: tiny
datasets: [{{sbm: {{nodes: 400}}}}]
model: {{name: sage, layers: 2, hidden: 8}}
train: {{epochs: 300, eval_every: 100, threads: 1}}
partition: {{parts: [1, 2], method: chunk}}
methods: [logged]
plugins: [{LOGGED}]
seeds: {[*range(TRIALS // 2)]}
device: cpu
timeouts: {{trial_s: 60}}
"""
Kill = Callable[[Suite, random.Random], str | None]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(120 + 60 * TRIALS)]


def kill_runner(suite: Suite, rng: random.Random) -> str | None:
    """End a runner at work, as the kernel does when memory runs out."""
    at_work = [info for info in suite.runners() if info["trial"]]
    if not at_work:
        return None
    chosen = rng.choice(at_work)
    with suppress(ProcessLookupError):
        os.kill(chosen["pid"], signal.SIGKILL)
    return f"killed the runner {chosen['pid']}"


def with_kills(suite: Suite, options: list[str], kills: list[Kill], most: int) -> Counter[str]:
    """Run the suite, and kill meanwhile; start again whatever is left until nothing is. Return what was killed."""
    rng, killed, rounds = random.Random(0), Counter[str](), 0
    while suite.start(*options) and (code := _one_round(suite, kills, most, rng, killed)) != 0:
        rounds += 1
        assert code == 1, suite.output.read_text() + suite.logs()
        assert rounds < 10, suite.output.read_text() + suite.logs()
    killed["rounds"] = rounds + 1
    return killed


def _one_round(suite: Suite, kills: list[Kill], most: int, rng: random.Random, killed: Counter[str]) -> int:
    assert suite.process is not None
    while (code := suite.process.poll()) is None:
        time.sleep(rng.uniform(0.1, 1))
        due = killed.total() < most and len(suite.records()) >= killed.total() * TRIALS // most
        if due and suite.training() and (said := rng.choice(kills)(suite, rng)):
            killed[said.rpartition(" ")[0]] += 1
    return code


def each_ended_once(suite: Suite, killed: Counter[str]) -> None:
    """All trials have a record, written once; the log outside says so too."""
    lines = Path(suite.env["HARNESS_LOGGED"]).read_text().splitlines()
    log = Counter(line.split()[0] for line in lines)
    print(f"{len(suite.records())} records; {dict(log)}; {dict(killed)}")
    records = suite.records()
    assert Counter(record["status"] for record in records.values()) == {"ok": TRIALS // 2 * 2}, suite.logs()
    assert suite.ends() == dict.fromkeys(records, 1)
    # A trial is begun again only where its runner was killed; it had ended if that was before its record was written.
    assert 0 <= log["end"] - len(records) <= killed.total()
    assert 0 <= log["begin"] - log["end"] <= killed.total()
    assert killed.total() > 1, "something was killed"


def test_on_slurm(slurm: OwnSlurm, make_suite: MakeSuite, tmp_path: Path) -> None:
    def jobs() -> list[str]:
        return slurm.run("squeue", "--noheader", "--array", "--states=RUNNING", "--format=%i").split()

    def requeue(suite: Suite, rng: random.Random) -> str | None:
        running = jobs()
        if not running:
            return None
        with suppress(AssertionError):  # it has just ended
            slurm.run("scontrol", "requeue", job := rng.choice(running))
            return f"requeued the job {job}"
        return None

    def cancel(suite: Suite, rng: random.Random) -> str | None:
        running = jobs()
        if not running:
            return None
        slurm.run("scancel", job := rng.choice(running))
        return f"cancelled the job {job}"

    suite = make_suite({**slurm.env, "HARNESS_LOGGED": str(tmp_path / "log")}, SUITE)
    kills = [kill_runner, kill_runner, requeue, cancel]
    killed = with_kills(suite, ["--executor", "slurm", "--jobs", "2"], kills, max(2, TRIALS // 4))
    each_ended_once(suite, killed)


@pytest.mark.skipif("HARNESS_TEST_TRIALS" not in os.environ, reason="minutes: on demand, HARNESS_TEST_TRIALS=60")
def test_on_ray(ray_cluster: OwnRay, make_suite: MakeSuite, tmp_path: Path) -> None:
    def kill_node(suite: Suite, rng: random.Random) -> str | None:
        names = [info["job"].removeprefix("ray node ") for info in suite.runners() if info["job"]]
        alive = [name for name in names if any(node.node_id.startswith(name) for node in ray_cluster.nodes)]
        if not alive:
            return None
        ray_cluster.kill_node(chosen := rng.choice(alive))
        return f"killed the node {chosen}"

    suite = make_suite({**ray_cluster.env, "HARNESS_LOGGED": str(tmp_path / "log")}, SUITE)
    kills = [kill_runner, kill_runner, kill_node]
    killed = with_kills(suite, ["--executor", "ray", "--jobs", "3"], kills, max(2, TRIALS // 6))
    each_ended_once(suite, killed)
