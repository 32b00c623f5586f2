"""What the ranks of a group leave in their directory, read while it may still be written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LOG_BYTES = 32 * 1024


class ProgressTail:
    """Reads the lines that were added to a JSON-lines file since the last look."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset, self._rest = path, 0, b""

    def new(self) -> list[dict[str, Any]]:
        """Return the new events, oldest first; a line still being written comes at a later call."""
        try:
            with self._path.open("rb") as stream:
                stream.seek(self._offset)
                chunk = stream.read()
        except FileNotFoundError:
            return []
        self._offset += len(chunk)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return [event for line in lines if (event := _parse(line)) is not None]


def read_rank(out: Path, rank: int) -> dict[str, Any] | None:
    """Return what `rank` wrote at its end, or None if it wrote nothing readable."""
    try:
        written = _parse((out / f"rank{rank}.json").read_bytes())
    except OSError:
        return None
    return written if written is not None and isinstance(written.get("status"), str) else None


def log_path(out: Path, rank: int) -> Path:
    """Return the file that the output of `rank` goes to."""
    return out / f"log-{rank}.txt"


def log_tail(out: Path, rank: int, limit: int = LOG_BYTES) -> str:
    """Return at most the last `limit` bytes of a rank's output, from the start of a line."""
    try:
        with log_path(out, rank).open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(max(0, size - limit))
            data = stream.read()
    except OSError:
        return ""
    if size > limit:
        data = data.partition(b"\n")[2]
    return data.decode("utf-8", errors="replace")


def group_log(out: Path, ranks: Sequence[int]) -> str:
    """Return the end of every rank's output, under a header a rank."""
    parts = []
    for rank in ranks:
        text = log_tail(out, rank)
        parts.append(f"==== rank {rank} ====\n{text}" + ("" if text.endswith("\n") or not text else "\n"))
    return "".join(parts)


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
