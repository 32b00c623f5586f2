"""A seal says what the arrays of a cached directory contain, so that a damaged one is not taken for what was made."""

from __future__ import annotations

import json
from pathlib import Path

from harness.data.store import hash_file

SEAL = "seal.json"


def seal(directory: Path) -> None:
    """Write into `directory` the SHA-256 of each `.npy` file below it."""
    hashes = {path.relative_to(directory).as_posix(): hash_file(path) for path in sorted(directory.rglob("*.npy"))}
    (directory / SEAL).write_text(json.dumps(hashes, indent=1))


def broken(directory: Path) -> Path | None:
    """Return the first file that is not what it was when `directory` was sealed; all of them are read.

    None where all are, and for a directory that was made before there were seals. Times of change say nothing:
    a disk that loses bits does not change them.
    """
    path = directory / SEAL
    try:
        hashes = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return path
    if not isinstance(hashes, dict):
        return path
    return next((directory / name for name, known in hashes.items() if _hash(directory / name) != known), None)


def _hash(path: Path) -> str | None:
    try:
        return hash_file(path)
    except OSError:
        return None
