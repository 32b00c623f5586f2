"""How nodes meet: the coordinator and a worker node on the loopback, their addresses, and who is lost."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from harness.errors import UserError
from harness.launch import rendezvous
from harness.launch.process import loopback
from harness.launch.rendezvous import (
    Cluster,
    Coordination,
    CoordinatorLost,
    Hub,
    Peer,
    address_towards,
    connect,
    interface_of,
    is_here,
    own_address,
    wait_for,
)
from harness.runtime import channel
from harness.runtime.channel import VARIABLE

pytestmark = pytest.mark.timeout(60)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(2, "127.0.0.1", free_port(), rdzv_timeout_s=2, node_timeout_s=5)


@pytest.fixture
def ends(cluster: Cluster) -> Iterator[tuple[Hub, Coordination]]:
    hub, worker = connect(cluster), connect(cluster)  # the first to listen is the coordinator
    assert isinstance(hub, Hub)
    assert isinstance(worker, Coordination)
    yield hub, worker
    worker.close()
    hub.close()


def peer_of(hub: Hub, number: int = 0) -> Peer:
    return wait_for(lambda: hub.peers[number] if len(hub.peers) > number else None, 20) or hub.peers[number]


def test_messages(ends: tuple[Hub, Coordination]) -> None:
    hub, worker = ends
    peer = peer_of(hub)
    large = os.urandom(6 << 20).hex()
    for value in ({"a": [1, None, float("inf")], "b": "é"}, large, ""):
        worker.send("said", value)
        worker.send("sent", True)
        assert wait_for(lambda: peer.take("sent"), 20)
        assert peer.get("said") == value
        assert peer.take("said") == value
        assert peer.get("said") is None


def test_orders_reach_who_is_there_and_who_comes_later(ends: tuple[Hub, Coordination]) -> None:
    hub, worker = ends
    peer_of(hub)
    hub.order("call", {"run": "x"})
    assert wait_for(lambda: worker.get("call"), 20) == {"run": "x"}
    later = connect(hub.cluster)
    assert isinstance(later, Coordination)
    assert wait_for(lambda: later.get("call"), 20) == {"run": "x"}
    later.close()


def test_a_message_that_is_too_large(ends: tuple[Hub, Coordination], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "MOST_BYTES", 100)
    with pytest.raises(ValueError, match="MiB"):
        ends[1].send("said", "x" * 200)
    ends[1].send("sent", True)
    assert wait_for(lambda: peer_of(ends[0]).get("sent"), 20)


def test_a_coordinator_that_ends_without_a_word_is_lost(ends: tuple[Hub, Coordination]) -> None:
    hub, worker = ends
    peer_of(hub).close()
    wait_for(lambda: worker.lost, 20)
    with pytest.raises(CoordinatorLost, match=r"the coordinator at 127\.0\.0\.1:\d+ does not answer any more"):
        worker.get("call")


def test_a_run_that_is_over_is_not_lost(ends: tuple[Hub, Coordination]) -> None:
    hub, worker = ends
    peer = peer_of(hub)
    hub.order("call", {"over": 0})
    assert wait_for(lambda: worker.get("call"), 20) == {"over": 0}
    peer.close()
    wait_for(lambda: worker.lost, 20)
    assert worker.get("call") == {"over": 0}


NODE = """
import sys, time
from harness.launch.rendezvous import Cluster, Coordination
Coordination(Cluster(2, "127.0.0.1", int(sys.argv[1])), "127.0.0.1")
time.sleep(60)
"""


@pytest.mark.slow
def test_a_runner_that_is_killed_is_lost_at_once_and_one_that_is_stopped_is_not(ends: tuple[Hub, Coordination]) -> None:
    """The kernel answers for a process that a debugger holds, or that holds its interpreter."""
    hub = ends[0]
    process = subprocess.Popen([sys.executable, "-P", "-c", NODE, str(hub.cluster.port)])
    peer = peer_of(hub, 1)
    process.send_signal(signal.SIGSTOP)
    assert wait_for(lambda: peer.lost, hub.cluster.node_timeout_s + 2) is None
    process.kill()
    assert wait_for(lambda: peer.lost, 10) == "ended"
    process.wait()


def test_a_machine_that_vanishes_is_silent(ends: tuple[Hub, Coordination]) -> None:
    """What the kernel says where nothing has come for --node-timeout; tests/e2e/test_nodes.py cuts a real cable."""
    peer = peer_of(ends[0])

    class Cut:
        def receive(self) -> object:
            raise TimeoutError

        def close(self) -> None: ...

    cut = Peer(Cut())  # type: ignore[arg-type]
    cut.listen()
    assert (cut.lost, peer.lost) == ("silent", None)
    keeps = ends[0]._listening
    assert keeps.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert keeps.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 5000


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


def test_the_coordinator_is_not_reached_at_another_address(ends: tuple[Hub, Coordination]) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", ends[0].cluster.port), timeout=5)


def test_a_second_node_of_the_machine_finds_it(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine's name is the loopback to itself, and the coordinator does not listen there."""
    monkeypatch.setattr(rendezvous, "is_here", lambda host: True)
    monkeypatch.setattr(rendezvous, "own_address", lambda host: "127.0.0.2")
    first = connect(replace(cluster, coordinator=True))
    assert isinstance(first, Hub)
    try:
        second = connect(replace(cluster, coordinator=False))
        assert isinstance(second, Coordination)
        second.send("x", 1)
        assert wait_for(lambda: peer_of(first).get("x"), 20) == 1
        second.close()
    finally:
        first.close()


def test_a_node_with_another_secret(
    cluster: Cluster, ends: tuple[Hub, Coordination], monkeypatch: pytest.MonkeyPatch
) -> None:
    peer_of(ends[0])
    monkeypatch.setenv(VARIABLE, "another secret, just as long")
    with pytest.raises(UserError, match=r"has another secret than this node \(the same HARNESS_SECRET on every node"):
        connect(cluster)
    assert len(ends[0].peers) == 1


@pytest.mark.parametrize("proves", [False, True])
def test_who_answers_without_the_secret(cluster: Cluster, proves: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger was faster at the port, which others know under Slurm: a node tells it nothing."""
    monkeypatch.setattr(channel, "HANDSHAKE_S", 1.0)
    heard = bytearray()
    with socket.create_server(("127.0.0.1", cluster.port)) as listening:

        def answer() -> None:
            listening.accept()[0].close()  # the node looks first whether anybody answers
            connection, _ = listening.accept()
            connection.sendall(channel.HELLO + bytes(32))
            heard.extend(connection.recv(68, socket.MSG_WAITALL))
            if proves:
                connection.sendall(bytes(36))
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(UserError, match="has another secret than this node" if proves else "is not `harness run`"):
            connect(replace(cluster, coordinator=False))
        thread.join(20)
    assert len(heard) == 68  # its random number, and a proof for this connection
    assert b"127.0.0.1" not in heard


def test_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert interface_of(address_towards("127.0.0.1", 1)) == loopback()
    with pytest.raises(UserError, match="no interface has the address"):
        interface_of("192.0.2.1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    assert interface_of("127.0.0.1") == "ib0"
