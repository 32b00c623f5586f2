"""Peak memory of a rank, with its source named."""

from __future__ import annotations

import ctypes
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class PeakMemory:
    """Peak of a rank's memory over its training, evaluations left out where the kernel allows.

    On a GPU: the allocator's peak (`max_memory_allocated`). On Linux: the peak resident set (VmHWM), reset
    after each evaluation (what the evaluation freed is given back first). Elsewhere: `ru_maxrss`,
    evaluations included.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._peak = 0
        self.source = self._choose()

    def _choose(self) -> str:
        if self._cuda:
            return "CUDA allocator"
        return "VmHWM" if self._reset_resident() else "ru_maxrss"

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave what is enclosed out of the peak."""
        self._peak = self.bytes()
        yield
        if self._cuda:
            torch.cuda.reset_peak_memory_stats()
        elif self.source == "VmHWM":
            _return_freed()
            self._reset_resident()

    def bytes(self) -> int:
        """Peak so far, in bytes."""
        return max(self._peak, self._read())

    def _read(self) -> int:
        if self._cuda:
            return int(torch.cuda.max_memory_allocated())
        if self.source == "VmHWM":
            line = next(x for x in STATUS.read_text().splitlines() if x.startswith("VmHWM:"))
            return int(line.split()[1]) * 1024
        scale = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale

    @staticmethod
    def _reset_resident() -> bool:
        try:
            CLEAR.write_text("5")
        except OSError:
            return False
        return True


def _return_freed() -> None:
    """Give what the allocator keeps of freed memory back to the kernel, where it is glibc's."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
