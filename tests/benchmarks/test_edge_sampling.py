"""Sampling of edges on one core: probabilities with and without rows that clip, their inclusion, and draws.

Degrees are heavy-tailed, as those of social and co-purchase graphs. Run with `-s` to see edges a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.growth import WARMUP
from harness_methods.psc_gcn.edges import draw_edges, inclusion_probabilities, optimal_probabilities

EDGES, INNER, BOUNDARY = 2_400_000, 100_000, 60_000
ROUNDS = 10


@pytest.fixture(scope="module")
def part() -> tuple[np.ndarray, np.ndarray]:
    """`indptr` and `indices` of a part whose degrees follow a power law of exponent 2.2."""
    rng = np.random.default_rng(0)
    degree = rng.multinomial(EDGES, rng.dirichlet(rng.pareto(1.2, INNER) + 0.1))
    indices = rng.integers(0, INNER + BOUNDARY, EDGES, dtype=np.int32)
    return np.concatenate([[0], np.cumsum(degree)]), indices


@pytest.fixture(scope="module", params=[0.3, 3.0], ids=["no clipping", "clipping"])
def score(request: pytest.FixtureRequest) -> np.ndarray:
    """Log-normal scores: near each other, so that few rows have p = 1, or decades apart."""
    return np.random.default_rng(1).lognormal(0, request.param, INNER + BOUNDARY)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_optimal_probabilities(
    benchmark: Any, part: tuple[np.ndarray, np.ndarray], score: np.ndarray, rate: float
) -> None:
    p = timed(benchmark, lambda: optimal_probabilities(*part, score, None, rate))
    print(f", {np.mean(p == 1):.1%} of p are 1", end="")


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_inclusion(benchmark: Any, part: tuple[np.ndarray, np.ndarray], rate: float) -> None:
    p = optimal_probabilities(*part, np.ones(INNER + BOUNDARY), None, rate)
    timed(benchmark, lambda: inclusion_probabilities(part[1], p, INNER, BOUNDARY))


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_draws(benchmark: Any, part: tuple[np.ndarray, np.ndarray], rate: float) -> None:
    """The sample and its transpose."""
    p = optimal_probabilities(*part, np.ones(INNER + BOUNDARY), None, rate)
    rng = np.random.default_rng(2)
    timed(benchmark, lambda: draw_edges(*part, p, None, INNER, BOUNDARY, rng, torch.float32))


def timed(benchmark: Any, work: Callable[[], Any]) -> Any:
    """Time `work`, print how many million edges a second that is at best, and return its result."""
    result = benchmark.pedantic(work, rounds=ROUNDS, warmup_rounds=WARMUP)
    if benchmark.stats:
        print(f" {EDGES / benchmark.stats.stats.min / 1e6:.0f} M edges/s", end="")
    return result
