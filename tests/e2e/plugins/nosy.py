"""A method whose file tries, wherever it is imported, to be root; what it reached is written where NOSY says."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from harness import FullGraphMethod, FullGraphOptions, Step, SyncExchange


def _reached() -> list[str]:
    tried: dict[str, Callable[[], Any]] = {
        "setuid": lambda: os.setuid(0),
        "seteuid": lambda: os.seteuid(0),
        "setresuid": lambda: os.setresuid(0, 0, 0),
        "setgid": lambda: os.setgid(0),
        "shadow": lambda: Path("/etc/shadow").read_bytes(),
        "sudo": lambda: subprocess.run(["sudo", "-n", "true"], check=True, capture_output=True),
        "mount": lambda: _libc("mount", b"none", b"/mnt", b"tmpfs", 0, None),
        "networks": lambda: [_libc("setns", os.open(path, os.O_RDONLY), 0) for path in _namespaces()],
    }
    return [name for name, try_it in tried.items() if _succeeds(try_it)]


def _namespaces() -> list[Path]:
    found = sorted(Path("/run/netns").iterdir())
    return found or [Path("/proc/1/ns/net")]


def _libc(function: str, *arguments: Any) -> None:
    if getattr(ctypes.CDLL(None), function)(*arguments) != 0:
        raise OSError


def _succeeds(try_it: Callable[[], Any]) -> bool:
    try:
        try_it()
    except (OSError, subprocess.SubprocessError):
        return False
    return True


if "NOSY" in os.environ:
    _who = "rank" + os.environ["RANK"] if "RANK" in os.environ else "runner"
    Path(os.environ["NOSY"], f"{_who}-{os.getpid()}.json").write_text(json.dumps(_reached()))


class Nosy(FullGraphMethod[FullGraphOptions]):
    """Full-graph training."""

    name = "nosy"
    Options = FullGraphOptions

    def steps(self, epoch: int) -> Iterator[Step]:
        worker = self.worker
        yield Step(
            blocks=[worker.partition.block(np.arange(worker.partition.num_boundary))] * worker.model.depth,
            inputs=worker.features.inner,
            exchange=SyncExchange(worker.comm, worker.partition.full_halo),
            loss=worker.train_loss,
        )
