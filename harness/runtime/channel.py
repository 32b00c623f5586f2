"""Channels: connections between the nodes of a run, on which both ends have proved that they know its secret.

Neither end reads anything of a length that the other chooses before that, and every message carries a code of the
secret, the connection, the direction and its number: nobody else can send, change, repeat or move one. Messages are
JSON; nothing is ever unpickled. See docs/design/clusters.md.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import socket
import stat
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from harness.errors import UserError

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

VARIABLE, FILE_VARIABLE = "HARNESS_SECRET", "HARNESS_SECRET_FILE"
LEAST_CHARACTERS, MOST_CHARACTERS = 16, 4096  # of a secret
HELLO = b"harness nodes 2\n"
NONCE_BYTES = CODE_BYTES = 32
CROWDED_S = 30.0  # in which a node gets through to a coordinator to which many others connect
HANDSHAKE_S = 20.0  # a coordinator that has just been started on a busy machine takes seconds to answer
MOST_BYTES = 256 << 20  # of a message without its code, because both ends hold it in memory
POLL_S = 0.01  # between two questions of a rank that waits for others
_LENGTH, _NUMBER = struct.Struct(">I"), struct.Struct(">Q")
_NO = bytes(_LENGTH.size + CODE_BYTES)  # no proof: the coordinator's answer to another secret


class Refused(ConnectionError):  # noqa: N818 - the fault of the other end
    """The other end does not know the secret, or sends what is no message."""


class Crowded(ConnectionError):  # noqa: N818 - the fault of neither end
    """The coordinator ended the connection before the proofs: of many strangers it ends the oldest."""


def run_secret() -> bytes:
    """Return the secret of the run: $HARNESS_SECRET, or what $HARNESS_SECRET_FILE holds, or the user's own.

    The user's own lies in ~/.config/harness/secret ($XDG_CONFIG_HOME) and is made when it is first asked for.
    Raises UserError for a secret that is too short, or a file that others may read.
    """
    if given := os.environ.get(VARIABLE):
        return _checked(given, VARIABLE)
    if named := os.environ.get(FILE_VARIABLE):
        return _read_secret(Path(named))
    home = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "harness" / "secret"
    try:
        write_secret(home)
    except FileExistsError:
        pass
    except OSError as error:
        raise UserError(f"cannot be written: {error.strerror}", file=home, fix=f"set {VARIABLE}") from error
    return _read_secret(home)


def write_secret(path: Path) -> None:
    """Write a new secret, for this user's eyes only; FileExistsError if the file is there."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    own = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    with open(os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32) + "\n")
    try:
        os.link(own, path)  # whole, or not at all: other nodes may share the directory
    finally:
        own.unlink()


def _read_secret(path: Path) -> bytes:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK)) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise UserError("is no file", file=path, key=FILE_VARIABLE)
            if found.st_mode & 0o077 or found.st_uid not in (os.geteuid(), 0):
                raise UserError("others can read or change the secret of the run", file=path, fix="chmod 600, own it")
            return _checked(file.read(MOST_CHARACTERS + 2), str(path))
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not a text"
        raise UserError(f"no secret of the run: {why}", file=path, key=FILE_VARIABLE) from error


def _checked(text: str, key: str) -> bytes:
    text = text.strip()
    if not LEAST_CHARACTERS <= len(text) <= MOST_CHARACTERS:
        what = f"{len(text)} characters, a secret has {LEAST_CHARACTERS} to {MOST_CHARACTERS}"
        raise UserError(what, key=key, fix="e.g. the output of: openssl rand -hex 32")
    return text.encode()


