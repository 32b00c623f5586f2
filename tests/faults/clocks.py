"""Clocks that jump, or that differ between runners."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.faults.case import Case, Kind

LIBRARIES = ("/usr/lib/*/faketime/libfaketime.so.1", "/usr/lib*/faketime/libfaketime.so.1")
JUMPS = ("+3600", "-3600", "+40000000", "-86400", "+1", "-1")  # seconds, from the true time
SLEEP = """\
import select, time
def sleep(seconds):
    select.select((), (), (), seconds)
time.sleep = sleep
"""  # libfaketime 0.9.10 ends Python's own, clock_nanosleep up to a time of a clock that it leaves alone, with EINVAL
OFFSETS = (-500, 90_000, 40_000_000)


def kinds() -> Iterator[Kind]:
    """Yield a kind for clocks that jump, and one for those that differ."""
    yield Kind("the clock jumps", jump, chained=True, why_not=no_library)
    yield Kind("two runners whose clocks differ", differ, why_not=no_namespaces)


def jump(case: Case) -> None:
    """Set the clock of a run forward or back at a random moment, and again."""
    now = case.place.home / "now"
    now.write_text("+0\n")
    modules = case.place.home / "modules"
    modules.mkdir(exist_ok=True)
    (modules / "sitecustomize.py").write_text(SLEEP)
    variables = {
        "LD_PRELOAD": str(_library()), "FAKETIME_TIMESTAMP_FILE": str(now), "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1", "NO_FAKE_STAT": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(modules), os.environ.get("PYTHONPATH")))),
    }  # fmt: skip
    command = case.place.start(variables=variables)
    case.wait_for_moment(command)
    for by in case.rng.sample(JUMPS, 2):
        case.say(f"{by} s")
        now.write_text(f"{by}\n")
        time.sleep(case.rng.uniform(0, 1.0))
    case.end(command)


def differ(case: Case) -> None:
    """Start two runners whose clocks since boot differ, as after a container was moved."""
    by = case.rng.choice(OFFSETS)
    case.say(f"{by} s")
    prefix = ("unshare", "--time", f"--monotonic={max(0, by)}", f"--boottime={by}", "--fork", "--kill-child", "--")
    commands = [case.place.start(), case.place.start(prefix=prefix)]
    for command in commands:
        case.end(command)


def no_library() -> str | None:
    """Return why no clock can be made to jump: the machine's own is nobody's to set."""
    return None if _library() else "needs libfaketime (apt install libfaketime)"


def no_namespaces() -> str | None:
    """Return why there are no clocks that differ."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return "needs root and unshare"
    done = subprocess.run(["unshare", "--time", "--boottime=1", "--fork", "true"], capture_output=True, check=False)
    return None if done.returncode == 0 else "the kernel has no time namespaces"


def _library() -> Path | None:
    return next((path for pattern in LIBRARIES for path in Path("/").glob(pattern[1:])), None)
