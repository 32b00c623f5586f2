"""Figures from the kernel's files: memory of this process, energy of the processor packages."""

from __future__ import annotations

import os
import re
from pathlib import Path
from threading import Lock

from harness.runtime.meters.absent import Absent

POWERCAP = Path("/sys/class/powercap")


class KernelFile:
    """A small file of /proc or /sys, kept open: reading it anew is one system call.

    Raises:
        Absent: it cannot be opened or read.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._descriptor = path, -1
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise self._absent(error) from None

    def read(self) -> str:
        """Return its text as of now."""
        try:
            return os.pread(self._descriptor, 4096, 0).decode()
        except OSError as error:
            raise self._absent(error) from None

    def close(self) -> None:
        """Close it; after that `read` raises `Absent`."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _absent(self, error: OSError) -> Absent:
        return Absent(f"{self._path}: {error.strerror}")


class ResidentSize(KernelFile):
    """Resident set of this process (`statm`)."""

    def __init__(self, proc: Path) -> None:
        super().__init__(proc / "statm")
        self._page = os.sysconf("SC_PAGE_SIZE")

    def bytes(self) -> int:
        """Return its size now."""
        return int(self.read().split()[1]) * self._page


class ProportionalSize(KernelFile):
    """Proportional set of this process (`smaps_rollup`): a page shared by n processes counts 1/n.

    The kernel walks the whole page table for it: milliseconds for each GB.
    """

    def __init__(self, proc: Path) -> None:
        super().__init__(proc / "smaps_rollup")

    def bytes(self) -> int:
        """Return its size now."""
        line = next(x for x in self.read().splitlines() if x.startswith("Pss:"))
        return int(line.split()[1]) * 1024


class PackageEnergy:
    """Energy of all processor packages of the machine, whoever uses them (RAPL, also AMD's).

    Only zones called package-N count: sub-zones are not zones of their own, and `psys` holds the packages. https://docs.kernel.org/power/powercap/powercap.html

    Raises:
        Absent: there is no package, or one cannot be read (most kernels let only root).
    """

    def __init__(self, root: Path = POWERCAP) -> None:
        zones = [
            path for path in sorted(root.glob("intel-rapl:*")) if re.fullmatch(r"intel-rapl:\d+", path.name)
        ]
        packages = [zone for zone in zones if _text(zone / "name").startswith("package")]
        if not packages:
            raise Absent(f"{root}: no processor package (RAPL) is listed")
        self._counters = [_Counter(package) for package in packages]
        self._lock = Lock()

    def joules(self) -> float:
        """Return the joules since this object was made; ask more often than a counter wraps (minutes)."""
        with self._lock:
            return sum(counter.advance() for counter in self._counters) / 1e6

    def close(self) -> None:
        """Close the counters."""
        for counter in self._counters:
            counter.close()


class _Counter(KernelFile):
    """Micro-joules of a package, made monotonic."""

    def __init__(self, zone: Path) -> None:
        super().__init__(zone / "energy_uj")
        self._range = int(_text(zone / "max_energy_range_uj"))
        self._last, self._total = int(self.read()), 0

    def advance(self) -> int:
        """Return the micro-joules since the start."""
        now = int(self.read())
        self._total += now - self._last + (self._range if now < self._last else 0)
        self._last = now
        return self._total


def _text(path: Path) -> str:
    file = KernelFile(path)
    try:
        return file.read().strip()
    finally:
        file.close()
