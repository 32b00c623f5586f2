"""Truth 2: a sampled aggregation has the full aggregation as its expectation (z-test, fixed seeds)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from harness.conformance import oracle
from harness.conformance.graphs import dense_adjacency, on_disk, random_graph
from harness.conformance.ranks import run_ranks
from harness.conformance.training import Case, Moments, aggregations
from harness.models.spec import ModelSpec

WORLD, NODES, DRAWS = 2, 60, 800
GRAPHS = {
    "sage": random_graph(21, NODES, degree=8, features=3),
    "gcn": random_graph(22, NODES, degree=8, features=3, weighted=True),
}
PARTS = np.random.default_rng(1).integers(0, WORLD, NODES)
SAMPLERS = {
    "bns bernoulli": ("bns-gcn", {"rate": 0.3}),
    # 0.03 of these boundaries is less than one node: the rate at which public code samples no one.
    "bns fixed below one": ("bns-gcn", {"rate": 0.03, "sampler": "fixed"}),
    "bns fixed": ("bns-gcn", {"rate": 0.33, "sampler": "fixed"}),
    "psc random": ("psc-gcn", {"rate": 0.3, "staleness": 0, "sampler": "random"}),
    "psc variance": ("psc-gcn", {"rate": 0.3, "staleness": 0, "refresh": 100}),
    "graphsage": ("graphsage", {"fanouts": 3, "batch_size": 8}),
    "graphsage weighted": ("graphsage", {"fanouts": 3, "batch_size": 8, "weights": "propagation"}),
    "guided": ("support.methods:Guided", {"fanouts": 3, "batch_size": 8}),
    "fastgcn": ("fastgcn", {"sizes": 25, "batch_size": 8}),
    "ladies": ("ladies", {"sizes": 10, "batch_size": 8}),
    "skewed": ("skewed", {"sizes": 10, "batch_size": 8, "distortion": 8}),
    "skewed quadratic": ("skewed", {"sizes": 10, "batch_size": 8, "skew": "quadratic"}),
    "graphsaint node": ("graphsaint", {"sampler": "node", "size": 25}),
    # So many are counted that what counts err by is small against what the draws here do; the other samplers'
    # counts are held to be unbiased in tests/graph/test_normalise.py.
    "graphsaint frontier": ("graphsaint", {"size": 25, "frontier": 6, "coverage": 4000}),
    "skewed saint": ("skewed", {"base": "saint", "size": 25, "skew": "fixed", "alpha": 3}),
}
MINI_BATCHES = 150  # draws, each an epoch of several batches


def z_scores(got: list[Moments], model: str) -> np.ndarray:
    """Return the z-scores of all sampled entries; entries that never vary must be exact."""
    graph = GRAPHS[model]
    matrix = oracle.propagation_matrix(dense_adjacency(graph), model).numpy()
    want = matrix @ graph.features.astype(np.float64)
    scores = []
    for rank in got:
        reached = rank.times > 0
        error = (rank.mean - want)[reached]
        deviation = np.sqrt(np.maximum(rank.variance[reached], 0) / rank.times[reached, None])
        fixed = deviation < 1e-9
        np.testing.assert_allclose(error[fixed], 0, atol=1e-8)
        scores.append((error[~fixed] / deviation[~fixed]).ravel())
    return np.concatenate(scores)


@pytest.mark.parametrize("model", ["sage", "gcn"])
def test_the_mean_over_draws_is_the_full_aggregation(model: str, tmp_path: Path) -> None:
    data = on_disk(GRAPHS[model], PARTS, WORLD, False, tmp_path)
    spec = ModelSpec(name=model, layers=1, dropout=0)
    cases = [
        (Case(data, method, options, spec), DRAWS if "rate" in options else MINI_BATCHES)
        for method, options in SAMPLERS.values()
    ]
    for name, *got in zip(SAMPLERS, *run_ranks(aggregations, WORLD, cases, timeout_s=200), strict=True):
        z = z_scores(got, model)
        assert z.size > 40, name
        # For z of unit variance; entries of one node are correlated, hence the wide band.
        assert 0.6 < np.mean(z**2) < 1.6, (name, np.mean(z**2))
        assert np.abs(z).max() < 5, (name, np.abs(z).max())


def test_the_z_test_sees_a_bias(tmp_path: Path) -> None:
    data = on_disk(GRAPHS["sage"], PARTS, WORLD, False, tmp_path)
    spec = ModelSpec(name="sage", layers=1, dropout=0)
    faults = {
        "UnscaledBNS": {"rate": 0.3},
        "UnscaledPSC": {"rate": 0.3, "staleness": 0},
        "UnscaledLADIES": {"sizes": 10, "batch_size": 8},
        "AveragedGuided": {"fanouts": 3, "batch_size": 8},
    }
    cases = [(Case(data, f"support.methods:{name}", options, spec), 200) for name, options in faults.items()]
    for name, *got in zip(faults, *run_ranks(aggregations, WORLD, cases), strict=True):
        assert np.abs(z_scores(got, "sage")).max() > 10, name
