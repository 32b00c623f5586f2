"""Exchanges that go on beside the trainer: a process group and a thread of their own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch
from torch import Tensor

from harness.metrics import Phase, Purpose
from harness.runtime.clock import Clock
from harness.runtime.comm import Communicator
from harness.runtime.traffic import Direction, Traffic

T = TypeVar("T")


class Pending(Generic[T]):
    """Work under way; `traffic`: what it sends is counted when it is waited for, not when it was started."""

    def __init__(self, comm: Communicator, future: Future[T], traffic: Traffic | None = None) -> None:
        self._comm, self._future, self._traffic = comm, future, traffic

    def wait(self, phase: Phase = "comm") -> T:
        """Return the result; the time stood still for it is charged to `phase`.

        Raises what the work raised, such as a peer's connection that broke.
        """
        clock = self._comm.clock
        with clock.phase(phase):
            start = time.perf_counter()
            result = self._future.result()
            if phase == "comm":
                clock.stood_still(time.perf_counter() - start)
        if self._traffic is not None:
            self._comm.traffic.absorb(self._traffic)
            self._traffic = None
        return result


class Background:
    """Works beside the trainer, on one thing after the other in the order in which they were started.

    Every rank must make one at the same moment and start the same exchanges in the same order; what the
    trainer exchanges meanwhile, and other Backgrounds, cannot be mixed up with them. The time of the
    transfers is the clock's busy time, without the wait for slower ranks in epochs that have barriers.
    """

    def __init__(self, comm: Communicator, name: str = "transfers") -> None:
        self._comm = comm
        self._clock = _AsideClock(comm.clock)
        self._aside = comm.aside(self._clock)
        self._stream = torch.cuda.Stream() if comm.device.type == "cuda" else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    def start(
        self,
        rows: Tensor,
        send_counts: Sequence[int],
        recv_counts: Sequence[int],
        *,
        purpose: Purpose,
        layer: int = -1,
        direction: Direction = "none",
    ) -> Pending[Tensor]:
        """Start `Communicator.exchange_rows` of these arguments; `rows` must not be changed meanwhile.

        The bytes are counted at once, as overlapped.
        """
        comm, out = self._comm, rows.new_empty((sum(recv_counts), *rows.shape[1:]))
        if comm.world > 1:
            comm.count_rows(rows, send_counts, recv_counts, purpose, layer, direction, overlapped=True)

        def move(aside: Communicator) -> Tensor:
            return aside.exchange_rows(rows, send_counts, recv_counts, purpose=purpose, out=out)

        return Pending(comm, self._submit(move, Traffic()))

    def run(self, work: Callable[[Communicator], T]) -> Pending[T]:
        """Start `work`, which is given a communicator; what it sends is counted when it is waited for."""
        traffic = Traffic()
        return Pending(self._comm, self._submit(work, traffic), traffic)

    def synchronize(self) -> None:
        """Wait for all that was started; results stay with their `Pending`."""
        self._thread.submit(lambda: None).result()

    def close(self) -> None:
        """Wait for all that was started, and end the thread."""
        self._thread.shutdown()

    def _submit(self, work: Callable[[Communicator], T], traffic: Traffic) -> Future[T]:
        ready = torch.cuda.current_stream().record_event() if self._stream is not None else None
        # Read here: when the thread comes to it, ranks may be in different epochs.
        return self._thread.submit(self._do, work, traffic, ready, self._comm.clock.aligned)

    def _do(
        self, work: Callable[[Communicator], T], traffic: Traffic, ready: torch.cuda.Event | None, aligned: bool
    ) -> T:
        self._aside.traffic, self._clock.meets = traffic, aligned
        with torch.cuda.stream(self._stream):  # no effect without a GPU
            if ready is not None and self._stream is not None:
                self._stream.wait_event(ready)
            result = work(self._aside)
            if self._stream is not None:
                self._stream.synchronize()
        return result


class _AsideClock(Clock):
    """Of all phases only transfers count, as time that the trainer's clock was busy beside it."""

    def __init__(self, main: Clock) -> None:
        super().__init__(torch.device("cpu"), detailed=False)
        self._main, self.meets = main, False

    @property
    def aligned(self) -> bool:
        return self.meets

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        start = time.perf_counter()
        yield
        if name == "comm":
            self._main.transferred(time.perf_counter() - start)
