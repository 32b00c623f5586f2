"""Explanation graphs of two ranks of different reach, against dense matrices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from harness_methods.dgs.explanations import star
from numpy.testing import assert_allclose, assert_array_equal
from support.planted import Built, build_each
from support.ranks import run_ranks

from harness.check.graphs import dense_adjacency, on_disk, random_graph
from harness.check.training import Case
from harness.graph.block import MEAN, SYMMETRIC
from harness.models.layer import ModelSpec

NODES, WIDTH = 60, 7
GRAPHS = [random_graph(5, NODES, 3, WIDTH, weighted=False), random_graph(6, NODES, 3, WIDTH, weighted=True)]
PARTS = (np.arange(NODES) >= 42).astype(np.int64)  # so that one rank has more remote nodes to ask for
INNER = [np.flatnonzero(PARTS == 0), np.flatnonzero(PARTS == 1)]
HOPS = [1, 2]
CHUNK = 4


def reached(adjacency: np.ndarray, inner: np.ndarray, hops: int) -> np.ndarray:
    within = np.isin(np.arange(NODES), inner)
    for _ in range(hops):
        within |= (adjacency[within] != 0).any(0)
    return np.flatnonzero(within)


@pytest.mark.slow
def test_ranks_build_their_graphs(tmp_path: Path) -> None:
    data = [on_disk(g, PARTS, 2, False, tmp_path / g.name) for g in GRAPHS]
    cases = [Case(d, "graphsage", {}, ModelSpec(layers=2, hidden=4)) for d in data]
    results = run_ranks(build_each, 2, cases, HOPS, CHUNK)
    for k, (hops, source) in enumerate(zip(HOPS, GRAPHS, strict=True)):
        adjacency, x = dense_adjacency(source), source.features.astype(np.float64)
        for rank in (0, 1):
            check(results[rank][k], hops, adjacency, x, INNER[rank], INNER[1 - rank])


def check(built: Built, hops: int, adjacency: np.ndarray, x: np.ndarray, inner: np.ndarray, others: np.ndarray) -> None:
    assert_array_equal(built.remote, np.intersect1d(reached(adjacency, inner, hops), others))
    assert_array_equal(built.features[1:], x[built.remote])
    assert_allclose(built.features[0], x[inner].mean(0), rtol=1e-12)
    assert_array_equal(built.local_features, x[inner])

    local = adjacency[np.ix_(inner, inner)]
    total = local.sum(1, keepdims=True)
    means = np.divide(local @ x[inner], total, out=np.zeros((inner.size, WIDTH)), where=total > 0)
    assert_allclose(built.local_means, means, atol=1e-6)
    assert_allclose(built.local_degree, adjacency[inner].sum(1), rtol=1e-6)

    asked = np.intersect1d(reached(adjacency, others, hops), inner)
    assert built.sent["feature"] == asked.size * WIDTH * 8
    assert built.nbytes >= built.features.nbytes + 4 * np.count_nonzero(local)


@pytest.mark.parametrize("remote", [0, 1, 5])
def test_star_is_a_mean_for_every_model(remote: int) -> None:
    middle, again, last = star(remote, 3, torch.float64)
    assert middle is again
    assert (middle.num_dst, last.num_dst) == (1 + remote, 1)
    h = torch.from_numpy(np.random.default_rng(0).normal(size=(1 + remote, 3)))
    neighbours = torch.cat([h[1:].sum(0, keepdim=True) / max(remote, 1), h[:1].expand(remote, 3)])
    for block in (middle, last):
        n = block.num_dst
        assert_allclose(block.aggregate(h, MEAN).numpy(), neighbours[:n].numpy(), atol=1e-12)
        assert_allclose(block.aggregate(h, SYMMETRIC).numpy(), ((neighbours + h) / 2)[:n].numpy(), atol=1e-12)
