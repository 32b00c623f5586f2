"""Checksums of files that are kept: with a flipped bit in a column index a kernel reads anywhere, and dies.

CRC-32, which zlib computes at several GB/s: all of a prepared graph is read once by each run that uses it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

from harness.data.store import CHUNK_BYTES, SUMS, replace_text
from harness.errors import DataError

Tell = Callable[[str], None]


def to_stderr(text: str) -> None:
    """Tell a line where errors are told."""
    print(text, file=sys.stderr)


def seal(directory: Path, pattern: str = "*.npy") -> None:
    """Keep the sizes and checksums of the files under a directory that match `pattern`, in its `checksums.json`."""
    files = sorted(path for path in directory.rglob(pattern) if path.is_file() and path.name != SUMS)
    sums = {path.relative_to(directory).as_posix(): [path.stat().st_size, _crc(path)] for path in files}
    replace_text(directory / SUMS, json.dumps(sums, indent=1) + "\n")


def changed(directory: Path) -> list[str] | None:
    """Return the files that are not what they were when the directory was sealed; None if it never was.

    OSError if a file is there and cannot be read: that says nothing of what it contains.
    """
    try:
        sums = json.loads((directory / SUMS).read_text(encoding="utf-8"))
        known = {str(name): (int(size), int(crc)) for name, (size, crc) in sums.items()}
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, AttributeError):
        return [SUMS]
    return [name for name, sum_ in known.items() if not _is(directory / name, *sum_)]


def _is(path: Path, size: int, crc: int) -> bool:
    try:
        return path.stat().st_size == size and _crc(path) == crc
    except FileNotFoundError:
        return False


def _crc(path: Path) -> int:
    crc, chunk = 0, bytearray(CHUNK_BYTES)
    with path.open("rb", buffering=0) as stream:
        while count := stream.readinto(chunk):
            crc = zlib.crc32(memoryview(chunk)[:count], crc)
    return crc


def damage(directory: Path) -> str | None:
    """Return what is wrong with a sealed directory, in words; None if nothing is, or it never was sealed."""
    names = changed(directory)
    if not names:
        return None
    more = f" and {len(names) - 1} more files" if len(names) > 1 else ""
    return f"{names[0]}{more} changed since it was made"


def set_aside(directory: Path, why: str, tell: Tell) -> None:
    """Rename a damaged directory to `NAME.damaged`, in place of an earlier one, and tell so.

    DataError if that is not possible.
    """
    aside = directory.with_name(f"{directory.name}.damaged")
    try:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(aside)
        os.rename(directory, aside)
    except OSError as error:
        what = f"damaged: {why}, and cannot be set aside: {error.strerror}"
        raise DataError(what, file=directory, fix="remove it, or set HARNESS_CACHE to another directory") from error
    tell(f"damaged: {why}; set aside as {aside}, and made again")
