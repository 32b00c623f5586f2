"""What a trial ran on: code, versions, processor, memory, GPU; and how fast that machine was, and when.

Times of the reference workload are kept next to a suite's results: `reference.jsonl` has one JSON object a line, and is
only ever appended to.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

import harness
from harness.data.prepared import locked
from harness.files import RECORD, read_bytes
from harness.gpus import cuda_of_torch, gpu_is_usable
from harness.results.record import Record, suite_files
from harness.version import built_from, release

PACKAGES = "torch", "dgl", "numpy", "scipy", "numba", "pandas", "pyarrow", "pydantic", "pymetis", "scikit-learn"


def collect(usable: int | None = None) -> dict[str, Any]:
    """Return versions and hardware as JSON; None for what is not there.

    `usable`: the cores that this process may use, by its quota; None: those that it may run on.
    `commit` and `dirty` are those of the checkout that `harness` was imported from, else of the build that is
    installed; None where that is unknown. Memory in bytes. The host's name is not recorded: `machine` distinguishes
    hosts.
    """
    commit, dirty = checkout(Path(harness.__file__).resolve().parents[1])
    if commit is None:
        commit, dirty = built_from()
    cpu = platform.processor() or None
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
        cpu = next(named, None) or cpu
    packages = dict[str, str | None].fromkeys(PACKAGES)
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            packages[name] = metadata.version(name)
    return {
        "harness": release(),
        "commit": commit,
        "dirty": dirty,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": packages,
        "cpu": cpu,
        "cores": psutil.cpu_count(logical=False),
        "logical_cores": psutil.cpu_count(),
        "usable_cores": usable or (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None),
        "machine": machine(),
        "memory_bytes": psutil.virtual_memory().total,
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        **_gpu(),
    }


def checkout(root: Path) -> tuple[str | None, bool | None]:
    """Return the commit and whether files differ from it; None where `root` is no checkout's, or without git."""
    if not (root / ".git").exists():  # an installed copy inside another repository
        return None, None
    commit = _git(root, "rev-parse", "HEAD")
    status = _git(root, "status", "--porcelain", "--untracked-files=no")
    return commit, None if status is None else bool(status)


def _git(directory: Path, *arguments: str) -> str | None:
    """Return the output of a git command; None if it fails or there is no git."""
    command = ["git", "-C", str(directory), *arguments]
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    return None


def _gpu() -> dict[str, Any]:
    """Return the GPUs' names, driver, CUDA and NCCL versions; all None without a GPU that torch can use."""
    found: dict[str, Any] = {"gpus": None, "driver": None, "cuda": cuda_of_torch(), "nccl": None}
    if not gpu_is_usable():
        return found
    import pynvml
    import torch

    found["cuda"] = torch.version.cuda
    if torch.distributed.is_nccl_available():
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    # Names come from NVML: asking torch would hold a CUDA context, and so GPU memory, for the whole suite.
    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        try:
            handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
            names, driver = [str(pynvml.nvmlDeviceGetName(h)) for h in handles], pynvml.nvmlSystemGetDriverVersion()
            found |= {"gpus": names, "driver": str(driver)}
        finally:
            pynvml.nvmlShutdown()
    return found


FILE = "reference.jsonl"


class Measurement(BaseModel):
    """One time of the reference workload."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    machine: str = Field(description="see `machine`")
    when: AwareDatetime = Field(description="its end")
    seconds: float = Field(gt=0, description="median of its repetitions")
    cores: int = Field(ge=1, description="that worked at it together, one thread each")


@cache
def machine() -> str:
    """Return 8 hex digits that identify this machine without naming it."""
    try:
        own = Path("/etc/machine-id").read_text().strip()
    except OSError:
        own = ""
    return hashlib.blake2b(f"{platform.node()} {own}".encode(), digest_size=4).hexdigest()


def measurements(folder: Path) -> list[Measurement]:
    """Return the measurements for the results in `folder`, oldest first: a results directory, a suite's or a trial's.

    Lines that are not whole are left out; results older than the file have none.
    """
    found = {each for path in suite_files([folder], FILE) for each in _parsed(read_bytes(path, RECORD))}
    return sorted(found, key=lambda each: (each.when, each.machine))


def _parsed(text: bytes) -> set[Measurement]:
    found = set()
    for line in text.splitlines():
        with suppress(ValidationError):
            found.add(Measurement.model_validate_json(line))
    return found


def at_middle(record: Record, known: Sequence[Measurement]) -> Record:
    """Return a trial's record with the `reference_s` that was measured nearest to the middle of the trial.

    That is the last before it, which the record has, or a later one of `known`, oldest first. It is never a mean of
    two: runs that share a measurement share its error, which `results.contrast` counts.
    """
    own = [each for each in known if each.seconds == record.environment.get("reference_s")]
    if not own:
        return record
    last = own[-1]
    begun = max(datetime.fromisoformat(record.started), last.when)
    middle = begun + timedelta(seconds=(record.wall_s or 0.0) / 2)
    later = [e for e in known if (e.machine, e.cores) == (last.machine, last.cores) and e.when >= last.when]
    nearest = min(later, key=lambda each: abs(each.when - middle))
    return record.model_copy(update={"environment": record.environment | {"reference_s": nearest.seconds}})


def note(directory: Path, new: Sequence[Measurement]) -> None:
    """Add measurements that are not there yet to those of a suite's `directory`; several processes may."""
    path = directory / FILE
    with locked(path):
        there = read_bytes(path, RECORD) if path.exists() else b""
        added = sorted(set(new) - _parsed(there), key=lambda each: (each.when, each.machine))
        if not added:
            return
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666), "ab") as file:
            if there and not there.endswith(b"\n"):  # the last writer was killed in the middle of a line
                file.write(b"\n")
            file.write("".join(each.model_dump_json() + "\n" for each in added).encode())
