"""Channels: secrets, and messages that somebody between the two ends changes."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from harness.errors import UserError
from harness.runtime import channel
from harness.runtime.channel import (
    FILE_VARIABLE,
    MOST_BYTES,
    VARIABLE,
    Channel,
    Refused,
    answer,
    connect_channel,
    run_secret,
    write_secret,
)

pytestmark = pytest.mark.timeout(60)
SECRET = b"known to all tests, and to nobody else"  # as tests/conftest.py sets it


class Listening:
    """A coordinator that says back what it hears, and keeps it."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port, self.heard = int(self._listening.getsockname()[1]), list[Any]()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=self._listening.accept()[:1], daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            end = Channel(connection, SECRET, coordinator=True)
            while True:
                self.heard.append(message := end.receive())
                end.send(message)

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


@pytest.fixture
def coordinator() -> Iterator[Listening]:
    coordinator = Listening()
    yield coordinator
    coordinator.close()


def test_messages_arrive(coordinator: Listening) -> None:
    node = connect_channel("127.0.0.1", coordinator.port, 20)
    large = os.urandom(8 << 20).hex()
    for message in ({"a": [1, None, "é"]}, [], "", 0, None, large):
        node.send(message)
        assert node.receive() == message
    node.close()
    assert len(coordinator.heard) == 6


def test_a_length_is_refused_before_anything_is_read() -> None:
    near, far = socket.socketpair()
    with near, far:
        end = Channel.__new__(Channel)
        end._socket, end._in, end._received, end._deadline = near, b"key", 0, None
        far.sendall((MOST_BYTES + 1).to_bytes(4, "big"))
        with pytest.raises(Refused, match="a message of"):
            end.receive()


def test_what_a_store_of_ranks_is_asked() -> None:
    values: dict[str, str] = {}
    assert answer(values, ["get", "a", None]) is None
    assert answer(values, ["set", "a", "x"]) is None
    assert answer(values, ["get", "a", None]) == "x"
    assert [answer(values, ["add", "n", more]) for more in (2, -5, 0)] == ["2", "-3", "-3"]
    assert [answer(values, ["delete", "a", None]) for _ in range(2)] == ["x", None]
    answer(values, ["set", "text", "no number"])
    for request in (
        [],
        ["?", "a", None],
        ["set", "a"],
        ["add", "text", 1],
        ["add", "n", "x"],
        ["set", 1, "x"],
        {},
        None,
    ):
        with pytest.raises(Refused):
            answer(values, request)


class Between:
    """Somebody on the way from a node to the coordinator, who changes what the node says."""

    def __init__(self, port: int, change: Callable[[list[bytes]], list[bytes]]) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port, self._store, self._change = int(self._listening.getsockname()[1]), port, change
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        near, _ = self._listening.accept()
        far = socket.create_connection(("127.0.0.1", self._store))
        threading.Thread(target=self._pump, args=(far, near), daemon=True).start()
        greeting = b""
        while len(greeting) < 68:
            greeting += near.recv(68 - len(greeting))
        far.sendall(greeting)
        for message in self._change([near.recv(1 << 16)]):
            far.sendall(message)
        self._pump(near, far)

    @staticmethod
    def _pump(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    "change",
    [
        lambda said: [said[0][:-40] + bytes([said[0][-40] ^ 1]) + said[0][-39:]],  # the value
        lambda said: [b"\xff\xff\xff\xff" + said[0][4:]],  # the length
        lambda said: [said[0][:-1] + bytes([said[0][-1] ^ 1])],  # the code
    ],
)
def test_somebody_between_can_only_break_the_connection(
    coordinator: Listening, change: Callable[[list[bytes]], list[bytes]]
) -> None:
    watched = connect_channel("127.0.0.1", Between(coordinator.port, change).port, 20)
    watched.send("a message of eight bytes or more")
    with pytest.raises(ConnectionError):
        watched.receive()
    assert coordinator.heard == []


def test_what_is_said_again_is_not_done_again(coordinator: Listening) -> None:
    watched = connect_channel("127.0.0.1", Between(coordinator.port, lambda said: said * 2).port, 20)
    watched.send("once")
    assert watched.receive() == "once"
    with pytest.raises(ConnectionError):
        watched.receive()
    assert coordinator.heard == ["once"]


def test_a_secret_of_the_users_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    made = run_secret()
    file = tmp_path / "config" / "harness" / "secret"
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert len(made) == 64
    assert run_secret() == made == file.read_text().strip().encode()
    assert [*file.parent.iterdir()] == [file]
    with pytest.raises(FileExistsError):
        write_secret(file)
    assert run_secret() == made
    file.chmod(0o640)
    with pytest.raises(UserError, match=r"others can read or change the secret of the run \(chmod 600"):
        run_secret()


def test_a_secret_that_is_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLE, "short")
    with pytest.raises(UserError, match="HARNESS_SECRET: 5 characters, a secret has 16 to 4096"):
        run_secret()
    monkeypatch.delenv(VARIABLE)
    file = tmp_path / "secret"
    monkeypatch.setenv(FILE_VARIABLE, str(file))
    with pytest.raises(UserError, match="no secret of the run: No such file"):
        run_secret()
    file.write_text("  the secret of the run\n")
    file.chmod(0o600)
    assert run_secret() == b"the secret of the run"
    file.write_bytes(b"\xff" * 20)
    with pytest.raises(UserError, match="not a text"):
        run_secret()
    file.unlink()
    os.mkfifo(file, 0o600)
    with pytest.raises(UserError, match="is no file"):
        run_secret()


def test_a_peer_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "HANDSHAKE_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as mute, pytest.raises(TimeoutError):
        connect_channel("127.0.0.1", mute.getsockname()[1])


def test_one_that_is_slow_is_given_up_as_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often a byte comes."""
    monkeypatch.setattr(channel, "HANDSHAKE_S", 0.5)
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        far = socket.create_connection(listening.getsockname())
        near, _ = listening.accept()

    def drip() -> None:
        with suppress(OSError):
            while not over.wait(0.1):
                far.sendall(b"h")

    with near, far:
        threading.Thread(target=drip, daemon=True).start()
        with pytest.raises(TimeoutError):
            Channel(near, SECRET, coordinator=True)
        over.set()
