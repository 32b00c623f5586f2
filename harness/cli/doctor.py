"""`harness doctor`: what is here, what is missing, and what that disables."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from harness.cli.options import DataDir, bytes_text, table, use_data_dir

IMPORTS = {
    "torch": "nothing runs without it",
    "numba": "nothing is partitioned without it",
    "dgl": "SpMM engine `dgl`, there to compare with, is off; it comes with `.[dgl]`",
    "pymetis": "partitioner `metis` is off; use `random` or `chunk`",
    "ogb": "ogbn-* data sets cannot be downloaded",
    "pyarrow": "no epochs can be recorded",
    "seaborn": "no reports",
}
REQUIRED = ("torch", "numba", "pyarrow", "gloo", "cache directory")


@dataclass(frozen=True)
class DoctorCheck:
    """One thing looked at: found, not found, or None, not to be expected here.

    `note` is a version or path, or what the absence disables.
    """

    what: str
    found: bool | None
    note: str

    @property
    def state(self) -> str:
        """What the table says of it."""
        return "-" if self.found is None else "ok" if self.found else "missing"


def doctor(data_dir: DataDir = None) -> None:
    """Check this machine.

    Versions, hardware, directories; what is missing and what that disables. Exit code 1 if something is
    missing without which no trial runs.
    """
    from harness.results.environment import collect

    directory = use_data_dir(data_dir)
    checks = [*map(_import, IMPORTS)]
    if checks[0].found:
        facts = collect()
        table(["", "this machine"], _machine(facts))
        typer.echo("")
        checks += [*_communication(), _gpu(facts), _nvml(facts), *_networks()]
    checks += [_cache(), _data(directory)]
    table(["check", "state", "note"], [(c.what, c.state, c.note) for c in checks])
    if any(c.what in REQUIRED and not c.found for c in checks):
        raise typer.Exit(1)


def _machine(facts: dict[str, Any]) -> list[tuple[str, object]]:
    dirty = " with changes" if facts["dirty"] else ""
    return [
        ("harness", f"{facts['harness']}, commit {facts['commit'] or 'unknown'}{dirty}"),
        ("python", facts["python"]),
        ("platform", facts["platform"]),
        ("cpu", facts["cpu"]),
        ("cores", f"{facts['usable_cores']} usable of {facts['logical_cores']}"),
        ("memory", bytes_text(facts["memory_bytes"])),
    ]


def _import(name: str) -> DoctorCheck:
    try:
        module = importlib.import_module(name)
    except Exception as error:  # a library built for another torch fails to load in ways of its own
        return DoctorCheck(name, False, f"{IMPORTS[name]} ({' '.join(str(error).split())[:80]})")
    return DoctorCheck(name, True, str(getattr(module, "__version__", "")))


def _communication() -> list[DoctorCheck]:
    from torch import distributed

    if not distributed.is_available():
        return [DoctorCheck("gloo", False, "this torch has no torch.distributed; no trial runs")]
    gloo = distributed.is_gloo_available()
    nccl = distributed.is_nccl_available()
    return [
        DoctorCheck("gloo", gloo, "ranks on CPU" if gloo else "no trial runs on CPU"),
        DoctorCheck("nccl", nccl, "a GPU a rank" if nccl else "ranks on GPUs exchange through the host"),
    ]


def _gpu(facts: dict[str, Any]) -> DoctorCheck:
    if not facts["gpus"]:
        build = f"torch built for CUDA {facts['cuda']}" if facts["cuda"] else "torch built without CUDA"
        return DoctorCheck("gpu", False, f"device `cuda` is off, `auto` is `cpu` ({build})")
    return DoctorCheck("gpu", True, f"{', '.join(facts['gpus'])}; driver {facts['driver']}, CUDA {facts['cuda']}")


def _nvml(facts: dict[str, Any]) -> DoctorCheck:
    import pynvml

    if not facts["gpus"]:
        return DoctorCheck("nvml", None, "no GPU")
    try:
        pynvml.nvmlInit()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return DoctorCheck("nvml", False, f"GPU memory comes from torch, not the driver ({error})")
    return DoctorCheck("nvml", True, "GPU memory as the driver counts it")


def _networks() -> list[DoctorCheck]:
    from harness.launch.network import why_not
    from harness.suite.schema import NetworkSpec

    rate, latency = why_not(NetworkSpec(rate="1gbit")), why_not(NetworkSpec(latency="1ms"))
    return [
        DoctorCheck("shaped networks", rate is None, rate or "a suite's `network: {rate: ...}`"),
        DoctorCheck("netem", latency is None, latency or "a suite's `network: {latency: ...}`"),
    ]


def _cache() -> DoctorCheck:
    from harness.data.store import cache_root

    root = cache_root()
    return _directory("cache directory", root, lambda: _free(root), "HARNESS_CACHE names another")


def _data(directory: Path | None) -> DoctorCheck:
    if directory is None:
        return DoctorCheck("data directory", False, "no graphs of your own; --data-dir or HARNESS_DATA names one")
    count = sum(1 for _ in directory.glob("*.npz"))
    return DoctorCheck("data directory", True, f"{directory} ({count} .npz)")


def _directory(what: str, path: Path, note: Callable[[], str], fix: str) -> DoctorCheck:
    existing = next(place for place in (path, *path.resolve().parents) if place.exists())
    if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK):
        return DoctorCheck(what, True, f"{path} ({note()})")
    return DoctorCheck(what, False, f"{path} cannot be written; {fix}")


def _free(path: Path) -> str:
    existing = next(place for place in (path, *path.resolve().parents) if place.exists())
    return f"{bytes_text(shutil.disk_usage(existing).free)} free"
