"""Exchanges that go on beside the trainer: a process group and a thread of their own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
import torch.distributed as dist
from torch import Tensor

from harness.runtime.comm import Communicator, Direction
from harness.runtime.spec import Purpose


class Pending:
    """A transfer under way."""

    def __init__(self, comm: Communicator, future: Future[Tensor]) -> None:
        self._comm, self._future = comm, future

    def wait(self) -> Tensor:
        """Return the received rows; the time stood still for them is charged to the phase `comm`.

        Raises what the transfer raised, such as a peer's connection that broke.
        """
        with self._comm.clock.phase("comm"):
            start = time.perf_counter()
            rows = self._future.result()
            self._comm.clock.stood_still(time.perf_counter() - start)
        return rows


class Background:
    """Moves rows while the trainer computes, in the order in which the transfers were started.

    Every rank must make one, at the same moment, and start the same transfers in the same order. The bytes
    are counted when a transfer is started, as overlapped; the time it takes is the clock's busy time, without
    the wait for slower ranks in epochs that have barriers.
    """

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._group = dist.new_group() if comm.world > 1 else None
        self._stream = torch.cuda.Stream() if comm.device.type == "cuda" else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="transfers")

    def start(
        self,
        rows: Tensor,
        send_counts: Sequence[int],
        recv_counts: Sequence[int],
        *,
        purpose: Purpose,
        layer: int = -1,
        direction: Direction = "none",
    ) -> Pending:
        """Start `Communicator.exchange_rows` of these arguments; `rows` must not be changed meanwhile."""
        comm = self._comm
        out = rows.new_empty((sum(recv_counts), *rows.shape[1:]))
        if comm.world > 1:
            comm.count_rows(rows, send_counts, recv_counts, purpose, layer, direction, overlapped=True)
        ready = torch.cuda.current_stream().record_event() if self._stream is not None else None
        aligned = comm.clock.aligned
        return Pending(
            comm, self._thread.submit(self._move, rows, send_counts, recv_counts, out, ready, aligned)
        )

    def close(self) -> None:
        """Wait for the transfers that were started."""
        self._thread.shutdown()

    def _move(
        self,
        rows: Tensor,
        send_counts: Sequence[int],
        recv_counts: Sequence[int],
        out: Tensor,
        ready: torch.cuda.Event | None,
        aligned: bool,
    ) -> Tensor:
        comm = self._comm
        if comm.world == 1:
            return out.copy_(rows)
        with torch.cuda.stream(self._stream):  # no effect without a GPU
            if ready is not None and self._stream is not None:
                self._stream.wait_event(ready)
            if aligned:
                comm.barrier(self._group)
            start = time.perf_counter()
            comm.move_rows(rows, send_counts, recv_counts, out, self._group)
            if self._stream is not None:
                self._stream.synchronize()
            comm.clock.transferred(time.perf_counter() - start)
        return out
