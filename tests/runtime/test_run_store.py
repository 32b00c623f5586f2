"""The run's store: secrets, and messages that somebody between the two ends changes."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UserError
from harness.launch.store_server import start_store, stop_store
from harness.runtime import run_store
from harness.runtime.run_store import (
    FILE_VARIABLE,
    MOST_BYTES,
    VARIABLE,
    Refused,
    Seal,
    StoreConnection,
    body_bytes,
    pack,
    run_secret,
    unpack,
    write_secret,
)

pytestmark = pytest.mark.timeout(60)
SECRET = b"known to all tests, and to nobody else"  # as tests/conftest.py sets it


@given(st.lists(st.binary(max_size=40)))
def test_fields_arrive(fields: list[bytes]) -> None:
    assert unpack(pack(fields)) == fields


@given(st.binary(max_size=60))
def test_what_is_no_message_is_refused(body: bytes) -> None:
    try:
        fields = unpack(body)
    except Refused:
        return
    assert pack(fields) == body


def test_a_length_is_refused_before_anything_is_read() -> None:
    assert body_bytes(MOST_BYTES.to_bytes(4, "big")) == MOST_BYTES
    with pytest.raises(Refused):
        body_bytes((MOST_BYTES + 1).to_bytes(4, "big"))
    with pytest.raises(ValueError, match="are allowed"):
        Seal(b"key").close(bytes(MOST_BYTES + 1))


def test_a_message_counts_once_in_its_place() -> None:
    def parts(message: bytes) -> tuple[bytes, bytes, bytes]:
        return message[:4], message[4:-32], message[-32:]

    says, hears = Seal(b"key"), Seal(b"key")
    first, second = parts(says.close(b"one")), parts(says.close(b"two"))
    assert hears.open(*first) == b"one"
    for wrong in (first, (second[0], b"twa", second[2])):  # said again; changed
        with pytest.raises(Refused):
            Seal(b"key", 1).open(*wrong)
    with pytest.raises(Refused):
        Seal(b"other key", 1).open(*second)
    with pytest.raises(Refused):
        Seal(b"key").open(*second)  # before its time
    assert hears.open(*second) == b"two"


@pytest.fixture
def store() -> Iterator[int]:
    """The port of a store on the loopback."""
    listening = socket.create_server(("127.0.0.1", 0))
    port = int(listening.getsockname()[1])
    process = start_store(listening)
    yield port
    stop_store(process)


def test_operations(store: int) -> None:
    one, other = (StoreConnection("127.0.0.1", store, SECRET, 20) for _ in range(2))
    assert one.get("a") is None
    one.set("a", b"\x80\x04")
    assert (other.get("a"), other.has(["a"]), other.has(["a", "b"]), other.count()) == (b"\x80\x04", True, False, 1)
    assert [other.add("n", 2), one.add("n", -5), one.add("n", 0)] == [2, -3, -3]
    assert (other.delete("a"), other.delete("a"), one.get("a")) == (True, False, None)
    one.set("empty", b"")
    assert other.get("empty") == b""
    large = os.urandom(8 << 20)
    one.set("large", large)
    assert other.another().get("large") == large


def test_waiting(store: int) -> None:
    one, other = (StoreConnection("127.0.0.1", store, SECRET, 20) for _ in range(2))
    assert not one.wait(["late"], 0.1)
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(one.wait(["late", "n"], 20)))
    thread.start()
    time.sleep(0.2)
    other.set("late", b"1")
    other.add("n", 1)
    thread.join(20)
    assert found == [True]


def test_what_cannot_be_asked_ends_the_connection_and_nothing_else(store: int) -> None:
    other = StoreConnection("127.0.0.1", store, SECRET, 20)
    other.set("text", b"no number")
    for fields in ([b"?"], [], [b"S", b"key"], [b"A", b"text", b"1"], [b"A", b"n", b"x"], [b"W", b"soon", b"a"]):
        with pytest.raises(ConnectionError):
            StoreConnection("127.0.0.1", store, SECRET, 20).ask(*fields)
    assert other.get("text") == b"no number"


class Between:
    """Somebody on the way from a client to the store, who changes what the client says."""

    def __init__(self, port: int, change: Callable[[list[bytes]], list[bytes]]) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port, self._store, self._change = int(self._listening.getsockname()[1]), port, change
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        near, _ = self._listening.accept()
        far = socket.create_connection(("127.0.0.1", self._store))
        threading.Thread(target=self._pump, args=(far, near), daemon=True).start()
        greeting = b""
        while len(greeting) < 64:
            greeting += near.recv(64 - len(greeting))
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
    store: int, change: Callable[[list[bytes]], list[bytes]]
) -> None:
    watched = StoreConnection("127.0.0.1", Between(store, change).port, SECRET, 20)
    with pytest.raises(ConnectionError):
        watched.set("key", b"value of eight bytes or more")
    assert StoreConnection("127.0.0.1", store, SECRET, 20).count() == 0


def test_what_is_said_again_is_not_done_again(store: int) -> None:
    watched = StoreConnection("127.0.0.1", Between(store, lambda said: said * 2).port, SECRET, 20)
    assert watched.add("n", 1) == 1
    with pytest.raises(ConnectionError):
        watched.add("n", 1)
    assert StoreConnection("127.0.0.1", store, SECRET, 20).add("n", 0) == 1


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
    monkeypatch.setattr(run_store, "HANDSHAKE_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as mute, pytest.raises(TimeoutError):
        StoreConnection("127.0.0.1", mute.getsockname()[1], SECRET, 20)
