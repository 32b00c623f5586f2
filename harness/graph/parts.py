"""Parts of a matrix's rows for threads: kernels that release the interpreter's lock run on several at once.

Not numba's own threads: compiling for them takes seconds, one thread of a process at a time may use them
(a prefetching one would be a second), and a serial and a parallel kernel of one function share, and so
spoil, each other's place in numba's cache.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

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
    """Call `work(0)`, ..., `work(parts - 1)`, each in a thread of its own; raises what one of them raised."""
    if parts == 1:
        work(0)
        return
    with ThreadPoolExecutor(parts) as pool:
        for done in [pool.submit(work, part) for part in range(parts)]:
            done.result()
