"""What ranks of the communicator's tests do."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

from harness.runtime.audit import TrafficCheck
from harness.runtime.batches import Background
from harness.runtime.clock import Clock
from harness.runtime.comm import Communicator, Traffic

CPU = torch.device("cpu")


def communicator(rank: int, world: int) -> Communicator:
    return Communicator(rank, world, CPU, Clock(CPU), Traffic())


def loopback_bytes() -> int:
    """Bytes the kernel has sent over loopback since the machine started."""
    line = next(x for x in Path("/proc/net/dev").read_text().splitlines() if x.strip().startswith("lo:"))
    return int(line.split(":")[1].split()[8])


def large_exchange(rank: int, world: int, rows: int, width: int) -> dict[str, int]:
    """Exchange `rows` rows with every peer; returns the bytes counted and those the kernel saw."""
    comm = communicator(rank, world)
    data = torch.full((rows * world, width), float(rank))
    comm.all_reduce(torch.zeros(1), purpose="control")
    before, counted = loopback_bytes(), comm.traffic.sent("setup")["feature"]
    got = comm.exchange_rows(data, [rows] * world, [rows] * world, purpose="feature")
    comm.all_reduce(torch.zeros(1), purpose="control")
    assert [float(got[q * rows, 0]) for q in range(world)] == list(range(world))
    return {"counted": comm.traffic.sent("setup")["feature"] - counted, "kernel": loopback_bytes() - before}


def large_all_reduce(rank: int, world: int, elements: int) -> dict[str, int]:
    """All-reduce a vector; returns the bytes counted and those the kernel saw."""
    comm = communicator(rank, world)
    comm.all_reduce(torch.zeros(1), purpose="control")
    before = loopback_bytes()
    vector = comm.all_reduce(torch.full((elements,), rank + 1.0), purpose="model")
    comm.all_reduce(torch.zeros(1), purpose="control")
    assert float(vector[-1]) == world * (world + 1) / 2
    return {"counted": comm.traffic.sent("setup")["model"], "kernel": loopback_bytes() - before}


def odd_exchanges(rank: int, world: int) -> dict[str, object]:
    """Uneven, empty and gathered transfers."""
    comm = communicator(rank, world)
    counts = [(rank + 1) * q for q in range(world)]
    wanted = comm.exchange_counts(counts)
    rows = torch.arange(sum(counts)).unsqueeze(1) + 100 * rank
    received = comm.exchange_rows(rows, counts, wanted, purpose="embedding", layer=1, direction="forward")
    gathered = comm.all_gather(torch.tensor([rank, 10 * rank]))
    empty = comm.exchange_rows(torch.empty(0, 3), [0] * world, [0] * world, purpose="gradient")
    return {
        "wanted": wanted,
        "received": received[:, 0].tolist(),
        "gathered": [g.tolist() for g in gathered],
        "empty": tuple(empty.shape),
        "sent": comm.traffic.sent("setup"),
        "rows": comm.traffic.rows(),
    }


def late_rank(rank: int, world: int, delay_s: float, *, aligned: bool) -> dict[str, float]:
    """Exchange and reduce while the last rank is late; returns the phases of each rank."""
    comm = communicator(rank, world)
    rows = torch.zeros(world, 8)
    comm.barrier()
    with comm.clock.epoch(aligned=aligned) as timed:
        with comm.clock.phase("forward"):
            time.sleep(delay_s if rank == world - 1 else 0)
            comm.exchange_rows(rows, [1] * world, [1] * world, purpose="feature")
        comm.all_reduce(torch.zeros(8), purpose="model")
    return timed.phases | {"barriers": timed.barriers, "wall": timed.wall_s}


def beside(rank: int, world: int, steps: int, size: int) -> dict[str, object]:
    """Start transfers of `size` rows, compute, and wait for them in turn; the last rank is slow."""
    comm = communicator(rank, world)
    background = Background(comm)
    received, pending = [], []
    with comm.traffic.during("epoch"), comm.clock.epoch() as timed:
        for step in range(steps):
            rows = torch.full((size * world, 4), float(100 * step + rank))
            counts = [size] * world
            pending.append(background.start(rows, counts, counts, purpose="embedding", layer=step))
            with comm.clock.phase("forward"):
                time.sleep(0.3 if rank == world - 1 else 0.1)
            # An exchange of the trainer's own in between must not be mixed up with them.
            own = comm.exchange_rows(torch.full((world, 1), -1.0), [1] * world, [1] * world, purpose="feature")
            assert own.unique().tolist() == [-1.0]
            received.append(pending[step].wait()[::size, 0].tolist())
    background.run(lambda aside: aside.exchange_rows(rows, counts, counts, purpose="control"))  # nobody waits for it
    background.close()
    return {"received": received, "busy": timed.busy_s, "comm": timed.phases["comm"], "rows": comm.traffic.rows()}


def broken_background(rank: int, world: int) -> str:
    """Start a transfer whose counts do not fit the rows; returns what waiting for it raises."""
    background = Background(communicator(rank, world))
    pending = background.start(torch.zeros(3, 1), [5] * world, [1] * world, purpose="embedding")
    try:
        pending.wait()
    except (RuntimeError, ValueError) as error:
        return type(error).__name__
    return "nothing"


def verified(rank: int, world: int, rows: int) -> dict[str, object]:
    """Two checked epochs of an exchange, and traffic outside of them that must not count."""
    comm = communicator(rank, world)
    check = TrafficCheck(comm, "lo")
    data, counts = torch.zeros(rows * world, 64), [rows] * world
    for _ in range(2):
        with check.epoch(), comm.traffic.during("epoch"):
            comm.exchange_rows(data, counts, counts, purpose="embedding")
        with comm.traffic.during("eval"):
            comm.exchange_rows(data, counts, counts, purpose="embedding")
    return check.report()


def schedulers(rank: int, world: int) -> list[tuple[str, int]]:
    """Return name and scheduling policy of each of the rank's threads."""
    tasks = Path("/proc/self/task")
    dist.all_reduce(torch.zeros(1))  # starts those that reduce
    return [((task / "comm").read_text().strip(), os.sched_getscheduler(int(task.name))) for task in tasks.iterdir()]
