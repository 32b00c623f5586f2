"""The layers that come with the tool: GCN, GraphSAGE, GAT and MixHop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from harness.deferred import torch
from harness.graph.block import MEAN, SYMMETRIC, Block, own_rows
from harness.graph.spmm import unrounded
from harness.models.layer import (
    BlockSize,
    Fetch,
    GraphLayer,
    HopFetch,
    LayerCase,
    LayerValues,
    ModelSpec,
    Products,
    Work,
)
from harness.spec import Spec

if TYPE_CHECKING:
    from torch import Tensor


class GCNLayer(GraphLayer):
    """GCN: D^-1/2 (A + I) D^-1/2 H W + b (Kipf and Welling, 2017)."""

    name = "gcn"
    propagation = SYMMETRIC
    reads_own = False
    takes_rounded = takes_arriving = True

    def forward(
        self, block: Block, h: Tensor, fetch: Fetch, transform_first: bool = False, aggregated: Tensor | None = None
    ) -> Tensor:
        """See `GraphLayer`."""
        if aggregated is not None:
            return self.linear(aggregated, self.weight, self.bias)
        return self.propagate(block, h, fetch, transform_first) + self.bias


class SageLayer(GraphLayer):
    """GraphSAGE, mean: H W_self + (D^-1 A H) W + b, that is [H, D^-1 A H] W' (Hamilton et al., 2017)."""

    name = "sage"
    propagation = MEAN
    takes_rounded = takes_arriving = True

    def __init__(self, inputs: int, outputs: int, *, products: Products = "auto") -> None:
        super().__init__(inputs, outputs, products=products)
        self.weight_self = self.parameter(inputs, outputs)

    def forward(
        self, block: Block, h: Tensor, fetch: Fetch, transform_first: bool = False, aggregated: Tensor | None = None
    ) -> Tensor:
        """See `GraphLayer`."""
        out = self.linear(block.own_rows(h), self.weight_self, self.bias)
        if aggregated is None:
            return self.propagate(block, h, fetch, transform_first, out)
        return self.linear(aggregated, self.weight, into=out)


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
    reads = frozenset(("heads",))
    attends = takes_rounded = True

    def __init__(self, inputs: int, outputs: int, heads: int, average: bool, *, products: Products = "auto") -> None:
        width = outputs if average else outputs // heads
        super().__init__(inputs, outputs, heads * width, products=products)
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
        return cls(inputs, outputs, spec.heads, average=last, products=products)

    def forward(
        self, block: Block, h: Tensor, fetch: Fetch, transform_first: bool = False, aggregated: Tensor | None = None
    ) -> Tensor:
        """See `GraphLayer`; nothing can be aggregated before W is known: to give `aggregated` is a ValueError.

        A block that communicates is given H W, whatever `transform_first` is: it holds no other rank's H to multiply.
        """
        if aggregated is not None:
            raise ValueError("attention depends on weights: there is no aggregation to be given")
        early = transform_first or block.communicates
        source = fetch(self.linear(h, self.weight) if early else h)
        if not early and self.attends_inputs:
            found = self._of_inputs(block, source)
        else:
            z = source if early else self.linear(source, self.weight)
            if not self.average:
                return block.attend(z, self.weight_src, self.weight_dst, self.bias)
            found = block.attend(z, self.weight_src, self.weight_dst)
        if self.average:
            found = found.view(block.num_dst, self.heads, self.outputs).mean(1)
        return found + self.bias

    def _of_inputs(self, block: Block, h: Tensor) -> Tensor:
        """Return the heads' sums as (sum_j alpha_ij h_j) W, by keys and queries a . W h = (W a) . h."""
        weight = self.weight.view(self.inputs, self.heads, -1)
        vectors = ((weight * each).sum(2).t().contiguous() for each in (self.weight_src, self.weight_dst))
        sums = block.attend(unrounded(h).repeat(1, self.heads), *vectors)
        return self.linear.by_head(sums, self.weight, self.heads)

    @property
    def attends_inputs(self) -> bool:
        """Whether heads add up rows of H, not of H W, where H is exchanged: as `products` says, or if it is narrower.

        A copy of H is made for each head, and what is done to rows by value costs more than products: with fewer
        multiply-adds, but wider rows, it was slower (docs/design/numerics.md).
        """
        if self.products != "auto":
            return self.products == "aggregate-first"
        return self.heads * self.inputs < self.transformed

    def work(self, case: LayerCase, forward: Work, backward: Work) -> None:
        """See `GraphLayer`: z = H W, keys and queries, and the rows of z that are added up; back, the gradients'."""
        (size,) = case.blocks
        early, gradients = case.transform_first or case.communicates, 1 if case.first else 2
        of_inputs = not early and self.attends_inputs
        width = self.heads * self.inputs if of_inputs else self.transformed
        product = 2 * (size.dst if early or of_inputs else size.src) * self.inputs * self.transformed
        keys, queries = (2 * rows * width * self.heads for rows in (size.src, size.dst))
        forward.flops += product + keys + queries
        backward.flops += (2 if of_inputs else gradients) * product + 2 * keys + queries  # the keys once more
        forward.read(width, size.edges, size.src)
        backward.read(width, size.edges, size.dst)

    def training_values(self, case: LayerCase) -> LayerValues:
        """See `GraphLayer`: z = H W of the sources, the heads' outputs, and columns by head.

        Nothing is by edge. Kept are H where a product or ReLU reads it, z, query, total and peak, and the heads'
        outputs unless the normalisation keeps them. Backward: products of gradient and output, the state of the
        destinations, and the gradient of z, then that of H. Where heads add up inputs z is copies of H, and its sums
        are kept twice.
        """
        (size,) = case.blocks
        dst, src, given, d, w, heads = size.dst, size.src, size.given, self.inputs, self.transformed, self.heads
        spec, exchanged, transform_first = case.spec, case.exchanged, case.transform_first
        of_inputs = not transform_first and self.attends_inputs
        w = heads * d if of_inputs else w
        source = src * d if exchanged and not transform_first else 0
        plain = not case.keeps_input or (case.first and source)
        own = 0 if plain else (given if exchanged else src) * d
        shared = spec.norm == "layer" and not self.average and not (spec.residual and d == self.outputs)
        kept = own + source + src * w + 3 * dst * heads + (2 * dst * w if of_inputs else 0 if shared else dst * w)
        averaged = (dst * self.outputs if self.average else 0) + (dst * self.transformed if of_inputs else 0)
        forward = src * heads + (dst * w if transform_first or shared else 0) + averaged
        states = (4 * dst + 2 * src) * heads
        through = (src + dst) * w + states + (dst * w if self.average else 0)
        to_input = 0 if case.first else given * d
        if transform_first:
            return LayerValues(kept, forward, max(through, (src + case.boundary + given) * w, dst * w + to_input))
        to_source = 0 if case.first else src * (w + d)
        back = (src + case.boundary + given) * d if exchanged and not case.first else 0
        return LayerValues(kept, forward, to_input + max(through, to_source, back))

    def evaluation_values(self, block: BlockSize, *, exchanged: bool) -> int:
        """See `GraphLayer`: H W is exchanged, and added up by head."""
        received = block.src * self.transformed if exchanged else 0
        return block.dst * (self.inputs + 2 * self.transformed + 2 * self.outputs) + received


