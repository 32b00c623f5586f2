"""Slurm's variables, as `srun` sets them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from launch.tiny import Silent, write_suite

from harness.errors import UserError
from harness.launch.executors import Submission, slurm
from harness.launch.executors.slurm import first_host, port_of, this_step
from harness.launch.rendezvous import Cluster
from harness.launch.slots import RunOptions
from harness.results.record_store import ResultStore
from harness.suite.expand import expand
from harness.suite.suite_file import load_suite

STEP = {
    "SLURM_JOB_ID": "123456",
    "SLURM_STEP_ID": "0",
    "SLURM_NNODES": "3",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_JOB_NODELIST": "gpu[08-10]",
    "SLURM_STEP_NODELIST": "gpu[09-10]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
}


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("x", "x"),
        ("a,b-1", "a"),
        ("b-1,a", "b-1"),
        ("node[01-03,7],x", "node01"),
        ("n[8-11]", "n8"),
        ("n[098-101].cluster", "n098.cluster"),
        ("r[1-2]n[3,5]", "r1n3"),
    ],
)
def test_lists_of_nodes(text: str, first: str) -> None:
    assert first_host(text) == first


@pytest.mark.parametrize("text", ["", "n[1-", "n[a-b]", "n[]", "n]1["])
def test_what_is_no_list(text: str) -> None:
    with pytest.raises(UserError, match="SLURM_STEP_NODELIST"):
        first_host(text)


def test_a_step_counts_and_not_its_job() -> None:
    assert this_step(STEP) == Cluster(2, "gpu09", 23456, coordinator=False)


def test_older_slurm_names_the_job_only() -> None:
    old = {key: value for key, value in STEP.items() if not key.startswith("SLURM_STEP_N")}
    assert this_step(old) == Cluster(3, "gpu08", 23456, coordinator=False)


def test_a_batch_script_is_no_step() -> None:
    assert this_step({}) is None
    assert this_step({key: value for key, value in STEP.items() if key != "SLURM_STEP_ID"}) is None


@pytest.mark.parametrize("tasks", [{"SLURM_STEP_TASKS_PER_NODE": "1,4(x1)"}, {"SLURM_LOCALID": "1"}])
def test_more_than_one_task_on_a_node(tasks: dict[str, str]) -> None:
    with pytest.raises(UserError, match=r"more than one task.*srun --ntasks-per-node=1"):
        this_step(STEP | tasks)


def test_a_shell_on_one_node_may_have_many_tasks() -> None:
    one = {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "gpu09", "SLURM_STEP_TASKS_PER_NODE": "8"}
    step = this_step(STEP | one)
    assert step is not None
    assert step.nodes == 1


def test_ports_of_jobs() -> None:
    ports = [port_of(job, step) for job in range(99_000, 99_100) for step in range(3)]
    assert len(set(ports)) == len(ports)
    assert min(ports) >= 1024
    assert max(ports) < 32768  # what Linux gives to anyone who asks for any port


def test_jobs_are_followed_to_their_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: Iterator[str | None] = iter(
        (
            "7_0|PENDING|Priority\n7_1|PENDING|Resources\n8|RUNNING|None\n",
            None,
            *["7_0|RUNNING|None\n7_1|COMPLETED|None\n", "7_0|RUNNING|None\n", "", ""],
        )
    )

    def squeue(*command: str) -> str:
        if (answer := next(answers)) is None:
            raise UserError("the controller restarts")
        return answer

    monkeypatch.setattr(slurm, "_slurm", squeue)
    monkeypatch.setattr(slurm, "LOOK_S", 0.0)
    monkeypatch.setattr(slurm, "STATES_S", 0.0)
    looks: list[str] = []
    arrivals: Any = SimpleNamespace(
        missing=["a trial"], look=lambda: looks.append("look"), look_afresh=lambda: looks.append("afresh")
    )
    lines: list[str] = []
    states = {"7_0": "PENDING", "7_1": "PENDING"}
    slurm.watch(arrivals, states, lines.append)
    assert states == {"7_0": "GONE", "7_1": "COMPLETED"}
    assert looks[-1] == "afresh"
    assert lines == [
        "jobs: 2 pending (Priority, Resources)",
        "jobs: 2 pending (Slurm does not answer)",
        "jobs: 1 completed, 1 running",
        "jobs: 1 completed, 1 gone",
    ]


@pytest.mark.parametrize("interrupted", [False, True])
def test_jobs_without_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupted: bool) -> None:
    suite = load_suite(write_suite(tmp_path))
    trials = expand(suite, data_dir=tmp_path / "data")[:2]
    there = tmp_path / "7_0.out"
    there.touch()
    cancelled: list[str] = []

    def watch(arrivals: object, states: dict[str, str], report: object) -> None:
        states |= {"7_0": "COMPLETED", "7_1": "NODE_FAIL"}
        if interrupted:
            raise KeyboardInterrupt

    monkeypatch.setattr(slurm, "sbatch_options", lambda: frozenset({"partition"}))
    monkeypatch.setattr(slurm, "watch", watch)
    monkeypatch.setattr(slurm, "cancel", cancelled.extend)
    monkeypatch.setattr(slurm.Slurm, "_submit", lambda *_: {"7_0": there, "7_1": tmp_path / "none"})
    lines: list[str] = []
    store = ResultStore(tmp_path / "results", suite.name)
    submission = Submission(suite, trials, store, RunOptions(data_dir=tmp_path / "data"), ())
    code = slurm.Slurm(["partition=gpu"]).run(submission, Silent(), lines.append)
    assert lines[0] == "slurm: 2 jobs 7 for 2 trials: 1 node with 1 core, no other job there"
    if interrupted:
        assert (code, cancelled, lines[-1]) == (130, ["7_0", "7_1"], "cancelled the jobs 7")
        return
    assert (code, cancelled) == (1, [])
    assert lines[1:] == [
        "2 trials have no record; the same command goes on with them:",
        *(f"    {trial.id}  {trial.label}" for trial in trials),
        f"    job 7_0 completed: {there}",
        f"    job 7_1 node_fail: no log at {tmp_path / 'none'}: is that directory shared by the nodes?",
    ]
