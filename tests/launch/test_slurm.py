"""Slurm's variables, as `srun` sets them."""

from __future__ import annotations

import pytest

from harness.errors import UserError
from harness.launch.executors.slurm import SlurmStep, first_host, port_of, this_step

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
    assert this_step(STEP) == SlurmStep(nodes=2, index=1, coordinator="gpu09", port=23456)


def test_older_slurm_names_the_job_only() -> None:
    old = {key: value for key, value in STEP.items() if not key.startswith("SLURM_STEP_N")}
    assert this_step(old) == SlurmStep(nodes=3, index=1, coordinator="gpu08", port=23456)


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
