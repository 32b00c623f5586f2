"""MixHop: a graph layer that mixes powers of the adjacency."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.deferred import torch
from harness.graph.block import SYMMETRIC, Block, own_rows
from harness.models.layer import BlockSize, GraphLayer, HopFetch, LayerCase, LayerValues
from harness.models.spec import ModelSpec, Products

if TYPE_CHECKING:
    from torch import Tensor


class MixHopLayer(GraphLayer):
    """MixHop: [H W_0 | S H W_1 | ... | S^K H W_K] + b, S = D^-1/2 (A + I) D^-1/2.

    (Abu-El-Haija et al., ICML 2019; Zeng et al., JPDC 2021, Eq. 5.) Where the output is the logits the powers
    are added up instead, each of the full width. K hops with t_0 = H and t_k = S t_(k-1), each on a block of its own,
    one behind the other. The output's own rows in t_k are those of its rows in all blocks behind. What a hop
    exchanges is t_(k-1), and W_k comes after S^k: in the input layer nothing of that needs a gradient
    (docs/design/mixhop.md).

    Args:
        inputs, outputs: widths; the output's is a multiple of `order` + 1 if the powers stand side by side.
        order: K.
        add: add up powers of the full width.
    """

    name = "mixhop"
    propagation = SYMMETRIC
    can_transform_first = False  # it aggregates H only

    def __init__(self, inputs: int, outputs: int, order: int, *, add: bool) -> None:
        self._width = outputs if add else outputs // (order + 1)
        super().__init__(inputs, outputs, (order + 1) * self._width)
        self.hops, self._add = order, add

    @classmethod
    def check_spec(cls, spec: ModelSpec) -> None:
        """See `GraphLayer`: the powers share the hidden width."""
        if spec.hidden % (spec.order + 1):
            raise ValueError(
                f"order: a hidden width of {spec.hidden} is not divisible by {spec.order + 1}, the powers "
                f"0 to {spec.order}"
            )

    @classmethod
    def label(cls, spec: ModelSpec) -> str:
        """See `GraphLayer`."""
        return f"k{spec.order}"

    @classmethod
    def build(cls, spec: ModelSpec, inputs: int, outputs: int, *, last: bool, products: Products) -> MixHopLayer:
        """See `GraphLayer`."""
        return cls(inputs, outputs, spec.order, add=last)

    def reached(self, hop: int) -> Tensor:
        """See `GraphLayer.reached`: t_hop is of use to all powers above `hop`."""
        return self.weight[:, (hop + 1) * self._width :].contiguous()

    def run(
        self, blocks: Sequence[Block], h: Tensor, fetch: HopFetch, transform_first: bool, aggregated: Tensor | None
    ) -> Tensor:
        """See `GraphLayer`; `aggregated` is t_1, [num_dst of the first block, inputs]."""
        powers = self.hops + 1
        # By columns of a wider matrix oneDNN's product takes up to a thousand times as long.
        weights = [columns.contiguous() for columns in self.weight.split(self._width, 1)]
        biases = [self.bias, *[None] * self.hops] if self._add else self.bias.split(self._width)

        def product(t: Tensor, power: int) -> Tensor:
            result: Tensor = self.linear(own_rows(blocks[power:], t), weights[power], biases[power])
            return result

        # A power's product stands before the next hop, so that the backward pass has few gradients at once.
        t, products = h, [product(h, 0)]
        for power in range(1, powers):
            if power == 1 and aggregated is not None:
                t = aggregated
            else:
                t = blocks[power - 1].aggregate(fetch(t, power - 1), self.propagation)
            found = product(t, power)
            if self._add:
                products[0] = products[0].add_(found)
            else:
                products.append(found)
        return products[0] if self._add else torch.cat(products, 1)

    forward = run  # of all hops at once: no hop has a `forward` of its own

    def training_values(self, case: LayerCase) -> LayerValues:
        """See `GraphLayer`; products keep H, every t_k and copies of the weights.

        A hop has its source matrix, new of an exchange, and a scaled copy. Backward, t_k is gone; there are
        its gradient, a scaled copy, and the gradient of the source; or that, what peers sent, and their sum.
        """
        d, outputs, start = self.inputs, case.blocks[-1].dst * self.outputs, case.blocks[0]
        kept = before = (start.dst if case.exchanged else start.src) * d if case.keeps_input else 0
        forward = backward = 0
        for hop, size in enumerate(case.blocks):
            if case.aggregated and hop == 0:
                kept += before
                continue
            kept += size.dst * d
            forward = max(forward, kept + (1 + case.exchanged) * size.src * d)
            boundary = size.src - size.dst if case.exchanged else 0
            backward = max(backward, size.src + max(size.dst, boundary))
        forward = max(forward - kept + outputs, 2 * outputs)
        return LayerValues(kept + self.weight.numel(), forward, outputs if case.first else backward * d)

    def evaluation_values(self, block: BlockSize, *, exchanged: bool) -> int:
        """See `GraphLayer`: t_k, which is exchanged, a scaled copy, and t_k+1."""
        rows, d, o = block.dst, self.inputs, self.outputs
        hop = (block.src * d if exchanged else 0) + (1 + min(self.hops, 2)) * rows * d
        return rows * (d + o) + max(hop, rows * (d + o))
