"""GNN: graph layers and linear layers, as every method trains and every evaluation runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

from harness.errors import UserError
from harness.graph.block import Block, Propagation, own_rows
from harness.models.functional import LayerNorm, Linear, dropout, relu_dropout
from harness.models.layer import MODELS, BlockSize, GraphLayer, LayerCase, LayerValues
from harness.models.spec import ModelSpec, Products
from harness.spec import PluginSource

T = TypeVar("T")
Exchange = Callable[[Tensor, int], Tensor]
Rows = Tensor | Callable[[], Tensor]
"""A matrix of rows, or what gives it when it is read: nobody else then holds it while it is used."""


class GNN(nn.Module):
    """`layers` graph layers, then `linear_layers` linear ones; the last yields logits.

    Each layer's input is dropped out, before any exchange, so that a node has one mask wherever its row
    goes; behind every layer but the last come the normalisation (if any) and ReLU. A layer runs on one block
    for each of its hops: one, or `order` in mixhop.

    Args:
        spec: the architecture.
        inputs, outputs: width of the input features, and number of classes.
        seed: of the initial weights, which do not depend on rank or device.
        dtype: of the weights.
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
        products: Products = "auto",
        source: PluginSource | None = None,
    ) -> None:
        super().__init__()
        layer = MODELS.load(spec.name, source)
        total = spec.layers + spec.linear_layers
        widths = [inputs, *[spec.hidden] * (total - 1), outputs]
        self.spec, self.outputs = spec, outputs
        self.graph_layers = nn.ModuleList(
            layer.build(spec, widths[i], widths[i + 1], last=i + 1 == total, products=products)
            for i in range(spec.layers)
        )
        self.linear_layers = nn.ModuleList(_Linear(widths[i], widths[i + 1]) for i in range(spec.layers, total))
        self.norms = nn.ModuleList(
            LayerNorm(width) if spec.norm == "layer" else nn.Identity() for width in widths[1:-1]
        )
        self.double()
        generator = torch.Generator().manual_seed(seed)
        for module in (*self.graph_layers, *self.linear_layers):
            module.reset(generator)
        self.to(dtype)

    @property
    def hops(self) -> int:
        """Blocks that a graph layer runs on, one behind the other."""
        return self._layers[0].hops

    @property
    def depth(self) -> int:
        """Blocks that the model runs on."""
        return self.spec.layers * self.hops

    @property
    def propagation(self) -> Propagation:
        """The weighting of edges this model aggregates with; if it attends, what samplers take for one."""
        return self._layers[0].propagation

    @property
    def reads_own(self) -> bool:
        """Whether a layer reads a node's own row beside what it aggregates."""
        return self._layers[0].reads_own or self.spec.residual

    @property
    def attends(self) -> bool:
        """Whether aggregations depend on the weights."""
        return self._layers[0].attends

    def require_fixed_aggregation(self) -> None:
        """Raise a UserError if the model attends: the input features cannot be aggregated before the training."""
        if self.attends:
            raise UserError(
                f"{self.spec.name} aggregates with weights that it learns: nothing can be computed before",
                key="precompute",
                fix="leave it at false, or use sage, gcn or mixhop",
            )

    @property
    def widths(self) -> list[tuple[int, int]]:
        """Width of what each block aggregates, and of what comes behind it, input layer first."""
        return [
            (layer.inputs, layer.outputs if hop + 1 == layer.hops else layer.inputs)
            for layer in self._layers
            for hop in range(layer.hops)
        ]

    @property
    def linear_widths(self) -> list[tuple[int, int]]:
        """Input and output width of each linear layer."""
        return [(layer.in_features, layer.out_features) for layer in self.linear_layers if isinstance(layer, _Linear)]

    def transforms_first(self, block: int, *, backward: bool = True) -> bool:
        """Whether exchanging H W for a block is possible, and fewer bytes than H.

        The input layer's H needs no gradient sent back, its H W does, if there is a `backward` pass.
        """
        layer, _ = self.layer_of(block)
        sent = 2 if backward and block == 0 else 1
        return layer.can_transform_first and sent * layer.transformed < layer.inputs

    @property
    def widest_evaluated(self) -> int:
        """Width of the widest rows that an exact evaluation exchanges."""
        widths = []
        for block in range(self.depth):
            layer, _ = self.layer_of(block)
            transformed = layer.attends or self.transforms_first(block, backward=False)
            widths.append(layer.transformed if transformed else layer.inputs)
        return max(widths)

    def layer_of(self, block: int) -> tuple[GraphLayer, int]:
        """Return the graph layer that runs on a block, and which of its hops that is (0-based)."""
        index, hop = divmod(block, self.hops)
        return self._layers[index], hop

    def by_layer(self, blocks: Sequence[T]) -> Iterator[tuple[GraphLayer, Sequence[T]]]:
        """Yield each graph layer and what of `blocks`, one a hop, is its; if they are not `depth`, a ValueError."""
        if len(blocks) != self.depth:
            raise ValueError(f"the model runs on {self.depth} blocks, not {len(blocks)}")
        for i, layer in enumerate(self._layers):
            yield layer, blocks[i * layer.hops : (i + 1) * layer.hops]

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
    ) -> Tensor:
        """Return the logits [num_dst of the last block, classes]; see `Step` for the arguments."""
        x = self._drop(h)
        for i, (layer, own) in enumerate(self.by_layer(blocks)):
            first = i * layer.hops
            given = None if i or aggregated is None else self._drop(aggregated)

            def fetch(rows: Tensor, hop: int, *, first: int = first) -> Tensor:
                return rows if exchange is None else exchange(rows, first + hop)

            early = transform_first and self.transforms_first(first, backward=torch.is_grad_enabled())
            x = self._between(i, x, layer.run(own, x, fetch, transform_first=early, aggregated=given), own)
        for i, linear in enumerate(self.linear_layers, start=self.spec.layers):
            x = self._between(i, x, linear(x))
        return x

    @property
    def _rate(self) -> float:
        return self.spec.dropout if self.training else 0.0

    def _drop(self, rows: Rows) -> Tensor:
        return dropout(rows if isinstance(rows, Tensor) else rows(), self._rate)

    def _between(self, index: int, before: Tensor, out: Tensor, blocks: Sequence[Block] = ()) -> Tensor:
        """Return the next layer's input, or the logits if the layer `index`, which ran on the blocks, is the last."""
        if index == len(self.norms):
            return out
        if self.spec.residual and before.shape[1] == out.shape[1]:
            out = out + own_rows(blocks, before)
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


