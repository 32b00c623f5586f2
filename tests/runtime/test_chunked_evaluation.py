"""Exact evaluation in strips: the logits of the whole, and little of the device's memory."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from support.evaluations import in_strips, most_of_process, most_on_device
from support.ranks import run_ranks
from support.tiers import tiered

from harness.check.graphs import on_disk, random_graph
from harness.check.training import Case
from harness.errors import UserError
from harness.graph.csr import CSR
from harness.models.layer import ModelSpec
from harness.runtime.evaluation import Tiles, bounds, waiting
from harness.runtime.run_config import IN_CHUNKS, TrainSpec

WORLD, NODES = 2, 60
MODELS = [
    ModelSpec(name="sage", layers=3, hidden=6, dropout=0.5, norm="layer"),
    ModelSpec(name="gcn", layers=2, hidden=9, linear_layers=2, residual=True),
    ModelSpec(name="gat", layers=2, hidden=6, heads=2),
    ModelSpec(name="mixhop", layers=2, hidden=6, order=2),
]
SPEC = TrainSpec(epochs=1, precision="float64", threads=1)
HOST = {"fanouts": 2, "batch_size": 8, "storage": "host"}


@pytest.mark.slow
@pytest.mark.parametrize("world", tiered([1, WORLD], [WORLD]))
def test_logits_and_scores_are_those_of_the_whole(world: int, tmp_path: Path) -> None:
    graph = random_graph(95, NODES, degree=8, weighted=True)
    data = on_disk(graph, np.random.default_rng(3).integers(0, world, NODES), world, False, tmp_path)
    cases = [Case(data, "graphsage", HOST, model, SPEC) for model in MODELS]
    limits = [64.0, 1e-3, 2e-4]
    for rank in run_ranks(in_strips, world, cases, limits):
        for case in rank:
            for limit, (whole, logits, scores, scores_in_strips, strips, columns) in zip(limits, case, strict=True):
                np.testing.assert_allclose(logits, whole, rtol=1e-10, atol=1e-12)
                assert scores_in_strips == scores
                assert (strips == 1, columns == 1) == (limit == 64, limit == 64)


@pytest.mark.slow
def test_nothing_of_the_size_of_the_graph_is_on_the_device(tmp_path: Path) -> None:
    """300 columns, 900 nodes, 11,000 edges; 0.02 MiB of each thing at once, and never a matrix of all nodes."""
    graph = random_graph(96, 900, degree=12, features=300)
    data = on_disk(graph, np.arange(900) * 2 // 900, 2, False, tmp_path)
    model = ModelSpec(name="sage", layers=2, hidden=64, dropout=0)
    spec = TrainSpec(epochs=1, threads=1)
    limit = 0.02
    for most, scores in run_ranks(most_on_device, 2, Case(data, "graphsage", HOST, model, spec), limit):
        features = 4 * 300 * 450
        assert most["strips"] < IN_CHUNKS * limit * 2**20 < features / 4 < most["whole"]
        assert most["after strips"] < 256
        assert scores["strips"] == scores["whole"] == scores["cpu"]


@pytest.mark.slow
def test_rows_beyond_the_bound_wait_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """20,000 nodes of 3 layers of 512 values: 20 MB a layer and rank, and as much received; 4 MiB may be in memory."""
    monkeypatch.delenv("TMPDIR", raising=False)
    graph = random_graph(97, 20_000, degree=4, features=64)
    data = on_disk(graph, np.arange(20_000) * 2 // 20_000, 2, False, tmp_path)
    model = ModelSpec(name="sage", layers=3, hidden=512, dropout=0, norm="none")
    spec = TrainSpec(epochs=1, threads=1, eval_memory="4MiB")
    case = Case(data, "graphsage", HOST, model, spec)
    for (bounded, whole), (bounded_scores, scores) in run_ranks(most_of_process, 2, case):
        assert bounded < 20 << 20 < whole / 4  # the heap's holes are in it
        assert scores == bounded_scores


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(UserError, match="has no 4 KiB free for the rows of a layer") as caught:
        waiting(8, torch.zeros(2, 128), tmp_path)
    assert caught.value.file == tmp_path
    assert "TMPDIR" in str(caught.value)


def test_strips_have_so_many_rows_and_edges() -> None:
    indptr = np.array([0, 2, 3, 3, 13, 14, 15])
    assert bounds(indptr, 10, 4) == [slice(0, 3), slice(3, 4), slice(4, 6)]  # the fourth node has more by itself
    assert bounds(indptr, 2, 100) == [slice(0, 2), slice(2, 4), slice(4, 6)]
    assert bounds(indptr, 0, 0) == [slice(i, i + 1) for i in range(6)]
    assert bounds(np.array([0]), 5, 5) == [slice(0, 0)]


def test_tiles_are_the_columns_of_the_matrix() -> None:
    dense = np.arange(1.0, 36).reshape(5, 7) * (np.arange(35).reshape(5, 7) % 3 > 0)
    rows, columns = dense.nonzero()
    indptr = torch.from_numpy(np.searchsorted(rows, np.arange(6)))
    matrix = CSR(indptr, torch.from_numpy(columns.astype(np.int32)), 7, torch.from_numpy(dense[rows, columns]))
    assert Tiles(7, 7).of(matrix) == [(matrix, 0)]
    for tile, first in Tiles(7, 3).of(matrix):
        assert tile.num_cols == min(3, 7 - first)
        found = np.zeros((5, tile.num_cols))
        assert tile.values is not None
        found[np.repeat(np.arange(5), tile.indptr.diff().numpy()), tile.indices.numpy()] = tile.values.numpy()
        np.testing.assert_array_equal(found, dense[:, first : first + tile.num_cols])
