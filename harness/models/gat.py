"""GAT."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.graph.block import MEAN, Block
from harness.models.layer import BlockSize, Fetch, GraphLayer, LayerCase, LayerValues
from harness.models.spec import ModelSpec, Products

if TYPE_CHECKING:
    from torch import Tensor


class GATLayer(GraphLayer):
    """GAT: heads of attention over the in-neighbours and the node itself (Velickovic et al., ICLR 2018).

    z = H W; head by head out_i = sum_j alpha_ij z_j with alpha_ij the softmax over j of
    LeakyReLU_0.2(a_dst . z_i + a_src . z_j) (Eq. 3). The heads' outputs stand side by side (Eq. 5) or, where
    they are logits, are averaged (Eq. 6); b is added. What an edge counts (its weight, the inverse of its
    chance to be drawn) multiplies exp(...) above and below the fraction bar; a self loop counts 1. Nothing
    but the layers' inputs is dropped out, as in the other models: neither alpha nor z.

    Args:
        inputs, outputs: widths; the output's is a multiple of `heads` if they stand side by side.
        heads: their number.
        average: average heads of the full width.
    """

    name = "gat"
    propagation = MEAN
    attends = True

    def __init__(self, inputs: int, outputs: int, heads: int, average: bool) -> None:
        width = outputs if average else outputs // heads
        super().__init__(inputs, outputs, heads * width)
        self.heads, self.average = heads, average
        self.weight_src = self.parameter(heads, width)
        self.weight_dst = self.parameter(heads, width)

    @classmethod
    def check_spec(cls, spec: ModelSpec) -> None:
        """See `GraphLayer`: the heads share the hidden width."""
        if spec.hidden % spec.heads:
            raise ValueError(f"heads: a hidden width of {spec.hidden} is not divisible by {spec.heads}")

    @classmethod
    def label(cls, spec: ModelSpec) -> str:
        """See `GraphLayer`."""
        return f"h{spec.heads}"

    @classmethod
    def build(cls, spec: ModelSpec, inputs: int, outputs: int, *, last: bool, products: Products) -> GATLayer:
        """See `GraphLayer`."""
        return cls(inputs, outputs, spec.heads, average=last)

    def forward(
        self, block: Block, h: Tensor, fetch: Fetch, transform_first: bool = False, aggregated: Tensor | None = None
    ) -> Tensor:
        """See `GraphLayer`; nothing can be aggregated before W is known: to give `aggregated` is a ValueError.

        A block that communicates is given H W, whatever `transform_first` is: it holds no other rank's H to multiply.
        """
        if aggregated is not None:
            raise ValueError("attention depends on weights: there is no aggregation to be given")
        early = transform_first or block.communicates
        z = fetch(self.linear(h, self.weight)) if early else self.linear(fetch(h), self.weight)
        if not self.average:
            return block.attend(z, self.weight_src, self.weight_dst, self.bias)
        heads = block.attend(z, self.weight_src, self.weight_dst)
        return heads.view(block.num_dst, self.heads, self.outputs).mean(1) + self.bias

    def training_values(self, case: LayerCase) -> LayerValues:
        """See `GraphLayer`: z = H W of the sources, the heads' outputs, and columns by head.

        Nothing is by edge. Kept are H where a product or ReLU reads it, z, query, total and peak, and the heads'
        outputs unless the normalisation keeps them. Backward: products of gradient and output, the state of the
        destinations, and the gradient of z, then that of H.
        """
        (size,) = case.blocks
        dst, src, d, w, heads = size.dst, size.src, self.inputs, self.transformed, self.heads
        spec, exchanged, transform_first = case.spec, case.exchanged, case.transform_first
        source = src * d if exchanged and not transform_first else 0
        plain = not case.keeps_input or (case.first and source)
        own = 0 if plain else (dst if exchanged else src) * d
        shared = spec.norm == "layer" and not self.average and not (spec.residual and d == self.outputs)
        kept = own + source + src * w + 3 * dst * heads + (0 if shared else dst * w)
        averaged = dst * self.outputs if self.average else 0
        forward = src * heads + (dst * w if transform_first or shared else 0) + averaged
        states = (4 * dst + 2 * src) * heads
        through = (src + dst) * w + states + (dst * w if self.average else 0)
        to_input = 0 if case.first else dst * d
        if transform_first:
            return LayerValues(kept, forward, max(through, (src + case.boundary + dst) * w, dst * w + to_input))
        to_source = 0 if case.first else src * (w + d)
        back = (src + case.boundary + dst) * d if exchanged and not case.first else 0
        return LayerValues(kept, forward, to_input + max(through, to_source, back))

    def evaluation_values(self, block: BlockSize, *, exchanged: bool) -> int:
        """See `GraphLayer`: H W is exchanged, and added up by head."""
        received = block.src * self.transformed if exchanged else 0
        return block.dst * (self.inputs + 2 * self.transformed + 2 * self.outputs) + received
