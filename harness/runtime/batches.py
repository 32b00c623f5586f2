"""Batches: what each step of an epoch starts from, and the loader that samples and fetches ahead."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, is_dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from harness.deferred import numpy as np
from harness.deferred import torch
from harness.graph.block import Block
from harness.graph.devices import fresh, kind_of
from harness.graph.kernels import batch_seed
from harness.metrics import Phase, Purpose
from harness.runtime.clock import Clock
from harness.runtime.comm import Communicator, Direction, OrderedWork, Traffic

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from harness.runtime.worker import Worker


# Numbers of epochs and batches that no training comes to, for draws of other purposes.
PRESAMPLED = 2**31  # the epoch that is drawn to learn which nodes are read
SCORED = 2**31 + 1  # the epochs from here on are those of sampled inference, one a split
_ORDER = 2**32 - 1  # the batch whose stream orders an epoch


@dataclass(frozen=True, eq=False)
class Batch:
    """One step of a rank."""

    seed: int  # of every draw for it; of (seed, rank, epoch, batch) and nothing else
    targets: NDArray[np.int64]  # int64, nodes that it is made for; a sampler may have no use for them
    total: int  # rows of all ranks that its loss is divided by
    common: int  # seed of what all ranks draw alike; of (seed, epoch, batch) and nothing else


def common_order(worker: Worker, epoch: int, size: int) -> NDArray[np.int64]:
    """Return a permutation of 0, ..., size - 1 that is this epoch's, and the same on all ranks."""
    # No rank is `world`: nothing else is drawn by these numbers.
    seed = worker.job.config.seed, worker.world, epoch
    return np.random.default_rng(seed).permutation(size)


def make_batches(worker: Worker, epoch: int, targets: list[NDArray[np.int64]], totals: list[int]) -> list[Batch]:
    """Return a batch for each of `targets`, whose losses are divided by `totals`."""
    seed, rank, world = worker.job.config.seed, worker.rank, worker.world
    return [
        # No rank is `world`: the common seed is none of theirs.
        Batch(batch_seed(seed, rank, epoch, i), nodes, total, batch_seed(seed, world, epoch, i))
        for i, (nodes, total) in enumerate(zip(targets, totals, strict=True))
    ]


def node_batches(worker: Worker, epoch: int, batch_size: int) -> list[Batch]:
    """Return an epoch's batches of this rank's own training nodes, in an order of its own.

    A batch has `batch_size` targets; 0: all training nodes of the rank. All ranks take as many steps as the one
    with the most training nodes needs; one that has run out joins with an empty batch. A step's loss is the mean over
    the targets of all ranks.
    """
    counts = worker.train_counts
    sizes = [batch_size or max(count, 1) for count in counts]
    steps = max(math.ceil(count / size) for count, size in zip(counts, sizes, strict=True))
    seed = batch_seed(worker.job.config.seed, worker.rank, epoch, _ORDER)
    nodes = worker.view.split_nodes("train")
    nodes = nodes[np.random.default_rng(seed).permutation(nodes.size)]
    own = sizes[worker.rank]
    targets = [nodes[step * own : (step + 1) * own] for step in range(steps)]
    totals = [
        sum(min(size, max(0, count - step * size)) for count, size in zip(counts, sizes, strict=True))
        for step in range(steps)
    ]
    return make_batches(worker, epoch, targets, totals)


SHARE = 8  # a subgraph is an eighth of a graph that is too small for the usual size; docs/design/sampling.md


def subgraph_size(size: int | None, usual: int, nodes: int) -> int:
    """Return the `size` of subgraphs of a graph of so many nodes (-1: all); by default `usual`, an eighth at most."""
    return size if size is not None else max(1, min(usual, math.ceil(nodes / SHARE)))


def whole_subgraphs(size: int | None, nodes: int) -> list[str]:
    """Return a warning if the `size` of subgraphs (-1: all, on purpose) is no less than the number of nodes."""
    if size is None or size < nodes:
        return []
    return [f"size {size} is no less than the {nodes} nodes there are: every subgraph is the whole graph"]


