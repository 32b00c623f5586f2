"""GCN."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.graph.block import SYMMETRIC, Block
from harness.models.layer import Fetch, GraphLayer

if TYPE_CHECKING:
    from torch import Tensor


class GCNLayer(GraphLayer):
    """GCN: D^-1/2 (A + I) D^-1/2 H W + b (Kipf and Welling, 2017)."""

    name = "gcn"
    propagation = SYMMETRIC
    reads_own = False

    def forward(
        self, block: Block, h: Tensor, fetch: Fetch, transform_first: bool = False, aggregated: Tensor | None = None
    ) -> Tensor:
        """See `GraphLayer`."""
        if aggregated is not None:
            return self.linear(aggregated, self.weight, self.bias)
        return self.propagate(block, h, fetch, transform_first) + self.bias
