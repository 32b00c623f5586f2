"""Several machines: two runners, in network namespaces joined by a cable, or on the loopback without root."""

from __future__ import annotations

import itertools
import os
import pickle
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from e2e.cli import CommandLine, records, trains, wait_until

import harness
from harness.launch.network import Command, namespaces

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

SUITE = """\
name: cluster
datasets: [digits]
model: {layers: 2, hidden: 8}
train: {epochs: EPOCHS, eval_every: 0, threads: 1}
partition: {parts: PARTS}
methods: ['METHOD']
seeds: SEEDS
device: cpu
timing: 'off'
timeouts: {trial_s: 100, collective_s: 60}
"""


def suite(parts: str = "2", method: str = "full", epochs: int = 4, seeds: str = "[0]") -> str:
    text = SUITE.replace("PARTS", parts).replace("METHOD", method)
    return text.replace("EPOCHS", str(epochs)).replace("SEEDS", seeds)


@dataclass
class Machines:
    """Two places for a node to run at, each with a directory and a cache of its own."""

    host: str
    port: int
    nodes: list[CommandLine]
    cut: Callable[[], None] = lambda: None
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def write(self, text: str, node: int | None = None) -> None:
        for command in self.nodes if node is None else [self.nodes[node]]:
            (command.directory / "cluster.yaml").write_text(text)

    def start(self, node: int, *, rdzv_s: float = 60, node_s: float = 20) -> subprocess.Popen[str]:
        meet = ["--nnodes", "2", "--rdzv", f"{self.host}:{self.port}"]
        waits = ["--rdzv-timeout", str(rdzv_s), "--node-timeout", str(node_s)]
        process = self.nodes[node].start("run", "cluster.yaml", *meet, *waits)
        self.started.append(process)
        return process

    def start_both(self, **waits: float) -> tuple[subprocess.Popen[str], subprocess.Popen[str]]:
        """On one machine the first to listen is the coordinator: the other starts when it does."""
        coordinator = self.start(0, **waits)
        if not self.nodes[0].prefix:
            wait_until(lambda: listens(self.port), coordinator)
        return coordinator, self.start(1, **waits)

    @property
    def home(self) -> Path:
        return self.nodes[0].directory / "results" / "cluster"

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def commands(directory: Path, prepared: Path | None = None) -> list[CommandLine]:
    """A runner each, with directory and cache of its own: a copy of `prepared`."""
    nodes = []
    for name in ("coordinator", "worker"):
        home = directory / name
        home.mkdir()
        if prepared is not None:
            shutil.copytree(prepared, home / "cache")
        variables = {"LEDGER": os.devnull, "TMPDIR": str(home)}  # a killed runner leaves its ranks' files
        nodes.append(CommandLine(home, home / "cache", variables))
    return nodes


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Machines]:
    """Two runners that have nothing of the data yet."""
    machines = Machines("127.0.0.1", free_port(), commands(tmp_path))
    yield machines
    machines.close()


@pytest.fixture
def loopback(tmp_path: Path, prepared: Path) -> Iterator[Machines]:
    """Two runners on this machine."""
    machines = Machines("127.0.0.1", free_port(), commands(tmp_path, prepared))
    yield machines
    machines.close()


@pytest.fixture
def cabled(tmp_path: Path, prepared: Path) -> Iterator[Machines]:
    """Two network namespaces, 10.99.0.1 and 10.99.0.2."""
    if os.geteuid() != 0:
        pytest.skip("nsenter needs root")
    up = [
        Command(node, "ip", [f"addr add 10.99.0.{node + 1}/24 dev eth0", "link set eth0 up", "link set lo up"])
        for node in range(2)
    ]
    with ExitStack() as stack:
        cable = Command(0, "ip", ["link add eth0 type veth peer name eth0 netns {1}"])
        found = stack.enter_context(namespaces(2, [cable, *up]))
        inside = [("nsenter", f"--net=/proc/{os.getpid()}/fd/{namespace}") for namespace in found]
        nodes = [
            replace(command, prefix=prefix)
            for command, prefix in zip(commands(tmp_path, prepared), inside, strict=True)
        ]
        unplug = [*inside[1], "ip", "link", "set", "eth0", "down"]
        machines = Machines("10.99.0.1", 29400, nodes, lambda: subprocess.run(unplug, check=True))
        stack.callback(machines.close)
        yield machines


