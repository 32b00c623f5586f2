"""MixHop: a graph layer that mixes powers of the adjacency."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from harness.graph.block import Block
from harness.models.layers import GraphLayer

HopFetch = Callable[[Tensor, int], Tensor]


class MixHopLayer(GraphLayer):
    """MixHop: [H W_0 | S H W_1 | ... | S^K H W_K] + b, S = D^-1/2 (A + I) D^-1/2.

    (Abu-El-Haija et al., ICML 2019; Zeng et al., JPDC 2021, Eq. 5.) Where the output is the logits the powers
    are added up instead, each of the full width. K hops with t_0 = H and t_k = S t_(k-1), each on a block of
    its own, one behind the other. Destinations are the first of a block's sources, so the output's rows are
    the first of every t_k. What a hop exchanges is t_(k-1), and W_k comes after S^k: in the input layer
    nothing of that needs a gradient (docs/design/mixhop.md).

    Args:
        inputs: width of the layer's input.
        outputs: width of its output, a multiple of `order` + 1 if the orders stand side by side.
        order: K.
        add: add up orders of the full width.
    """

    propagation = "sym"

    def __init__(self, inputs: int, outputs: int, order: int, *, add: bool) -> None:
        self._width = outputs if add else outputs // (order + 1)
        super().__init__(inputs, outputs, (order + 1) * self._width)
        self.hops, self._add = order, add

    def reached(self, hop: int) -> Tensor:
        """See `GraphLayer.reached`: t_hop is of use to all powers above `hop`."""
        return self.weight[:, (hop + 1) * self._width :].contiguous()

    def forward(
        self, blocks: Sequence[Block], h: Tensor, fetch: HopFetch, aggregated: Tensor | None = None
    ) -> Tensor:
        """Return [num_dst of the last block, outputs].

        Args:
            blocks: the edges of each hop.
            h: [rows, inputs], what `fetch` turns into the source rows of the first block.
            fetch: the exchange of the layer's hop of a number.
            aggregated: None, or [num_dst of the first block, inputs]: t_1.
        """
        rows, powers = blocks[-1].num_dst, self.hops + 1
        # By columns of a wider matrix oneDNN's product takes up to a thousand times as long.
        weights = [columns.contiguous() for columns in self.weight.split(self._width, 1)]
        biases = [self.bias, *[None] * self.hops] if self._add else self.bias.split(self._width)

        def product(t: Tensor, power: int) -> Tensor:
            own = t if t.shape[0] == rows else t[:rows]
            result: Tensor = self.linear(own, weights[power], biases[power])
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
