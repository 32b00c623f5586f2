"""Independent draws: chances that sum to the size of a sample."""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

SLACK = 1e-11  # relative; above the rounding of a sum, so that a pass never finds more of p = 1 than `size`
TINY = 2.0**-600  # a sum below it, of numbers that may be subnormal, may not be exact


def inclusion(weights: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Return p_j = min(1, c w_j) with sum p = size, float64 [n].

    Where `size` is at least the number of positive weights, those have p = 1. A weight of 0 has p = 0. c
    comes from passes over the weights: each leaves out those found to have p = 1 and shares the rest of
    `size` anew. Almost always a handful do; only weights that fall by a factor of about `size` from one to
    the next need one each.

    Args:
        weights: float64 [n], finite and not negative.
        size: expected number of draws.

    Raises:
        ValueError: `size` is negative.
    """
    if size < 0:
        raise ValueError(f"a sample has a size of at least 0, not {size}")
    out = np.empty(weights.size)
    write_inclusion(np.asarray(weights, np.float64), size, out)
    return out


@numba.njit(cache=True, nogil=True)
def write_inclusion(weights, size, out):  # type: ignore[no-untyped-def]
    """`inclusion`, written into `out` float64 [n], for other kernels."""
    scale, share = solve(weights, size)
    for j in range(weights.size):
        p = weights[j] * scale * share if weights[j] > 0 else 0.0
        out[j] = 1.0 if p > 1 else p


@numba.njit(cache=True, nogil=True)
def solve(weights, size):  # type: ignore[no-untyped-def]
    """Return two factors of c, `inclusion`'s p_j = min(1, w_j scale share); their product may overflow.

    c is infinite where `size` is at least the number of positive weights.
    """
    if size == 0 or size >= _positive(weights):
        return 1.0, np.inf if size > 0 else 0.0
    # What is above the bound has p = 1. The scale, a power of 2, keeps the sum of the rest from overflow and,
    # where only tiny weights are left, from loss.
    bound, certain, scale = np.inf, -1, 1.0
    while True:
        found, rest = _split(weights, bound, scale)
        if rest == np.inf or rest < TINY:
            scale = scale * TINY if rest == np.inf else scale / TINY
            continue
        share = (size - found) / rest
        if found == certain:
            return scale, share
        certain, bound = found, (1 + SLACK) / share / scale


@numba.njit(cache=True, nogil=True)
def _positive(weights):  # type: ignore[no-untyped-def]
    count = 0
    for j in range(weights.size):
        count += weights[j] > 0
    return count


# Sums in any order, so that the loop runs in vectors.
@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "nsz"})
def _split(weights, bound, scale):  # type: ignore[no-untyped-def]
    """How many weights are above `bound`, and the sum of the others times `scale`."""
    above, rest = 0, 0.0
    for j in range(weights.size):
        is_above = weights[j] > bound
        above += is_above
        rest += 0.0 if is_above else weights[j] * scale
    return above, rest
