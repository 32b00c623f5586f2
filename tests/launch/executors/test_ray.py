"""Ray: suites on a real cluster of two nodes on this machine, one of which is lost."""

from __future__ import annotations

import re
import signal

import pytest
from launch.executors.conftest import MakeSuite
from launch.tiny import SUITE
from support.ray_cluster import CORES, OwnRay

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
ONE = SUITE.replace("parts: [1, 2]", "parts: [1]").replace("[0, 1, 2]", "[0]")
LONG = ONE.replace("epochs: 10", "epochs: 2000").replace("trial_s: 20", "trial_s: 250")


def test_trials_end_once(ray_cluster: OwnRay, make_suite: MakeSuite) -> None:
    suite = make_suite(ray_cluster.env, SUITE.replace("[0, 1, 2]", "[0]"))
    code, said = suite.run("--executor", "ray", "--jobs", "2")
    assert code == 0, said
    assert [record["status"] for record in suite.records().values()] == ["ok"] * 2, said
    assert suite.ends() == dict.fromkeys(suite.records(), 1)


def test_a_trial_on_two_nodes(ray_cluster: OwnRay, make_suite: MakeSuite) -> None:
    suite = make_suite(ray_cluster.env, ONE.replace("parts: [1]", "parts: [2]"))
    code, said = suite.run("--executor", "ray", "--nnodes", "2")
    assert code == 0, said
    (record,) = suite.records().values()
    assert len(record["environment"]["nodes"]) == 2, said


def test_what_no_node_has_is_said_at_once(ray_cluster: OwnRay, make_suite: MakeSuite) -> None:
    suite = make_suite(ray_cluster.env, ONE.replace("threads: 1", f"threads: {CORES + 1}"))
    code, said = suite.run("--executor", "ray")
    assert code == 1
    assert "no 1 nodes of the cluster have what it needs: 1 node with 5 cores" in said


@pytest.mark.root
def test_a_directory_that_nodes_do_not_share(ray_cluster: OwnRay, make_suite: MakeSuite) -> None:
    """The command has a file system at that place which nobody else sees."""
    suite = make_suite(ray_cluster.env, ONE)
    suite.home.parent.mkdir()
    hidden = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(suite.home.parent)]
    code, said = suite.run("--executor", "ray", before=hidden)
    assert code == 2, said
    assert re.search(r"error: --results: '.*results' on \S+ is not the directory that it is here", said), said


def test_ctrl_c_ends_what_runs(ray_cluster: OwnRay, make_suite: MakeSuite) -> None:
    suite = make_suite(ray_cluster.env, LONG)
    command = suite.start("--executor", "ray")
    suite.wait(suite.training)
    command.send_signal(signal.SIGINT)
    assert command.wait(60) == 130, suite.output.read_text()
    assert suite.records() == {}
    assert suite.runners() == [], "the runner has ended and its claim is given back"


def test_a_trial_of_a_lost_node_is_tried_elsewhere(ray_cluster: OwnRay, make_suite: MakeSuite) -> None:
    suite = make_suite(ray_cluster.env, LONG)
    command = suite.start("--executor", "ray")
    suite.wait(suite.training)
    (runner,) = suite.runners()
    ray_cluster.kill_node(runner["job"].removeprefix("ray node "))
    assert command.wait(200) == 0, suite.output.read_text() + suite.logs()
    assert "try 2 of 3" in suite.output.read_text()
    assert suite.ends() == dict.fromkeys(suite.records(), 1)
