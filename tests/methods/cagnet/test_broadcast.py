"""Row-block broadcasts: the dense product, forward and backward, at any replication."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from harness_methods.cagnet import rank_groups
from support.broadcasts import aggregated, broadcasts, directed_graph
from support.ranks import run_ranks

from harness.check.graphs import dense_adjacency, on_disk
from harness.check.oracle import propagation_matrix
from harness.errors import UserError
from harness.graph.block import MEAN, SYMMETRIC, Propagation

WORLD, NODES = 4, 60
# Uneven parts; rank 2 has one node.
PARTS = np.repeat([0, 3, 1, 0, 2, 3], [10, 20, 9, 5, 1, 15])


CASES: list[tuple[int, Propagation]] = [(c, norm) for c in (1, 2, 4) for norm in (MEAN, SYMMETRIC)]


def test_directed_products_equal_the_dense_matrix(tmp_path: Path) -> None:
    graph = directed_graph(51, NODES, weighted=True)
    data = on_disk(graph, PARTS, WORLD, False, tmp_path)
    generator = torch.Generator().manual_seed(0)
    h, direction = (torch.randn(NODES, 5, dtype=torch.float64, generator=generator) for _ in range(2))
    ranks = run_ranks(aggregated, WORLD, data, CASES, [h, direction])
    for case, (replication, norm) in enumerate(CASES):
        model = "sage" if norm == MEAN else "gcn"
        matrix = propagation_matrix(dense_adjacency(graph), model).numpy()
        for rank, results in enumerate(ranks):
            nodes, out, gradient = results[case]
            first = rank - rank % replication
            members = range(first, first + replication)
            assert nodes.tolist() == [n for peer in members for n in np.flatnonzero(peer == PARTS)]
            np.testing.assert_allclose(out, (matrix @ h.numpy())[nodes], rtol=1e-12, atol=1e-14)
            back = (matrix.T @ direction.numpy())[nodes]
            np.testing.assert_allclose(gradient, back, rtol=1e-12, atol=1e-14)
            assert all(map(np.array_equal, results[case], ranks[first][case]))


def test_broadcasts_are_counted_at_both_ends() -> None:
    for rank, result in enumerate(run_ranks(broadcasts, 3)):
        assert result["rows"] == [[1.0, 1.0]] * 3
        assert result["empty"] == (0, 2)
        assert result["alone"] == [[1.0, 1.0]]
        assert result["barriers"] == 2
        label = ("embedding", 2, "forward")
        sent = {(*label, peer): (24, 0) for peer in (0, 2)}
        counted = {k: v for k, v in result["traffic"].items() if any(v)}
        assert counted == (sent if rank == 1 else {(*label, 1): (0, 24)})


def test_groups_must_be_even() -> None:
    assert rank_groups(2, 4) == [range(0, 2), range(2, 4)]
    with pytest.raises(UserError, match=r"replication: 4 copies.* 6 parts .use one of 1, 2, 3, 6"):
        rank_groups(4, 6)
