"""Draws by torch's operations, where the graph is on a device: the same distributions as the host's, other numbers.

Each takes a generator of the device; the host waits where it has to know how much was drawn, which a docstring says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.deferred import torch
from harness.graph.csr import Ints
from harness.graph.csr import pointers as pointers_of
from harness.graph.devices import upload

if TYPE_CHECKING:
    from torch import Tensor


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
