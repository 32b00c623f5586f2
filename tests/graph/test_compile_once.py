"""Of processes that need a kernel at the same time one compiles it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CALL = """
import sys
import numpy as np
from harness.graph import kernels
kernels.compile_once()
print("ready", flush=True)
sys.stdin.readline()
assert kernels.gather(np.arange(3.0), np.array([2, 0])).tolist() == [2, 0]
for kernel in kernels.gather, kernels.fetch_ahead:
    print(sum(kernel.stats.cache_misses.values()))
"""


@pytest.mark.slow
def test_two_processes_compile_a_kernel_once(tmp_path: Path) -> None:
    env = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen([sys.executable, "-c", CALL], env=env, **pipes) for _ in range(2)]
    try:
        assert [process.stdout.readline() for process in processes] == ["ready\n"] * 2
        for process in processes:
            process.stdin.write("\n")
            process.stdin.flush()
        misses = [process.communicate(timeout=100)[0].split() for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert sorted(misses) == [["0", "0"], ["1", "1"]]