def subgraph_batches(
    worker: Worker, epoch: int, size: int, *, total: int | None = None, steps: int | None = None
) -> list[Batch]:
    """Return an epoch's batches of subgraphs of the training graph, `size` nodes each, that every rank draws.

    An epoch has ceil(N / (P size)) steps: its subgraphs have as many nodes as the training graph, as in
    GraphSAINT (Zeng et al., ICLR 2020, Algorithm 1), for every sampler. A rank's loss estimates the
    sum over all training nodes; the step's is the mean of the ranks'. `size` -1: all nodes, one step.

    `total`: divisor of the sum of the ranks' losses; default: P times all training nodes. `steps`: number of steps;
    default: by the graph's size.
    """
    nodes = worker.view.topology.num_nodes
    if steps is None:
        steps = math.ceil(nodes / (worker.world * (nodes if size < 0 else min(size, nodes))))
    if total is None:
        total = worker.world * worker.train_total
    no_targets: NDArray[np.int64] = np.empty(0, np.int64)
    return make_batches(worker, epoch, [no_targets] * steps, [total] * steps)


DrawnT = TypeVar("DrawnT")

LoadedT = TypeVar("LoadedT")


class Loader(Generic[DrawnT, LoadedT]):
    """Two stages a batch: `draw`, and `fetch`, which every rank must join.

    With a depth k > 0 the stages of the next k batches go on during the training: draws in threads, fetches
    in a thread and a process group of their own, one after the other, so that ranks match. Time that the trainer
    waits for a batch is charged to `fetch`.

    With a pool k > 0, and depth 0, the next k batches are drawn at once by threads whenever none is left, and the
    trainer waits (Algorithm 8 of Zeng et al., JPDC 2021); each is fetched at its step.

    What is drawn and fetched is the same at every depth and with every pool. `draw` is called from up to `threads`
    threads at once, and needs no other rank; or `together`: every rank must join, and draws have one thread and a
    process group of their own, as fetches have, or fill a pool one after the other. `fetch` makes of what was drawn
    what is trained on. Both exchange on the communicator that they are given.
    """

    def __init__(
        self,
        comm: Communicator,
        draw: Callable[[Batch, Communicator], DrawnT],
        fetch: Callable[[DrawnT, Communicator], LoadedT],
        *,
        depth: int,
        threads: int,
        pool: int = 0,
        together: bool = False,
    ) -> None:
        self._comm, self._draw, self._fetch, self._depth, self._pool = comm, draw, fetch, depth, pool
        self._drawing: Background | DrawingThreads | None = None
        if depth:
            self._drawing = Background(comm, "draws") if together else DrawingThreads(comm, min(depth, threads))
        self._filling = ThreadPoolExecutor(min(pool, threads), "draws") if pool and not together else None
        self._fetching = Background(comm, "fetches") if depth else None

    def load(self, batches: Iterable[Batch]) -> Iterator[LoadedT]:
        """Yield the batches in their order."""
        if self._drawing is None or self._fetching is None:
            left = iter(batches)
            while chosen := list(islice(left, max(self._pool, 1))):
                drawn = deque(self.fill(chosen))
                while drawn:  # nothing here holds a drawn batch once it is trained on
                    yield self._fetch(drawn.popleft(), self._comm)
            return
        ahead: deque[tuple[Pending[DrawnT], Pending[LoadedT]]] = deque()
        for batch in batches:
            ahead.append(self._start(batch, self._drawing, self._fetching))
            if len(ahead) > self._depth:
                yield self._wait(ahead)
        while ahead:
            yield self._wait(ahead)

    def _start(
        self, batch: Batch, drawing: Background | DrawingThreads, fetching: Background
    ) -> tuple[Pending[DrawnT], Pending[LoadedT]]:
        drawn = drawing.run(lambda comm: self._draw(batch, comm))
        return drawn, fetching.run(lambda comm: self._fetch(drawn.result(), comm))

    def fill(self, batches: Sequence[Batch]) -> list[DrawnT]:
        """Return what is drawn for `batches`, by the threads if there are any; the trainer waits."""

        run = map if self._filling is None else self._filling.map
        return list(run(lambda batch: self._draw(batch, self._comm), batches))

    def _wait(self, ahead: deque[tuple[Pending[DrawnT], Pending[LoadedT]]]) -> LoadedT:
        """Return the next batch, and have the one after it exchange what it has to while this one is trained on."""
        drawn, loaded = ahead.popleft()
        drawn.wait("fetch")
        result = loaded.wait("fetch")
        for pending in ahead[0] if ahead else ():
            pending.admit()
        return result

    def synchronize(self) -> None:
        """Wait for all that was started."""
        if isinstance(self._drawing, Background):
            self._drawing.admit()
        if self._fetching is not None:
            self._fetching.synchronize()

    def close(self) -> None:
        """End the threads."""
        if isinstance(self._drawing, Background):
            self._drawing.admit()
        if self._fetching is not None:
            self._fetching.close()
        if self._drawing is not None:
            self._drawing.close()
        if self._filling is not None:
            self._filling.shutdown()