class MixHopOptions(Spec):
    """Options of MixHop."""

    propagation: Literal["mean", "symmetric"] = Field("symmetric", description="S: sage's mean, or gcn's")
    powers: Literal["all", "last"] = Field(
        "all", description="powers of S, 0 to K, or S^K alone, which makes one layer the model SGC"
    )


class MixHopLayer(GraphLayer):
    """MixHop: [H W_0 | S H W_1 | ... | S^K H W_K] + b, S = D^-1/2 (A + I) D^-1/2.

    (Abu-El-Haija et al., ICML 2019; Zeng et al., JPDC 2021, Eq. 5.) Where the output is the logits the powers
    are added up instead, each of the full width. With `powers: last` it is S^K H W + b (SGC, Wu et al., ICML
    2019, Eq. 8), with `propagation: mean` S = D^-1 A. K hops with t_0 = H and t_k = S t_(k-1), each on a block of
    its own, one behind the other. The output's own rows in t_k are those of its rows in all blocks behind. What a hop
    exchanges is t_(k-1), and W_k comes after S^k: in the input layer nothing of that needs a gradient
    (docs/design/numerics.md).

    Args:
        inputs, outputs: widths; the output's is a multiple of `order` + 1 if the powers stand side by side.
        order: K.
        add: add up powers of the full width.
        options: the layer's own.
    """

    name = "mixhop"
    propagation = SYMMETRIC
    reads = frozenset(("order",))
    can_transform_first = False  # it aggregates H only
    takes_rounded = takes_arriving = True
    Options = MixHopOptions

    def __init__(self, inputs: int, outputs: int, order: int, *, add: bool, options: MixHopOptions) -> None:
        self.first = order if options.powers == "last" else 0  # power of S that the first W multiplies
        powers = order + 1 - self.first
        self._width = outputs if add else outputs // powers
        super().__init__(inputs, outputs, powers * self._width)
        self.hops, self._add = order, add
        if options.propagation == "mean":
            self.propagation, self.reads_own = MEAN, self.first == 0

    @classmethod
    def check_spec(cls, spec: ModelSpec) -> None:
        """See `GraphLayer`: the powers share the hidden width."""
        if spec.hidden % (spec.order + 1) and cls.options_of(spec).powers == "all":
            raise ValueError(
                f"order: a hidden width of {spec.hidden} is not divisible by {spec.order + 1}, the powers "
                f"0 to {spec.order}"
            )

    @classmethod
    def label(cls, spec: ModelSpec) -> str:
        """See `GraphLayer`."""
        return "-".join([f"k{spec.order}", *map(str, spec.options.values())])

    @classmethod
    def build(cls, spec: ModelSpec, inputs: int, outputs: int, *, last: bool, products: Products) -> MixHopLayer:
        """See `GraphLayer`."""
        return cls(inputs, outputs, spec.order, add=last, options=cls.options_of(spec))

    def reached(self, hop: int) -> Tensor:
        """See `GraphLayer.reached`: t_hop is of use to all powers above `hop`."""
        return self.weight[:, max(0, hop + 1 - self.first) * self._width :].contiguous()

    def run(
        self, blocks: Sequence[Block], h: Tensor, fetch: HopFetch, transform_first: bool, aggregated: Tensor | None
    ) -> Tensor:
        """See `GraphLayer`; `aggregated` is t_1, [num_dst of the first block, inputs], or [t_1 | ... | t_j]."""
        # By columns of a wider matrix oneDNN's product takes up to a thousand times as long.
        weights = [columns.contiguous() for columns in self.weight.split(self._width, 1)]
        biases = [self.bias, *[None] * self.hops] if self._add else self.bias.split(self._width)
        given = () if aggregated is None else aggregated.split(self.inputs, 1)
        # A power's product stands before the next hop, so that the backward pass has few gradients at once.
        t, products = h, list["Tensor"]()
        for power in range(self.hops + 1):
            if 0 < power <= len(given):
                t = given[power - 1].contiguous()
            elif power:
                t = self.aggregate(blocks[power - 1], fetch(t, power - 1))
            if (number := power - self.first) < 0:
                continue
            into = products.pop() if self._add and products else None
            products.append(self.linear(own_rows(blocks[power:], t), weights[number], biases[number], into=into))
        return products[0] if self._add else torch.cat(products, 1)

    forward = run  # of all hops at once: no hop has a `forward` of its own

    def training_values(self, case: LayerCase) -> LayerValues:
        """See `GraphLayer`; products keep H, every t_k and copies of the weights.

        A hop has its source matrix, new of an exchange, and a scaled copy. Backward, t_k is gone; there are
        its gradient, a scaled copy, and the gradient of the source; or that, what peers sent, and their sum.
        """
        d, outputs, start = self.inputs, case.blocks[-1].dst * self.outputs, case.blocks[0]
        before = (start.dst if case.exchanged else start.src) * d if case.keeps_input else 0
        kept = 0 if self.first else before
        forward = backward = 0
        for hop, size in enumerate(case.blocks):
            if case.aggregated and hop == 0:
                kept += before
                continue
            kept += size.dst * d if hop + 1 >= self.first else 0
            forward = max(forward, kept + (1 + case.exchanged) * size.src * d)
            boundary = size.src - size.given if case.exchanged else 0
            backward = max(backward, size.src + max(size.given, boundary))
        forward = max(forward - kept + outputs, 2 * outputs)
        return LayerValues(kept + self.weight.numel(), forward, outputs if case.first else backward * d)

    def evaluation_values(self, block: BlockSize, *, exchanged: bool) -> int:
        """See `GraphLayer`: t_k, which is exchanged, a scaled copy, and t_k+1."""
        rows, d, o = block.dst, self.inputs, self.outputs
        hop = (block.src * d if exchanged else 0) + (1 + min(self.hops, 2)) * rows * d
        return rows * (d + o) + max(hop, rows * (d + o))
