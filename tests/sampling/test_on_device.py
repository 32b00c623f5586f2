"""Draws by torch's operations have the chances that the host's have; every test errs once in a million runs."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import torch
from scipy import stats

from harness.sampling.boundary import draw_bernoulli, draw_fixed

CPU, ERROR = torch.device("cpu"), 1e-6
GENERATOR = torch.Generator().manual_seed(7)


def test_bernoulli_draws_each_with_its_chance_and_independently() -> None:
    count, rate, draws = 12, 0.3, 4000
    drawn = np.zeros((draws, count), bool)
    for row in drawn:
        kept = draw_bernoulli(count, rate, CPU, GENERATOR)
        assert kept.dtype == torch.int64
        assert (kept.diff() > 0).all()
        row[kept.numpy()] = True
    low, high = stats.binom.interval(1 - ERROR / count, draws, rate)
    assert ((low <= drawn.sum(0)) & (drawn.sum(0) <= high)).all()
    # How many are drawn together is binomial only where they do not depend on each other.
    sizes = np.bincount(drawn.sum(1), minlength=count + 1)
    expected = draws * stats.binom.pmf(np.arange(count + 1), count, rate)
    rare = expected < 5
    seen = np.append(sizes[~rare], sizes[rare].sum())
    assert stats.chisquare(seen, np.append(expected[~rare], expected[rare].sum())).pvalue > ERROR


def test_of_each_segment_every_subset_is_as_likely() -> None:
    sizes, counts, draws = np.array([5, 0, 3, 1]), np.array([2, 0, 1, 1]), 6000
    pointers = np.concatenate([[0], sizes.cumsum()])
    seen = Counter[tuple[int, ...]]()
    for _ in range(draws):
        kept, segment = draw_fixed(pointers, counts, CPU, GENERATOR)
        assert segment.tolist() == np.repeat(np.arange(4), counts).tolist()
        assert (kept.diff() > 0).all()
        seen[tuple(kept.tolist())] += 1
    possible = [(*pair, one, 8) for pair in combinations(range(5), 2) for one in range(5, 8)]
    assert set(seen) <= set(possible)
    assert stats.chisquare([seen[subset] for subset in possible]).pvalue > ERROR


def test_all_and_none_of_a_segment() -> None:
    kept, segment = draw_fixed(np.array([0, 3, 5]), np.array([3, 0]), CPU, GENERATOR)
    assert kept.tolist() == [0, 1, 2]
    assert segment.tolist() == [0, 0, 0]
    assert draw_bernoulli(4, 1.0, CPU, GENERATOR).tolist() == [0, 1, 2, 3]
    assert draw_bernoulli(0, 0.5, CPU, GENERATOR).numel() == 0


def test_the_same_seed_draws_the_same() -> None:
    first, again = (draw_bernoulli(100, 0.5, CPU, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, again)
