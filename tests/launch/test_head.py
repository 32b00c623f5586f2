"""A head and a member in one process, with fake ranks: what happens on the other node is recorded."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from launch.test_rendezvous import free_port
from launch.tiny import SUITE, TESTS, write_ring

from harness.launch.head import Head, lead
from harness.launch.member import follow
from harness.launch.rendezvous import Cluster, open_link
from harness.launch.runner import OneMachine, RunOptions, Silent
from harness.results.record import Record, read_record
from harness.results.store import ResultStore
from harness.suite.expand import expand
from harness.suite.load import load_suite
from harness.suite.network import NetworkSpec

pytestmark = pytest.mark.timeout(90)

Run = Callable[..., list[Record]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a suite on two nodes and return the records; the head's code is the member's too."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)

    def run(parts: str = "2", ranks: dict[int, str] | None = None, dataset: str = "ring", other: int = 12):
        """`other`: nodes of the member's graph; 0: it has none."""
        monkeypatch.setenv("FAKE_RANKS", json.dumps(ranks or {}))
        write_ring(tmp_path / "head", dataset)
        (tmp_path / "member").mkdir()
        if other:
            write_ring(tmp_path / "member", dataset, other)
        file = tmp_path / "tiny.yaml"
        text = SUITE.replace("ring", dataset).replace("parts: [1, 2]", f"parts: {parts}")
        file.write_text(text.replace("seeds: [0, 1, 2]", "seeds: [0]").replace("trial_s: 20", "trial_s: 4"))
        monkeypatch.setenv("HARNESS_DATA", str(tmp_path / "head"))
        suite = load_suite(file)
        trials = expand(suite, data_dir=tmp_path / "head")
        options = {
            name: RunOptions(data_dir=tmp_path / name, cache=tmp_path / f"cache-{name}", worker="launch.fake_worker")
            for name in ("head", "member")
        }
        cluster = Cluster(2, "127.0.0.1", free_port(), rdzv_timeout_s=30, node_timeout_s=20)
        head, member = open_link(cluster), open_link(cluster)
        codes: list[int] = []
        thread = threading.Thread(target=lambda: codes.append(follow(member, suite, trials, options["member"], print)))
        thread.start()
        store = ResultStore(tmp_path / "results", suite.name)
        codes.append(lead(head, suite, trials, store, options["head"], Silent()))
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


def test_a_rank_that_fails_on_the_other_node(run: Run) -> None:
    [record] = run(ranks={0: "lost", 1: "kill"})
    assert (record.status, record.reason) == ("error", "rank 1 (node 1) was killed by signal 9 (SIGKILL)")


def test_a_rank_that_fails_on_the_head_ends_the_other(run: Run) -> None:
    [record] = run(ranks={0: "oom", 1: "hang"})
    assert (record.status, record.reason) == ("oom", "rank 0 (node 0) said: planted oom")


def test_time_limit_on_the_other_node(run: Run) -> None:
    [record] = run(ranks={1: "stubborn"})
    assert (record.status, record.reason) == ("timeout", "time limit of 4 s reached after 3 of 10 epochs")


def test_data_that_the_other_node_lacks(run: Run) -> None:
    [record] = run(dataset="cora", other=0)
    assert record.status == "skipped"
    assert record.reason is not None
    assert record.reason.startswith("node 1 said: ")
    assert record.reason.endswith("get it with: harness data get cora")


def test_other_data_on_the_other_node(run: Run) -> None:
    [record] = run(other=14)
    assert record.status == "error"
    assert record.reason is not None
    assert record.reason.startswith("node 1 prepared other data than node 0")


def test_shaped_networks_are_skipped() -> None:
    cluster = Cluster(2, "127.0.0.1", free_port())
    suite = load_suite(TESTS.parent / "suites" / "quickstart.yaml")
    head = Head(open_link(cluster), suite.name, OneMachine(suite.timeouts, nodes=2))
    trial = expand(suite, device="cpu")[0]
    assert head.why_not(trial) is None
    shaped = trial.model_copy(update={"network": NetworkSpec(rate="1gbit")})
    assert "one machine only" in (head.why_not(shaped) or "")
