"""Moves: how far a rank is, in a page of memory that is shared with whoever watches it.

A rank that stands still says nothing of itself: it is what it has written before that tells it from its peers.
"""

from __future__ import annotations

import mmap
import signal
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

STACKS = signal.SIGUSR1
"""Has a rank write the stacks of all its threads to its log."""
_LAYOUT = struct.Struct("=qqqq")


@dataclass(frozen=True)
class Place:
    """Where a rank is.

    Attributes:
        moves: grows with whatever it does.
        epoch: that it trains, from 0; -1 before the first.
        entered, left: collectives that it has begun, in whatever thread, and that have ended for it.
    """

    moves: int = 0
    epoch: int = -1
    entered: int = 0
    left: int = 0

    @property
    def waits(self) -> bool:
        """Whether it is in a collective."""
        return self.entered > self.left


class Moves:
    """Writes where a rank is, from any thread: half a microsecond a move, two and a half a collective."""

    def __init__(self, out: Path, rank: int) -> None:
        path = moves_path(out, rank)
        path.write_bytes(_LAYOUT.pack(0, -1, 0, 0))
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), _LAYOUT.size)
        self._lock = Lock()
        self._moves, self._epoch, self._entered, self._left = 0, -1, 0, 0

    def step(self) -> None:
        """Note that something was done."""
        with self._lock:
            self._write()

    def epoch(self, number: int) -> None:
        """Note that an epoch begins."""
        with self._lock:
            self._epoch = number
            self._write()

    @contextmanager
    def collective(self) -> Iterator[None]:
        """Note that it is in a collective, which ends for it when this does, if it does."""
        with self._lock:
            self._entered += 1
            self._write()
        try:
            yield
        finally:
            with self._lock:
                self._left += 1
                self._write()

    def _write(self) -> None:
        self._moves += 1
        _LAYOUT.pack_into(self._page, 0, self._moves, self._epoch, self._entered, self._left)


def moves_path(out: Path, rank: int) -> Path:
    """Return the file in which a rank that writes to `out` says where it is."""
    return out / f"moves-{rank}"


def read_moves(out: Path, rank: int) -> Place | None:
    """Return where a rank is; None if it has not said yet."""
    with suppress(OSError, struct.error):
        return Place(*_LAYOUT.unpack(moves_path(out, rank).read_bytes()))
    return None
