"""The store between nodes, a real one on the loopback, and a node's heartbeat."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import psutil
import pytest

from harness.errors import UserError
from harness.launch import messages, rendezvous
from harness.launch.heartbeat import beat_key, gone_key, heartbeat
from harness.launch.process import loopback
from harness.launch.rendezvous import (
    Cluster,
    CoordinatorLost,
    StoreClient,
    address_towards,
    connect,
    interface_of,
    is_here,
    own_address,
)
from harness.launch.store_server import start_store
from harness.runtime.run_store import VARIABLE

pytestmark = pytest.mark.timeout(60)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(2, "127.0.0.1", free_port(), rdzv_timeout_s=2, node_timeout_s=5)


@pytest.fixture
def clients(cluster: Cluster) -> Iterator[tuple[StoreClient, StoreClient]]:
    coordinator, worker = connect(cluster), connect(cluster)
    yield coordinator, worker
    coordinator.close()


class Started:
    """Starts stores and remembers the last."""

    def __call__(self, listening: socket.socket) -> subprocess.Popen[bytes]:
        self.process = start_store(listening)
        return self.process


def test_the_first_to_listen_is_the_coordinator(clients: tuple[StoreClient, StoreClient]) -> None:
    assert [client.coordinator for client in clients] == [True, False]


def test_messages(clients: tuple[StoreClient, StoreClient], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those above the store's limit of 8 MiB, which it answers by ending the connection."""
    coordinator, worker = clients
    assert coordinator.get("nothing") is None
    large = random.Random(0).randbytes(6 << 20).hex()  # compresses to half: 6 MiB
    monkeypatch.setattr(rendezvous, "CHUNK", 1 << 20)
    for value in ({"a": [1, None, float("inf")], "b": "é"}, large, ""):
        worker.put("said", value)
        assert coordinator.get("said") == value
        assert coordinator.take("said") == value
        assert coordinator.get("said") is None
    assert not any(coordinator.has(f"said#{number}") for number in range(8))


def test_a_message_that_is_too_large(clients: tuple[StoreClient, StoreClient], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "LARGEST", 100)
    with pytest.raises(ValueError, match="MiB"):
        clients[1].put("said", random.Random(0).randbytes(200).hex())
    assert clients[0].get("said") is None


def test_no_answer_is_a_lost_coordinator(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for ever for a store that says nothing more, as where packets vanish."""
    monkeypatch.setattr(rendezvous, "start_store", started := Started())
    coordinator = connect(cluster)
    client = connect(replace(cluster, node_timeout_s=0.3))
    assert not client.has("x")
    started.process.send_signal(signal.SIGSTOP)
    try:
        start = time.monotonic()
        for _ in range(2):
            with pytest.raises(CoordinatorLost, match=r"the coordinator at 127\.0\.0\.1:\d+ does not answer any more"):
                client.has("x")
        assert time.monotonic() - start < 5
    finally:
        started.process.send_signal(signal.SIGCONT)
        coordinator.close()


def test_no_coordinator() -> None:
    cluster = Cluster(2, "127.0.0.1", free_port(), coordinator=False, rdzv_timeout_s=0.5)
    with pytest.raises(UserError, match=r"no coordinator at 127\.0\.0\.1:\d+ within 0\.5 s"):
        connect(cluster)


def test_a_port_that_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        cluster = Cluster(2, "127.0.0.1", taken.getsockname()[1], coordinator=True)
        with pytest.raises(UserError, match="cannot listen at port"):
            connect(cluster)


def test_who_is_here() -> None:
    assert is_here("127.0.0.1")
    assert is_here("localhost")
    assert is_here(socket.gethostname())
    assert not is_here("192.0.2.1")  # RFC 5737: nobody's
    assert not is_here("no-such-host.invalid")


def test_it_listens_at_one_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at all of the machine's: the loopback only if that was named, else the interface towards the others."""
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert own_address("localhost") == own_address("127.0.0.1") == "127.0.0.1"
    monkeypatch.setattr(rendezvous, "addresses_of", lambda host: iter(["127.0.1.1", "10.0.0.7"]))
    assert own_address("node1") == "10.0.0.7"
    monkeypatch.setattr(rendezvous, "addresses_of", lambda host: iter(["127.0.1.1"]))  # as Debian's /etc/hosts has it
    monkeypatch.setattr(rendezvous, "address_towards", lambda host, port: "10.0.0.8")
    assert own_address("node1") == "10.0.0.8"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", loopback())
    assert own_address("node1") == "127.0.0.1"


def test_the_store_is_not_reached_at_another_address(clients: tuple[StoreClient, StoreClient]) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", clients[0].cluster.port), timeout=5)


def test_a_second_node_of_the_machine_finds_it(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine's name is the loopback to itself, and the store does not listen there."""
    monkeypatch.setattr(rendezvous, "is_here", lambda host: True)
    monkeypatch.setattr(rendezvous, "own_address", lambda host: "127.0.0.2")
    first = connect(replace(cluster, coordinator=True))
    try:
        second = connect(replace(cluster, coordinator=False))
        second.put("x", 1)
        second.close()
        assert first.get("x") == 1
    finally:
        first.close()


def test_a_node_with_another_secret(
    cluster: Cluster, clients: tuple[StoreClient, StoreClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "another secret, just as long")
    with pytest.raises(UserError, match=r"does not take this node's secret \(the same HARNESS_SECRET on every node"):
        connect(cluster)
    assert not clients[1].has("x")


def test_who_answers_without_the_secret(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody was faster at the port, which others know under Slurm: a node tells it nothing."""
    with socket.create_server(("127.0.0.1", cluster.port)) as listening:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "harness.launch.store_server", str(listening.fileno())],
            env=os.environ | {VARIABLE: "what somebody else guessed"},
            stdin=subprocess.PIPE,
            pass_fds=(listening.fileno(),),
        )
    try:
        with pytest.raises(UserError, match="secret"):
            connect(cluster)
    finally:
        process.kill()
        process.communicate()


def test_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert interface_of(address_towards("127.0.0.1", 1)) == loopback()
    with pytest.raises(UserError, match="no interface has the address"):
        interface_of("192.0.2.1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    assert interface_of("127.0.0.1") == "ib0"


def test_heartbeat(clients: tuple[StoreClient, StoreClient]) -> None:
    coordinator = clients[0]
    before = set(psutil.Process(os.getpid()).children())
    with heartbeat("127.0.0.1", coordinator.cluster.port, "me", 0.1):
        [process] = set(psutil.Process(os.getpid()).children()) - before
        deadline = time.monotonic() + 30
        while int(coordinator.text(beat_key("me")) or 0) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert not coordinator.has(gone_key("me"))
    assert coordinator.has(gone_key("me"))
    assert not process.is_running()
