"""Kernels that were compiled before are loaded, those that are asked for, and none is compiled for it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np

from harness.graph.csr import transpose
from harness.graph.kernels import stream

SCRIPT = """
import json, sys
import harness.graph.csr
from harness.graph.kernels import kernels, load_compiled, loaded
found = load_compiled(*json.loads(sys.argv[1]))
assert found == loaded()
print(json.dumps([found, sum(len(kernel.stats.cache_misses) for kernel in kernels().values())]))
"""


def load(*wanted: Any) -> dict[str, list[str]]:
    """Return what a fresh process has after it has loaded `wanted`."""
    command = [sys.executable, "-c", SCRIPT, json.dumps(wanted)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]]
    found, compiled = json.loads(done.stdout)
    assert compiled == 0
    return found


def test_what_is_asked_for_is_loaded() -> None:
    stream(np.int64(1), np.int64(2))
    transpose(np.array([0, 1]), np.array([0], np.int32), 1, False)
    name, version = "harness.graph.kernels.stream", "(int64, int64)"
    assert load({name: [version]}) == {name: [version]}
    assert load({name: ["(int8, int8)"], "harness.gone": [version]}) == {}
    assert load({}) == {}
    everything = load()
    assert version in everything[name]
    assert "harness.graph.csr.transpose" in everything
