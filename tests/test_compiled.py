"""Machine code that several processes keep at the same time is each signature's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MODULE = """
from harness.data.graph import compiled

@compiled
def total(values):
    found = values[0] * 0
    for i in range(values.size):
        found += values[i]
    return found
"""
# Each process has seen the index before another has written to it, and takes its time to write the code.
PROCESS = """
import sys, time
import numpy as np
from numba.core.caching import IndexDataCacheFile as File
wait = float(sys.argv[2])
if wait >= 0:
    load, save = File._load_index, File._save_data
    def slow_load(self):
        found = load(self)
        time.sleep(0.5)
        return found
    def slow_save(self, name, data):
        time.sleep(wait)
        save(self, name, data)
    File._load_index, File._save_data = slow_load, slow_save
from kernels import total
print(total(np.arange(1, 5).astype(sys.argv[1])))
"""


@pytest.mark.timeout(120)
def test_signatures_that_are_compiled_at_the_same_time_stay_apart(tmp_path: Path) -> None:
    (tmp_path / "kernels.py").write_text(MODULE)
    code = tmp_path / "code"
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]), "NUMBA_CACHE_DIR": str(code)}
    dtypes = ("int32", "float64", "float32")

    def start(dtype: str, wait: float) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PROCESS, dtype, str(wait)]
        return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)

    for waits in ((2.0, 1.0, 0.0), (-1, -1, -1)):  # the slowest begins first: its code is the last to come
        started = [start(dtype, wait) for dtype, wait in zip(dtypes, waits, strict=True)]
        assert [float(process.communicate(timeout=60)[0]) for process in started] == [10.0] * 3
    assert len(list(code.rglob("kernels.total*.nbc"))) == 3
