"""`--jobs`: real runners side by side on this machine, on cores of their own; killed, interrupted and refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from launch.executors.conftest import MakeSuite, Suite
from launch.tiny import SUITE

from harness.cli.command_options import shard_of
from harness.errors import UserError
from harness.launch.executors import Submission, local
from harness.launch.executors.local import jobs_here
from harness.launch.hardware import Capacity
from harness.launch.slots import RunOptions
from harness.results.leases import LEASES
from harness.results.record_store import ResultStore
from harness.suite.expand import expand
from harness.suite.suite_file import load_suite

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="trials side by side need two cores"),
]
ONE_PART = SUITE.replace("parts: [1, 2]", "parts: 1").replace("seeds: [0, 1, 2]", "seeds: [0, 1, 2, 3]")
ENDED = 2  # leases of a trial that ran once: taken, and given back


def leases(suite: Suite) -> dict[str, int]:
    found: dict[str, int] = {}
    for path in (suite.home / LEASES).iterdir():
        found[path.stem] = max(found.get(path.stem, 0), int(path.suffix[1:]))
    return found


def runners(suite: Suite) -> dict[int, str]:
    """The trial of each runner, by process."""
    told = (json.loads(path.read_text()) for path in suite.home.glob(".runners/*.json"))
    return {info["pid"]: info["trial"] for info in told if info["trial"]}


def test_trials_that_are_not_timed_fill_the_machine(make_suite: MakeSuite) -> None:
    suite = make_suite(os.environ, ONE_PART)
    code, said = suite.run("--jobs", "2")
    assert code == 0, said
    assert "2 runners side by side" in said
    records = suite.records()
    assert {record["status"] for record in records.values()} == {"ok"}
    assert set(leases(suite).values()) == {ENDED}
    beside = {id_: {each["trial"] for each in record["environment"]["beside"]} for id_, record in records.items()}
    assert any(beside.values()), said
    for id_, others in beside.items():
        for other in others:
            assert id_ in beside[other]
            own, theirs = (set(records[each]["environment"]["pinned_cores"]) for each in (id_, other))
            assert len(own) == len(theirs)
            assert not own & theirs
    assert not list((suite.home / ".runners").iterdir())


def test_a_killed_runner_is_followed_by_another(make_suite: MakeSuite) -> None:
    suite = make_suite(os.environ, ONE_PART)
    process = suite.start("--jobs", "2", "--set", "train.epochs=400")
    pid = next(iter(suite.wait(lambda: suite.training() and runners(suite))))
    os.kill(pid, signal.SIGKILL)
    assert process.wait(200) == 0, suite.output.read_text() + suite.logs()
    said = suite.output.read_text()
    assert "a runner was killed by signal 9; another takes its trial over" in said
    assert {record["status"] for record in suite.records().values()} == {"ok"}
    counts = leases(suite)
    assert set(counts) == set(suite.records())
    assert sorted(counts.values())[:-1] == [ENDED] * (len(counts) - 1)  # the killed one's trial, once more
    assert max(counts.values()) == ENDED + 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_runners_end_with_the_command(make_suite: MakeSuite, number: signal.Signals) -> None:
    suite = make_suite(os.environ, ONE_PART)
    process = suite.start("--jobs", "2", "--set", "train.epochs=100000")
    pids = suite.wait(lambda: suite.training() and runners(suite))
    process.send_signal(number)
    code = process.wait(60)
    said = suite.output.read_text()
    if number == signal.SIGKILL:
        assert code == -number
    else:
        assert code == 130, said
        assert "interrupted: finished trials are kept" in said
    suite.process = None
    suite.wait(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 30)
    suite.wait(lambda: not runners(suite), 30)
    assert not any(record["status"] != "ok" for record in suite.records().values())


def submission(suite: Suite, jobs: int | None = None) -> Submission:
    loaded = load_suite(suite.file)
    trials = expand(loaded, data_dir=suite.file.parent / "data")
    store, options = ResultStore(suite.home.parent, "tiny"), RunOptions(data_dir=suite.file.parent / "data")
    return Submission(loaded, trials, store, options, (), jobs)


@pytest.mark.parametrize(
    ("cores", "memory", "parts", "jobs"),
    [(8, 2**36, 1, 6), (8, 2**36, 2, 4), (8, 2**30, 1, 1), (3, 2**36, 2, 1), (1, 2**36, 2, 1), (8, 5 * 2**29, 1, 4)],
)
def test_auto_is_what_the_machine_has_room_for(
    make_suite: MakeSuite, monkeypatch: pytest.MonkeyPatch, cores: int, memory: int, parts: int, jobs: int
) -> None:
    wanted = submission(make_suite(os.environ))
    chosen = [trial for trial in wanted.trials if trial.partition.parts == parts] * 2
    monkeypatch.setattr(local, "cores", lambda: cores)
    monkeypatch.setattr(local, "capacity", lambda: Capacity(memory))
    assert jobs_here(replace(wanted, trials=chosen)) == jobs


def test_trials_that_are_timed_have_the_machine_unless_asked(make_suite: MakeSuite) -> None:
    wanted = submission(make_suite(os.environ), jobs=3)
    wanted = replace(wanted, trials=[trial.model_copy(update={"timing": "plain"}) for trial in wanted.trials])
    assert jobs_here(wanted) == 1
    assert jobs_here(replace(wanted, options=replace(wanted.options, together=True))) == 3


def test_shards_are_all_trials_once(make_suite: MakeSuite) -> None:
    suite = make_suite(os.environ, ONE_PART)
    for part in ("1/2", "2/2"):
        done = subprocess.run(
            [*suite.command, "--shard", part, "--jobs", "1"], env=suite.env, capture_output=True, text=True, timeout=200
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert len(suite.records()) == (2 if part == "1/2" else 4)
    assert set(leases(suite).values()) == {ENDED}


@pytest.mark.parametrize("text", ["0/4", "5/4", "1", "a/b", "1/0", ""])
def test_what_is_no_shard(text: str) -> None:
    with pytest.raises(UserError, match=r"--shard: .* is no part of a whole \(e\.g\. 1/4"):
        shard_of(text)
