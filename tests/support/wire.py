"""What ranks of the communicator's tests do."""

from __future__ import annotations

from pathlib import Path

import torch

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
