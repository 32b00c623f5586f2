"""Groups of ranks that call functions together: gloo on loopback, hard time limits, all output on failure."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NoReturn

START_S = 120  # on a busy machine imports alone take half a minute
END_S = 2


class RankError(Exception):
    """A rank raised, died or did not return in time.

    Attributes:
        reason: one line.
        output: of all ranks; of one that raised its traceback, of those that did not return where they were.
    """

    def __init__(self, reason: str, output: str) -> None:
        super().__init__(f"{reason}\n{output}")
        self.reason, self.output = reason, output


def run_ranks(
    function: Callable[..., Any], world: int, *arguments: Any, timeout_s: float = 120, **options: Any
) -> list[Any]:
    """Call `function(rank, world, *arguments, **options)` on every rank of a new group; results by rank.

    Raises:
        RankError: see `RankGroup.call`.
    """
    with rank_group(world) as group:
        return group.call(function, *arguments, timeout_s=timeout_s, **options)


@contextmanager
def rank_group(world: int) -> Iterator[RankGroup]:
    """Start ranks 0 to `world` - 1; they end with the context, and their temporary files with them.

    Raises:
        RankError: a rank did not start.
    """
    context = multiprocessing.get_context("forkserver")
    # torch's optimizers import the second on first use: seconds of every rank of every group.
    context.set_forkserver_preload(["harness.check.training", "torch._dynamo"])
    with tempfile.TemporaryDirectory() as folder:
        pipes = [context.Pipe() for _ in range(world)]
        processes: list[BaseProcess] = [
            context.Process(target=_rank, args=(rank, world, Path(folder), theirs), daemon=True)
            for rank, (_, theirs) in enumerate(pipes)
        ]
        for process in processes:
            process.start()
        for _, theirs in pipes:
            theirs.close()
        group = RankGroup([ours for ours, _ in pipes], processes, Path(folder))
        try:
            group.results(START_S)
            yield group
        finally:
            for ours, _ in pipes:
                ours.close()  # a rank that waits for a call ends
            _end(processes, 0 if group.failed else END_S)


def _end(processes: list[BaseProcess], patience_s: float) -> None:
    for process in processes:
        process.join(patience_s)
        if process.is_alive():
            process.kill()
            process.join()


class RankGroup:
    """Ranks that wait for calls; see `rank_group`.

    Attributes:
        failed: a call raised `RankError`; the group is of no use any more.
    """

    def __init__(self, pipes: list[Connection], processes: list[BaseProcess], folder: Path) -> None:
        self._pipes, self._processes, self._folder = pipes, processes, folder
        self.failed = False

    def call(self, function: Callable[..., Any], *arguments: Any, timeout_s: float = 120, **options: Any) -> list[Any]:
        """Call `function(rank, world, *arguments, **options)` on every rank; results by rank.

        `function` must be importable.

        Raises:
            RankError: a rank raised, died, or took more than `timeout_s` seconds.
        """
        for pipe in self._pipes:
            pipe.send((function, arguments, options))
        return self.results(timeout_s)

    def results(self, timeout_s: float) -> list[Any]:
        """Return what the ranks send next, by rank; raises as `call` does."""
        waiting = {pipe: rank for rank, pipe in enumerate(self._pipes)}
        results: list[Any] = [None] * len(waiting)
        deadline = time.monotonic() + timeout_s
        while waiting:
            ready = wait(list(waiting), max(0, deadline - time.monotonic()))
            if not ready:
                self._dump(waiting.values())
                self._fail(f"ranks {sorted(waiting.values())} did not return within {timeout_s:g} s")
            for pipe in ready:
                assert isinstance(pipe, Connection)
                rank = waiting.pop(pipe)
                try:
                    ok, results[rank] = pipe.recv()
                except (EOFError, ConnectionResetError):
                    self._fail(f"rank {rank} died")
                if not ok:
                    self._fail(f"rank {rank}: {results[rank]}")
        return results

    def _dump(self, ranks: Iterable[int]) -> None:
        """Have ranks write where they are, innermost call first."""
        for rank in ranks:
            os.kill(self._processes[rank].pid or 0, signal.SIGUSR1)
        time.sleep(0.5)

    def _fail(self, reason: str) -> NoReturn:
        self.failed = True
        logs = sorted(self._folder.glob("rank*.log"))
        raise RankError(reason, "\n".join(f"--- {log.stem}\n{log.read_text()}" for log in logs))


def _rank(rank: int, world: int, folder: Path, pipe: Connection) -> None:
    """Be a rank: start, then do what is asked for, until nobody asks any more."""
    log = os.open(folder / f"rank{rank}.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1)
    sys.stderr = os.fdopen(2, "w", buffering=1)
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    tempfile.tempdir = str(folder)
    import torch
    from torch.distributed import FileStore  # type: ignore[attr-defined]

    torch.set_num_threads(1)
    if world > 1:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        torch.distributed.init_process_group(
            "gloo",
            store=FileStore(str(folder / "store"), world),
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=60),
        )
    result: tuple[bool, Any] = True, None
    while result[0]:
        pipe.send(result)
        try:
            function, arguments, options = pipe.recv()
        except EOFError:
            break
        result = _call(function, rank, world, arguments, options)
    if not result[0]:
        pipe.send(result)
    os._exit(0)


def _call(
    function: Callable[..., Any], rank: int, world: int, arguments: tuple[Any, ...], options: dict[str, Any]
) -> tuple[bool, Any]:
    try:
        return True, function(rank, world, *arguments, **options)
    except BaseException as error:
        traceback.print_exc()
        return False, f"{type(error).__name__}: {error}"
