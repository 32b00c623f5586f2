"""Graphs that other codes were measured on, from the directory that HARNESS_CASES names."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from harness.graph.csr import Topology


def case_topology(name: str) -> Topology:
    """Return the graph of `$HARNESS_CASES/NAME.npz` (neutral format); skips the test where it is not."""
    path = Path(os.environ.get("HARNESS_CASES", "")) / f"{name}.npz"
    if "HARNESS_CASES" not in os.environ or not path.is_file():
        pytest.skip(f"needs {name}.npz in the directory that HARNESS_CASES names")
    with np.load(path) as arrays:
        return Topology(arrays["indptr"].astype(np.int64), arrays["indices"].astype(np.int32))
