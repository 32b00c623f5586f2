"""A coordinator and a worker node in one process, with fake ranks: what happens on the other node is recorded."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from launch.test_rendezvous import free_port
from launch.tiny import SUITE, TESTS, Silent, write_ring

from harness.launch.coordinator import Coordinator, NodeInfo, coordinate
from harness.launch.inputs import InputCache
from harness.launch.machines import TrialJob
from harness.launch.rendezvous import CALL, Cluster, Coordination, Hub, connect, wait_for
from harness.launch.slots import RunOptions
from harness.launch.worker_node import WorkerNode, take_part
from harness.results.record import Record, read_record
from harness.results.record_store import ResultStore
from harness.suite.expand import expand
from harness.suite.schema import Timeouts
from harness.suite.sections import NetworkSpec
from harness.suite.suite_file import load_suite

pytestmark = pytest.mark.timeout(90)

Run = Callable[..., list[Record]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a suite on two nodes and return the records; the coordinator's exit code is the worker node's too."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)

    def run(parts: str = "2", ranks: dict[int, str] | None = None, dataset: str = "ring", other: int = 12):
        """`other`: nodes of the worker node's graph; 0: it has none."""
        monkeypatch.setenv("FAKE_RANKS", json.dumps(ranks or {}))
        write_ring(tmp_path / "coordinator", dataset)
        (tmp_path / "worker").mkdir()
        if other:
            write_ring(tmp_path / "worker", dataset, other)
        file = tmp_path / "tiny.yaml"
        text = SUITE.replace("ring", dataset).replace("parts: [1, 2]", f"parts: {parts}")
        file.write_text(text.replace("seeds: [0, 1, 2]", "seeds: [0]").replace("trial_s: 20", "trial_s: 10"))
        monkeypatch.setenv("HARNESS_DATA", str(tmp_path / "coordinator"))
        suite = load_suite(file)
        trials = expand(suite, data_dir=tmp_path / "coordinator")
        options = {
            name: RunOptions(data_dir=tmp_path / name, worker="launch.fake_worker")
            for name in ("coordinator", "worker")
        }
        cluster = Cluster(2, "127.0.0.1", free_port(), rdzv_timeout_s=30, node_timeout_s=20)
        coordinator, worker = both(cluster)
        codes: list[int] = []
        thread = threading.Thread(
            target=lambda: codes.append(take_part(worker, suite, trials, options["worker"], print))
        )
        thread.start()
        store = ResultStore(tmp_path / "results", suite.name)
        codes.append(coordinate(coordinator, suite, trials, store, options["coordinator"], Silent()))
        thread.join(30)
        assert len(codes) == 2
        assert codes[0] == codes[1]
        return [read_record(store.directory / trial.id / "record.json") for trial in trials]

    return run


def test_one_record_of_both_nodes(run: Run, tmp_path: Path) -> None:
    one, three = run("[1, 3]")
    assert [record.status for record in (one, three)] == ["ok", "ok"]
    assert [rank["rank"] for rank in three.ranks] == [0, 1, 2]
    assert [node["ranks"] for node in three.environment["nodes"]] == [[0, 1], [2]]
    assert [node["ranks"] for node in one.environment["nodes"]] == [[0], []]
    assert three.environment["nodes"][1]["memory_bytes"] > 0
    home = tmp_path / "results" / "tiny" / three.trial
    assert (home / "log.txt").read_text() == "".join(
        f"==== rank {rank} ====\nhello from rank {rank}\n" for rank in range(3)
    )
    assert "hostname" not in (home / "record.json").read_text()


@pytest.mark.slow
def test_a_rank_that_fails_on_the_other_node(run: Run) -> None:
    [record] = run(ranks={0: "lost", 1: "kill"})
    assert (record.status, record.reason) == ("error", "rank 1 (node 1) was killed by signal 9 (SIGKILL)")


@pytest.mark.slow
def test_a_rank_that_fails_on_the_coordinator_ends_the_other(run: Run) -> None:
    [record] = run(ranks={0: "oom", 1: "hang"})
    assert (record.status, record.reason) == ("oom", "rank 0 (node 0) said: planted oom")


