"""Which GPUs torch can use here, and why none; asked for without importing torch where that is known."""

from __future__ import annotations

import ctypes
import os
import runpy
import sys
import warnings
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harness.deferred import torch


@dataclass(frozen=True)
class Gpu:
    """A GPU, with its memory in bytes."""

    name: str
    memory: int
    bus: str | None = None  # its place on the PCI bus as Linux writes it, if known


def gpu_is_usable() -> bool:
    """Return whether torch can use a GPU; where there is no driver it cannot, and is not imported to say so."""
    if "torch" not in sys.modules and not _has_driver():
        return False
    with warnings.catch_warnings():  # of an old driver, in several lines; `why_unusable` says it in one
        warnings.simplefilter("ignore", UserWarning)
        return torch.cuda.is_available()


def usable_gpus() -> list[Gpu]:
    """Return the GPUs that torch can use, in its order."""
    gpus = []
    for number in range(torch.cuda.device_count() if gpu_is_usable() else 0):
        found = torch.cuda.get_device_properties(number)
        places: list[Any] = [getattr(found, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
        bus = None if None in places else "{:04x}:{:02x}:{:02x}.0".format(*places)
        gpus.append(Gpu(str(found.name), int(found.total_memory), bus))
    return gpus


def cuda_of_torch() -> str | None:
    """Return the version of CUDA that torch is built for, None for none; torch is not imported to say so."""
    spec = None if "torch" in sys.modules else find_spec("torch")
    if spec is None or spec.origin is None:
        return torch.version.cuda
    version = runpy.run_path(str(Path(spec.origin).with_name("version.py")))["cuda"]
    return None if version is None else str(version)


def why_unusable() -> tuple[str, str] | None:
    """Return why torch can use no GPU here, and what to do about it; None if it can use one."""
    if gpu_is_usable():
        return None
    build = cuda_of_torch()
    if build is None and torch.version.hip is None:
        return "it is built without CUDA", "install its CUDA build, or --device cpu"
    if not _has_driver():
        return "there is no GPU driver", "--device cpu"
    driver = driver_cuda()
    if build is not None and driver is not None and driver[0] < int(build.split(".")[0]):
        can = ".".join(map(str, driver))
        return f"its driver is for CUDA {can}, torch is built for {build}", f"a newer driver, or torch for CUDA {can}"
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return f"CUDA_VISIBLE_DEVICES={named!r} shows it none", "unset it, or --device cpu"
    return "the driver shows it none", "--device cpu; see `harness doctor`"


def driver_cuda() -> tuple[int, int] | None:
    """Return the version of CUDA that NVIDIA's driver is for; None where there is none, or it does not say."""
    found = ctypes.c_int(0)
    try:
        failed = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(found))
    except (OSError, AttributeError):
        return None
    return None if failed or not found.value else (found.value // 1000, found.value % 1000 // 10)


@cache
def _has_driver() -> bool:
    with suppress(OSError):
        return bool(ctypes.CDLL("libcuda.so.1"))
    return Path("/dev/kfd").exists()  # AMD's
