"""GNN: graph layers and linear layers, as every method trains and every evaluation runs them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from harness.errors import UserError
from harness.graph.block import Block, Norm
from harness.models.functional import Linear, dropout, relu_dropout
from harness.models.layers import Exchange, GraphLayer, graph_layer
from harness.models.spec import ModelSpec

Rows = Tensor | Callable[[], Tensor]
"""A matrix of rows, or what gives it when it is read: nobody else then holds it while it is used."""


class GNN(nn.Module):
    """`layers` graph layers, then `linear_layers` linear ones; the last yields logits.

    Each layer's input is dropped out, before any exchange, so that a node has one mask wherever its row
    goes; behind every layer but the last come the normalisation (if any) and ReLU.

    Args:
        spec: the architecture.
        inputs: width of the input features.
        outputs: number of classes.
        seed: of the initial weights, which do not depend on rank or device.
        dtype: of the weights.
    """

    def __init__(self, spec: ModelSpec, inputs: int, outputs: int, *, seed: int, dtype: torch.dtype) -> None:
        super().__init__()
        total = spec.layers + spec.linear_layers
        widths = [inputs, *[spec.hidden] * (total - 1), outputs]
        self.spec, self.depth, self.outputs = spec, spec.layers, outputs
        self.graph_layers = nn.ModuleList(
            graph_layer(spec, widths[i], widths[i + 1], last=i + 1 == total) for i in range(spec.layers)
        )
        self.linear_layers = nn.ModuleList(
            _Linear(widths[i], widths[i + 1]) for i in range(spec.layers, total)
        )
        self.norms = nn.ModuleList(
            nn.LayerNorm(width) if spec.norm == "layer" else nn.Identity() for width in widths[1:-1]
        )
        self.double()
        generator = torch.Generator().manual_seed(seed)
        for layer in (*self.graph_layers, *self.linear_layers):
            layer.reset(generator)
        self.to(dtype)

    @property
    def propagation(self) -> Norm:
        """The weighting of edges this model aggregates with; if it attends, what samplers take for one."""
        return self._layer(0).propagation

    @property
    def attends(self) -> bool:
        """Whether aggregations depend on the weights."""
        return self._layer(0).attends

    def require_fixed_aggregation(self) -> None:
        """Refuse to aggregate the input features before the training.

        Raises:
            UserError: the model attends.
        """
        if self.attends:
            raise UserError(
                f"{self.spec.name} aggregates with weights that it learns: nothing can be computed before",
                key="precompute",
                fix="leave it at false, or use sage or gcn",
            )

    @property
    def widths(self) -> list[tuple[int, int]]:
        """Input and output width of each graph layer."""
        return [(layer.inputs, layer.outputs) for layer in self.graph_layers if isinstance(layer, GraphLayer)]

    @property
    def linear_widths(self) -> list[tuple[int, int]]:
        """Input and output width of each linear layer."""
        return [
            (layer.in_features, layer.out_features)
            for layer in self.linear_layers
            if isinstance(layer, _Linear)
        ]

    def narrows(self, layer: int) -> bool:
        """Whether exchanging H W of a graph layer is fewer bytes than H.

        The input layer's H needs no gradient sent back, its H W does.
        """
        module = self._layer(layer)
        return (2 if layer == 0 else 1) * module.transformed < module.inputs

    def _layer(self, index: int) -> GraphLayer:
        layer = self.graph_layers[index]
        assert isinstance(layer, GraphLayer)
        return layer

    def forward(
        self,
        blocks: list[Block],
        h: Rows,
        exchange: Exchange | None = None,
        *,
        narrow: bool = False,
        aggregated: Rows | None = None,
    ) -> Tensor:
        """Return the logits [num_dst of the last block, classes]; see `Step` for the arguments."""
        x = self._drop(h)
        for i, (layer, block) in enumerate(zip(self.graph_layers, blocks, strict=True)):
            first = None if i or aggregated is None else self._drop(aggregated)

            def fetch(rows: Tensor, layer: int = i) -> Tensor:
                return rows if exchange is None else exchange(rows, layer)

            out = layer(block, x, fetch, narrow=narrow and self.narrows(i), aggregated=first)
            x = self._between(i, x, out)
        for i, linear in enumerate(self.linear_layers, start=self.depth):
            x = self._between(i, x, linear(x))
        return x

    @property
    def _rate(self) -> float:
        return self.spec.dropout if self.training else 0.0

    def _drop(self, rows: Rows) -> Tensor:
        return dropout(rows if isinstance(rows, Tensor) else rows(), self._rate)

    def _between(self, index: int, before: Tensor, out: Tensor) -> Tensor:
        """Return the next layer's input, or the logits if the layer `index` is the last."""
        if index == len(self.norms):
            return out
        if self.spec.residual and before.shape[1] == out.shape[1]:
            out = out + before[: out.shape[0]]
        return relu_dropout(self.norms[index](out), self._rate)


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