class Planted:
    """Makes a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch '{self.mark}'",)


@contextmanager
def strangers(port: int, mark: Path) -> Iterator[list[int]]:
    """Say all kinds of things to a port, again and again, and keep some connections; yields how often."""
    planted = pickle.dumps(Planted(mark))
    words = [planted, planted.ljust(64, b"\0"), b"\xff" * 100, b"a", b"GET / HTTP/1.1\r\n\r\n", bytes(1 << 20)]
    over, came, kept = threading.Event(), [0], deque[socket.socket](maxlen=30)

    def come() -> None:
        for word in itertools.cycle(words):
            if over.wait(0.05):
                return
            try:
                kept.append(stranger := socket.create_connection(("127.0.0.1", port), timeout=5))
                stranger.sendall(word)
                came[0] += 1
            except OSError:
                pass

    thread = threading.Thread(target=come)
    thread.start()
    try:
        yield came
    finally:
        over.set()
        thread.join(30)


def ended(process: subprocess.Popen[str], timeout_s: float = 60) -> tuple[int, str]:
    out, err = process.communicate(timeout=timeout_s)
    return process.returncode, out + err


def by_seed(home: Path) -> dict[int, dict[str, Any]]:
    return {record["config"]["seed"]: record for record in records(home).values()}


def descendants(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of 2 and of 4 ranks on one machine."""
    folder = tmp_path_factory.mktemp("alone")
    command = CommandLine(folder, folder / "cache")
    (command.directory / "cluster.yaml").write_text(suite("[2, 4]"))
    assert command.run("run", "cluster.yaml").returncode == 0
    return command.directory / "results"


@pytest.fixture(scope="module")
def prepared(alone: Path) -> Path:
    """A cache that has the graph in 2 and in 4 parts."""
    return alone.with_name("cache")


def check_like(alone: Path, machines: Machines, shares: dict[int, list[list[int]]]) -> None:
    """Run trials on both nodes: everything that training decides is as on one machine."""
    machines.write(suite(f"{[*shares]}"))
    coordinator, worker = machines.start_both()
    code, said = ended(coordinator)
    assert code == 0, said
    assert ended(worker)[0] == 0
    assert not (machines.nodes[1].directory / "results").exists()
    expected, found = records(alone / "cluster"), records(machines.home)
    assert len(found) == len(shares)
    for trial, record in found.items():
        ranks = record["config"]["partition"]["parts"]
        for key in ("final_loss", "checksum", "final_test", "best_val", "bytes_embedding"):
            assert record["result"][key] == expected[trial]["result"][key], key
        assert [rank["rank"] for rank in record["ranks"]] == [*range(ranks)]
        assert [node["ranks"] for node in record["environment"]["nodes"]] == shares[ranks]
        log = (machines.home / trial / "log.txt").read_text()
        assert [f"==== rank {rank} ====" in log for rank in range(ranks)] == [True] * ranks
    losses = [
        harness.load_epochs(results).set_index(["trial", "epoch", "rank"])["loss"]
        for results in (alone, machines.home.parent)
    ]
    assert len(losses[1]) == 4 * sum(shares)
    assert losses[0][losses[1].index].equals(losses[1])


def test_two_runners_on_one_machine(alone: Path, bare: Machines) -> None:
    check_like(alone, bare, {2: [[0], [1]]})
    again = bare.start_both()
    assert [ended(process)[0] for process in again] == [0, 0]  # nothing is left to run; the node is told


def test_strangers_at_the_port_change_nothing(alone: Path, loopback: Machines, tmp_path: Path) -> None:
    """They come before the worker node and stay until the run is over; it trains the same bits as without them."""
    mark = tmp_path / "mark"
    with strangers(loopback.port, mark) as came:
        check_like(alone, loopback, {2: [[0], [1]]})
    assert came[0] > 20
    assert not mark.exists()


