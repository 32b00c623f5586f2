"""Job: what the launcher tells the ranks of a trial, and how they find each other."""

from __future__ import annotations

import mmap
import os
import signal
import struct
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Literal

from harness.deferred import dist, torch
from harness.errors import UserError
from harness.graph.devices import KINDS
from harness.runtime.channel import connect_channel, group_store
from harness.runtime.checkpoint import CheckpointPlace
from harness.runtime.run_config import RunConfig
from harness.spec import Spec

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

Backend = Literal["gloo", "nccl"]


class RanksRendezvous(Spec):
    """Where the ranks of several machines find each other: a store that the coordinator keeps.

    Attributes:
        host, port: the coordinator's, as seen from this rank's machine.
        prefix: name of this run of the trial.
        backend: what every machine's ranks can use.
    """

    host: str
    port: int
    prefix: str
    backend: Backend


class Job(Spec):
    """The file that every rank of a trial reads.

    Attributes:
        config: what the trial runs.
        graph: prepared data set.
        train_view, full_view: partition views (the same when transductive).
        inductive: whether training sees the training subgraph only.
        store: file through which the ranks of one machine find each other; must not exist before.
        out: directory for what the ranks write.
        attempt: names this run of the trial on this machine, and no other.
        threads: CPU threads of a rank.
        cores: cores that a rank may keep busy.
        collective_timeout_s: how long a rank waits for its peers.
        rendezvous: where the ranks find each other instead when they run on several machines.
        checkpoints: where the trial's state is kept and found; None: nowhere.
    """

    config: RunConfig
    graph: Path
    train_view: Path
    full_view: Path
    inductive: bool
    store: Path
    out: Path
    attempt: str
    threads: int = 1
    cores: int = 1
    collective_timeout_s: float = 300
    rendezvous: RanksRendezvous | None = None
    checkpoints: CheckpointPlace | None = None

    @classmethod
    def read(cls, path: Path) -> Job:
        """Read a job file."""
        return cls.model_validate_json(path.read_text())


def rank_device(kind: str) -> torch.device:
    """Return the device of this rank; ranks share GPUs in turn where there are fewer than ranks."""
    return KINDS[kind].device(int(os.environ.get("LOCAL_RANK", "0")))


def backend_for(device: str, ranks: int, gpus: int) -> Backend:
    """Return what `ranks` of a machine with so many GPUs talk through: nccl where each has a GPU of its own, else gloo.

    NCCL refuses two ranks on one device; gloo stages what they exchange through the host (`Communicator`). UserError
    if this torch lacks what is needed.
    """
    shared = device == "cuda" and gpus < ranks
    if device == "cuda" and not shared and dist.is_nccl_available():
        return "nccl"
    if not dist.is_gloo_available():
        why = f"{ranks} ranks share {gpus} GPU(s), which NCCL refuses, and" if shared else f"ranks on {device}:"
        raise UserError(f"{why} this torch has no gloo", key="partition.parts", fix="one part, or a torch with gloo")
    return "gloo"


def join_group(job: Job, rank: int, world: int) -> Store | None:
    """Join the trial's process group: nccl with a GPU for each local rank, gloo otherwise.

    Returns the group's store, which has to be kept while there is a group.
    """
    from torch.distributed import FileStore  # type: ignore[attr-defined]

    if world == 1:
        return None
    if job.config.device == "cuda":
        torch.cuda.set_device(rank_device("cuda"))
    timeout = timedelta(seconds=job.collective_timeout_s)
    store: Store
    backend: Backend
    if job.rendezvous is None:
        local = int(os.environ.get("LOCAL_WORLD_SIZE", world))
        backend = backend_for(job.config.device, local, torch.cuda.device_count())
        store = FileStore(str(job.store), world)
    else:
        at, backend = job.rendezvous, job.rendezvous.backend
        store = group_store(connect_channel(at.host, at.port, job.collective_timeout_s), at.prefix, timeout)
    with patient_threads() if backend == "gloo" else nullcontext():
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timeout)
    return store


@contextmanager
def patient_threads() -> Iterator[None]:
    """Schedule threads that are started within as `SCHED_BATCH`: of equal weight, but not at once when woken.

    gloo's thread tries its sockets again and again while the thread that sends holds their lock; where it takes that
    thread's core it does so for a whole time slice (docs/design/exchange-and-bytes.md).
    """
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


STACKS = signal.SIGUSR1
"""Has a rank write the stacks of all its threads to its log."""
_LAYOUT = struct.Struct("=qqqq")


@dataclass(frozen=True)
class Place:
    """Where a rank is.

    Attributes:
        moves: grows with whatever it does.
        epoch: that it trains, from 0; -1 before the first.
        entered, left: collectives that it has begun, in whatever thread, and that have ended for it.
    """

    moves: int = 0
    epoch: int = -1
    entered: int = 0
    left: int = 0

    @property
    def waits(self) -> bool:
        """Whether it is in a collective."""
        return self.entered > self.left


class Moves:
    """Writes where a rank is, from any thread: half a microsecond a move, two and a half a collective."""

    def __init__(self, out: Path, rank: int) -> None:
        path = moves_path(out, rank)
        path.write_bytes(_LAYOUT.pack(0, -1, 0, 0))
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), _LAYOUT.size)
        self._lock = Lock()
        self._moves, self._epoch, self._entered, self._left = 0, -1, 0, 0

    def step(self) -> None:
        """Note that something was done."""
        with self._lock:
            self._write()

    def epoch(self, number: int) -> None:
        """Note that an epoch begins."""
        with self._lock:
            self._epoch = number
            self._write()

    @contextmanager
    def collective(self) -> Iterator[None]:
        """Note that it is in a collective, which ends for it when this does, if it does."""
        with self._lock:
            self._entered += 1
            self._write()
        try:
            yield
        finally:
            with self._lock:
                self._left += 1
                self._write()

    def _write(self) -> None:
        self._moves += 1
        _LAYOUT.pack_into(self._page, 0, self._moves, self._epoch, self._entered, self._left)


def moves_path(out: Path, rank: int) -> Path:
    """Return the file in which a rank that writes to `out` says where it is."""
    return out / f"moves-{rank}"


def read_moves(out: Path, rank: int) -> Place | None:
    """Return where a rank is; None if it has not said yet."""
    with suppress(OSError, struct.error):
        return Place(*_LAYOUT.unpack(moves_path(out, rank).read_bytes()))
    return None
