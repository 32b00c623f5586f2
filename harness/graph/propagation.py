"""Propagation: how a layer weighs the edges that it aggregates over."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Propagation:
    """A_ij = w_ij d_i^-left d_j^-right for an edge j -> i of weight w_ij, and A_ii for a self loop.

    d is a node's degree (the sum of its edges' weights) in the full graph, never in a sample; with a self
    loop 1 more, without one never below 1.

    Attributes:
        name: tells propagations apart where what follows from one is kept.
        left: exponent of the destination's degree.
        right: exponent of the source's.
        self_loop: every node has an edge of weight 1 to itself, which is never sampled.
    """

    name: str
    left: float = 0.0
    right: float = 0.0
    self_loop: bool = False

    def factors(self, degree: NDArray[np.float64], power: float) -> NDArray[np.float64] | None:
        """Return d^-power of nodes of these degrees, float64; None where it is 1 for all."""
        if power == 0:
            return None
        d = degree + 1 if self.self_loop else np.where(degree > 0, degree, 1)
        found: NDArray[np.float64] = 1 / np.sqrt(d) if power == 0.5 else 1 / d if power == 1 else d**-power
        return found

    def factors_on_device(self, degree: Tensor, power: float) -> Tensor | None:
        """Return the same as a tensor like `degree`, computed where that is."""
        if power == 0:
            return None
        d = degree + 1 if self.self_loop else torch.where(degree > 0, degree, 1)
        return torch.rsqrt(d) if power == 0.5 else 1 / d if power == 1 else d**-power


MEAN = Propagation("mean", left=1.0)
"""D^-1 A: GraphSAGE's mean."""
SYMMETRIC = Propagation("sym", left=0.5, right=0.5, self_loop=True)
"""D^-1/2 (A + I) D^-1/2 with D of A + I: GCN's."""