T = TypeVar("T")


class Pending(Generic[T]):
    """Work under way; when it is waited for `count` is called, and `finish` makes the result of what the work returned.

    `admit`: to be called by the trainer, which has the work exchange from now on where ranks need one order of
    collectives (see `CollectiveOrder`); waiting for it does so, too.
    """

    def __init__(
        self,
        comm: Communicator,
        future: Future[T],
        count: Callable[[], None] = lambda: None,
        admit: Callable[[], None] = lambda: None,
        finish: Callable[[T], T] | None = None,
    ) -> None:
        self._comm, self._future, self._count, self.admit, self._finish = comm, future, count, admit, finish

    def result(self) -> T:
        """Return the result, or raise, in another thread than the trainer's: nothing is charged or counted."""
        return self._future.result()

    def wait(self, phase: Phase = "comm") -> T:
        """Return the result; the time waited for it is charged to `phase`.

        On a GPU the memory of its tensors, which another stream may have made, is kept until this one is done with it.
        Raises what the work raised, such as a peer's connection that broke.
        """
        clock = self._comm.clock
        self.admit()
        with clock.phase(phase), clock.waiting() if phase == "comm" else nullcontext():
            result = self._future.result()
        kind = kind_of(self._comm.device)
        if kind.has_streams:
            for tensor in _tensors(result):
                if tensor.device.type == self._comm.device.type:  # what guides draws may be the host's
                    kind.hold(tensor)
        self._count()
        return result if self._finish is None else self._finish(result)


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in a result: one, or what is in collections, dataclasses and blocks."""
    if isinstance(value, torch.Tensor):
        if value.layout is torch.strided:
            yield value
    elif isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _tensors(each)
    elif isinstance(value, Block) or (is_dataclass(value) and not isinstance(value, type)):
        for each in vars(value).values():
            yield from _tensors(each)


class DrawingThreads:
    """Threads that do several works at the same time during the training, none of which needs another rank."""

    def __init__(self, comm: Communicator, threads: int) -> None:
        self._comm, self._threads = comm, ThreadPoolExecutor(threads, "draws")
        self._kind = kind_of(comm.device)
        self._stream = self._kind.new_stream()

    def run(self, work: Callable[[Communicator], T]) -> Pending[T]:
        """Start `work`; the communicator that it is given is the trainer's, and not to be used."""

        stream = self._stream
        ready = None if stream is None else self._kind.current_stream().record_event()

        def do() -> T:
            with self._comm.clock.working("draws"), self._kind.on(stream):
                if stream is not None:
                    stream.wait_event(ready)
                result = work(self._comm)
                if stream is not None:
                    stream.synchronize()  # a fetch reads it on a stream of its own
                return result

        return Pending(self._comm, self._threads.submit(do))

    def close(self) -> None:
        """Wait for all that was started, and end the threads."""
        self._threads.shutdown()


