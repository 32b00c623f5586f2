"""Job: what the launcher tells the ranks of a trial, and how they find each other."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from harness.data.spec import Spec
from harness.runtime.spec import RunConfig


class Job(Spec):
    """The file that every rank of a trial reads.

    Attributes:
        config: what the trial runs.
        graph: prepared data set.
        train_view, full_view: partition views (the same when transductive).
        inductive: whether training sees the training subgraph only.
        store: file through which the ranks meet; must not exist before.
        out: directory for what the ranks write.
        threads: CPU threads of a rank.
        collective_timeout_s: how long a rank waits for its peers.
    """

    config: RunConfig
    graph: Path
    train_view: Path
    full_view: Path
    inductive: bool
    store: Path
    out: Path
    threads: int = 1
    collective_timeout_s: float = 300

    @classmethod
    def read(cls, path: Path) -> Job:
        """Read a job file."""
        return cls.model_validate_json(path.read_text())


def rank_device(kind: str) -> torch.device:
    """Return the device of this rank; ranks share GPUs in turn where there are fewer than ranks."""
    if kind == "cpu":
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())


def join_group(job: Job, rank: int, world: int) -> None:
    """Join the trial's process group: nccl with a GPU for each local rank, gloo otherwise."""
    if world == 1:
        return
    local = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    own_gpu = job.config.device == "cuda" and torch.cuda.device_count() >= local
    if job.config.device == "cuda":
        torch.cuda.set_device(rank_device("cuda"))
    dist.init_process_group(
        "nccl" if own_gpu else "gloo",
        store=dist.FileStore(str(job.store), world),  # type: ignore[attr-defined]
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=job.collective_timeout_s),
    )
