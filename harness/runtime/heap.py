"""The C library's heap of a rank: what goes back to the kernel, and what is kept out of it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLD = "MALLOC_MMAP_THRESHOLD_"
OUTSIDE_BYTES = 2**20
_MMAP_THRESHOLD = -3  # of mallopt


def give_back() -> None:
    """Have the heap return what is free in it to the kernel, where it is glibc's."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


@contextmanager
def outside() -> Iterator[None]:
    """Have blocks from 1 MiB on allocated outside of the heap: each goes back as a whole when it is freed.

    A rank's heap keeps what an epoch frees (`harness.launch.process.DEFAULTS`), because the next one needs the same.
    What is made before stays or is needed once: in the heap it would leave holes that little fits into. Does nothing
    where no environment variable says what holds again afterwards.
    """
    after = os.environ.get(THRESHOLD, "")
    option = getattr(ctypes.CDLL(None), "mallopt", None) if after.isdecimal() else None
    if option is None:
        yield
        return
    option(_MMAP_THRESHOLD, OUTSIDE_BYTES)
    try:
        yield
    finally:
        option(_MMAP_THRESHOLD, min(int(after), 2**31 - 1))  # an int; the variable's own limit is that of a size
