"""Strangers at the port of the run's store: nothing of what they say changes, runs, fills or stops anything."""

from __future__ import annotations

import os
import pickle
import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from harness.launch.store_server import MOST_STRANGERS, start_store, stop_store
from harness.runtime.run_store import HELLO, NONCE_BYTES, Refused, StoreConnection, pack

pytestmark = pytest.mark.timeout(90)
SECRET = b"known to all tests, and to nobody else"  # as tests/conftest.py sets it


class Planted:
    """Makes a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch '{self.mark}'",)


class Target:
    """A store with a key, and the node that put it there."""

    def __init__(self) -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(listening.getsockname()[1])
        self.process = start_store(listening)
        self.node = StoreConnection("127.0.0.1", self.port, SECRET, 30)
        self.node.set("call", b"trial")

    def stranger(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def unharmed(self) -> None:
        """The node is answered, another may join, and nothing but what the node said is there."""
        assert self.process.poll() is None
        assert self.node.get("call") == b"trial"
        assert StoreConnection("127.0.0.1", self.port, SECRET, 30).count() == 1

    @property
    def resident(self) -> int:
        return psutil.Process(self.process.pid).memory_info().rss


@pytest.fixture
def target() -> Iterator[Target]:
    target = Target()
    yield target
    stop_store(target.process)


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
    ours = pack([b"S", b"call", planted])
    sealed = len(ours).to_bytes(4, "big") + ours + bytes(32)
    for message in (planted, torchs, sealed, bytes(NONCE_BYTES) + bytes(32) + sealed, HELLO + sealed):
        for at_once in (True, False):
            with target.stranger() as stranger:
                if not at_once:
                    assert stranger.recv(len(HELLO), socket.MSG_WAITALL) == HELLO
                stranger.sendall(message.ljust(64, b"\0"))
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
    started = len(psutil.Process(target.process.pid).net_connections())
    assert started <= MOST_STRANGERS + 4
    for stranger in slow:
        stranger.close()


def test_a_wrong_secret(target: Target) -> None:
    for secret in (b"", SECRET[:-1], SECRET + b"x"):
        with pytest.raises(Refused, match="does not take this node's secret"):
            StoreConnection("127.0.0.1", target.port, secret, 30)
    target.unharmed()


def test_what_a_node_said_to_join_lets_nobody_else_in(target: Target) -> None:
    """The proof is of this connection: heard on the wire, it is worth nothing on another."""
    with socket.create_server(("127.0.0.1", 0)) as ear:

        def node() -> None:
            with pytest.raises((Refused, OSError)):
                StoreConnection("127.0.0.1", ear.getsockname()[1], SECRET, 30)

        thread = threading.Thread(target=node)
        thread.start()
        heard, _ = ear.accept()
        heard.sendall(HELLO + bytes(NONCE_BYTES))
        proof = heard.recv(64, socket.MSG_WAITALL)
        heard.close()
        thread.join(30)
    with target.stranger() as stranger:
        stranger.sendall(proof)
        assert ended(stranger)
    target.unharmed()


def test_it_ends_with_who_started_it(target: Target) -> None:
    assert target.process.stdin is not None
    target.process.stdin.close()
    assert target.process.wait(30) == 0
    deadline = time.monotonic() + 30
    while True:
        try:
            target.stranger().close()
        except ConnectionRefusedError:
            break
        assert time.monotonic() < deadline
