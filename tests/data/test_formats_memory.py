"""Peak memory of loading, measured in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

# The tiny set is read first, so that imports and compiled code do not count.
MEASURE = """
import resource, sys
from pathlib import Path
from harness.data.registry import prepare
from harness.spec import DatasetSpec

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

spec = DatasetSpec(name="reddit")
root = Path(sys.argv[1])
prepare(spec, data_dir=root / "tiny", cache=root / "cache")
before = peak()
print(prepare(spec, data_dir=root / "medium", cache=root / "cache"))
print(peak() - before)
"""


def write(directory: Path, nodes: int, edges: int, width: int) -> None:
    """DGL-Reddit files of about `edges` directed edges."""
    directory.mkdir(parents=True)
    rng = np.random.default_rng(0)
    keys = np.unique(rng.integers(0, nodes * nodes, edges // 2))
    row, column = np.divmod(keys, nodes)
    once = sp.coo_matrix((np.ones(len(keys), np.float32), (row, column)), shape=(nodes, nodes))
    both = sp.csr_matrix(once + once.T)
    both.setdiag(0)
    both.eliminate_zeros()
    both.data[:] = 1
    sp.save_npz(directory / "reddit_graph.npz", both.tocoo(), compressed=False)
    np.savez(
        directory / "reddit_data.npz",
        feature=rng.random((nodes, width), dtype=np.float32),
        label=rng.integers(0, 41, nodes),
        node_types=rng.integers(1, 4, nodes),
    )


@pytest.mark.slow
def test_loading_reddit_peaks_below_one_and_a_half_times_its_size(tmp_path: Path) -> None:
    write(tmp_path / "tiny" / "reddit", 200, 2_000, 8)
    write(tmp_path / "medium" / "reddit", 50_000, 2_000_000, 200)
    result = subprocess.run([sys.executable, "-c", MEASURE, str(tmp_path)], capture_output=True, text=True, check=True)
    directory, peak = result.stdout.split()
    size = sum(path.stat().st_size for path in Path(directory).iterdir())
    assert size > 47e6
    assert int(peak) < 1.5 * size
