"""What the kernel says of a cgroup, on made-up /proc and /sys trees: the OOM counter and the CPU quota."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.launch import hardware
from harness.launch.hardware import cpu_limit, oom_kills

V1 = "9:name=systemd:/\n4:memory:/box/7\n0::/\n"
V2 = "0::/user/session\n"


def tree(root: Path, cgroup: str, files: dict[str, str], vmstat: str = "nr_free 5\noom_kill 70\n") -> tuple[Path, Path]:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(cgroup)
    (root / "proc/vmstat").write_text(vmstat)
    for name, text in files.items():
        path = root / "cg" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root / "proc", root / "cg"


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        (V2, {"user/session/memory.events": "low 0\noom 9\noom_kill 3\noom_group_kill 1\n"}, 3),
        (V2, {"user/memory.events": "oom_kill 4\n"}, 4),
        (V2, {"memory.events": "oom_kill 5\n"}, 5),  # a container: its own cgroup is at the mount
        (V1, {"memory/box/7/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"}, 2),
        (V1, {"memory/memory.oom_control": "oom_kill 6\n"}, 6),
        (V2, {}, 70),
        ("", {}, 70),
    ],
)
def test_nearest_counter(tmp_path: Path, cgroup: str, files: dict[str, str], expected: int) -> None:
    assert oom_kills(*tree(tmp_path, cgroup, files)) == expected


def test_a_system_without_counters(tmp_path: Path) -> None:
    assert oom_kills(*tree(tmp_path, V2, {}, vmstat="")) == 0
    assert oom_kills(tmp_path / "absent", tmp_path / "absent") == 0


def test_this_machine() -> None:
    assert oom_kills() >= 0


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        (V2, {"user/session/cpu.max": "250000 100000\n"}, 2.5),
        (V2, {"user/session/cpu.max": "max 100000\n", "user/cpu.max": "150000 50000\n"}, 3.0),
        (V2, {"user/session/cpu.max": "400000 100000\n", "user/cpu.max": "100000 100000\n"}, 1.0),
        (V2, {"user/session/cpu.max": "max 100000\n"}, None),
        ("3:cpu,cpuacct:/box\n", {"cpu/box/cpu.cfs_quota_us": "50000\n", "cpu/box/cpu.cfs_period_us": "100000\n"}, 0.5),
        ("3:cpu,cpuacct:/box\n", {"cpu/box/cpu.cfs_quota_us": "-1\n", "cpu/box/cpu.cfs_period_us": "100000\n"}, None),
        ("", {}, None),
    ],
)
def test_lowest_quota(tmp_path: Path, cgroup: str, files: dict[str, str], expected: float | None) -> None:
    assert cpu_limit(*tree(tmp_path, cgroup, files)) == expected


@pytest.mark.parametrize(("quota", "expected"), [(None, 8), (2.5, 2), (0.5, 1), (64.0, 8)])
def test_cores_are_whole_and_within_the_quota(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, expected: int
) -> None:
    monkeypatch.setattr(hardware.os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(hardware, "cpu_limit", lambda: quota)
    assert hardware.cores() == expected
