"""Job: the launcher's file for the ranks of a trial, how they find each other, and the beacon of their progress."""

from __future__ import annotations

import mmap
import os
import signal
import struct
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Literal, NamedTuple

from harness.deferred import dist, torch
from harness.errors import UserError
from harness.graph.devices import KINDS
from harness.runtime.channel import connect_channel, group_store
from harness.runtime.checkpoint import CheckpointPlace
from harness.runtime.run_config import Rates, RunConfig
from harness.spec import Spec

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

Backend = Literal["gloo", "nccl"]


class RanksRendezvous(Spec):
    """Where the ranks of several machines find each other: a store that the coordinator keeps."""

    # host, port: the coordinator's, as seen from this rank's machine
    host: str
    port: int
    prefix: str  # name of this run of the trial
    backend: Backend  # what every machine's ranks can use


class Job(Spec):
    """The file that every rank of a trial reads."""

    config: RunConfig  # what the trial runs
    graph: Path  # prepared data set
    # train_view, full_view: partition views (the same when transductive)
    train_view: Path
    full_view: Path
    rows: Path | None = None  # features by part, of a method whose batches read them from a disk
    inductive: bool  # whether training sees the training subgraph only
    store: Path  # file through which the ranks of one machine find each other; must not exist before
    out: Path  # directory for what the ranks write
    attempt: str  # names this run of the trial on this machine, and no other
    threads: int = 1  # CPU threads of a rank
    cores: int = 1  # cores that a rank may keep busy
    collective_timeout_s: float = 300  # how long a rank waits for its peers
    # where the ranks find each other instead when they run on several machines
    rendezvous: RanksRendezvous | None = None
    checkpoints: CheckpointPlace | None = None  # where the trial's state is kept and found; None: nowhere
    audit: bool = False  # whether threads, child processes, files and sockets are watched, see `harness.runtime.audit`
    rates: Rates | None = None  # of the rank's machine, "exchange" that of the network where it is slower
    kernels: bool = False  # whether a rank writes which compiled kernels it has called, to `kernels{rank}.json`

    @classmethod
    def read(cls, path: Path) -> Job:
        """Read a job file."""
        return cls.model_validate_json(path.read_text())


def rank_device(kind: str) -> torch.device:
    """Return the device of this rank; ranks share GPUs in turn where there are fewer than ranks."""
    return KINDS[kind].device(int(os.environ.get("LOCAL_RANK", "0")))


def backend_for(device: str, ranks: int, gpus: int) -> Backend:
    """Return what `ranks` of a machine with so many GPUs talk through: nccl where each has a GPU of its own, else gloo.

    UserError if this torch lacks what is needed.
    """
    # NCCL refuses two ranks on one device; gloo stages what they exchange through the host (`Communicator`).
    shared = device == "cuda" and gpus < ranks
    if device == "cuda" and not shared and dist.is_nccl_available():
        return "nccl"
    if not dist.is_gloo_available():
        why = f"{ranks} ranks share {gpus} GPU(s), which NCCL refuses, and" if shared else f"ranks on {device}:"
        raise UserError(f"{why} this torch has no gloo", key="partition.parts", fix="one part, or a torch with gloo")
    return "gloo"


def join_group(job: Job, rank: int, world: int) -> Store | None:
    """Join the trial's process group; returns its store, which has to be kept while there is a group."""
    from torch.distributed import FileStore  # type: ignore[attr-defined]

    if world == 1:
        return None
    if job.config.device == "cuda":
        torch.cuda.set_device(rank_device("cuda"))
    timeout = timedelta(seconds=job.collective_timeout_s)
    backend: Backend
    if job.rendezvous is None:
        local = int(os.environ.get("LOCAL_WORLD_SIZE", world))
        backend = backend_for(job.config.device, local, torch.cuda.device_count())
        store: Store = FileStore(str(job.store), world)
    else:
        at, backend = job.rendezvous, job.rendezvous.backend
        store = group_store(connect_channel(at.host, at.port, job.collective_timeout_s), at.prefix, timeout)
    with patient_threads() if backend == "gloo" else nullcontext():
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timeout)
    return store


@contextmanager
def patient_threads() -> Iterator[None]:
    """Schedule threads that are started within as `SCHED_BATCH`: of equal weight, but not at once when woken."""
    # gloo's thread tries its sockets again and again while the thread that sends holds their lock; where it takes that
    # thread's core it does so for a whole time slice (docs/design/exchange.md).
    changed = False
    with suppress(AttributeError, OSError):  # Linux only; what the user's own policy forbids
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
            changed = True
    try:
        yield
    finally:
        if changed:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


STACKS = signal.SIGUSR1  # has a rank write the stacks of all its threads to its log
_BEACON = struct.Struct("=qqqq")


class Position(NamedTuple):
    """How far a rank is."""

    moves: int = 0  # grows with everything that it does
    epoch: int = -1  # number of the epoch that it trains, from 0; -1 before the first
    # entered, left: number of collectives that it has begun, in any thread, and that have ended for it
    entered: int = 0
    left: int = 0

    @property
    def waits(self) -> bool:
        """Whether it is in a collective."""
        return self.entered > self.left


class ProgressBeacon:
    """Writes how far a rank is into a page of memory that the launcher maps, from any thread.

    A hung rank cannot report, so its last written position is compared with its peers'. It costs half a microsecond a
    step, two and a half a collective.
    """

    def __init__(self, out: Path, rank: int) -> None:
        path = out / f"moves-{rank}"
        path.write_bytes(_BEACON.pack(*Position()))
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), _BEACON.size)
        self._lock, self._at = Lock(), Position()

    def step(self) -> None:
        """Note that something was done."""
        self._write()

    def epoch(self, number: int) -> None:
        """Note that an epoch begins."""
        self._write(epoch=number)

    @contextmanager
    def collective(self) -> Iterator[None]:
        """Note a collective, which ends for this rank when the context does, if it does."""
        self._write(entered=1)
        try:
            yield
        finally:
            self._write(left=1)

    def _write(self, epoch: int | None = None, entered: int = 0, left: int = 0) -> None:
        with self._lock:
            at = self._at
            epoch = at.epoch if epoch is None else epoch
            self._at = Position(at.moves + 1, epoch, at.entered + entered, at.left + left)
            _BEACON.pack_into(self._page, 0, *self._at)


def read_beacon(out: Path, rank: int) -> Position | None:
    """Return how far a rank is; None if it has not written yet."""
    with suppress(OSError, struct.error):
        return Position(*_BEACON.unpack((out / f"moves-{rank}").read_bytes()))
    return None
