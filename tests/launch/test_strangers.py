"""Strangers at the coordinator's port: nothing of what they say changes, runs, fills or stops anything."""

from __future__ import annotations

import os
import pickle
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from harness.errors import UserError
from harness.launch.rendezvous import MOST_STRANGERS, Cluster, Coordination, Hub, connect, wait_for
from harness.runtime import channel
from harness.runtime.channel import HELLO, NONCE_BYTES, VARIABLE, Refused

pytestmark = pytest.mark.timeout(90)
SECRET = "known to all tests, and to nobody else"  # as tests/conftest.py sets it


class Planted:
    """Makes a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch '{self.mark}'",)


class Target:
    """A coordinator with an order, and a node that follows it."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = int(probe.getsockname()[1])
        self.cluster = Cluster(2, "127.0.0.1", self.port)
        self.hub = Hub(self.cluster, "127.0.0.1")
        self.hub.order("call", "trial")
        self.node = Coordination(self.cluster, "127.0.0.1")

    def stranger(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def unharmed(self) -> None:
        """The node is there, another may join, and nothing but what they send is kept."""
        other = Coordination(self.cluster, "127.0.0.1")
        for node in (self.node, other):
            assert wait_for(lambda node=node: node.get("call"), 20) == "trial"
        assert wait_for(lambda: len(self.hub.peers) == 2 or None, 20)
        assert [peer.lost for peer in self.hub.peers] == [None, None]
        assert [peer._messages for peer in self.hub.peers] == [{}, {}]
        assert not self.hub._stores
        other.close()

    @property
    def resident(self) -> int:
        return psutil.Process().memory_info().rss


@pytest.fixture
def target() -> Iterator[Target]:
    target = Target()
    yield target
    target.node.close()
    target.hub.close()


def ended(stranger: socket.socket) -> bool:
    """Whether the store closes the connection, whatever it says before."""
    with suppress(ConnectionError):
        while stranger.recv(4096):
            pass
    return True


def test_the_planted_pickle_would_run(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Planted(tmp_path / "mark")))
    assert (tmp_path / "mark").exists()


def test_planted_messages(target: Target, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    planted = pickle.dumps(Planted(mark))
    torchs = b"\x00\x00\x00\x00\x03\x04\x00\x00\x00\x00\x00\x00\x00call" + len(planted).to_bytes(8, "little") + planted
    ours = b'["call", "planted"]'
    sealed = len(ours).to_bytes(4, "big") + ours + bytes(32)
    for message in (planted, torchs, sealed, bytes(NONCE_BYTES) + bytes(32) + sealed, HELLO + sealed):
        for at_once in (True, False):
            with target.stranger() as stranger:
                if not at_once:
                    assert stranger.recv(len(HELLO), socket.MSG_WAITALL) == HELLO
                stranger.sendall(message.ljust(68, b"\0"))
                assert ended(stranger)
    target.unharmed()
    assert not mark.exists()


def test_garbage(target: Target) -> None:
    random_ = random.Random(0)
    for _ in range(200):
        with target.stranger() as stranger, suppress(ConnectionError):
            stranger.sendall(random_.randbytes(random_.randrange(64, 4096)))
            assert ended(stranger)
    target.unharmed()


def test_huge_lengths_and_floods_take_no_memory(target: Target) -> None:
    before = target.resident
    for start in (b"\xff" * 12, b"\x7f\xff\xff\xff"):
        with target.stranger() as stranger:
            with suppress(ConnectionError):
                for _ in range(64):
                    stranger.sendall(start + bytes(1 << 20))
            assert ended(stranger)
    target.unharmed()
    assert target.resident - before < 32 << 20


def test_who_says_nothing_or_little_keeps_nobody_out(target: Target) -> None:
    """More slow strangers than there is room for: those who have waited longest go, nodes come in."""
    slow = [target.stranger() for _ in range(MOST_STRANGERS + 40)]
    for stranger in slow:
        with suppress(ConnectionError):
            stranger.sendall(b"a")
    target.unharmed()
    assert ended(slow[0])
    slow[-1].settimeout(0.2)
    with pytest.raises(TimeoutError):  # it has its time to say who it is
        ended(slow[-1])
    assert len(target.hub._strangers) <= MOST_STRANGERS
    for stranger in slow:
        stranger.close()


def test_nodes_get_through_a_flood(target: Target) -> None:
    """Whoever connects ends the oldest stranger, so that of many some end a node, too: it comes again."""
    over, strangers = threading.Event(), list[socket.socket]()

    def flood() -> None:
        while not over.is_set() and len(strangers) < 2000:
            with suppress(OSError):
                strangers.append(target.stranger())

    floods = [threading.Thread(target=flood) for _ in range(4)]
    for each in floods:
        each.start()
    try:
        nodes = [Coordination(target.cluster, "127.0.0.1") for _ in range(5)]
        assert len(nodes) == 5
    finally:
        over.set()
        for each in floods:
            each.join()
        for stranger in strangers:
            stranger.close()
    for node in nodes:
        node.close()


def test_a_coordinator_that_ends_every_connection_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "CROWDED_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def refuse() -> None:
            with suppress(OSError):
                while True:
                    listening.accept()[0].close()

        threading.Thread(target=refuse, daemon=True).start()
        cluster = Cluster(2, "127.0.0.1", int(listening.getsockname()[1]), coordinator=False)
        with pytest.raises(UserError, match=r"the coordinator has ended each connection for 30 s \(find out what else"):
            connect(cluster)
        listening.shutdown(socket.SHUT_RDWR)


def test_a_wrong_secret(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    for secret in (SECRET[:-1], SECRET + "x"):
        monkeypatch.setenv(VARIABLE, secret)
        with pytest.raises(Refused, match="has another secret than this node"):
            Coordination(target.cluster, "127.0.0.1")
    monkeypatch.setenv(VARIABLE, SECRET)
    target.unharmed()


def test_what_a_node_said_to_join_lets_nobody_else_in(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof is of this connection: heard on the wire, it is worth nothing on another."""
    monkeypatch.setattr(channel, "CROWDED_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as ear:

        def node() -> None:
            with pytest.raises(ConnectionError):
                Coordination(Cluster(2, "127.0.0.1", ear.getsockname()[1]), "127.0.0.1")

        thread = threading.Thread(target=node)
        thread.start()
        heard, _ = ear.accept()
        heard.sendall(HELLO + bytes(NONCE_BYTES))
        proof = heard.recv(68, socket.MSG_WAITALL)
        heard.close()
        thread.join(30)
    with target.stranger() as stranger:
        stranger.sendall(proof)
        assert ended(stranger)
    target.unharmed()
