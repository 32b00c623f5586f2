"""Job: what the launcher tells the ranks of a trial, and how they find each other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from harness.deferred import dist, torch
from harness.errors import UserError
from harness.graph.devices import KINDS
from harness.runtime.checkpoint import CheckpointPlace
from harness.runtime.run_store import StoreConnection, run_secret
from harness.runtime.spec import RunConfig
from harness.spec import Spec

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

Backend = Literal["gloo", "nccl"]


class RanksRendezvous(Spec):
    """Where the ranks of several machines find each other: the run's store, and what is theirs in it.

    Attributes:
        host, port: where the store is, as seen from this rank's machine.
        prefix: of this trial's keys.
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
        from harness.runtime.group_store import GroupStore

        at, backend = job.rendezvous, job.rendezvous.backend
        connection = StoreConnection(at.host, at.port, run_secret(), job.collective_timeout_s)
        store = GroupStore(connection, at.prefix, timeout)
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
