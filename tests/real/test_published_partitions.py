"""METIS' parts of ogbn-arxiv against those that Bajaj et al. publish of the same graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from harness.data.partition import partition_nodes
from harness.spec import PartitionSpec

pytestmark = [pytest.mark.data, pytest.mark.slow, pytest.mark.timeout(200)]

# Rows of the boundaries of all parts: "GNN Training Systems: A Performance Comparison of Full-Graph and Mini-Batch"
# (Bajaj et al., PVLDB 18, 2025), plotting/data_transfer of its code. Its graph has a loop at each node.
PUBLISHED = {2: 26_982, 4: 74_114, 8: 137_461, 16: 200_767}
EDGES, NODES = 2_484_941, 169_343


@pytest.mark.parametrize("objective", ["cut", "volume"])
@pytest.mark.parametrize("parts", PUBLISHED)
def test_boundaries_are_no_larger_than_published(parts: int, objective: str, data_dir: Path) -> None:
    path = data_dir / "ogbn_arxiv.npz"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    with np.load(path) as graph:
        indptr, indices = graph["indptr"], graph["indices"]
    assert (indptr.size - 1, indices.size) == (NODES, EDGES - NODES)
    part = partition_nodes(indptr, indices, PartitionSpec(parts=parts, method="metis", objective=objective))
    owner = np.repeat(part, np.diff(indptr)).astype(np.int64)
    outside = owner != part[indices]
    boundary = np.unique(owner[outside] * NODES + indices[outside]).size
    assert 0.65 < boundary / PUBLISHED[parts] < 1
    assert np.bincount(part).max() <= 1.05 * NODES / parts
