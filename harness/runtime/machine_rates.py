"""Machine rates: what ranks reach in copies, gathers, products and exchanges while each core has one of them.

Run as `python -m harness.runtime.machine_rates JOB.json`, as ranks are. They do the same at the same time, one thread
each, because ranks of a trial share the memory's bandwidth. No epoch goes into the rates.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from harness.runtime import exit_with_launcher

if __name__ == "__main__":
    exit_with_launcher()  # before torch is imported, which takes seconds

import torch
import torch.distributed as dist

from harness.models.functional import Linear
from harness.runtime.clock import Clock
from harness.runtime.comm import Communicator, Traffic
from harness.runtime.job import patient_threads
from harness.runtime.rank import leave
from harness.runtime.report import RankReport
from harness.runtime.run_config import LARGEST_CACHE

TABLE, CACHED, MOVED, SENT = LARGEST_CACHE, 512 << 10, 32 << 20, 16 << 20  # bytes; a core's cache holds the second
WIDTHS, BAG = (16, 64, 256, 1024), 16  # float32 values of a gathered row; rows that are summed
ROWS, INNER = 8192, 256  # of a dense product
WARM_UP, REPETITIONS = 2, 9


def measure(comm: Communicator) -> dict[str, float]:
    """Return the best of this rank: bytes or operations a second by what is done, and `latency_s` of an exchange.

    The best and not the median, and products by the library that trials use: shares are of what can be reached.
    """

    def seconds(work: Callable[[], object]) -> float:
        taken = []
        for _ in range(WARM_UP + REPETITIONS):
            comm.barrier()
            start = time.perf_counter()
            work()
            taken.append(time.perf_counter() - start)
        return min(taken[WARM_UP:])

    rates, source = dict[str, float](), torch.ones(TABLE // 4)
    target, generator = torch.empty_like(source), torch.Generator().manual_seed(comm.rank)
    rates["copy"] = 2 * TABLE / seconds(partial(target.copy_, source))
    for size, name in ((CACHED, "cached"), (TABLE, "gather")):
        for width in WIDTHS:
            table, count = source[: size // 4].view(-1, width), MOVED // 4 // width
            index, bags = torch.randint(len(table), (count,), generator=generator), torch.arange(0, count, BAG)
            gather = partial(torch.nn.functional.embedding_bag, index, table, bags, mode="sum")
            rates[f"{name} {width}"] = MOVED / seconds(gather)
    linear, left, right = Linear(), torch.ones(ROWS, INNER), torch.ones(INNER, INNER)
    for name in ("float32", "bfloat16"):
        linear.rounded, factor = name == "bfloat16", left.to(getattr(torch, name))
        rates[f"product {name}"] = 2 * ROWS * INNER**2 / seconds(partial(linear, factor, right))
    if comm.world > 1:
        for rows, key in ((SENT // 4 // (comm.world - 1), "exchange"), (1, "latency_s")):
            counts = [0 if rank == comm.rank else rows for rank in range(comm.world)]
            sent = torch.ones(sum(counts))
            taken = seconds(partial(comm.exchange_rows, sent, counts, counts, purpose="control"))
            rates[key] = 4 * sum(counts) / taken if key == "exchange" else taken
    return rates


def main(arguments: list[str]) -> int:
    """Measure together with the other ranks, which are found through the job's `store`."""
    job, rank, world = Path(arguments[0]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    report = RankReport(job.parent, rank)
    with report.concluding():
        torch.set_num_threads(1)
        if world > 1:
            store = dist.FileStore(json.loads(job.read_bytes())["store"], world)  # type: ignore[attr-defined]
            with patient_threads():
                dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
        device = torch.device("cpu")
        report.finish(measure(Communicator(rank, world, device, Clock(device), Traffic())), 0.0)
    return report.exit_code


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
