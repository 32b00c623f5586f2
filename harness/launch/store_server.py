"""The process beside the coordinator that keeps the run's store (`harness.runtime.run_store` says what is spoken).

It is a process, because it has to answer while the runner holds the interpreter, and because whatever a stranger does
to it is done to no runner. Run as `python -P -m harness.launch.store_server DESCRIPTOR`, the number of a socket that
listens; it ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
import subprocess
import sys
from collections.abc import Sequence

from harness.results.leases import start_heartbeat, stop_heartbeat
from harness.runtime.run_store import (
    ADD,
    CODE_BYTES,
    DELETE,
    GET,
    HANDSHAKE_S,
    HAS,
    HELLO,
    KEYS,
    NONCE_BYTES,
    SET,
    WAIT,
    Greeting,
    Refused,
    Seal,
    body_bytes,
    pack,
    run_secret,
    unpack,
)

MOST_STRANGERS = 64  # connections that have not shown that they know the secret: of more, the oldest ends
LONGEST_WAIT_S = 3600.0
_SAID = (b"1",)


def start_store(listening: socket.socket) -> subprocess.Popen[bytes]:
    """Start the store at a socket that listens, and close this process's copy of that."""
    with listening:
        return start_heartbeat("-P", "-m", __name__, str(listening.fileno()), inherited=(listening.fileno(),))


def stop_store(process: subprocess.Popen[bytes]) -> None:
    """End such a process."""
    stop_heartbeat(process, 1.0)


class Store:
    """Keeps the keys and values, and answers those who know `secret`."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._values: dict[bytes, bytes] = {}
        self._awaited: dict[bytes, asyncio.Event] = {}
        self._strangers: dict[asyncio.StreamWriter, None] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection until it ends, or says what is no message of one who knows the secret."""
        try:
            heard, said = await self._greet(reader, writer)
            while True:
                length = await reader.readexactly(4)
                body = await reader.readexactly(body_bytes(length))
                asked = unpack(heard.open(length, body, await reader.readexactly(CODE_BYTES)))
                writer.write(said.close(pack(await self.answer(asked))))
                await writer.drain()
        except (Refused, OSError, EOFError, TimeoutError):
            pass  # a stranger, or a node that is gone: no matter to the others
        finally:
            writer.close()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[Seal, Seal]:
        """Return the seals of what the client says and of what it is answered, once it has shown that it may ask."""
        while len(self._strangers) >= MOST_STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.transport.abort()
        self._strangers[writer] = None
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                own = secrets.token_bytes(NONCE_BYTES)
                writer.write(HELLO + own)
                greeting = Greeting(self._secret, own, await reader.readexactly(NONCE_BYTES))
                proof = await reader.readexactly(CODE_BYTES)
                if not hmac.compare_digest(proof, greeting.proof(b"client")):
                    raise Refused("a stranger")
                writer.write(greeting.proof(b"store"))
                return greeting.seals()
        finally:
            self._strangers.pop(writer, None)

    async def answer(self, asked: Sequence[bytes]) -> Sequence[bytes]:
        """Return the fields of the answer, none for no; Refused for what cannot be asked."""
        try:
            match asked:
                case [code, key, value] if code == SET:
                    self._set(key, value)
                    return _SAID
                case [code, key] if code == GET:
                    return (self._values[key],) if key in self._values else ()
                case [code, *keys] if code == HAS:
                    return _SAID if all(key in self._values for key in keys) else ()
                case [code, key, more] if code == ADD:
                    self._set(key, b"%d" % (int(self._values.get(key, b"0")) + int(more)))
                    return (self._values[key],)
                case [code, key] if code == DELETE:
                    return _SAID if self._values.pop(key, None) is not None else ()
                case [code, milliseconds, *keys] if code == WAIT:
                    return await self._wait(keys, min(int(milliseconds) / 1000, LONGEST_WAIT_S))
                case [code] if code == KEYS:
                    return (b"%d" % len(self._values),)
        except ValueError as error:
            raise Refused("no number") from error
        raise Refused("no question")

    def _set(self, key: bytes, value: bytes) -> None:
        self._values[key] = value
        if awaited := self._awaited.pop(key, None):
            awaited.set()

    async def _wait(self, keys: Sequence[bytes], limit_s: float) -> Sequence[bytes]:
        try:
            async with asyncio.timeout(limit_s):
                for key in keys:
                    while key not in self._values:
                        await self._awaited.setdefault(key, asyncio.Event()).wait()
        except TimeoutError:
            return ()
        return _SAID


async def main(descriptor: int) -> None:
    """Serve until standard input ends."""
    store = Store(run_secret())
    server = await asyncio.start_server(store.serve, sock=socket.socket(fileno=descriptor), backlog=512)
    ended = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(ended), sys.stdin)
    await ended.read()
    server.close()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
