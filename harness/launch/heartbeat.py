"""A process beside a node's runner tells the coordinator that the runner lives, and when it ended.

It is a process, because partitioners hold the interpreter for minutes: a thread would fall silent.
Run as `python -P -m harness.launch.heartbeat HOST PORT SESSION SECONDS`; it ends when its standard input does.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from harness.results.leases import Liveness, start_heartbeat, stop_heartbeat
from harness.runtime.run_store import StoreConnection, run_secret

if TYPE_CHECKING:
    from harness.launch.rendezvous import StoreClient

LONGEST_S = 30.0  # for the store to take a beat
LAST_WORD_S = 3.0  # for the last word, to a coordinator that may be gone


def beat_key(session: str) -> str:
    """Return the store's key whose value changes while the runner lives."""
    return f"beat/{session}"


def gone_key(session: str) -> str:
    """Return the store's key that exists once the runner has ended."""
    return f"gone/{session}"


@contextmanager
def heartbeat(host: str, port: int, session: str, interval_s: float) -> Iterator[None]:
    """Have the store at HOST:PORT told every `interval_s` that this process lives, and then that it ended."""
    process = start_heartbeat("-P", "-m", __name__, host, str(port), session, str(interval_s))
    try:
        yield
    finally:
        stop_heartbeat(process, 2 * LAST_WORD_S)


class Heartbeats:
    """Tells the coordinator which runners live."""

    def __init__(self, client: StoreClient, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._timeout_s, self._pulses = client, timeout_s, Liveness(clock)

    def lost(self, session: str) -> str | None:
        """Return what became of a node whose runner has ended or is silent; None if it lives."""
        if self._client.has(gone_key(session)):
            return "was lost: its runner ended or was killed"
        silent = self._pulses.unchanged_s(session, self._client.text(beat_key(session))) > self._timeout_s
        return f"was lost: no heartbeat for {self._timeout_s:g} s (--node-timeout)" if silent else None


def main(host: str, port: int, session: str, interval_s: float) -> None:
    """Beat until standard input ends, then say so."""
    ended = threading.Event()

    def watch() -> None:
        while os.read(0, 1):
            pass
        ended.set()
        threading.Timer(LAST_WORD_S, os._exit, (1,)).start()

    threading.Thread(target=watch, daemon=True).start()
    store = StoreConnection(host, port, run_secret(), LONGEST_S)
    beats = 0
    while not ended.wait(interval_s if beats else 0):
        beats += 1
        store.set(beat_key(session), b"%d" % beats)
    store.set(gone_key(session), b"1")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4]))
    os._exit(0)
