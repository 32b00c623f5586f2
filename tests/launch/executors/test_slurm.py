"""Slurm: what is asked of it, and suites on a real one of this machine."""

from __future__ import annotations

import re
import signal

import pytest
from launch.executors.conftest import MakeSuite, Suite
from launch.tiny import SUITE
from support.slurm import OwnSlurm

from harness.errors import UserError
from harness.launch.executors import slurm as executor
from harness.launch.executors.slurm import Slurm, minutes_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
LONG = (
    SUITE.replace("epochs: 10", "epochs: 2000")
    .replace("trial_s: 20", "trial_s: 250")
    .replace("parts: [1, 2]", "parts: [1]")
    .replace("[0, 1, 2]", "[0]")
)


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("60", 60), ("90:30", 91), ("1:30:00", 90), ("1:30:01", 91), ("2-0", 2880), ("1-12", 2160), ("1-12:30", 2190)],
)
def test_time_limits_are_slurms(text: str, minutes: int) -> None:
    assert minutes_of(text) == minutes


@pytest.mark.parametrize("text", ["", "1h", "0", "1:2:3:4", "-5", "1-"])
def test_what_is_no_time_limit(text: str) -> None:
    with pytest.raises(UserError, match="--slurm time"):
        minutes_of(text)


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        ("partiton=gpu", r"sbatch has no option 'partiton' \(did you mean 'partition'\?\)"),
        ("partition", r"'partition' is not KEY=VALUE"),
        ("comment=a\nb", "is not KEY=VALUE"),  # a script's line must not end early
        ("nodes=2", r"not for you to set \(--nnodes\)"),
        ("array=0-3", r"not for you to set \(--jobs\)"),
        ("time=soon", "'soon' is not a time limit"),
        ("requeues=often", "'often' is not a number"),
    ],
)
def test_mistakes(monkeypatch: pytest.MonkeyPatch, pair: str, said: str) -> None:
    known = frozenset({"partition", "comment", "time", "nodes", "array", "cpus-per-task"})
    monkeypatch.setattr(executor, "sbatch_options", lambda: known)
    with pytest.raises(UserError, match=said):
        Slurm([pair])


def test_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "sbatch_options", lambda: frozenset({"partition", "time", "cpus-per-task"}))
    asked = Slurm(["partition=gpu", "time=1:00:00", "cpus-per-task=4", "requeues=2"])
    assert asked.sbatch == {"partition": "gpu", "cpus_per_task": "4"}
    assert (asked.time_min, asked.requeues) == (60, 2)


def test_jobs_share_the_trials(slurm: OwnSlurm, make_suite: MakeSuite) -> None:
    suite = make_suite(slurm.env, SUITE.replace("parts: [1, 2]", "parts: [1]"))
    code, said = suite.run("--executor", "slurm", "--jobs", "2")
    assert code == 0, said + slurm.logs()
    assert [record["status"] for record in suite.records().values()] == ["ok"] * 3, said
    assert suite.ends() == dict.fromkeys(suite.records(), 1)
    assert re.search(r"slurm: 2 jobs \d+ for 3 trials: 1 node with 1 core\n", said), said
    jobs = all_jobs(slurm)
    code, said = suite.run("--executor", "slurm")
    assert code == 0
    assert "3 trials, 3 done already, 0 to run" in said
    assert all_jobs(slurm) == jobs, "nothing was left to submit"


def test_a_mistake_that_slurm_finds(slurm: OwnSlurm, make_suite: MakeSuite) -> None:
    code, said = make_suite(slurm.env).run("--executor", "slurm", "--slurm", "partition=none")
    assert code == 2
    assert "error: sbatch: invalid partition specified: none" in said


def test_ctrl_c_cancels(slurm: OwnSlurm, make_suite: MakeSuite) -> None:
    suite = make_suite(slurm.env, LONG)
    command = suite.start("--executor", "slurm")
    suite.wait(suite.training)
    job = job_of(suite)
    command.send_signal(signal.SIGINT)
    assert command.wait(60) == 130, suite.output.read_text()
    assert f"cancelled the jobs {job}" in suite.output.read_text()
    suite.process = None
    suite.wait(lambda: state(slurm, job) == "CANCELLED")
    assert suite.records() == {}


def test_a_job_that_is_cancelled_is_missed(slurm: OwnSlurm, make_suite: MakeSuite) -> None:
    suite = make_suite(slurm.env, LONG)
    command = suite.start("--executor", "slurm")
    suite.wait(suite.training)
    slurm.run("scancel", job_of(suite))
    assert command.wait(90) == 1, suite.output.read_text()
    said = suite.output.read_text()
    assert "1 trials have no record; the same command goes on with them:" in said
    assert f"job {job_of(suite)} cancelled: {suite.home}/.jobs/" in said


@pytest.mark.slow
def test_a_job_at_its_time_limit_goes_on(slurm: OwnSlurm, make_suite: MakeSuite) -> None:
    """Slurm sends SIGUSR2 in time, to all of the job; the runner ends, and the job is put back in the queue."""
    suite = make_suite(slurm.env, LONG)
    command = suite.start("--executor", "slurm")
    suite.wait(suite.training)
    slurm.run("scancel", "--signal=USR2", job_of(suite))
    assert command.wait(200) == 0, suite.output.read_text() + suite.logs() + slurm.logs()
    assert suite.logs().count("Starting with JobEnvironment") == 2, suite.logs()
    assert [record["status"] for record in suite.records().values()] == ["ok"], suite.logs()


def test_a_trial_on_two_nodes(slurm: OwnSlurm, make_suite: MakeSuite) -> None:
    suite = make_suite(slurm.env, LONG.replace("parts: [1]", "parts: [2]").replace("epochs: 2000", "epochs: 10"))
    code, said = suite.run("--executor", "slurm", "--nnodes", "2")
    assert code == 0, said
    (record,) = suite.records().values()
    assert len(record["environment"]["nodes"]) == 2, said


def test_plan_judges_the_nodes_of_the_partition(
    slurm: OwnSlurm, make_suite: MakeSuite, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PATH", "SLURM_CONF"):
        monkeypatch.setenv(name, slurm.env[name])
    default, small = Slurm(), Slurm(["partition=small"])
    sizes = {4000 << 20: (default, 1), 3000 << 20: (default, 2)}
    assert [asked.capacity(nodes).machine for asked, nodes in sizes.values()] == list(sizes)
    found = small.capacity(1)
    assert (found.machine, found.where) == (3000 << 20, "a node of partition small")
    with pytest.raises(UserError, match="2 nodes, the partition has 1"):
        small.capacity(2)


def job_of(suite: Suite) -> str:
    """Return the id of the one job that was submitted."""
    found = re.search(r"slurm: 1 job (\d+) ", suite.output.read_text())
    assert found, suite.output.read_text()
    return found[1]


def all_jobs(slurm: OwnSlurm) -> set[str]:
    """Return the ids of all jobs there were."""
    return set(slurm.run("squeue", "--noheader", "--states=all", "--format=%i").split())


def state(slurm: OwnSlurm, job: str) -> str:
    """Return a job's state."""
    return slurm.run("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T").strip()
