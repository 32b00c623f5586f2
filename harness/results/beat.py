"""A process beside a runner shows in a file that the runner lives, and at last that it has ended.

It is a process, because partitioners hold the interpreter for minutes: a thread would fall silent. It needs nothing
but the standard library, and is started as `python -I -S beat.py FILE SECONDS`; it ends when its standard input does.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys

GONE = "gone"


def main(path: str, interval_s: float) -> None:
    """Write a counter into the file every `interval_s`, and GONE when standard input ends."""
    beats, alive = 0, True
    while alive:
        beats += 1
        _write(path, f"{beats}\n")
        ready, _, _ = select.select([0], [], [], interval_s)
        alive = not ready or bool(os.read(0, 64))
    _write(path, f"{GONE}\n")


def _write(path: str, text: str) -> None:
    """Replace the content in place: who opens the file on another machine then asks the server for it."""
    with contextlib.suppress(OSError):  # a full or an unreachable disk: the next beat may pass
        fd = os.open(path, os.O_WRONLY)
        try:
            os.pwrite(fd, text.encode(), 0)
            os.ftruncate(fd, len(text))
            os.fsync(fd)
        finally:
            os.close(fd)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
