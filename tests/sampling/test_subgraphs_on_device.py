"""Subgraphs by torch's operations are those of the compiled kernel, and those of a dense matrix."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.draws import DrawCase

from harness.sampling.sample import GraphOnDevice
from harness.sampling.subgraphs import induce, induce_on_device

NODES, CPU = 50, torch.device("cpu")


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("size", [0, 1, 7, 30, NODES])
@pytest.mark.parametrize("ascending", [False, True])
def test_it_is_the_subgraph_of_the_host(tmp_path: Path, weighted: bool, size: int, ascending: bool) -> None:
    case = DrawCase(tmp_path, NODES, weighted)
    nodes = np.random.default_rng(size).permutation(NODES)[:size]
    nodes = np.sort(nodes) if ascending else nodes
    found = induce_on_device(GraphOnDevice.of(case.topology, CPU), nodes)
    want = induce(case.topology, nodes, case.tables)
    for name in ("sources", "indptr", "indices"):
        np.testing.assert_array_equal(getattr(found, name).numpy(), getattr(want, name))
    assert found.edges == np.count_nonzero(case.matrix[np.ix_(nodes, nodes)])
    assert found.num_dst == size
    blocks = [layer.block(case.topology, device=CPU, dtype=torch.float32) for layer in (found, want)]
    rows = torch.rand(size, 3)
    assert torch.equal(blocks[0].degree, blocks[1].degree)
    assert torch.equal(blocks[0].multiply(rows), blocks[1].multiply(rows))
    assert torch.equal(blocks[0].multiply_transposed(rows), blocks[1].multiply_transposed(rows))
    dense = torch.from_numpy(case.matrix[np.ix_(nodes, nodes)]).float()
    torch.testing.assert_close(blocks[0].multiply(rows), dense @ rows)
