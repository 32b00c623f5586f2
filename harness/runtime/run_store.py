"""The store of a run on several machines: keys and values for whoever knows the run's secret.

Both ends prove that they know it before either reads anything of a length that the other chooses, and every message
after that carries a code that depends on the secret, the connection, the direction and its number: nobody else can
say anything, say it again, or say it in another's place. Values are bytes; nothing is ever unpickled. See
docs/design/rendezvous.md.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import stat
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from harness.errors import UserError

VARIABLE, FILE_VARIABLE = "HARNESS_SECRET", "HARNESS_SECRET_FILE"
LEAST_CHARACTERS, MOST_CHARACTERS = 16, 4096  # of a secret
HELLO = b"harness store 1\n"
NONCE_BYTES = CODE_BYTES = 32
HANDSHAKE_S = 20.0  # a store that has just been started on a busy machine takes seconds to answer
MOST_BYTES = 9 << 20  # of a message, beside its code
_COUNT = struct.Struct(">I")
_NUMBER = struct.Struct(">Q")

SET, GET, HAS, ADD, DELETE, WAIT, KEYS = (bytes([code]) for code in b"SGHADWK")
"""What can be asked: SET key value, GET key, HAS key..., ADD key number, DELETE key, WAIT seconds key..., KEYS."""


class Refused(Exception):  # noqa: N818 - who is at the other end, not a mistake of this one
    """Who is at the other end does not know the secret, or says what is no message."""


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


def code_of(key: bytes, *parts: bytes) -> bytes:
    """Return the code that shows that who made it knows `key`."""
    return hmac.digest(key, b"".join(parts), "sha256")


@dataclass
class Seal:
    """Numbers the messages of one direction of one connection and codes them with a key of its own."""

    key: bytes
    sent: int = 0

    def close(self, body: bytes) -> bytes:
        """Return `body` as the next message: length, body, code."""
        if len(body) > MOST_BYTES:
            raise ValueError(f"a message of {len(body)} bytes, {MOST_BYTES} are allowed")
        length = _COUNT.pack(len(body))
        return length + body + self._code(length, body)

    def open(self, length: bytes, body: bytes, code: bytes) -> bytes:
        """Return the body of the next message; Refused if its code is not that."""
        if not hmac.compare_digest(code, self._code(length, body)):
            raise Refused("a message that is not the other end's next one")
        return body

    def _code(self, length: bytes, body: bytes) -> bytes:
        number, self.sent = _NUMBER.pack(self.sent), self.sent + 1
        return code_of(self.key, number, length, body)


@dataclass(frozen=True)
class Greeting:
    """Both ends' random numbers, and what follows from them and the secret."""

    secret: bytes
    store: bytes
    client: bytes

    def proof(self, of: bytes) -> bytes:
        """Return the proof that `of` (b"store" or b"client") knows the secret."""
        return code_of(self.secret, b"proof of ", of, self.store, self.client)

    def seals(self) -> tuple[Seal, Seal]:
        """Return the seals of what the client says and of what the store says."""
        keys = [code_of(self.secret, b"words of ", of, self.store, self.client) for of in (b"client", b"store")]
        return Seal(keys[0]), Seal(keys[1])


def body_bytes(length: bytes) -> int:
    """Return how many bytes of a message follow; Refused for more than are allowed."""
    (count,) = _COUNT.unpack(length)
    if count > MOST_BYTES:
        raise Refused(f"a message of {count} bytes")
    return int(count)


def pack(fields: Sequence[bytes]) -> bytes:
    """Return fields as one body: each with its length before it."""
    return b"".join(part for field in fields for part in (_COUNT.pack(len(field)), field))


def unpack(body: bytes) -> list[bytes]:
    """Return the fields of a body; Refused where they do not fill it."""
    return list(_fields(body))


