"""Runtime: what the ranks of a trial run. This module imports little: ranks import it before anything else."""

from __future__ import annotations

import os
import re
import signal
import stat
import threading
import time
from contextlib import suppress
from pathlib import Path

BRAND = "HARNESS_BRAND"
"""Environment variable of a rank: the limit by which `launch.process.Brand` knows what the rank started."""


def exit_with_launcher() -> None:
    """End this process when its standard input does, if that is a pipe: the launcher holds the other end.

    So neither a rank nor what it started outlives its launcher, not even while the rank imports.
    """
    brand = os.environ.get(BRAND)

    def watch() -> None:
        while os.read(0, 1):
            pass
        if brand:
            _end_younger(int(brand))
        os._exit(4)

    if stat.S_ISFIFO(os.fstat(0).st_mode):
        threading.Thread(target=watch, daemon=True).start()


def branded(brand: int) -> set[int]:
    """Return the ids of the processes whose soft limit of POSIX message queues is `brand`, on Linux."""
    line, found = f"Max msgqueue size {brand} ", set()
    for place in Path("/proc").glob("[0-9]*/limits"):
        with suppress(OSError):  # it has ended, or is another user's
            if line in re.sub(" +", " ", place.read_text()):
                found.add(int(place.parent.name))
    return found


def _end_younger(brand: int) -> None:
    # Two ranks that end each other could both be gone before what they started is.
    ended, until = set[int](), time.monotonic() + 2
    while time.monotonic() < until and (found := {pid for pid in branded(brand) - ended if pid > os.getpid()}):
        for pid in found:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        ended |= found
        time.sleep(0.01)  # for those that were forked meanwhile
