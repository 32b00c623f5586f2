"""Graph layers: GraphSAGE with mean aggregation, and GCN."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from harness.graph.block import Block, Norm
from harness.models.functional import Linear

Fetch = Callable[[Tensor], Tensor]
Exchange = Callable[[Tensor, int], Tensor]

# A multiply-add of an SpMM costs about this many of a GEMM's: measured 10 against 44 G/s on one core.
SPMM_COST = 4.0


class GraphLayer(nn.Module):
    """What the graph layers share: the order of A H W, and what is exchanged.

    Args:
        inputs: width of the layer's input.
        outputs: width of its output.
    """

    propagation: ClassVar[Norm]

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.inputs, self.outputs, self.linear = inputs, outputs, Linear()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def reset(self, generator: torch.Generator) -> None:
        """Glorot-uniform weights and zero biases."""
        for parameter in self.parameters():
            if parameter.dim() == 2:
                bound = math.sqrt(6 / sum(parameter.shape))
                nn.init.uniform_(parameter, -bound, bound, generator=generator)

    def propagate(self, block: Block, h: Tensor, fetch: Fetch, narrow: bool) -> Tensor:
        """Return A H W [num_dst, outputs] in the cheapest order for these sizes.

        A block that communicates is given H, as the papers send it, but with `narrow`.

        Args:
            block: the layer's edges.
            h: [rows, inputs], what `fetch` turns into the source rows.
            fetch: the exchange of this layer.
            narrow: exchange H W.
        """
        if narrow:
            return block.aggregate(fetch(self.linear(h, self.weight)), self.propagation)
        source = fetch(h)
        if not block.communicates and self.transforms_first(
            block.adjacency.nnz, block.num_dst, block.num_src
        ):
            return block.aggregate(self.linear(source, self.weight), self.propagation)
        return self.linear(block.aggregate(source, self.propagation), self.weight)

    def transforms_first(self, entries: int, num_dst: int, num_src: int) -> bool:
        """Return whether A (H W) is cheaper than (A H) W for a block of these sizes."""
        gemm, edges = self.inputs * self.outputs, SPMM_COST * entries
        return edges * self.outputs + num_src * gemm < edges * self.inputs + num_dst * gemm


class SageLayer(GraphLayer):
    """GraphSAGE, mean: H W_self + (D^-1 A H) W + b, that is [H, D^-1 A H] W' (Hamilton et al., 2017)."""

    propagation = "mean"

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.weight_self = nn.Parameter(torch.empty(inputs, outputs))

    def forward(
        self, block: Block, h: Tensor, fetch: Fetch, narrow: bool = False, aggregated: Tensor | None = None
    ) -> Tensor:
        """Return [num_dst, outputs]; `aggregated` [num_dst, inputs] replaces the propagation of `h`."""
        # The gradient of a slice is a matrix of zeros to copy into, even where the slice is everything.
        own = h if h.shape[0] == block.num_dst else h[: block.num_dst]
        out = self.linear(own, self.weight_self, self.bias)
        if aggregated is None:
            return out.add_(self.propagate(block, h, fetch, narrow))
        return out.add_(self.linear(aggregated, self.weight))


class GCNLayer(GraphLayer):
    """GCN: D^-1/2 (A + I) D^-1/2 H W + b (Kipf and Welling, 2017)."""

    propagation = "sym"

    def forward(
        self, block: Block, h: Tensor, fetch: Fetch, narrow: bool = False, aggregated: Tensor | None = None
    ) -> Tensor:
        """Return [num_dst, outputs]; `aggregated` [num_dst, inputs] replaces the propagation of `h`."""
        if aggregated is not None:
            return self.linear(aggregated, self.weight, self.bias)
        return self.propagate(block, h, fetch, narrow) + self.bias


LAYERS: dict[str, type[GraphLayer]] = {"sage": SageLayer, "gcn": GCNLayer}
