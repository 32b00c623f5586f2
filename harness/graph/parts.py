"""Parts of a matrix's rows for threads: kernels that release the interpreter's lock run on several at once.

Not numba's own threads: compiling for them takes seconds, one thread of a process at a time may use them
(a prefetching one would be a second), and a serial and a parallel kernel of one function share, and so
spoil, each other's place in numba's cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from harness.graph.csr import CSR

LEAST_WORK = 10_000  # entries that are worth a thread


def row_parts(matrix: CSR) -> NDArray[np.int64]:
    """Return the first row of each part, and the number of rows: as many parts as threads, of equal work."""
    indptr = matrix.indptr.numpy()
    parts = min(torch.get_num_threads(), 1 + matrix.nnz // LEAST_WORK)
    bounds: NDArray[np.int64] = np.searchsorted(indptr, np.linspace(0, matrix.nnz, parts + 1))
    bounds[0], bounds[-1] = 0, matrix.num_rows
    return bounds


def run_parts(work: Callable[[int], None], parts: int) -> None:
    """Call `work(0)` here and `work(1)`, ..., `work(parts - 1)` in threads; raises what one of them raised.

    `work` may not call this in turn: the threads are a process's, kept because starting them takes as long as
    a small product.
    """
    others = [_pool(os.getpid(), parts).submit(work, part) for part in range(1, parts)]
    try:
        work(0)
    finally:
        wait(others)
    for done in others:
        done.result()


@cache
def _pool(process: int, parts: int) -> ThreadPoolExecutor:
    # By process: a forked one has its parent's pools, but none of their threads.
    return ThreadPoolExecutor(parts - 1, thread_name_prefix=f"parts-of-{process}")
