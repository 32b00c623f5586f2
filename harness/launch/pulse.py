"""A node's pulse: a process beside its runner that tells the head that the runner lives, and when it ended.

It is a process because partitioners hold the interpreter for minutes: a thread would fall silent.
Run as `python -m harness.launch.pulse HOST PORT SESSION SECONDS`; ends when its standard input does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

LAST_WORD_S = 3.0  # for the last word, to a head that may be gone


def beat_key(session: str) -> str:
    """Return the store's key whose value changes while the runner lives."""
    return f"beat/{session}"


def gone_key(session: str) -> str:
    """Return the store's key that exists once the runner has ended."""
    return f"gone/{session}"


@contextmanager
def pulse(host: str, port: int, session: str, interval_s: float) -> Iterator[None]:
    """Have the head at HOST:PORT told every `interval_s` that this process lives, and then that it ended."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", __name__, host, str(port), session, str(interval_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is the runner's
    )
    try:
        yield
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(2 * LAST_WORD_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main(host: str, port: int, session: str, interval_s: float) -> None:
    """Beat until standard input ends, then say so."""
    ended = threading.Event()

    def watch() -> None:
        while os.read(0, 1):
            pass
        ended.set()
        threading.Timer(LAST_WORD_S, os._exit, (1,)).start()

    threading.Thread(target=watch, daemon=True).start()
    # After the watch has begun: this import takes seconds.
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    store = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=30))
    beats = 0
    while not ended.wait(interval_s if beats else 0):
        beats += 1
        store.set(beat_key(session), str(beats))
    store.set(gone_key(session), "1")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4]))
    os._exit(0)
