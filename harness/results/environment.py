"""What a trial ran on: code, versions, processor, memory, GPU; and how fast that machine was, and when.

Times of the reference workload are kept next to a suite's results: `reference.jsonl` has one JSON object a line, and is
only ever appended to.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
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
from harness.results.record import Record
from harness.version import built_from, release

PACKAGES = (
    *("torch", "dgl", "numpy", "scipy", "numba", "pandas", "pyarrow", "pydantic", "pymetis"),
    *("scikit-learn", "ogb"),
)


def collect() -> dict[str, Any]:
    """Return versions and hardware as JSON; None for what is not there.

    `commit` and `dirty` are those of the checkout that `harness` was imported from, else of the build that is
    installed; None where that is unknown. Memory in bytes. The host's name is not recorded: `machine` distinguishes
    hosts apart.
    """
    commit, dirty = checkout(Path(harness.__file__).resolve().parents[1])
    if commit is None:
        commit, dirty = built_from()
    return {
        "harness": release(),
        "commit": commit,
        "dirty": dirty,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES},
        "cpu": _cpu_model(),
        "cores": psutil.cpu_count(logical=False),
        "logical_cores": psutil.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "machine": machine(),
        "memory_bytes": psutil.virtual_memory().total,
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        **_gpu(),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def checkout(root: Path) -> tuple[str | None, bool | None]:
    """Return the commit and whether files differ from it; None where `root` is no checkout's, or without git."""
    if not (root / ".git").exists():  # an installed copy inside another repository
        return None, None
    commit = _git(root, "rev-parse", "HEAD")
    status = _git(root, "status", "--porcelain", "--untracked-files=no")
    return commit, None if status is None else bool(status)


def _git(directory: Path, *arguments: str) -> str | None:
    """Return what a git command says; None if it fails or there is no git."""
    try:
        done = subprocess.run(
            ["git", "-C", str(directory), *arguments], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _cpu_model() -> str | None:
    """Return the processor's name as Linux gives it, else as Python does."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, None) or platform.processor() or None


def _gpu() -> dict[str, Any]:
    """Return the GPUs' names, driver, CUDA and NCCL versions; all None without a GPU that torch can use.

    Names come from NVML: asking torch would hold a CUDA context, and so GPU memory, for the whole suite.
    """
    if not gpu_is_usable():
        return {"gpus": None, "driver": None, "cuda": cuda_of_torch(), "nccl": None}
    import torch

    nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.distributed.is_nccl_available() else None
    return {**_nvml(), "cuda": torch.version.cuda, "nccl": nccl}


def _nvml() -> dict[str, Any]:
    """Return the names of the machine's GPUs and the driver's version; None without NVML."""
    import pynvml

    try:
        pynvml.nvmlInit()
        try:
            handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
            names = [str(pynvml.nvmlDeviceGetName(handle)) for handle in handles]
            return {"gpus": names, "driver": str(pynvml.nvmlSystemGetDriverVersion())}
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return {"gpus": None, "driver": None}


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


def measured(seconds: float, cores: int) -> Measurement:
    """Return the measurement that this machine has just made."""
    when = datetime.now(UTC)
    return Measurement(machine=machine(), when=when, seconds=seconds, cores=cores)


def measurements(folder: Path) -> list[Measurement]:
    """Return what was measured for the results in `folder`, oldest first: a results directory, a suite's or a trial's.

    Lines that are not whole are left out; results older than the file have none.
    """
    home = folder.resolve().parent if (folder / "record.json").is_file() else folder
    return _ordered(each for path in [home / FILE, *home.glob(f"*/{FILE}")] for each in _read(path))


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
        there = set(_read(path))
        lines = "".join(each.model_dump_json() + "\n" for each in _ordered(new) if each not in there)
        if not lines:
            return
        with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666), "ab+") as file:
            if file.tell() and not _ends_whole(path):
                lines = "\n" + lines  # the last writer was killed in the middle of a line
            file.write(lines.encode())


def _ends_whole(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"


def _read(path: Path) -> list[Measurement]:
    try:
        lines = read_bytes(path, RECORD).splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        with suppress(ValidationError):
            found.append(Measurement.model_validate_json(line))
    return found


def _ordered(found: Iterable[Measurement]) -> list[Measurement]:
    return sorted(set(found), key=lambda each: (each.when, each.machine))
