"""Boundary sampling: which boundary rows a partition-parallel method communicates in an epoch."""

from __future__ import annotations

from typing import Literal

import numpy as np

from harness.graph.csr import Floats, Ints

BoundarySampler = Literal["bernoulli", "fixed"]


def sample_boundary(
    pointers: Ints, rate: float, sampler: BoundarySampler, rng: np.random.Generator
) -> tuple[Ints, Floats]:
    """Draw a share of boundary nodes (BNS-GCN, Wan et al., MLSys 2022, section 3.2.2).

    Args:
        pointers: int64 [segments + 1], where the nodes of each segment (an owner's) begin and end.
        rate: share p, above 0.
        sampler: `bernoulli`: each node with probability p; `fixed`: exactly k = round(p n) of a segment's n nodes, but
            at least one.
        rng: what is drawn from.

    Returns:
        The kept positions, int64 and ascending, and what each counts [kept], so that sums over all nodes are unbiased:
        1/p, or n/k, which is 1/p but for the rounding.
    """
    if sampler == "bernoulli":
        kept = np.flatnonzero(rng.random(int(pointers[-1])) < rate)
        return kept, np.full(kept.size, 1 / rate)
    chosen, factors = [np.empty(0, np.int64)], [np.empty(0)]
    for start, size in zip(pointers[:-1], np.diff(pointers), strict=True):
        count = min(size, max(1, round(rate * size)))
        chosen.append(start + np.sort(rng.choice(size, count, replace=False)))
        factors.append(np.full(count, size / max(count, 1)))
    return np.concatenate(chosen), np.concatenate(factors)
