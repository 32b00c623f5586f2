"""Whether torch can use a GPU here, asked for without importing torch where that is known."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from pathlib import Path

from harness.deferred import torch


def gpu_is_usable() -> bool:
    """Return whether torch can use a GPU; where there is no driver it cannot, and is not imported to say so."""
    return ("torch" in sys.modules or _has_driver()) and torch.cuda.is_available()


@cache
def _has_driver() -> bool:
    """Whether the library is there by which torch would find GPUs, or AMD's driver."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return Path("/dev/kfd").exists()
    return True
