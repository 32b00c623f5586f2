"""Loader: samples batches and fetches their rows, one by one or ahead of the training."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from harness.runtime.background import Background, Pending
from harness.runtime.batches import Batch
from harness.runtime.comm import Communicator

Drawn = TypeVar("Drawn")
Loaded = TypeVar("Loaded")


class Loader(Generic[Drawn, Loaded]):
    """Two stages a batch: `draw`, which needs no other rank, and `fetch`, which every rank must join.

    With a depth k > 0 the stages of the next k batches go on beside the training: draws in threads, fetches
    in a thread and a process group of their own, one after the other, so that ranks match. What is drawn and
    fetched is the same at every depth. Time that the trainer stands still for a batch is charged to `fetch`.

    Args:
        comm: the ranks' communicator.
        draw: draws a batch; called from several threads at once.
        fetch: makes of what was drawn what is trained on, by exchanges on the communicator that it is given.
        depth: batches ahead.
        threads: that draw.
    """

    def __init__(
        self,
        comm: Communicator,
        draw: Callable[[Batch], Drawn],
        fetch: Callable[[Drawn, Communicator], Loaded],
        *,
        depth: int,
        threads: int,
    ) -> None:
        self._comm, self._draw, self._fetch, self._depth = comm, draw, fetch, depth
        self._drawing = ThreadPoolExecutor(min(depth, threads), "draws") if depth else None
        self._fetching = Background(comm, "fetches") if depth else None

    def load(self, batches: Iterable[Batch]) -> Iterator[Loaded]:
        """Yield the batches in their order."""
        if self._drawing is None or self._fetching is None:
            for batch in batches:
                yield self._fetch(self._draw(batch), self._comm)
            return
        ahead: deque[Pending[Loaded]] = deque()
        for batch in batches:
            ahead.append(self._start(batch, self._drawing, self._fetching))
            if len(ahead) > self._depth:
                yield ahead.popleft().wait("fetch")
        while ahead:
            yield ahead.popleft().wait("fetch")

    def _start(self, batch: Batch, drawing: ThreadPoolExecutor, fetching: Background) -> Pending[Loaded]:
        drawn = drawing.submit(self._draw, batch)
        return fetching.run(lambda comm: self._fetch(drawn.result(), comm))

    def settle(self) -> None:
        """Wait for all that was started."""
        if self._fetching is not None:
            self._fetching.settle()

    def close(self) -> None:
        """End the threads."""
        if self._drawing is not None and self._fetching is not None:
            self._fetching.close()
            self._drawing.shutdown()
