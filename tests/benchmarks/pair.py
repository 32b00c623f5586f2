"""Work of two ranks: this process is rank 0, a process of its own does the same as rank 1."""

from __future__ import annotations

import itertools
import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from harness.check.training import Case
from harness.runtime.step import SyncExchange

Make = Callable[[int, Case], Callable[[], object]]


@contextmanager
def two_ranks(make: Make, case: Case, rounds: int, store: Path) -> Iterator[Callable[[], object]]:
    """Yield rank 0's work, to be called `rounds` times, while rank 1 calls its own as often."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "benchmarks.pair"])
    peer = context.Process(target=_peer, args=(make, case, rounds, store))
    peer.start()
    try:
        _join(0, store)
        yield make(0, case)
        peer.join(30)
    finally:
        if peer.is_alive():
            peer.kill()
            peer.join()
        if dist.is_initialized():
            dist.destroy_process_group()
    assert peer.exitcode == 0


def _join(rank: int, store: Path) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", store=dist.FileStore(str(store), 2), rank=rank, world_size=2, timeout=timedelta(seconds=120)
    )


def _peer(make: Make, case: Case, rounds: int, store: Path) -> None:
    _join(1, store)
    work = make(1, case)
    for _ in range(rounds):
        work()
    os._exit(0)


def exchange(rank: int, case: Case) -> Callable[[], object]:
    """Exchange all boundary rows of the hidden width, and the gradients back."""
    trainer = case.trainer(rank, 2)
    worker = trainer.worker
    swap = SyncExchange(worker.comm, worker.partition.full_halo)
    rows = torch.ones(worker.partition.num_inner, case.model.hidden, requires_grad=True)

    def work() -> None:
        rows.grad = None
        source = swap(rows, 1)
        source.backward(torch.ones_like(source))

    return work


def clock_on_and_off(rank: int, case: Case, world: int = 2) -> Callable[[], tuple[bool, float, float]]:
    """Train, in turn, an epoch with its phases timed and one timed as a whole.

    Returns whether phases were timed, and the epoch's seconds: wall time, and CPU time of this process.
    """
    trainer = case.trainer(rank, world)
    worker = trainer.worker
    turns = itertools.count()

    def work() -> tuple[bool, float, float]:
        turn = next(turns)
        # Which of a pair is first changes, so that neither profits from the other.
        worker.clock.detailed = (turn + turn // 2) % 2 == 0
        row = trainer.train_epoch(turn)
        return worker.clock.detailed, row["epoch_time_s"], row["cpu_s"]

    return work


def epoch(rank: int, case: Case) -> Callable[[], object]:
    """Train an epoch."""
    trainer = case.trainer(rank, 2)
    return lambda: trainer.train_epoch(0)
