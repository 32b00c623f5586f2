from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from harness.check.graphs import dense_adjacency, on_disk, random_graph
from harness.graph.partition import Partition, View

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


@pytest.mark.parametrize("count", [1, 3, 50])
def test_pieces_have_every_edge_and_every_boundary_row_once(partitions: list[Partition], count: int) -> None:
    """Even of more pieces than boundary nodes: some have none."""
    pieces = [partition.pieces(count) for partition in partitions]
    for receiver, partition in enumerate(partitions):
        seen = list(partition.inner)
        for k, (matrix, halo) in enumerate(pieces[receiver]):
            nodes = [] if k else list(partition.inner)
            for owner, giver in enumerate(partitions):
                theirs = pieces[owner][k][1]
                start = sum(theirs.send_counts[:receiver])
                sent = theirs.send_index[start : start + theirs.send_counts[receiver]].numpy()
                assert len(sent) == halo.recv_counts[owner]
                nodes += list(giver.inner[sent])
            seen += nodes if k else nodes[partition.num_inner :]
            columns = torch.eye(len(nodes), dtype=torch.float64)
            got = (
                partition.full_block.engine.multiply(matrix, columns) if nodes else torch.empty(partition.num_inner, 0)
            )
            np.testing.assert_array_equal(got.numpy(), DENSE[np.ix_(partition.inner, np.array(nodes, int))])
        assert sorted(seen) == sorted([*partition.inner, *partition.boundary])


def test_pieces_leave_nothing_behind(partitions: list[Partition]) -> None:
    for count in (1, 3):
        held = set(vars(partitions[0]))
        partitions[0].pieces(count)
        assert set(vars(partitions[0])) == held


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_read_features_leave_no_page_of_their_file(tmp_path: Path) -> None:
    def resident() -> int:
        lines = Path("/proc/self/smaps").read_text().splitlines()
        files = [k for k, line in enumerate(lines) if line.endswith(f"{tmp_path}/features.npy")]
        assert files
        return sum(int(next(line for line in lines[k:] if line.startswith("Rss:")).split()[1]) for k in files)

    path = on_disk(GRAPH, PARTS, 3, False, tmp_path / "parts").parts.full
    np.save(tmp_path / "features.npy", GRAPH.features)
    graph = replace(GRAPH, features=np.load(tmp_path / "features.npy", mmap_mode="r"))
    for rank in range(3):
        view = View(graph, path, rank, engine="auto", device=torch.device("cpu"), dtype=torch.float32)
        found = view.features()
        assert resident() == 0
        torch.testing.assert_close(found, torch.from_numpy(GRAPH.features[view.partition.inner]))
