"""Rows of features that stay in a file, read by their places; some of them may be held in memory."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.data.prepared import map_npy
from harness.deferred import numpy as np
from harness.deferred import torch
from harness.errors import DataError
from harness.graph.devices import upload

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

READERS = 8  # threads that wait for the disk: it answers several questions in little more than the time of one
AGAIN = "remove its directory, and it is made again"
AT_ONCE = 1 << 20  # bytes that a thread reads before they are copied to where they belong


class RowsOnDisk:
    """The features of a rank's inner nodes in a file.

    Rows are read in ascending order, neighbours in the file at once, and not through a memory map, whose pages would
    count as the rank's memory. The kernel may still have them in its page cache.

    Args:
        file: an `.npy` [n_in, F] of float32 or float16, or of uint16: the bits of bfloat16.

    Attributes:
        stored: the dtype of its values.
        row_bytes: of a row in the file.
        count: rows that were read from the file so far; a row that is asked for twice in one call counts once.

    Raises:
        DataError: the file is none of these, or cannot be read.
    """

    def __init__(self, file: Path) -> None:
        mapped = map_npy(file, AGAIN)
        (self.rows, self.width), dtype = mapped.shape, mapped.dtype
        self._start = file.stat().st_size - mapped.nbytes
        kinds = {"float32": torch.float32, "float16": torch.float16, "uint16": torch.bfloat16}
        if dtype.name not in kinds:
            raise DataError(f"has values of {dtype}", file=file)
        self.stored, self._dtype, self._file = kinds[dtype.name], dtype, file
        self.row_bytes, self.count = self.width * dtype.itemsize, 0
        self._at_once = max(1, AT_ONCE // max(1, self.row_bytes))
        self._handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        # Of each row its place among those that memory holds, or -1; empty: it holds none.
        self._slot: NDArray[np.int32] = np.empty(0, np.int32)
        self._held = torch.empty((0, self.width))

    def __del__(self) -> None:
        if (handle := vars(self).pop("_handle", None)) is not None:
            os.close(handle)

    def mapped(self) -> Tensor:
        """Return all rows [n_in, F] as the file has them, through a memory map; what is written stays in memory."""
        return torch.from_numpy(np.load(self._file, mmap_mode="c"))

    def read(self, rows: NDArray[Any], out: Tensor, at: NDArray[Any] | None = None) -> int:
        """Write `rows` (integers, in any order) to `out` [n, F], or to its rows `at`; return how many the file gave.

        Raises:
            DataError: the file ends early.
        """
        at = np.arange(rows.size) if at is None else at
        if self._slot.size:
            slot = self._slot[rows]
            held, missing = np.flatnonzero(slot >= 0), np.flatnonzero(slot < 0)
            found = self._held[torch.from_numpy(slot[held])]
            out.index_copy_(0, upload(at[held], out.device), upload(found, out.device, out.dtype))
            rows, at = rows[missing], at[missing]
        distinct, which = np.unique(rows, return_inverse=True)
        order = np.argsort(which, kind="stable")
        ascending = which[order]
        # A few MiB, of the thread that asks: each reader's own would stay in its part of the heap.
        room = np.empty((min(READERS * self._at_once, distinct.size), self.width), self._dtype)
        with ThreadPoolExecutor(READERS) as readers:
            for first in range(0, distinct.size, READERS * self._at_once):
                rows = distinct[first : first + READERS * self._at_once]
                shares = [slice(k, k + self._at_once) for k in range(0, rows.size, self._at_once)]
                list(readers.map(self._fill, [rows[own] for own in shares], [room[own] for own in shares]))
                ours = order[slice(*np.searchsorted(ascending, [first, first + rows.size]))]
                found = self._values(room[which[ours] - first])
                out.index_copy_(0, upload(at[ours], out.device), upload(found, out.device, out.dtype))
        self.count += distinct.size
        return distinct.size

    def hold(self, rows: NDArray[Any], dtype: torch.dtype) -> int:
        """Hold `rows` (distinct) and no others in the host's memory, as `dtype`; return as `read`."""
        self._slot = np.empty(0, np.int32)
        held = torch.empty((rows.size, self.width), dtype=dtype)
        count = self.read(rows, held)
        slot = np.full(self.rows, -1, np.int32)
        slot[rows] = np.arange(rows.size, dtype=np.int32)
        self._slot, self._held = slot, held
        return count

    def _fill(self, rows: NDArray[Any], found: NDArray[Any]) -> None:
        """Read ascending, distinct `rows` into `found` [n, F], those that follow each other at once."""
        view, size = found.reshape(-1).view(np.uint8).data, self.row_bytes
        bounds = [0, *(np.flatnonzero(np.diff(rows) > 1) + 1).tolist(), rows.size]
        for start, end in pairwise(bounds):
            place, own = self._start + int(rows[start]) * size, view[start * size : end * size]
            while len(own):
                if not (got := os.preadv(self._handle, (own,), place)):
                    raise DataError("ends early", file=self._file, fix=AGAIN)
                place, own = place + got, own[got:]

    def _values(self, found: NDArray[Any]) -> Tensor:
        return torch.from_numpy(found if found.itemsize == 4 else found.view(np.int16)).view(self.stored)
