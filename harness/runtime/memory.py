"""Peak memory of a rank, with its source named."""

from __future__ import annotations

import ctypes
import resource
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

PROC = Path("/proc/self")


class PeakMemory:
    """Peak of a rank's memory over its training, evaluations left out where the kernel allows.

    Attributes:
        resident: the process's peak resident set.
        allocator: the peak of torch's CUDA allocator; None without a GPU.
        source: where `bytes` comes from: the allocator on a GPU, else the resident set.
    """

    def __init__(self, device: torch.device, proc: Path = PROC) -> None:
        self.resident = ResidentPeak(proc)
        self.allocator = AllocatorPeak(device) if device.type == "cuda" else None
        self._main: ResidentPeak | AllocatorPeak = self.allocator or self.resident
        self.source = self._main.source

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave what is enclosed out of the peaks."""
        with ExitStack() as stack:
            stack.enter_context(self.resident.paused())
            if self.allocator is not None:
                stack.enter_context(self.allocator.paused())
            yield

    def bytes(self) -> int:
        """Peak so far, in bytes."""
        return self._main.bytes()


class ResidentPeak:
    """Peak resident set of this process, in bytes.

    On Linux VmHWM, reset after each pause (what was freed is given back first). Elsewhere, or where the
    kernel refuses the reset: `ru_maxrss`, pauses included.
    """

    def __init__(self, proc: Path = PROC) -> None:
        self._status, self._clear = proc / "status", proc / "clear_refs"
        self._peak = 0
        self.source = "VmHWM" if self._reset() else "ru_maxrss"

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave what is enclosed out of the peak."""
        self._peak = self.bytes()
        try:
            yield
        finally:
            if self.source == "VmHWM":
                _return_freed()
                self._reset()

    def bytes(self) -> int:
        """Peak so far, in bytes."""
        return max(self._peak, self._read())

    def _read(self) -> int:
        if self.source == "VmHWM":
            line = next(x for x in self._status.read_text().splitlines() if x.startswith("VmHWM:"))
            return int(line.split()[1]) * 1024
        scale = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale

    def _reset(self) -> bool:
        try:
            self._clear.write_text("5")
        except OSError:
            return False
        return True


class AllocatorPeak:
    """Peak of what torch's CUDA allocator handed out (`max_memory_allocated`), in bytes."""

    source = "CUDA allocator"

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._peak = 0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave what is enclosed out of the peak; memory that it made the allocator keep is given back.

        Without that, the driver's figure would hold an evaluation's memory for the rest of the training.
        """
        self._peak = self.bytes()
        kept = torch.cuda.memory_reserved(self._device)
        try:
            yield
        finally:
            if torch.cuda.memory_reserved(self._device) > kept:
                torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self._device)

    def bytes(self) -> int:
        """Peak so far, in bytes."""
        return max(self._peak, int(torch.cuda.max_memory_allocated(self._device)))


def _return_freed() -> None:
    """Give what the allocator keeps of freed memory back to the kernel, where it is glibc's."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
