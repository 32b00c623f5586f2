"""GNN: graph layers and linear layers, as every method trains and every evaluation runs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self, cast

import torch
from torch import Tensor, nn

from harness.graph.block import Block, own_rows
from harness.graph.spmm import unrounded
from harness.models.architecture import Architecture
from harness.models.functional import Linear, dropout, relu_dropout
from harness.models.layer import MODELS, GraphLayer, ModelSpec, Products
from harness.spec import PluginSource

Exchange = Callable[[Tensor, int], Any]
Rows = Tensor | Callable[[], Tensor]
"""A matrix of rows, or what gives it when it is read: nobody else then holds it while it is used."""


class FirstLayer(Protocol):
    """Computes the first layer in place of `GraphLayer.run`, of inputs that are some columns of the features."""

    columns: slice

    def __call__(self, layer: GraphLayer, blocks: Sequence[Block], x: Tensor) -> Tensor:
        """Return the layer's output [num_dst, outputs] on its blocks, with the residual if the model has one.

        `x` are the step's inputs [rows, columns], dropped out.
        """


class GNN(Architecture, nn.Module):
    """`layers` graph layers, then `linear_layers` linear ones; the last yields logits.

    Each layer's input is dropped out, before any exchange, so that a node has one mask wherever its row
    goes; behind every layer but the last come the normalisation (if any) and ReLU. A layer runs on one block
    for each of its hops: one, or `order` in mixhop.

    Args:
        spec: the architecture.
        inputs, outputs: width of the input features, and number of classes.
        seed: of the initial weights, which do not depend on rank or device.
        dtype: of the weights.
        rounded: whether products and sums of the training are of operands rounded to bfloat16, as which layers'
            inputs are kept; evaluations' never are.
        products: the order of A H W in the graph layers.
        source: where the code of the layer is, if it is a plugin's.
    """

    def __init__(
        self,
        spec: ModelSpec,
        inputs: int,
        outputs: int,
        *,
        seed: int,
        dtype: torch.dtype,
        rounded: bool = False,
        products: Products = "auto",
        source: PluginSource | None = None,
    ) -> None:
        nn.Module.__init__(self)
        self.spec, self.inputs, self.outputs, self.rounded = spec, inputs, outputs, rounded
        self.graph_layers = nn.ModuleList(self._build(MODELS.load(spec.name, source).as_module(), products))
        self.linear_layers = nn.ModuleList(_Linear(*widths) for widths in self.linear_widths)
        self.norms = nn.ModuleList(
            nn.LayerNorm(width) if spec.norm == "layer" else nn.Identity() for width in self._all_widths[1:-1]
        )
        self.double()
        generator = torch.Generator().manual_seed(seed)
        for module in (*self.graph_layers, *self.linear_layers):
            module.reset(generator)
        self.to(dtype).train()

    def train(self, mode: bool = True) -> Self:
        """See `nn.Module`; with it begins, or ends, the rounding of products."""
        for product in self._products:
            product.rounded = self.rounded and mode
        self._rounds = self.rounded and mode and self._layers[0].takes_rounded  # layers' inputs to bfloat16
        return super().train(mode)

    @property
    def _products(self) -> list[Linear]:
        return [
            *(layer.linear for layer in self._layers),
            *(layer.product for layer in self.linear_layers if isinstance(layer, _Linear)),
        ]

    @property
    def _layers(self) -> list[GraphLayer]:
        return cast("list[GraphLayer]", list(self.graph_layers))

    def forward(
        self,
        blocks: Sequence[Block],
        h: Rows,
        exchange: Exchange | None = None,
        *,
        transform_first: bool = False,
        aggregated: Rows | None = None,
        first: FirstLayer | None = None,
    ) -> Tensor:
        """Return the logits [num_dst of the last block, classes]; see `Step` for the arguments."""
        x = self._drop(h, rounded=first is None)
        for i, (_, own) in enumerate(self.by_layer(blocks)):
            if i == 0 and first is not None:
                x = self._between(i, None, first(self._layers[i], own, x))
                continue
            given = None if i or aggregated is None else self._drop(aggregated, rounded=True)
            x = self.behind(i, x, own, exchange, transform_first=transform_first, aggregated=given)
        for i in range(self.spec.layers, self.spec.layers + self.spec.linear_layers):
            x = self.behind(i, x)
        return x

    def behind(
        self,
        index: int,
        x: Tensor,
        blocks: Sequence[Block] = (),
        exchange: Exchange | None = None,
        *,
        transform_first: bool = False,
        aggregated: Tensor | None = None,
    ) -> Tensor:
        """Return what comes behind the layer `index`: the next one's input, or the logits.

        `x` is its input, dropped out already; `blocks` are a graph layer's own; else as of `forward`.
        """
        if index >= self.spec.layers:
            return self._between(index, x, self.linear_layers[index - self.spec.layers](x))
        layer = self._layers[index]
        first = index * layer.hops

        def fetch(rows: Tensor, hop: int) -> Any:
            rows = rows if exchange is None or getattr(exchange, "takes_rounded", False) else unrounded(rows)
            return rows if exchange is None else exchange(rows, first + hop)

        early = transform_first and self.transforms_first(first, backward=torch.is_grad_enabled())
        out = layer.run(blocks, x, fetch, transform_first=early, aggregated=aggregated)
        return self._between(index, x, out, blocks)

    def _drop(self, rows: Rows, *, rounded: bool) -> Tensor:
        rate = self.spec.dropout if self.training else 0.0
        return dropout(rows if isinstance(rows, Tensor) else rows(), rate, rounded=rounded and self._rounds)

    def _between(self, index: int, before: Tensor | None, out: Tensor, blocks: Sequence[Block] = ()) -> Tensor:
        """Return the next layer's input, or the logits if the layer `index`, which ran on the blocks, is the last.

        `before` is the layer's input; None: `out` has the residual.
        """
        if index == len(self.norms):
            return out
        if before is not None and self.spec.residual and before.shape[1] == out.shape[1]:
            out = out + own_rows(blocks, before)
        rate = self.spec.dropout if self.training else 0.0
        norm = cast("nn.LayerNorm", self.norms[index]) if self.spec.norm == "layer" else None
        return relu_dropout(out, rate, norm, rounded=self._rounds)


class _Linear(nn.Linear):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.product = Linear()

    def forward(self, x: Tensor) -> Tensor:
        """Return [rows, outputs], by the same product as the graph layers'."""
        return self.product(x, self.weight.t(), self.bias)

    def reset(self, generator: torch.Generator) -> None:
        """Glorot-uniform weights and zero biases."""
        nn.init.xavier_uniform_(self.weight, generator=generator)
        nn.init.zeros_(self.bias)