class Background:
    """A thread that does one work after the other during the training, in the order in which they were started.

    Every rank must make one at the same moment and start the same exchanges in the same order. Exchanges of the
    trainer meanwhile, and of other Backgrounds, cannot be mixed up with them: they have a group of their own, or with
    nccl a `CollectiveOrder`. Then transfers are started at once, other work exchanges when it is admitted. The time of
    the transfers is the clock's busy time, without the wait for slower ranks in epochs that have barriers.
    """

    def __init__(self, comm: Communicator, name: str = "transfers") -> None:
        self._comm, self._name = comm, name
        self._clock = AsideClock(comm.clock)
        self._aside = comm.aside(self._clock)
        self._kind = kind_of(comm.device)
        self._stream = self._kind.new_stream()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._uncounted: list[Traffic] = []
        self._waiting: deque[OrderedWork] = deque()

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
        comm, finish = self._comm, None
        if (packed := comm.pack(rows, purpose, layer, direction)) is not None:
            finish = partial(comm.unpack, out=fresh(rows, sum(recv_counts), *rows.shape[1:]))
        sent = rows if packed is None else packed
        out = fresh(sent, sum(recv_counts), *sent.shape[1:])
        comm.count_rows(sent, send_counts, recv_counts, purpose, layer, direction, overlapped=True)

        def move(aside: Communicator) -> Tensor:
            return aside.exchange_rows(sent, send_counts, recv_counts, purpose=purpose, out=out)

        started = self._submit(move, Traffic(), finish=finish)
        started.admit()
        return started

    def run(self, work: Callable[[Communicator], T]) -> Pending[T]:
        """Start `work`, given a communicator; what it sends is counted when it is waited for, or at the end."""
        traffic = Traffic()
        self._uncounted.append(traffic)
        return self._submit(work, traffic, lambda: self._count(traffic))

    def admit(self, last: OrderedWork | None = None) -> None:
        """Admit all that was started, up to the work `last`; see `Pending`."""
        order = self._comm.order
        if order is None or (last is not None and last not in self._waiting):
            return
        while self._waiting:
            order.admit(admitted := self._waiting.popleft())
            if admitted is last:
                return

    def synchronize(self) -> None:
        """Wait for all that was started; results stay with their `Pending`."""
        self.admit()
        self._thread.submit(lambda: None).result()

    def forget(self) -> None:
        """Count nothing of what was started so far."""
        self._uncounted.clear()

    def close(self) -> None:
        """Wait for all that was started, count what was not waited for as an epoch's, and end the thread."""
        self.admit()
        self._thread.shutdown()
        with self._comm.traffic.during("epoch"):
            for traffic in list(self._uncounted):
                self._count(traffic)
        self._comm.give_back(self._aside)

    def _count(self, traffic: Traffic) -> None:
        if traffic in self._uncounted:  # or it was forgotten
            self._uncounted.remove(traffic)
            self._comm.traffic.absorb(traffic)

    def _submit(
        self,
        work: Callable[[Communicator], T],
        traffic: Traffic,
        count: Callable[[], None] = lambda: None,
        finish: Callable[[T], T] | None = None,
    ) -> Pending[T]:
        position, order = OrderedWork(), self._comm.order
        if order is not None:
            self._waiting.append(position)
        stream, aside, clock = self._stream, self._aside, self._clock
        ready = None if stream is None else self._kind.current_stream().record_event()
        aligned = self._comm.clock.aligned  # read here: when the thread comes to it, ranks may be in different epochs

        def do() -> T:
            aside.traffic, clock.aligned, aside.work = traffic, aligned, position
            with self._comm.clock.working(self._name), self._kind.on(stream):
                if ready is not None and stream is not None:
                    stream.wait_event(ready)
                try:
                    result = work(aside)
                finally:
                    if order is not None:
                        order.end(position)
                if stream is not None:
                    stream.synchronize()
                clock.settle()
            return result

        return Pending(self._comm, self._thread.submit(do), count, lambda: self.admit(position), finish)


class AsideClock(Clock):
    """Of all phases only transfers count, as busy time of the trainer's clock.

    On a GPU a transfer is launched when its phase ends, and over where the stream is then: `settle` reads how long it
    took once the stream has been waited for.
    """

    def __init__(self, main: Clock) -> None:
        super().__init__(torch.device("cpu"), detailed=False)
        self._main, self._transfers = main, list[tuple[Any, Any]]()

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        """See `Clock`."""
        if name != "comm":
            yield
            return
        moments = self._main.moments
        start = moments.now()
        yield
        self._transfers.append((start, moments.now()))

    def settle(self) -> None:
        """Hand on the transfers since the last call, which are over."""
        transfers, self._transfers = self._transfers, []
        self._main.transferred(sum(self._main.moments.between(*transfer) for transfer in transfers))
