"""What each cache policy holds, and that no set of its size is expected to hit more than `inclusion`'s."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from harness_methods.psc_gcn.edges import draw_edges, inclusion_probabilities, optimal_probabilities
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from harness.data.partition.cached import ensure_partitioned
from harness.data.prepared import open_graph
from harness.data.registry import prepare
from harness.graph.partition import Partition
from harness.runtime.features import choose
from harness.runtime.run_config import CachePolicy
from harness.spec import DatasetSpec, PartitionSpec

POLICIES: tuple[CachePolicy, ...] = ("none", "random", "degree", "inclusion")


@st.composite
def boundaries(draw: st.DrawFn, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Inclusion probabilities and out-degrees, with ties."""
    size = draw(st.integers(0, most))
    chance = st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1))
    degree = st.integers(0, 4)
    inclusion = draw(st.lists(chance, min_size=size, max_size=size))
    return np.array(inclusion), np.array(draw(st.lists(degree, min_size=size, max_size=size)), np.int64)


@given(boundaries(30), st.integers(0, 35), st.integers(0, 2**32 - 1))
def test_a_policy_holds_what_it_says(boundary: tuple[np.ndarray, np.ndarray], capacity: int, seed: int) -> None:
    inclusion, degree = boundary
    rng = np.random.default_rng(seed)
    before = rng.bit_generator.state
    for policy, key in (("degree", degree), ("inclusion", inclusion)):
        cached = choose(policy, capacity, key, rng)
        assert cached.dtype == np.int64
        assert cached.tolist() == sorted(sorted(range(key.size), key=lambda j: (-key[j], j))[:capacity])
    assert choose("none", capacity, inclusion, rng).size == 0
    assert rng.bit_generator.state == before
    drawn = choose("random", capacity, inclusion, rng)
    assert drawn.dtype == np.int64
    assert drawn.size == min(capacity, inclusion.size)
    assert (np.diff(drawn) > 0).all()
    assert set(drawn.tolist()) <= set(range(inclusion.size))


def expected_hit_rate(cached: np.ndarray, inclusion: np.ndarray) -> float:
    """Expected sampled nodes found in the cache / expected sampled nodes; 1 if none is ever sampled."""
    total = inclusion.sum()
    return float(inclusion[cached].sum() / total) if total > 0 else 1.0


@given(boundaries(9), st.integers(0, 10), st.integers(0, 2**32 - 1))
def test_no_set_is_expected_to_hit_more_than_inclusion(
    boundary: tuple[np.ndarray, np.ndarray], capacity: int, seed: int
) -> None:
    inclusion, degree = boundary
    rng = np.random.default_rng(seed)
    rate = {
        policy: expected_hit_rate(choose(policy, capacity, degree if policy == "degree" else inclusion, rng), inclusion)
        for policy in POLICIES
    }
    assert all(rate["inclusion"] >= other - 1e-12 for other in rate.values())
    sets = combinations(inclusion.tolist(), min(capacity, inclusion.size))
    best = max(sum(chosen) for chosen in sets)
    total = inclusion.sum()
    assert rate["inclusion"] == pytest.approx(best / total if total > 0 else 1, rel=1e-9)


def test_random_takes_every_set_equally_often() -> None:
    rng = np.random.default_rng(0)
    counts = dict.fromkeys(combinations(range(5), 2), 0)
    for _ in range(5000):
        cached = choose("random", 2, np.ones(5), rng)
        counts[tuple(cached.tolist())] += 1
    assert stats.chisquare(list(counts.values())).pvalue > 1e-3


@pytest.mark.quick(1)
@pytest.mark.data
@pytest.mark.parametrize(
    ("dataset", "method"), [("cora", "metis"), ("amazon_computers", "metis"), ("ogbn_arxiv", "random")]
)
def test_on_real_graphs_inclusion_hits_most(
    dataset: str, method: str, data_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Probabilities from the norms of the features, mean aggregation; measured in draws as expected."""
    cache = tmp_path_factory.getbasetemp() / "cache"
    directory = prepare(DatasetSpec(name=dataset), data_dir=data_dir, cache=cache)
    spec = PartitionSpec(parts=4, method=method)
    view = ensure_partitioned(directory, spec, inductive=False, cache=cache).train
    part = Partition(view, 0, engine="auto", device=torch.device("cpu"), dtype=torch.float32)
    graph = open_graph(directory)
    nodes = np.concatenate([part.inner, part.boundary])
    score = np.linalg.norm(graph.features[nodes], axis=1).astype(np.float64) ** 2
    score[: part.num_inner] *= 1.1
    block = part.full_block.adjacency
    indptr, indices = block.indptr.numpy(), block.indices.numpy()
    p = optimal_probabilities(indptr, indices, score, None, 0.1)
    inclusion = inclusion_probabilities(indices, p, part.num_inner, part.num_boundary)
    out_degree = np.bincount(graph.indices, minlength=graph.indptr.size - 1)[part.boundary]
    rng = np.random.default_rng(0)
    for share in (0.1, 0.3, 0.6):
        cached = {
            policy: choose(policy, int(share * inclusion.size), out_degree if policy == "degree" else inclusion, rng)
            for policy in POLICIES
        }
        rate = {policy: expected_hit_rate(nodes, inclusion) for policy, nodes in cached.items()}
        assert rate["none"] == 0
        assert rate["random"] < rate["inclusion"]
        assert rate["degree"] <= rate["inclusion"]
        kept = [
            draw_edges(indptr, indices, p, None, part.num_inner, part.num_boundary, rng, torch.float32).kept
            for _ in range(10)
        ]
        sampled = np.concatenate(kept)
        error = 5 * (rate["inclusion"] * (1 - rate["inclusion"]) / sampled.size) ** 0.5
        assert np.isin(sampled, cached["inclusion"]).mean() == pytest.approx(rate["inclusion"], abs=error)
