from __future__ import annotations

import numba
import numpy as np
import pytest
from scipy import stats

from harness.graph.kernels import batch_seed, below, next_u64, stream, uniform

MASK = 2**64 - 1


def mixed(state: int) -> int:
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    return state ^ (state >> 31)


@numba.njit
def values_of(state: np.uint64, count: int) -> np.ndarray:
    values = np.empty(count, np.uint64)
    for k in range(count):
        state, values[k] = next_u64(state)
    return values


@numba.njit
def firsts(seed: int, count: int) -> np.ndarray:
    """The first value of the streams 0, 1, ..."""
    values = np.empty(count, np.uint64)
    for index in range(count):
        values[index] = next_u64(stream(seed, index))[1]
    return values


def test_the_published_sequence_of_splitmix64() -> None:
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert values_of(np.uint64(1234567), 4).tolist() == published


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
@pytest.mark.parametrize("index", [0, 1, 2**31, 2**63 - 1])
def test_a_stream_starts_at_a_mix_of_seed_and_index(seed: int, index: int) -> None:
    assert stream(seed, index) == mixed((mixed(seed) + index * 0x9E3779B97F4A7C15) & MASK)


def test_numbers_of_a_range_are_exact_products() -> None:
    values = [0, 1, MASK, MASK - 1, 2**32 - 1, 2**32, *values_of(np.uint64(5), 200).tolist()]
    for value in values:
        for bound in (1, 2, 3, 7, 1000, 2**31 - 1, 2**32 - 1):
            assert below(np.uint64(value), bound) == value * bound >> 64
        assert uniform(np.uint64(value)) == (value >> 11) / 2**53
    assert uniform(np.uint64(MASK)) < 1


@pytest.mark.parametrize("lag", [1, 2, 16])
def test_streams_of_near_indices_and_seeds_are_independent(lag: int) -> None:
    first = np.concatenate([firsts(seed, 20_000) for seed in range(3)])
    other = np.concatenate([firsts(seed + lag, 20_000) for seed in range(3)])
    cell = (first >> np.uint64(60)).astype(int)
    for pairs in (zip(cell, cell[lag:], strict=False), zip(cell, other >> np.uint64(60), strict=True)):
        counts = np.zeros((16, 16))
        np.add.at(counts, tuple(np.array(list(pairs)).astype(int).T), 1)
        assert stats.chisquare(counts.ravel()).pvalue > 1e-4


def test_seeds_of_batches_differ_and_fit_into_int64() -> None:
    seeds = {
        batch_seed(seed, rank, epoch, batch)
        for seed in range(4)
        for rank in range(4)
        for epoch in range(4)
        for batch in range(4)
    }
    assert len(seeds) == 4**4
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert max(seeds) > 2**62