@pytest.mark.slow
def test_time_limit_on_the_other_node(run: Run) -> None:
    [record] = run(ranks={1: "stubborn"})
    assert (record.status, record.reason) == ("timeout", "time limit of 10 s reached after 3 of 10 epochs")


@pytest.mark.slow
def test_data_that_the_other_node_lacks(run: Run) -> None:
    [record] = run(dataset="cora", other=0)
    assert record.status == "skipped"
    assert record.reason is not None
    assert record.reason.startswith("node 1 said: ")
    assert record.reason.endswith("get it with: harness data get cora")


@pytest.mark.slow
def test_other_data_on_the_other_node(run: Run) -> None:
    [record] = run(other=14)
    assert record.status == "error"
    assert record.reason is not None
    assert record.reason.startswith("node 1 prepared other data than node 0")


def both(cluster: Cluster) -> tuple[Hub, Coordination]:
    hub, worker = connect(cluster), connect(cluster)
    assert isinstance(hub, Hub)
    assert isinstance(worker, Coordination)
    return hub, worker


def alone(nodes: int, rdzv_timeout_s: float) -> Coordinator:
    """A coordinator whose worker nodes the test plays."""
    hub = connect(Cluster(nodes, "127.0.0.1", free_port(), rdzv_timeout_s=rdzv_timeout_s))
    assert isinstance(hub, Hub)
    return Coordinator(Timeouts(), nodes=nodes, hub=hub, suite="s")


def test_the_first_nodes_that_live_take_part_in_the_order_of_their_addresses() -> None:
    coordinator = alone(3, 20)
    nodes: dict[str, Coordination] = {}
    for address, session in (("10.0.0.9", "dead"), ("10.0.0.3", "b"), ("10.0.0.2", "a"), ("10.0.0.1", "spare")):
        nodes[session] = node = Coordination(coordinator.hub.cluster, "127.0.0.1")
        node.send("run/came", asdict(NodeInfo(session, address, 0, {})))
        wait_for(lambda: len(coordinator.hub.peers) == len(nodes) or None, 20)
    Coordination(coordinator.hub.cluster, "127.0.0.1").close()  # died before it said who it is
    nodes["dead"].close()
    assert wait_for(lambda: coordinator.hub.peers[0].lost, 20) == "ended"
    wait_for(lambda: coordinator.hub.peers[3].get("run/came"), 20)
    workers = coordinator.gather("run")
    assert workers is not None
    assert [info.session for info in workers.infos] == ["a", "b"]
    assert wait_for(lambda: nodes["a"].get("run/nodes"), 20) == ["a", "b"]


def test_a_node_that_never_comes(tmp_path: Path) -> None:
    coordinator = alone(2, 1)
    suite = load_suite(TESTS.parent / "suites" / "quickstart.yaml")
    trial = expand(suite, device="cpu")[0]
    group = coordinator.run(TrialJob(trial, None, tmp_path))  # type: ignore[arg-type]
    assert (group.status, group.wall_s) == ("timeout", None)
    assert group.reason == "node 0 waited in vain: not all of the 2 nodes came within 1 s (--rdzv-timeout)"
    shown: list[str] = []
    late = WorkerNode(
        Coordination(coordinator.hub.cluster, "127.0.0.1"),
        {trial.id: trial},
        coordinator,
        InputCache(),
        NodeInfo("late", "127.0.0.1", 0, {}),
        shown.append,
    )
    thread = threading.Thread(target=late.take_part, daemon=True)
    thread.start()
    wait_for(lambda: shown or None, 20)  # who comes late does not wait for a trial that is off
    coordinator.hub.order(CALL, {"over": 0})
    thread.join(20)
    assert not thread.is_alive()
    assert shown == [trial.label]


def test_shaped_networks_are_skipped() -> None:
    cluster = Cluster(2, "127.0.0.1", free_port())
    suite = load_suite(TESTS.parent / "suites" / "quickstart.yaml")
    coordinator = Coordinator(suite.timeouts, nodes=2, hub=Hub(cluster, "127.0.0.1"), suite=suite.name)
    trial = expand(suite, device="cpu")[0]
    assert coordinator.why_not(trial) is None
    shaped = trial.model_copy(update={"network": NetworkSpec(rate="1gbit")})
    assert "one machine only" in (coordinator.why_not(shaped) or "")
