"""The OOM counter, on made-up /proc and /sys trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.launch.process import oom_kills

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
