"""The reference workload: a fixed small piece of training whose time shows how fast the machine is now.

Run as `python -m harness.runtime.speed_reference JOB.json`, as ranks are. It is what training consists of, a sparse
product, a dense one, and passes over memory larger than a core's cache, by torch's own kernels: a change of harness
must not change the yardstick that it is measured by. The cores that trials get work at it together, one thread each.
Times of different workloads do not compare: one that is changed has another name in records.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from threading import Barrier

from harness.runtime import exit_with_launcher

if __name__ == "__main__":
    exit_with_launcher()  # before torch is imported, which takes seconds

import torch

from harness.runtime.rank import leave
from harness.runtime.report import RankReport

NODES, DEGREE, WIDTH, PASS = 12_000, 16, 64, 1 << 21
WARM_UP, REPETITIONS = 2, 25


class Workload:
    """One core's share: 25 MFLOP in a sparse product, 98 in a dense one, 6 passes over 8 MiB."""

    def __init__(self) -> None:
        # Fixed by arithmetic: what a generator draws may change with its library's version.
        entries = torch.arange(NODES * DEGREE, dtype=torch.int64)
        rows = torch.arange(0, NODES * DEGREE + 1, DEGREE)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            columns = entries * 7919 % NODES
            self._matrix = torch.sparse_csr_tensor(rows, columns, torch.ones(NODES * DEGREE), (NODES, NODES))
        self._rows, self._weights = torch.ones(NODES, WIDTH), torch.ones(WIDTH, WIDTH)
        self._memory = torch.ones(PASS)

    def __call__(self) -> None:
        """Do it once."""
        self._matrix @ self._rows
        self._rows @ self._weights
        for _ in range(3):
            self._memory.mul_(0.5).add_(0.5)


def measure(cores: Sequence[int], repetitions: int = REPETITIONS) -> float:
    """Return the median seconds of one repetition, which `cores` begin together, until all have done their shares."""
    start, spans = Barrier(len(cores)), [[(0.0, 0.0)] * len(cores) for _ in range(repetitions)]

    def work(number: int) -> None:
        try:
            if hasattr(os, "sched_setaffinity"):
                os.sched_setaffinity(0, {cores[number]})  # of this thread
            torch.set_num_threads(1)
            workload = Workload()
            for repetition in range(-WARM_UP, repetitions):
                start.wait()
                began = time.perf_counter()
                workload()
                if repetition >= 0:
                    spans[repetition][number] = began, time.perf_counter()
        except BaseException:
            start.abort()  # or the others would wait for this one
            raise

    with ThreadPoolExecutor(len(cores)) as threads:
        list(threads.map(work, range(len(cores))))
    return median(max(end for _, end in span) - min(begin for begin, _ in span) for span in spans)


def main(arguments: list[str]) -> int:
    """Measure on the `cores` of the job, and write `reference_s` as a rank's report next to it."""
    job = Path(arguments[0])
    report = RankReport(job.parent, 0)
    with report.concluding():
        report.finish({"reference_s": measure(json.loads(job.read_bytes())["cores"])}, 0.0)
    return report.exit_code


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
