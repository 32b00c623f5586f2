from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from harness.runtime.counters import Absent, PackageEnergy, proportional_size, resident_size

ZONE = Callable[..., Path]
NOBODY = 65534
needs_linux = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc")


@pytest.fixture
def tree() -> Iterator[Path]:
    """A powercap tree that any user can walk, which `tmp_path` is not."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def zone(tree: Path) -> ZONE:
    """Returns a function that makes a zone of `tree`."""

    def make(folder: str, name: str, micro_joules: int, limit: int = 10_000_000) -> Path:
        path = tree / folder
        path.mkdir()
        (path / "name").write_text(f"{name}\n")
        (path / "max_energy_range_uj").write_text(f"{limit}\n")
        (path / "energy_uj").write_text(f"{micro_joules}\n")
        return path

    return make


def test_only_packages_are_counted(tree: Path, zone: ZONE) -> None:
    counted = [zone("intel-rapl:0", "package-0", 100), zone("intel-rapl:1", "package-1", 200)]
    left_out = [
        zone("intel-rapl:0:0", "core", 0),
        zone("intel-rapl:0:1", "dram", 0),
        zone("intel-rapl:0:2", "package-0-die-0", 0),
        zone("intel-rapl:2", "psys", 0),
        zone("intel-rapl-mmio:0", "package-0", 0),
    ]
    energy = PackageEnergy(tree)
    for path in left_out:
        (path / "energy_uj").write_text("9000000")
    assert energy.joules() == 0
    for path, now in zip(counted, (1_000_100, 3_000_200), strict=True):
        (path / "energy_uj").write_text(str(now))
    assert energy.joules() == pytest.approx(4.0)


def test_a_counter_that_wraps_goes_on(tree: Path, zone: ZONE) -> None:
    package = zone("intel-rapl:0", "package-0", 9_500_000, limit=10_000_000)
    energy = PackageEnergy(tree)
    seen = []
    for now in (500_000, 9_000_000, 1_000_000):  # +1.0, +8.5, +2.0 J
        (package / "energy_uj").write_text(str(now))
        seen.append(energy.joules())
    assert seen == pytest.approx([1.0, 9.5, 11.5])


def test_one_package_that_cannot_be_read_leaves_no_partial_sum(tree: Path, zone: ZONE) -> None:
    zone("intel-rapl:0", "package-0", 100)
    (zone("intel-rapl:1", "package-1", 100) / "energy_uj").unlink()
    with pytest.raises(Absent, match="intel-rapl:1/energy_uj: No such file"):
        PackageEnergy(tree)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else for a moment")
def test_what_only_root_may_read_is_absent_for_others(tree: Path, zone: ZONE) -> None:
    package = zone("intel-rapl:0", "package-0", 100)
    (package / "energy_uj").chmod(0o400)
    os.seteuid(NOBODY)
    try:
        with pytest.raises(Absent, match="energy_uj: Permission denied"):
            PackageEnergy(tree)
    finally:
        os.seteuid(0)


def test_a_machine_without_rapl_says_so(tmp_path: Path) -> None:
    with pytest.raises(Absent, match="no processor package"):
        PackageEnergy(tmp_path / "powercap")


@needs_linux
def test_sizes_are_those_of_this_process() -> None:
    proc = Path("/proc/self")
    assert resident_size(proc) == pytest.approx(psutil.Process().memory_info().rss, rel=0.05)
    assert proportional_size(proc) == pytest.approx(psutil.Process().memory_full_info().pss, rel=0.05)
    # the kernel sums its counters of the resident set lazily
    assert 0 < proportional_size(proc) <= 1.02 * resident_size(proc)


def test_a_file_that_is_not_there_is_absent(tmp_path: Path) -> None:
    with pytest.raises(Absent, match="statm: No such file"):
        resident_size(tmp_path)
