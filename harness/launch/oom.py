"""Whether the kernel killed something for want of memory."""

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


def _counter_files(proc: Path, cgroups: Path) -> list[Path]:
    files: list[Path] = []
    for line in _read(proc / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        own = path.strip("/")
        if "memory" in controllers.split(","):
            files += _upwards(cgroups / "memory", own, "memory.oom_control")
        elif not controllers:
            files += _upwards(cgroups, own, "memory.events")
    return [*files, proc / "vmstat"]


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