class Channel:
    """One end of a connection; any thread may send, one at a time receives.

    Making one takes over `connection` and exchanges proofs of `secret`. Raises OSError (TimeoutError among them) if
    the other end does not answer, Crowded if a coordinator ends it first, and Refused if the other end does not know
    the secret or says that this one does not. Later,
    both methods raise OSError once the connection has ended, or the other end is silent for `limit_s` seconds.
    """

    def __init__(
        self, connection: socket.socket, secret: bytes, *, coordinator: bool, limit_s: float | None = None
    ) -> None:
        self._socket, self._lock, self._sent, self._received = connection, Lock(), 0, 0
        self._deadline: float | None = time.monotonic() + HANDSHAKE_S
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(HANDSHAKE_S)
        try:
            self._prove(secret, coordinator)
        except (Refused, TimeoutError):
            raise
        except ConnectionError as error:
            raise error if coordinator else Crowded("the coordinator ended the connection") from error
        self._deadline = None
        connection.settimeout(limit_s)

    def _prove(self, secret: bytes, coordinator: bool) -> None:
        """Exchange the proofs: messages that are empty, the first of each end."""
        connection, mine = self._socket, secrets.token_bytes(NONCE_BYTES)
        if coordinator:
            connection.sendall(HELLO + mine)
        elif self._read(len(HELLO)) != HELLO:
            raise Refused("what answers is not the coordinator of a run")
        theirs = self._read(NONCE_BYTES)
        nonces = mine + theirs if coordinator else theirs + mine
        keys = [hmac.digest(secret, b"from the " + end + nonces, "sha256") for end in (b"coordinator", b"node")]
        self._out, self._in = keys if coordinator else reversed(keys)
        if coordinator:
            try:
                self._open(most=0)
            except Refused:
                connection.sendall(_NO)
                raise
            connection.sendall(self._sealed(b""))
        else:
            connection.sendall(mine + self._sealed(b""))
            try:
                self._open(most=0)
            except Refused:
                raise Refused("what answers has another secret than this node") from None

    @property
    def address(self) -> str:
        """Return the address of this machine as the other end sees it."""
        return str(self._socket.getsockname()[0])

    def send(self, message: Any) -> None:
        """Send what JSON can hold; ValueError if it is too large."""
        body = json.dumps(message).encode()
        if len(body) > MOST_BYTES:
            raise ValueError(f"a message of {len(body) >> 20} MiB, {MOST_BYTES >> 20} are allowed")
        with self._lock:
            self._socket.sendall(self._sealed(body))

    def receive(self) -> Any:
        """Return the next message; Refused if it is not the other end's next one."""
        try:
            return json.loads(self._open(MOST_BYTES))
        except (ValueError, RecursionError):
            raise Refused("a message that is no JSON") from None

    def close(self) -> None:
        """End the connection, also for a thread that receives."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _sealed(self, body: bytes) -> bytes:
        self._sent += 1
        message = _LENGTH.pack(len(body)) + body
        return message + hmac.digest(self._out, _NUMBER.pack(self._sent) + message, "sha256")

    def _open(self, most: int) -> bytes:
        """Receive a message and return its body, of at most so many bytes."""
        self._received += 1
        length = self._read(_LENGTH.size)
        (count,) = _LENGTH.unpack(length)
        if count > most:
            raise Refused(f"a message of {count} bytes")
        body = self._read(count)
        code = hmac.digest(self._in, _NUMBER.pack(self._received) + length + body, "sha256")
        if not hmac.compare_digest(self._read(CODE_BYTES), code):
            raise Refused("a message that is not the other end's next one")
        return body

    def _read(self, count: int) -> bytes:
        parts = []
        while count:
            if self._deadline is not None:  # of the whole handshake, however slowly bytes come
                self._socket.settimeout(max(0.001, self._deadline - time.monotonic()))
            parts.append(part := self._socket.recv(min(count, 1 << 20)))
            if not part:
                raise ConnectionResetError("the other end has closed the connection")
            count -= len(part)
        return b"".join(parts)


def connect_channel(
    host: str, port: int, limit_s: float | None = None, prepare: Callable[[socket.socket], object] = lambda each: None
) -> Channel:
    """Connect to a run's coordinator; raises as `Channel` does, and UserError if this user has no secret.

    Tries again, and again later, for CROWDED_S where the coordinator ends the connection. `prepare`: each connection.
    """
    own, wait_s, until = run_secret(), 0.05, time.monotonic() + CROWDED_S
    while True:
        connection = socket.create_connection((host, port), HANDSHAKE_S)
        try:
            prepare(connection)
            return Channel(connection, own, coordinator=False, limit_s=limit_s)
        except BaseException as error:
            connection.close()
            if not isinstance(error, Crowded) or time.monotonic() > until:
                raise
        time.sleep(wait_s * (1 + secrets.randbelow(1000) / 1000))  # nodes of a job start together
        wait_s = min(2 * wait_s, 1.0)


def group_store(channel: Channel, prefix: str, limit: timedelta) -> Store:  # noqa: C901 - it makes a class
    """Return a store in which the ranks of a trial find each other, for torch's process groups.

    The coordinator keeps keys and values, those of a trial under its `prefix`. torch holds the C++ half of the store
    alone: the caller keeps it for as long as the group lives.
    """
    from torch.distributed import Store  # type: ignore[attr-defined]

    lock, limit_s = Lock(), limit.total_seconds()
    channel.send(["ranks", prefix])

    def ask(operation: str, key: str, value: Any = None) -> Any:
        with lock:
            channel.send([operation, key, value])
            return channel.receive()

    # The class is made here because commands that train nothing must not import torch. Bytes travel as latin-1 text.
    class GroupStore(Store):
        def set(self, key: str, value: bytes | str) -> None:
            ask("set", key, value if isinstance(value, str) else value.decode("latin-1"))

        def get(self, key: str) -> bytes:
            self.wait([key])
            return str(ask("get", key)).encode("latin-1")

        def add(self, key: str, more: int) -> int:
            return int(ask("add", key, more))

        def check(self, keys: Sequence[str]) -> bool:
            return all(ask("get", key) is not None for key in keys)

        def wait(self, keys: Sequence[str], longest: timedelta = limit) -> None:
            deadline = time.monotonic() + longest.total_seconds()
            while not self.check(keys):  # again and again, so that questions of other threads come between
                if time.monotonic() > deadline:
                    raise RuntimeError(
                        f"ranks of other machines did not come within {limit_s:g} s: connection timed out"
                    )
                time.sleep(POLL_S)

        def delete_key(self, key: str) -> bool:
            return ask("delete", key) is not None

        def clone(self) -> Store:
            return self  # torch wants one for each thread; this is for any number of them

    return GroupStore()


def answer(values: dict[str, str], request: Any) -> Any:
    """Do what a rank's store asks of a trial's `values` and return the answer; Refused if that cannot be asked."""
    match request:
        case ["set", str(key), str(value)]:
            values[key] = value
        case ["get", str(key), _]:
            return values.get(key)
        case ["delete", str(key), _]:
            return values.pop(key, None)
        case ["add", str(key), int(more)] if (count := values.get(key, "0")).lstrip("-").isdecimal():
            values[key] = str(int(count) + more)
            return values[key]
        case _:
            raise Refused("no request of a store")
    return None
