"""Boundary sampling: which boundary rows a partition-parallel method communicates in an epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from harness.deferred import numpy as np
from harness.deferred import torch
from harness.graph.csr import Floats, Ints, Places
from harness.graph.csr import pointers as pointers_of
from harness.graph.devices import kind_of, upload

if TYPE_CHECKING:
    from torch import Tensor


BoundarySampler = Literal["bernoulli", "fixed"]


def sample_boundary(
    pointers: Ints, rate: float, sampler: BoundarySampler, rng: np.random.Generator, device: torch.device | None = None
) -> tuple[Places, Floats | Tensor]:
    """Draw a share of boundary nodes (BNS-GCN, Wan et al., MLSys 2022, section 3.2.2).

    Args:
        pointers: int64 [segments + 1], where the nodes of each segment (an owner's) begin and end.
        rate: share p, above 0.
        sampler: `bernoulli`: each node with probability p; `fixed`: exactly k = round(p n) of a segment's n nodes, but
            at least one.
        rng: what is drawn from; of another device than the CPU the seed of its generator is.
        device: where the nodes are drawn, and the results are; None: the CPU.

    Returns:
        The kept positions, int64 and ascending, and what each counts, float64 [kept], so that sums over all nodes are
        unbiased: 1/p, or n/k, which is 1/p but for the rounding.
    """
    sizes = np.diff(pointers)
    counts = np.minimum(sizes, np.maximum(1, np.round(rate * sizes).astype(np.int64)))
    factors = sizes / np.maximum(counts, 1)
    if device is not None and device.type != "cpu":
        return _draw_on_device(pointers, rate, sampler, rng, device, counts, factors)
    if sampler == "bernoulli":
        kept = np.flatnonzero(rng.random(int(pointers[-1])) < rate)
        return kept, np.full(kept.size, 1 / rate)
    chosen = [np.empty(0, np.int64)]
    for start, size, count in zip(pointers[:-1], sizes, counts, strict=True):
        chosen.append(start + np.sort(rng.choice(size, count, replace=False)))
    return np.concatenate(chosen), np.repeat(factors, counts)


def _draw_on_device(
    pointers: Ints,
    rate: float,
    sampler: BoundarySampler,
    rng: np.random.Generator,
    device: torch.device,
    counts: Ints,
    factors: Floats,
) -> tuple[Tensor, Tensor]:
    generator = kind_of(device).generator(device, int(rng.integers(2**63)))
    if sampler == "bernoulli":
        kept = draw_bernoulli(int(pointers[-1]), rate, device, generator)
        return kept, torch.full((len(kept),), 1 / rate, dtype=torch.float64, device=device)
    kept, segment = draw_fixed(pointers, counts, device, generator)
    return kept, upload(factors, device)[segment]


def draw_bernoulli(count: int, rate: float, device: torch.device, generator: torch.Generator) -> Tensor:
    """Return which of `count` are drawn, each with the probability `rate`: int64, ascending.

    The host waits for their number.
    """
    drawn = torch.rand(count, dtype=torch.float64, device=device, generator=generator) < rate
    return drawn.nonzero().squeeze(1)


def draw_fixed(pointers: Ints, counts: Ints, device: torch.device, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return `counts[s]` of each segment's places, every subset with the same chance, and the segment of each.

    `pointers` int64 [segments + 1] and `counts` int64 [segments] are the host's. Both results are int64, ascending.
    """
    total, drawn = int(pointers[-1]), int(counts.sum())
    ends, sizes = upload(pointers, device), upload(counts, device)
    segments = torch.arange(sizes.numel(), device=device)
    segment = segments.repeat_interleave(ends.diff(), output_size=total)
    # Sorted by segment, then by a random number: the first of each segment are drawn.
    order = (torch.rand(total, dtype=torch.float64, device=device, generator=generator) + segment).argsort()
    of = segments.repeat_interleave(sizes, output_size=drawn)
    at = torch.arange(drawn, device=device) + (ends[:-1] - pointers_of(sizes)[:-1])[of]
    return order[at].sort().values, of
