"""Graph layers: GraphSAGE with mean aggregation, GCN, and GAT."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from harness.graph.block import Block, Norm
from harness.models.functional import Linear
from harness.models.spec import Products

Fetch = Callable[[Tensor], Tensor]
Exchange = Callable[[Tensor, int], Tensor]

# A multiply-add of an SpMM costs about this many of a GEMM's: measured 10 against 44 G/s on one core.
SPMM_COST = 4.0


class GraphLayer(nn.Module):
    """What the graph layers share: the order of A H W, and what is exchanged.

    Args:
        inputs: width of the layer's input.
        outputs: width of its output.
        transformed: width of H W if it is another.
        products: the order of A H W, where nothing else decides it.

    Attributes:
        propagation: the weighting of edges that it aggregates with, or that samplers take for one.
        attends: its aggregation depends on weights that are learnt.
        hops: aggregations one behind the other, each with a block of its own.
    """

    propagation: ClassVar[Norm]
    attends: ClassVar[bool] = False
    hops: int = 1

    def __init__(
        self, inputs: int, outputs: int, transformed: int | None = None, *, products: Products = "auto"
    ) -> None:
        super().__init__()
        self.inputs, self.outputs, self.linear, self.products = inputs, outputs, Linear(), products
        self.transformed = outputs if transformed is None else transformed
        self.weight = nn.Parameter(torch.empty(inputs, self.transformed))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def reset(self, generator: torch.Generator) -> None:
        """Glorot-uniform weights and zero biases."""
        for parameter in self.parameters():
            if parameter.dim() == 2:
                bound = math.sqrt(6 / sum(parameter.shape))
                nn.init.uniform_(parameter, -bound, bound, generator=generator)

    def reached(self, hop: int) -> Tensor:
        """Return the weights that multiply what a node's row sends in a hop, [inputs, width]."""
        return self.weight

    def propagate(self, block: Block, h: Tensor, fetch: Fetch, narrow: bool) -> Tensor:
        """Return A H W [num_dst, outputs], in the order that `transforms_first` says.

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
        weights, inputs = (torch.is_grad_enabled() and x.requires_grad for x in (self.weight, source))
        sizes = block.adjacency.nnz, block.num_dst, block.num_src
        if not block.communicates and self.transforms_first(*sizes, weights=weights, inputs=inputs):
            return block.aggregate(self.linear(source, self.weight), self.propagation)
        return self.linear(block.aggregate(source, self.propagation), self.weight)

    def transforms_first(
        self, entries: int, num_dst: int, num_src: int, *, weights: bool, inputs: bool
    ) -> bool:
        """Return whether to compute A (H W), not (A H) W: as `products` says, or as is cheaper.

        Counted are the multiply-adds of both passes (Zeng et al., JPDC 2021, section 6.1, where every
        gradient is needed). For the gradient of W, A (H W) takes A^T to the gradient, and (A H) W has A H.

        Args:
            entries: of the block.
            num_dst: its destination rows.
            num_src: its source rows.
            weights: the gradient of W will be asked for.
            inputs: that of H will.
        """
        if self.products != "auto":
            return self.products == "transform-first"
        gemms = (1 + weights + inputs) * self.inputs * self.outputs
        transformed = SPMM_COST * entries * (1 + (weights or inputs)) * self.outputs + num_src * gemms
        return transformed < SPMM_COST * entries * (1 + inputs) * self.inputs + num_dst * gemms


class SageLayer(GraphLayer):
    """GraphSAGE, mean: H W_self + (D^-1 A H) W + b, that is [H, D^-1 A H] W' (Hamilton et al., 2017)."""

    propagation = "mean"

    def __init__(self, inputs: int, outputs: int, *, products: Products = "auto") -> None:
        super().__init__(inputs, outputs, products=products)
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


class GATLayer(GraphLayer):
    """GAT: heads of attention over the in-neighbours and the node itself (Velickovic et al., ICLR 2018).

    z = H W; head by head out_i = sum_j alpha_ij z_j with alpha_ij the softmax over j of
    LeakyReLU_0.2(a_dst . z_i + a_src . z_j) (Eq. 3). The heads' outputs stand side by side (Eq. 5) or, where
    they are logits, are averaged (Eq. 6); b is added. What an edge counts (its weight, the inverse of its
    chance to be drawn) multiplies exp(...) above and below the fraction bar; a self loop counts 1. Nothing
    but the layers' inputs is dropped out, as in the other models: neither alpha nor z.

    Args:
        inputs: width of the layer's input.
        outputs: width of its output, a multiple of `heads` if they stand side by side.
        heads: their number.
        average: average heads of the full width.
    """

    propagation = "mean"
    attends = True

    def __init__(self, inputs: int, outputs: int, heads: int, average: bool) -> None:
        width = outputs if average else outputs // heads
        super().__init__(inputs, outputs, heads * width)
        self.heads, self.average = heads, average
        self.weight_src = nn.Parameter(torch.empty(heads, width))
        self.weight_dst = nn.Parameter(torch.empty(heads, width))

    def forward(
        self, block: Block, h: Tensor, fetch: Fetch, narrow: bool = False, aggregated: Tensor | None = None
    ) -> Tensor:
        """Return [num_dst, outputs]; nothing can be aggregated before W is known.

        A block that communicates is given H W, whatever `narrow` is: it holds no other rank's H to multiply.

        Raises:
            ValueError: `aggregated` is given.
        """
        if aggregated is not None:
            raise ValueError("attention depends on weights: there is no aggregation to be given")
        if narrow or block.communicates:
            z = fetch(self.linear(h, self.weight))
        else:
            z = self.linear(fetch(h), self.weight)
        if not self.average:
            return block.attend(z, self.weight_src, self.weight_dst, self.bias)
        heads = block.attend(z, self.weight_src, self.weight_dst)
        return heads.view(block.num_dst, self.heads, self.outputs).mean(1) + self.bias
