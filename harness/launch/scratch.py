"""Directories for a while: each goes with its context, or with the next run where its process was killed."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from harness.results.leases import start_time

_NAME = re.compile(r"harness-([0-9]+)-([0-9]+)-([0-9]+)-.+")


@contextmanager
def scratch() -> Iterator[Path]:
    """Yield an empty directory of this user alone, below TMPDIR."""
    own = os.getpid()
    with tempfile.TemporaryDirectory(prefix=f"harness-{_space()}-{own}-{start_time(own) or 0}-") as directory:
        yield Path(directory)


def clean_scratch() -> None:
    """Remove what processes left that were killed: those of this user that are seen from here, and no others'."""
    for path in Path(tempfile.gettempdir()).glob("harness-*"):
        found = _NAME.fullmatch(path.name)
        if found is None or int(found[1]) != _space() or start_time(int(found[2])) == int(found[3]):
            continue
        with suppress(OSError):
            if path.lstat().st_uid == os.getuid():
                shutil.rmtree(path)


def _space() -> int:
    """Return the number of the namespace of process ids: those of another container say nothing here."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0
