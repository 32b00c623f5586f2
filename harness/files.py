"""Files that others wrote: only regular ones are opened, and no more of one is read than it may have."""

from __future__ import annotations

import json
import os
import stat
import uuid
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

from harness.errors import UserError, writing

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}

SMALL = 1 << 20  # what one process notes for another
CODE = 16 << 20  # a plugin
RECORD = 64 << 20  # a record, a kept suite with its trials


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file (a link is followed); UserError for others, OSError also for what can be no file's name."""
    # A FIFO without a writer would block for ever, and to open a device may do something: neither is opened.
    try:
        _require_regular(os.stat(path).st_mode, path)
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # it may have become a FIFO since
    except ValueError as error:  # a NUL in the name, or what the file system's encoding cannot say
        raise FileNotFoundError(2, "no name of a file", str(path)) from error
    try:
        _require_regular(os.fstat(fd).st_mode, path)
        return os.fdopen(fd, "rb")
    except BaseException:
        os.close(fd)
        raise


def read_bytes(path: Path, limit: int) -> bytes:
    """Return what a regular file holds; raises as `open_regular`, and UserError for more than `limit` bytes."""
    with open_regular(path) as stream:
        known = os.fstat(stream.fileno()).st_size  # 0 of a file in /proc, whatever it holds
        data = bytearray()
        while max(known, len(data)) <= limit:
            if not (more := stream.read(min(SMALL, limit + 1 - len(data)))):
                return bytes(data)
            data += more
    raise UserError(f"larger than {size_text(limit)}", file=path, fix="is it the file that is meant?")


def read_text(path: Path, limit: int) -> str:
    """Return a regular file's UTF-8 text; raises as `read_bytes`, and UnicodeDecodeError."""
    return read_bytes(path, limit).decode("utf-8")


def read_object(path: Path, limit: int) -> dict[str, Any] | None:
    """Return the JSON object that a regular file holds; None if it holds none, or more than `limit`, or is not read."""
    try:
        return json_object(read_bytes(path, limit))
    except (OSError, UserError):
        return None


def json_object(text: bytes) -> dict[str, Any] | None:
    """Return the object that a text in JSON is; None if it is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def write_whole(path: Path, content: str | bytes, temporary: Path | None = None) -> None:
    """Write a file whole or not at all, also where others write it: first `temporary` (default: next to the file)."""
    temporary = temporary or path.with_name(f".{path.name}.{uuid.uuid4().hex[:10]}")
    try:
        with writing(path), temporary.open("xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        temporary.replace(path)
    except BaseException:  # an interrupt, too
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def size_text(size: int) -> str:
    """Write a number of bytes in the largest unit that leaves at least 1: "64 MiB", "1.5 GiB"."""
    units = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
    power = min(max(0, (size.bit_length() - 1) // 10), len(units) - 1)
    return f"{size / (1 << 10 * power):.4g} {units[power]}"


def _require_regular(mode: int, path: Path) -> None:
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "no file")
        raise UserError(f"is {kind}, expected a file", file=path, fix="name a regular file")
