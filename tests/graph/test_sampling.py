from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from support.graphs import dense_adjacency, random_graph

from harness.graph.sampling import sample_neighbours
from harness.graph.topology import Topology

GRAPH = random_graph(61, nodes=50, degree=9)
DENSE = dense_adjacency(GRAPH)
TOPOLOGY = Topology(GRAPH.indptr, GRAPH.indices)


def draw(targets: np.ndarray, fanout: int, seed: int) -> tuple[np.ndarray, np.ndarray, torch.Tensor]:
    """Return the sampled adjacency [targets, N], the sources and the scale."""
    block, sources = sample_neighbours(
        TOPOLOGY,
        targets,
        fanout,
        rng=np.random.default_rng(seed),
        device=torch.device("cpu"),
        dtype=torch.float64,
    )
    small = block.engine.multiply(block.adjacency, torch.eye(sources.size, dtype=torch.float64)).numpy()
    whole = np.zeros((targets.size, 50))
    whole[:, sources] = small
    assert block.dst_scale is not None
    return whole, sources, block.dst_scale


@pytest.mark.parametrize("fanout", [0, 1, 3, 100, -1])
def test_a_sample_is_a_subset_of_the_neighbours_of_the_right_size(fanout: int) -> None:
    targets = np.random.default_rng(0).permutation(50)[:20]
    for seed in range(20):
        sample, sources, scale = draw(targets, fanout, seed)
        np.testing.assert_array_equal(sources[:20], targets)
        assert np.unique(sources).size == sources.size
        assert set(np.unique(sample)) <= {0, 1}
        assert (sample <= DENSE[targets]).all()
        degree = DENSE[targets].sum(1)
        drawn = sample.sum(1)
        np.testing.assert_array_equal(drawn, degree if fanout < 0 else np.minimum(degree, fanout))
        np.testing.assert_allclose(scale.numpy(), degree / np.maximum(drawn, 1))


def test_every_pair_of_neighbours_is_drawn_equally_often() -> None:
    node = int(DENSE.sum(1).argmax())
    neighbours = np.flatnonzero(DENSE[node])
    counts = np.zeros((50, 50))
    for seed in range(6000):
        picked = np.flatnonzero(draw(np.array([node]), 2, seed)[0][0])
        counts[picked[0], picked[1]] += 1
    pairs = [counts[a, b] for i, a in enumerate(neighbours) for b in neighbours[i + 1 :]]
    assert sum(pairs) == 6000
    assert stats.chisquare(pairs).pvalue > 1e-4


def test_no_targets() -> None:
    sample, sources, _ = draw(np.empty(0, np.int64), 3, 0)
    assert sample.shape == (0, 50)
    assert sources.size == 0
