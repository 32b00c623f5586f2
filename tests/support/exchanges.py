"""Ranks that do nothing but exchange rows, and what they saw of it.

As a module it is such a rank: `python -m support.exchanges JOB.json`, with torchrun's environment.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from harness.launch.group import run_group
from harness.launch.network import network
from harness.suite.sections import NetworkSpec

TESTS = Path(__file__).resolve().parents[1]


def exchanges(
    spec: NetworkSpec, world: int, messages: list[int], out: Path, timeout_s: float = 60
) -> list[dict[str, Any]]:
    """Have every rank send each peer a message of each length, in turn; return what each rank reports.

    "seconds" (of each message), "wrong" (bytes received that differ), "interface" and "loopback" ([received,
    sent] bytes), "namespace", "session" (whether it leads one), "stdin" (whether that is a pipe).
    """
    out.mkdir(exist_ok=True)
    job = out / "job.json"
    job.write_text(json.dumps({"out": str(out), "messages": messages}))
    with network(spec, world) as places:
        group = run_group(job, places, threads=1, timeout_s=timeout_s, worker="support.exchanges")
    assert group.status == "ok", f"{group.reason}\n{group.log}"
    return list(group.ranks)


def rates(reports: list[dict[str, Any]], messages: list[int]) -> list[float]:
    """Return payload bits a second that each rank sent, by the slowest rank's time of each exchange."""
    slowest = [max(times) for times in zip(*(report["seconds"] for report in reports), strict=True)]
    peers = len(reports) - 1
    return [8 * size * peers / seconds for size, seconds in zip(messages, slowest, strict=True)]


def main() -> None:
    """Be a rank."""
    import stat
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    from harness.runtime.clock import Clock
    from harness.runtime.comm import Communicator, Traffic

    job = json.loads(Path(sys.argv[1]).read_text())
    out, rank, world = Path(job["out"]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    store = dist.FileStore(str(out / "store"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=60))
    cpu = torch.device("cpu")
    comm = Communicator(rank, world, cpu, Clock(cpu), Traffic())
    seconds, wrong = [], 0
    for size in job["messages"]:
        counts = [0 if peer == rank else size for peer in range(world)]
        sent = torch.full((sum(counts),), rank, dtype=torch.uint8)
        received = torch.full_like(sent, 255)
        dist.barrier()
        start = time.perf_counter()
        comm.exchange_rows(sent, counts, counts, purpose="feature", out=received)
        seconds.append(time.perf_counter() - start)
        senders = torch.tensor([peer for peer in range(world) if peer != rank], dtype=torch.uint8)
        wrong += int((received.view(world - 1, size) != senders.unsqueeze(1)).sum())
    dist.barrier()
    report = {
        "rank": rank,
        "status": "ok",
        "seconds": seconds,
        "wrong": wrong,
        "interface": _counters(os.environ["GLOO_SOCKET_IFNAME"]),
        "loopback": _counters("lo"),
        "namespace": os.stat("/proc/self/ns/net").st_ino,
        "session": os.getsid(0) == os.getpid(),
        "stdin": stat.S_ISFIFO(os.fstat(0).st_mode),
    }
    (out / f"rank{rank}.json").write_text(json.dumps(report))
    os._exit(0)


def _counters(interface: str) -> list[int]:
    lines = Path("/proc/net/dev").read_text().splitlines()
    found = next(line for line in lines if line.strip().startswith(f"{interface}:"))
    fields = found.partition(":")[2].split()
    return [int(fields[0]), int(fields[8])]


if __name__ == "__main__":
    main()