def test_machines_that_have_their_own_ranks_features_alone(tmp_path: Path) -> None:
    """Shards: the same bits as with the whole graph; a rank on another's machine, or another partition, is an error."""
    methods = "[full, {full: {storage: disk}}, {bns-gcn: {rate: 0.5}}, graphsage, {graphsage: {storage: disk}}, dgs]"
    text = suite().replace("['full']", methods)
    whole = CommandLine(tmp_path / "whole", tmp_path / "cache")
    whole.directory.mkdir()
    (whole.directory / "cluster.yaml").write_text(text)
    assert whole.run("run", "cluster.yaml").returncode == 0
    made = whole.run("data", "shard", "cluster.yaml", "--nnodes", "2", "--out", "shards")
    assert made.stdout.split() == ["shards/node0", "shards/node1"]
    shards = [tmp_path / name for name in ("at0", "at1")]
    for node, place in enumerate(shards):
        shutil.copytree(whole.directory / f"shards/node{node}", place)
        assert not [*place.rglob("features.npy")]
        assert {path.name for path in place.rglob("rank*")} == {f"rank{node}", f"rank{node}.npy"}
    (tmp_path / "nodes").mkdir()
    nodes = [replace(each, cache=shards[i]) for i, each in enumerate(commands(tmp_path / "nodes"))]
    machines = Machines("127.0.0.1", free_port(), nodes)
    machines.write(text)
    try:
        assert [ended(process)[0] for process in machines.start_both()] == [0, 0]
    finally:
        machines.close()
    expected, found = records(whole.directory / "results/cluster"), records(machines.home)
    assert len(found) == 6
    for trial, record in found.items():
        for key in ("final_loss", "checksum", "final_test", "bytes_feature", "bytes_embedding"):
            assert record["result"].get(key) == expected[trial]["result"].get(key), (record["label"], key)
    assert not [*tmp_path.glob("at*/**/features.npy")]
    alone = replace(nodes[1], directory=whole.directory)
    wrong = alone.run("run", "cluster.yaml", "--results", "wrong", "--only", "method=full")
    assert "this shard has those of [1]" in wrong.stdout + wrong.stderr
    other = alone.run("run", "cluster.yaml", "--results", "other", "--set", "partition.method=random")
    assert "harness data shard" in other.stdout + other.stderr
    again = whole.run("data", "shard", "cluster.yaml", "--nnodes", "2", "--out", "shards")
    assert (again.returncode, "is not empty" in again.stderr) == (2, True)


@pytest.mark.root
def test_two_machines(alone: Path, cabled: Machines) -> None:
    check_like(alone, cabled, {2: [[0], [1]], 4: [[0, 1], [2, 3]]})


@pytest.mark.root
def test_a_node_that_is_killed_comes_back_and_is_cut_off(cabled: Machines) -> None:
    """The first is known at once; the second nobody tells, both sides notice it after their time limit."""
    cabled.write(suite(method="own.methods:Slow", epochs=200, seeds="[0, 1]"))
    coordinator, worker = cabled.start_both(node_s=6)
    wait_until(lambda: trains(cabled.home), coordinator)
    ranks = [p for p in descendants(worker) if "harness.runtime.rank" in p.cmdline()]
    worker.kill()
    assert len(ranks) == 2  # the rank, and what forked it
    assert psutil.wait_procs(ranks, timeout=10)[1] == []
    wait_until(lambda: len(records(cabled.home)) == 1, coordinator)
    again = cabled.start(1, node_s=6)
    wait_until(lambda: trains(cabled.home), coordinator)
    processes = descendants(again)
    asked = time.monotonic()
    cabled.cut()
    code, said = ended(again)
    assert (code, time.monotonic() - asked < 30) == (1, True)
    assert "the coordinator at 10.99.0.1:29400 does not answer any more; this node ends" in said
    assert "Traceback" not in said
    assert psutil.wait_procs(processes, timeout=10)[1] == []
    assert ended(coordinator)[0] == 1
    found = by_seed(cabled.home)
    assert {seed: (record["status"], record["reason"]) for seed, record in found.items()} == {
        0: ("error", "node 1 was lost: its runner ended or was killed"),
        1: ("error", "node 1 was lost: no heartbeat for 6 s (--node-timeout)"),
    }


