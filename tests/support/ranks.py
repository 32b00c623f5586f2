"""Real process groups for tests: gloo on loopback, a hard timeout, and every rank's output on failure."""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest


def run_ranks(
    function: Callable[..., Any], world: int, *arguments: Any, timeout_s: float = 120, **options: Any
) -> list[Any]:
    """Call `function(rank, world, *arguments, **options)` on every rank of a new group; results by rank.

    `function` must be importable (a module of tests/support). Fails the test with all output if a rank
    fails or the time is over; ends only processes that it started.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "harness.runtime.worker", "support.training"])
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        call = partial(function, **options)
        pipes = [context.Pipe(duplex=False) for _ in range(world)]
        processes = [
            context.Process(target=_rank, args=(call, rank, world, out, pipes[rank][1], arguments))
            for rank in range(world)
        ]
        for process in processes:
            process.start()
        for _, sender in pipes:
            sender.close()
        try:
            return _collect([receiver for receiver, _ in pipes], time.monotonic() + timeout_s, out)
        finally:
            for process in processes:
                process.join(2)
                if process.is_alive():
                    process.kill()
                    process.join()


def _collect(receivers: list[Any], deadline: float, out: Path) -> list[Any]:
    results = []
    for rank, receiver in enumerate(receivers):
        try:
            if not receiver.poll(max(0, deadline - time.monotonic())):
                pytest.fail(f"rank {rank} gave no result in time\n{_logs(out)}")
            ok, value = receiver.recv()
        except EOFError:
            pytest.fail(f"rank {rank} died\n{_logs(out)}")
        if not ok:
            pytest.fail(f"rank {rank} failed: {value}\n{_logs(out)}")
        results.append(value)
    return results


def _logs(out: Path) -> str:
    return "\n".join(f"--- {log.name}\n{log.read_text()}" for log in sorted(out.glob("*.log")))


def _rank(
    function: Callable[..., Any], rank: int, world: int, out: Path, sender: Any, arguments: tuple[Any, ...]
) -> None:
    log = os.open(out / f"rank{rank}.log", os.O_CREAT | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1)
    sys.stderr = os.fdopen(2, "w", buffering=1)
    import torch

    torch.set_num_threads(1)
    if world > 1:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        torch.distributed.init_process_group(
            "gloo",
            store=torch.distributed.FileStore(str(out / "store"), world),
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=60),
        )
    try:
        result = (True, function(rank, world, *arguments))
    except BaseException as error:
        traceback.print_exc()
        result = (False, repr(error))
    sender.send(result)
    sender.close()
    if world > 1 and result[0]:
        torch.distributed.barrier()
    os._exit(0)
