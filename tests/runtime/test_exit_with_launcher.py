"""A rank ends with its launcher, while it still imports torch, too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(60)
STUCK = "import time\nprint('importing', flush=True)\ntime.sleep(600)\n"


@pytest.mark.parametrize("module", ["rank", "speed_reference", "machine_rates"])
def test_it_ends_while_it_imports(tmp_path: Path, module: str) -> None:
    """`torch` and `numba` here are modules whose import takes ten minutes."""
    for name in ("torch", "numba"):
        (tmp_path / f"{name}.py").write_text(STUCK)
    with subprocess.Popen(
        [sys.executable, "-P", "-m", f"harness.runtime.{module}", "job.json"],
        env={"PYTHONPATH": str(tmp_path)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as rank:  # fmt: skip
        try:
            assert rank.stdout is not None
            assert rank.stdin is not None
            assert rank.stdout.readline() == b"importing\n"
            rank.stdin.close()
            assert rank.wait(timeout=30) == 4
        finally:
            rank.kill()