def _fields(body: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(body):
        start = at + _COUNT.size
        if start > len(body):
            raise Refused("a message that is cut short")
        at = start + int(_COUNT.unpack(body[at:start])[0])
        if at > len(body):
            raise Refused("a message that is cut short")
        yield body[start:at]


class StoreConnection:
    """A connection to the run's store; one thread at a time asks.

    `limit_s` is how long an answer may take (None: for ever); `address` is this machine's, as the store sees it.
    Raises OSError (TimeoutError among them) when nobody answers, and Refused when who answers does not know the
    secret, or says that this end does not.
    """

    def __init__(self, host: str, port: int, secret: bytes, limit_s: float | None) -> None:
        self.host, self.port, self.limit_s = host, port, limit_s
        self._secret, self._turn = secret, Lock()
        self._socket = socket.create_connection((host, port), HANDSHAKE_S)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.address = str(self._socket.getsockname()[0])
            self._said, self._heard = self._greet()
        except BaseException:
            self._socket.close()
            raise

    def another(self) -> StoreConnection:
        """Return a connection of its own to the same store."""
        return StoreConnection(self.host, self.port, self._secret, self.limit_s)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _greet(self) -> tuple[Seal, Seal]:
        deadline = time.monotonic() + HANDSHAKE_S
        hello = self._receive(len(HELLO), deadline)
        if hello != HELLO:
            raise Refused("what answers is not the store of a run")
        mine = secrets.token_bytes(NONCE_BYTES)
        greeting = Greeting(self._secret, self._receive(NONCE_BYTES, deadline), mine)
        self._socket.sendall(mine + greeting.proof(b"client"))
        try:
            proof = self._receive(CODE_BYTES, deadline)
        except ConnectionError:
            raise Refused("the store does not take this node's secret") from None
        if not hmac.compare_digest(proof, greeting.proof(b"store")):
            raise Refused("what answers does not know the secret of the run")
        return greeting.seals()

    def ask(self, *fields: bytes, more_s: float = 0.0) -> list[bytes]:
        """Ask the store and return its answer; it may take `more_s` longer than others."""
        with self._turn:
            deadline = None if self.limit_s is None else time.monotonic() + self.limit_s + more_s
            try:
                self._socket.settimeout(self.limit_s)
                self._socket.sendall(self._said.close(pack(fields)))
                length = self._receive(_COUNT.size, deadline)
                body = self._receive(body_bytes(length), deadline)
                return unpack(self._heard.open(length, body, self._receive(CODE_BYTES, deadline)))
            except BaseException:
                self._socket.close()  # what is left of the answer would be taken for the next one's
                raise

    def _receive(self, count: int, deadline: float | None) -> bytes:
        parts = []
        while count:
            self._socket.settimeout(None if deadline is None else max(0.001, deadline - time.monotonic()))
            parts.append(part := self._socket.recv(min(count, 1 << 20)))
            if not part:
                raise ConnectionResetError("the store has closed the connection")
            count -= len(part)
        return b"".join(parts)

    def set(self, key: str, value: bytes) -> None:
        """Store `value` under `key`."""
        self.ask(SET, key.encode(), value)

    def get(self, key: str) -> bytes | None:
        """Return what is stored under `key`; None if nothing is."""
        found = self.ask(GET, key.encode())
        return found[0] if found else None

    def has(self, keys: Sequence[str]) -> bool:
        """Return whether all keys exist."""
        return bool(self.ask(HAS, *(key.encode() for key in keys)))

    def add(self, key: str, more: int) -> int:
        """Add `more` to a counter, which begins at 0, and return it."""
        return int(self.ask(ADD, key.encode(), b"%d" % more)[0])

    def delete(self, key: str) -> bool:
        """Delete a key; False if there was none."""
        return bool(self.ask(DELETE, key.encode()))

    def wait(self, keys: Sequence[str], limit_s: float) -> bool:
        """Wait until all keys exist; False if they do not within `limit_s`."""
        return bool(self.ask(WAIT, b"%d" % (limit_s * 1000), *(key.encode() for key in keys), more_s=limit_s))

    def count(self) -> int:
        """Return how many keys there are."""
        return int(self.ask(KEYS)[0])
