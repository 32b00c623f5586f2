"""What a trial ran on: code, versions, processor, memory, GPU."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

import harness
from harness.gpus import cuda_of_torch, gpu_is_usable
from harness.results.reference import machine
from harness.version import built_from, release

PACKAGES = (
    *("torch", "dgl", "numpy", "scipy", "numba", "pandas", "pyarrow", "pydantic", "pymetis"),
    *("scikit-learn", "ogb"),
)


def collect() -> dict[str, Any]:
    """Return versions and hardware as JSON; None for what is not there.

    `commit` and `dirty` are those of the checkout that `harness` was imported from, else of the build that is
    installed; None where that does not tell. Memory in bytes. The host's name is not recorded: `machine` tells
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
    if not (root / ".git").exists():  # an installed copy inside somebody else's repository
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
    """Return the processor's name as Linux tells it, else as Python does."""
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
    """Return the names of the machine's GPUs and the driver's version; None if NVML cannot tell."""
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