def test_a_trial_goes_on_when_a_lost_node_comes_back(loopback: Machines, tmp_path: Path) -> None:
    text = suite(method="own.methods:Holding", epochs=40).replace("threads: 1", "threads: 1, checkpoint: 5 epochs")
    loopback.write(text + "retries: 1\n")
    for node in loopback.nodes:
        node.variables["HOLD"] = "22"
    coordinator, worker = loopback.start_both()
    wait_until(lambda: len(list(loopback.home.glob(".checkpoints/*/*/rank?-00000020-*"))) == 2, coordinator)
    worker.kill()
    again = loopback.start(1)
    code, said = ended(coordinator)
    assert code == 0, said
    assert ended(again)[0] == 0
    assert "node 1 was lost: its runner ended or was killed; started again, 1 of 1 times at most (`retries`)" in said
    (record,) = records(loopback.home).values()
    assert [flag for flag in record["flags"] if "resumed" in flag] == [
        "resumed: went on from a checkpoint after 20 epochs (ranks [0, 1])"
    ]
    alone = CommandLine(tmp_path, loopback.nodes[0].cache)
    (tmp_path / "cluster.yaml").write_text(text)
    assert alone.run("run", "cluster.yaml").returncode == 0
    (uncut,) = records(tmp_path / "results" / "cluster").values()
    for key in ("final_loss", "checksum", "final_test", "bytes_embedding", "bytes_control"):
        assert record["result"][key] == uncut["result"][key], key


def test_a_node_with_another_suite_is_refused_and_the_coordinator_waits_no_longer_than_told(loopback: Machines) -> None:
    loopback.write(suite())
    loopback.write(suite(epochs=5), node=1)
    coordinator, worker = loopback.start_both(rdzv_s=12)
    code, said = ended(worker)
    assert code == 2
    assert "error: trials: 1 trials here, 1 on the coordinator, 0 alike; only here: digits" in said
    assert ended(coordinator)[0] == 1
    record = by_seed(loopback.home)[0]
    assert record["status"] == "timeout"
    assert "came within 12 s (--rdzv-timeout); one was refused: trials: 1 trials here" in record["reason"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_job_that_loses_its_nodes_one_by_one_has_no_record(loopback: Machines, number: signal.Signals) -> None:
    """As when it is cancelled or requeued: the trial is run again."""
    loopback.write(suite(method="own.methods:Slow", epochs=200))
    coordinator, worker = loopback.start_both()
    wait_until(lambda: trains(loopback.home), coordinator)
    worker.send_signal(number)
    ended(worker)
    time.sleep(2)
    coordinator.send_signal(number)
    assert ended(coordinator)[0] != 0
    assert records(loopback.home) == {}


def test_ctrl_c_on_a_node_ends_its_trial_and_on_the_coordinator_the_run(loopback: Machines) -> None:
    loopback.write(suite(method="own.methods:Slow", epochs=200, seeds="[0, 1, 2]"))
    coordinator, worker = loopback.start_both()
    wait_until(lambda: trains(loopback.home), coordinator)
    worker.send_signal(signal.SIGINT)
    code, said = ended(worker)
    assert code == 130, said
    wait_until(lambda: len(records(loopback.home)) == 1, coordinator)
    again = loopback.start(1)
    wait_until(lambda: trains(loopback.home), coordinator)
    processes = [*descendants(again), *descendants(coordinator)]
    coordinator.send_signal(signal.SIGINT)
    code, said = ended(coordinator)
    assert code == 130
    assert "interrupted: finished trials are kept" in said
    code, said = ended(again)
    assert code == 130
    assert "Traceback" not in said
    assert psutil.wait_procs(processes, timeout=10)[1] == []
    found = by_seed(loopback.home)
    assert {seed: record["status"] for seed, record in found.items()} == {0: "error"}
    assert found[0]["reason"] == "node 1 was interrupted by its user"
