"""Disks that fill while something is written to them, that take no more writes, or whose content goes away."""

from __future__ import annotations

import math
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.faults.case import FAILURE, Case, Kind
from tests.faults.place import is_private

ROOMY = "64m"
NEEDED = {"results": 500, "cache": 400, "tmp": 64}  # KB that a run takes there, or thereabouts


def kinds() -> Iterator[Kind]:
    """Yield a kind for each place and what may become of its disk."""
    for name, what in (("results", "records"), ("cache", "data and partitions"), ("tmp", "temporary files")):
        act = partial(fill, name=name)
        yield Kind(f"a disk fills: {what}", act, FAILURE, empty=name == "cache", why_not=no_mounts)
    yield Kind("files grow no more (RLIMIT_FSIZE)", limit_files, FAILURE, chained=True)
    yield Kind("files grow no more, nothing prepared", limit_files, FAILURE, empty=True)
    for name in ("results", "cache"):
        yield Kind(f"read-only from the start: {name}", partial(read_only, name=name), FAILURE, why_not=no_mounts)
        yield Kind(f"read-only meanwhile: {name}", partial(turn_read_only, name=name), FAILURE, why_not=no_mounts)
        yield Kind(f"deleted meanwhile: {name}", partial(delete, name=name), FAILURE, chained=name == "cache")
    yield Kind("deleted meanwhile: what a trial works in", partial(delete, name="results/faults/.staging"), FAILURE)


def no_mounts() -> str | None:
    """Return why no file system can be mounted for a case."""
    return None if is_private() else "needs root, and a mount namespace (unshare)"


def mount(case: Case, path: Path, size: str) -> None:
    """Put a file system of a size at `path`, with what is there in it; it goes with the case."""
    aside = path.with_name(path.name + "-aside")
    path.rename(aside)
    path.mkdir()
    _call("mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(path))
    case.held.callback(_call, "umount", "--lazy", str(path))
    shutil.copytree(aside, path, dirs_exist_ok=True)
    shutil.rmtree(aside)


def fill(case: Case, name: str) -> None:
    """Have too little room there, and enough when the command is over."""
    path = case.place.home / name
    kilobytes = case.rng.randrange(8, NEEDED[name]) // 4 * 4
    case.say(f"{kilobytes} KB")
    mount(case, path, f"{kilobytes}k")
    case.end(case.place.start())
    _call("mount", "-o", f"remount,size={ROOMY}", str(path))


def limit_files(case: Case) -> None:
    """Let no file of the run grow over a random size."""
    bytes_ = int(math.exp(case.rng.uniform(math.log(16), math.log(200_000))))
    case.say(f"{bytes_} bytes")
    case.end(case.place.start(prefix=("prlimit", f"--fsize={bytes_}", "--")))


def read_only(case: Case, name: str) -> None:
    """Let nobody write there."""
    path = case.place.home / name
    mount(case, path, ROOMY)
    _call("mount", "-o", "remount,ro", str(path))
    case.end(case.place.start())
    _call("mount", "-o", "remount,rw", str(path))


def turn_read_only(case: Case, name: str) -> None:
    """Let nobody write there from a random moment on; the kernel agrees when no file is open for writing."""
    path = case.place.home / name
    mount(case, path, ROOMY)
    command = case.place.start()
    case.wait_for_moment(command)
    case.wait(command, lambda: _is_done("mount", "-o", "remount,ro", str(path)))
    case.end(command)
    _call("mount", "-o", "remount,rw", str(path))


def delete(case: Case, name: str) -> None:
    """Delete all of it at a random moment."""
    command = case.place.start()
    case.wait_for_moment(command)
    for path in (case.place.home / name).glob("*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    case.end(command)


def _is_done(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _call(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
