from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from harness.check.graphs import dense_adjacency, on_disk, random_graph
from harness.graph.partition import Partition

GRAPH = random_graph(51, nodes=40, degree=6)
DENSE = dense_adjacency(GRAPH)
PARTS = np.random.default_rng(5).integers(0, 3, 40)


@pytest.fixture
def partitions(tmp_path: Path) -> list[Partition]:
    view = on_disk(GRAPH, PARTS, 3, False, tmp_path).parts.full
    return [Partition(view, rank, engine="auto", device=torch.device("cpu"), dtype=torch.float64) for rank in range(3)]


@pytest.mark.parametrize("share", [0, 0.4, 1])
def test_induced_block_is_the_slice_of_the_adjacency(partitions: list[Partition], share: float) -> None:
    for rank, partition in enumerate(partitions):
        kept = np.flatnonzero(np.random.default_rng(rank).random(partition.num_boundary) < share)
        block = partition.block(kept)
        sources = np.concatenate([partition.inner, partition.boundary[kept]])
        want = DENSE[np.ix_(partition.inner, sources)]
        identity = torch.eye(sources.size, dtype=torch.float64)
        np.testing.assert_array_equal(block.engine.multiply(block.adjacency, identity).numpy(), want)
        identity = torch.eye(partition.num_inner, dtype=torch.float64)
        np.testing.assert_array_equal(block.engine.multiply(block.transposed, identity).numpy(), want.T)
        np.testing.assert_array_equal(block.degree.numpy(), DENSE.sum(1)[sources])


def test_halos_of_two_ranks_match(partitions: list[Partition]) -> None:
    for receiver, wanted in enumerate(partitions):
        for owner, giver in enumerate(partitions):
            asked = wanted.boundary[wanted.boundary_ptr[owner] : wanted.boundary_ptr[owner + 1]]
            halo = giver.full_halo
            start = sum(halo.send_counts[:receiver])
            rows = halo.send_index[start : start + halo.send_counts[receiver]]
            np.testing.assert_array_equal(giver.inner[rows.numpy()], asked)
            assert wanted.full_halo.recv_counts[owner] == asked.size
