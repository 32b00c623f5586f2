"""The store between nodes, a real one on the loopback, and a node's heartbeat."""

from __future__ import annotations

import os
import random
import socket
import time

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
)

pytestmark = pytest.mark.timeout(60)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(2, "127.0.0.1", free_port(), rdzv_timeout_s=2, node_timeout_s=5)


@pytest.fixture
def clients(cluster: Cluster) -> tuple[StoreClient, StoreClient]:
    return connect(cluster), connect(cluster)


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


def test_no_answer_is_a_lost_coordinator(cluster: Cluster) -> None:
    """Not an operation that waits for ever, as the store's do when packets vanish."""

    class Mute:
        def check(self, keys: list[str]) -> bool:
            time.sleep(60)
            return True

    client = StoreClient(Mute(), Cluster(2, "10.0.0.1", 1, node_timeout_s=0.3), coordinator=False)
    start = time.monotonic()
    for _ in range(2):
        with pytest.raises(CoordinatorLost, match=r"the coordinator at 10\.0\.0\.1:1 does not answer"):
            client.has("x")
    assert time.monotonic() - start < 5


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