def eq3_values(model: GNN, blocks: Sequence[BlockSize]) -> int:
    """Return the sum over layers of (3 n_in + n_bd) * input width (Eq. 3 of BNS-GCN).

    n_in: a block's destinations, n_bd: its other sources; linear layers have none.
    """
    graph = zip(blocks, model.widths, strict=True)
    values = sum((2 * block.dst + block.src) * inputs for block, (inputs, _) in graph)
    return values + sum(3 * blocks[-1].dst * inputs for inputs, _ in model.linear_widths)


def training_values(
    model: GNN,
    blocks: Sequence[BlockSize],
    *,
    exchanged: bool,
    precompute: bool = False,
    transform_first: bool = False,
    inputs_fetched: bool = False,
    loss_rows: int = 0,
    cuda: bool = False,
    itemsize: int = 4,
    least: bool = False,
) -> int:
    """Return the peak over a step's forward and backward pass, the input features themselves left out.

    Args:
        model, blocks: the replica, and the sizes of each block, input layer first.
        exchanged, least: as of a `LayerCase`.
        precompute: the first layer's aggregation is given; a UserError if the model attends.
        transform_first: H W is exchanged where it is narrower.
        inputs_fetched: the first layer's input is fetched for the step.
        loss_rows: rows that the loss reads.
        cuda: dropout keeps a mask (a byte a value), ReLU its output.
        itemsize: bytes of a value.
    """
    if precompute:
        model.require_fixed_aggregation()
    passes, outputs = list[LayerValues](), list[int]()
    for module, own in model.by_layer(blocks):
        first = not passes
        transformed = transform_first and model.transforms_first(len(passes) * module.hops)
        case = LayerCase(model.spec, own, first, exchanged, precompute and first, transformed, least)
        passes.append(module.training_values(case))
        outputs.append(own[-1].dst * module.outputs)
    rows = blocks[-1].dst
    passes += [LayerValues(rows * a, rows * b, rows * (a + b)) for a, b in model.linear_widths]
    kept = blocks[0].src * model.widths[0][0] if inputs_fetched else 0
    peak = 0
    outputs += [rows * out for _, out in model.linear_widths]
    for i, (layer, output) in enumerate(zip(passes, outputs, strict=True)):
        last = i + 1 == len(passes)
        normed = output if model.spec.norm == "layer" and not last else 0
        masks = output + output // itemsize if cuda and not last else 0
        kept += layer.kept
        # Between two layers are the activation, which the next one keeps, and (backwards) two gradients.
        between = 3 * loss_rows * model.outputs + output if last else 2 * output + masks
        peak = max(peak, kept + layer.forward, kept + normed + between + output, kept + output + layer.backward)
        kept += normed + masks
    return peak


def evaluation_values(model: GNN, block: BlockSize, *, exchanged: bool) -> int:
    """Return the peak of an exact evaluation, its own copy of the input features included."""
    values = [layer.evaluation_values(block, exchanged=exchanged) for layer in model._layers]
    values += [block.dst * (a + b) for a, b in model.linear_widths]
    return block.dst * model.widths[0][0] + max(values)
