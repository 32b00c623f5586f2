"""What the kernel says of memory: this process's limit, and whether it killed something for want of it."""

from __future__ import annotations

from pathlib import Path

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")


def oom_kills(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Return how many processes the kernel's OOM killer has ended so far.

    The counter of this process's own memory cgroup (v2 `memory.events`, v1 `memory.oom_control`), of the
    nearest parent that has one, or else the machine's (`/proc/vmstat`); 0 where the system keeps none. Only a
    difference of two calls means anything.
    """
    for path in _counter_files(proc, cgroups):
        count = _read_counter(path)
        if count is not None:
            return count
    return 0


def memory_limit(proc: Path = PROC, cgroups: Path = CGROUPS) -> int | None:
    """Return the lowest limit in bytes of this process's memory cgroup and its parents, None without one."""
    files = _cgroup_files(proc, cgroups, v1="memory.limit_in_bytes", v2="memory.max")
    limits = [int(text) for path in files if (text := _read(path).strip()).isdigit()]
    return min(limits, default=None)


def _counter_files(proc: Path, cgroups: Path) -> list[Path]:
    return [*_cgroup_files(proc, cgroups, v1="memory.oom_control", v2="memory.events"), proc / "vmstat"]


def _cgroup_files(proc: Path, cgroups: Path, *, v1: str, v2: str) -> list[Path]:
    files: list[Path] = []
    for line in _read(proc / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        own = path.strip("/")
        if "memory" in controllers.split(","):
            files += _upwards(cgroups / "memory", own, v1)
        elif not controllers:
            files += _upwards(cgroups, own, v2)
    return files


def _upwards(mount: Path, own: str, name: str) -> list[Path]:
    # A container sees its cgroup's path on the host, but often only its own cgroup at the mount point.
    directory = mount / own
    tops = [directory, *directory.parents] if own else [directory]
    return [top / name for top in tops if top == mount or mount in top.parents]


def _read_counter(path: Path) -> int | None:
    for line in _read(path).splitlines():
        key, _, value = line.partition(" ")
        if key == "oom_kill" and value.strip().isdigit():
            return int(value)
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
