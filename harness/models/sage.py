"""GraphSAGE with mean aggregation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.graph.block import MEAN, Block
from harness.models.layer import Fetch, GraphLayer
from harness.models.spec import Products

if TYPE_CHECKING:
    from torch import Tensor


class SageLayer(GraphLayer):
    """GraphSAGE, mean: H W_self + (D^-1 A H) W + b, that is [H, D^-1 A H] W' (Hamilton et al., 2017)."""

    name = "sage"
    propagation = MEAN

    def __init__(self, inputs: int, outputs: int, *, products: Products = "auto") -> None:
        super().__init__(inputs, outputs, products=products)
        self.weight_self = self.parameter(inputs, outputs)

    def forward(
        self, block: Block, h: Tensor, fetch: Fetch, transform_first: bool = False, aggregated: Tensor | None = None
    ) -> Tensor:
        """See `GraphLayer`."""
        out = self.linear(block.own_rows(h), self.weight_self, self.bias)
        if aggregated is None:
            return out.add_(self.propagate(block, h, fetch, transform_first))
        return out.add_(self.linear(aggregated, self.weight))
