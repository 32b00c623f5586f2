"""Full-graph training whose ranks misbehave as the file named by HARNESS_FAULTS_PLAN says, if it is there.

It is JSON: `what` (a key of `DEEDS`), the `rank` that does it, and the `epoch` it does it in.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from harness_methods.full import Full

from harness import Step, torch

PLAN = "HARNESS_FAULTS_PLAN"
STEP_BYTES = 64 << 20


class Struck(Full):
    """See above."""

    name = "struck"

    def steps(self, epoch: int) -> Iterator[Step]:
        """See `Full`."""
        plan = _plan()
        if plan is not None and (plan["rank"], plan["epoch"]) == (self.worker.rank, epoch):
            Path(os.environ[PLAN]).unlink()  # once: and it shows that it was done
            DEEDS[str(plan["what"])]()
        yield from super().steps(epoch)


def _plan() -> dict[str, object] | None:
    try:
        plan: dict[str, object] = json.loads(Path(os.environ.get(PLAN, "/nowhere")).read_text())
    except FileNotFoundError:
        return None
    return plan


def _exit() -> None:
    sys.stdout.flush()
    os._exit(0)


def _hang() -> None:
    time.sleep(3600)  # the others wait for this rank in a collective


def _raise() -> None:
    raise RuntimeError("planted failure")


def _eat() -> None:
    """Take memory until somebody says no."""
    eaten = []
    while True:
        eaten.append(torch.ones(STEP_BYTES // 4))


def _eat_own() -> None:
    """Take memory against a limit of the rank's own."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 4 * STEP_BYTES, resource.RLIM_INFINITY))
    _eat()


def _crash() -> None:
    ctypes.string_at(0)


def _leave_child() -> None:
    subprocess.Popen(["sleep", "3600"])
    os._exit(1)


def _flood() -> None:
    for _ in range(2000):
        print("x" * 10_000)
    raise RuntimeError("planted failure after 20 MB of output")


DEEDS: dict[str, Callable[[], None]] = {
    "exits 0 early": _exit,
    "hangs in a collective": _hang,
    "raises": _raise,
    "meets RLIMIT_AS": _eat_own,
    "meets a cgroup's memory limit": _eat,
    "crashes": _crash,
    "leaves a child and exits 1": _leave_child,
    "floods its log and raises": _flood,
}
