"""What a model is besides its weights: its layers' sizes, and what it holds in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

from harness.deferred import torch
from harness.errors import UserError
from harness.models.functional import CHUNK_ROWS
from harness.models.layer import MODELS, BlockSize, GraphLayer, LayerCase, LayerValues, ModelSpec, Products, Work
from harness.spec import PluginSource

T = TypeVar("T")


class Architecture:
    """The layers of a model without their weights, which is what plans need, and takes no torch; see `GNN`.

    Attributes:
        hops: blocks that a graph layer runs on, one behind the other.
        depth: blocks that the model runs on.
        propagation: the weighting of edges it aggregates with; if it attends, what samplers take for one.
        attends: whether aggregations depend on the weights.
        reads_own: whether a layer reads a node's own row besides what it aggregates.
        takes_arriving: whether layers take boundary rows that are on their way, see `Arriving`.

    Args:
        spec: what a suite says of the model.
        inputs, outputs: width of the input features, and number of classes.
        products: the order of A H W in the graph layers.
        source: where the code of the layer is, if it is a plugin's.
    """

    def __init__(
        self,
        spec: ModelSpec,
        inputs: int,
        outputs: int,
        *,
        products: Products = "auto",
        source: PluginSource | None = None,
    ) -> None:
        self.spec, self.inputs, self.outputs = spec, inputs, outputs
        found = MODELS.find(spec.name) if source is None else None
        layer = MODELS.load(spec.name, source) if found is None else found.value
        if found is not None and found.source is None:
            self._made = self._build(layer, products)
        else:  # nobody knows how another's layer makes its weights: it makes them, with sizes and without memory
            with torch.device("meta"):
                self._made = self._build(layer.as_module(), products)

    def _build(self, layer: type[GraphLayer], products: Products) -> list[GraphLayer]:
        spec, widths = self.spec, self._all_widths
        layers = [
            layer.build(spec, widths[i], widths[i + 1], last=i + 2 == len(widths), products=products)
            for i in range(spec.layers)
        ]
        first = layers[0]
        self.hops, self.depth, self.propagation = first.hops, spec.layers * first.hops, first.propagation
        self.attends, self.reads_own = first.attends, first.reads_own or spec.residual
        self.takes_arriving = first.takes_arriving
        return layers

    @property
    def _layers(self) -> list[GraphLayer]:
        return self._made

    @property
    def _all_widths(self) -> list[int]:
        """Widths of the inputs of all layers, and of the logits."""
        return [self.inputs, *[self.spec.hidden] * (self.spec.layers + self.spec.linear_layers - 1), self.outputs]

    @property
    def num_weights(self) -> int:
        """How many weights it has."""
        norms = self._all_widths[1:-1] if self.spec.norm == "layer" else []
        linear = sum((inputs + 1) * outputs for inputs, outputs in self.linear_widths)
        return sum(layer.num_weights for layer in self._layers) + linear + 2 * sum(norms)

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
        return list(pairwise(self._all_widths))[self.spec.layers :]

    def transforms_first(self, block: int, *, backward: bool = True) -> bool:
        """Whether exchanging H W for a block is possible, and fewer bytes than H.

        The input layer's H needs no gradient sent back, its H W does, if there is a `backward` pass.
        """
        layer, _ = self.layer_of(block)
        sent = 2 if backward and block == 0 else 1
        return layer.can_transform_first and sent * layer.transformed < layer.inputs

    def exchanges(self, precompute: bool, transform_first: bool) -> Iterator[tuple[int, int, bool]]:
        """Yield of each exchange of a full-graph method its layer, the values of a row, and whether gradients go back.

        In mixhop each hop counts as a layer. `precompute`: the first is left out; `transform_first`: H W is sent where
        that is fewer bytes.
        """
        for block in range(bool(precompute), self.depth):
            layer, _ = self.layer_of(block)
            transformed = transform_first and self.transforms_first(block)
            # No row of the first layer depends on a weight, unless it is H W that is sent.
            learnt = block >= self.hops or transformed
            yield block, layer.transformed if transformed else self.widths[block][0], learnt

    @property
    def widest_evaluated(self) -> int:
        """Width of the widest rows that an exact evaluation exchanges."""
        widths = []
        for block in range(self.depth):
            layer, _ = self.layer_of(block)
            transformed = layer.attends or self.transforms_first(block, backward=False)
            widths.append(layer.transformed if transformed else layer.inputs)
        return max(widths)

    def work(
        self, blocks: Sequence[BlockSize], *, transform_first: bool = False, aggregated: bool = False,
        communicates: bool = False,
    ) -> tuple[Work, Work]:  # fmt: skip
        """Return what the forward and the backward pass of a step compute on blocks of these sizes, input layer first.

        `aggregated`: the first aggregation is given; else as of a `LayerCase` and of `Step`.
        """
        forward, backward, block = Work(), Work(), 0
        for layer, own in self.by_layer(blocks):
            first, early = block == 0, transform_first and self.transforms_first(block)
            case = LayerCase(
                self.spec, own, first, aggregated=aggregated and first, transform_first=early, communicates=communicates
            )
            layer.work(case, forward, backward)
            block += layer.hops
        flops = 2.0 * blocks[-1].dst * sum(a * b for a, b in self.linear_widths)
        forward.flops, backward.flops = forward.flops + flops, backward.flops + 2 * flops
        return forward, backward

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


def eq3_values(model: Architecture, blocks: Sequence[BlockSize]) -> int:
    """Return the sum over layers of (3 n_in + n_bd) * input width (Eq. 3 of BNS-GCN).

    n_in: a block's destinations, n_bd: its other sources; linear layers have none.
    """
    graph = zip(blocks, model.widths, strict=True)
    values = sum((2 * block.dst + block.src) * inputs for block, (inputs, _) in graph)
    return values + sum(3 * blocks[-1].dst * inputs for inputs, _ in model.linear_widths)


def training_values(
    model: Architecture,
    blocks: Sequence[BlockSize],
    *,
    exchanged: bool,
    precompute: bool = False,
    transform_first: bool = False,
    inputs_fetched: bool = False,
    loss_rows: int = 0,
    cuda: bool = False,
    itemsize: int = 4,
    rounded: bool = False,
) -> int:
    """Return the peak over a step's forward and backward pass, the input features themselves left out.

    Args:
        model, blocks: the model, and the sizes of each block, input layer first.
        exchanged: as of a `LayerCase`.
        precompute: the first layer's aggregation is given; a UserError if the model attends.
        transform_first: H W is exchanged where it is narrower.
        inputs_fetched: the first layer's input is fetched for the step.
        loss_rows: rows that the loss reads.
        cuda: dropout keeps a mask (a byte a value), ReLU its output.
        itemsize: bytes of a value.
        rounded: what products read is kept in half the bytes, but of layers that attend; next to float32 rows, where
            layers do not take rounded ones.
    """
    if precompute:
        model.require_fixed_aggregation()
    passes, outputs = list[LayerValues](), list[int]()
    for module, own in model.by_layer(blocks):
        first = not passes
        transformed = transform_first and model.transforms_first(len(passes) * module.hops)
        case = LayerCase(model.spec, own, first, exchanged, precompute and first, transformed)
        found, halves = module.training_values(case), (1 if module.takes_rounded else 3) if rounded else 2
        passes.append(found if module.attends else replace(found, kept=found.kept * halves // 2))
        outputs.append(own[-1].dst * module.outputs)
    rows = blocks[-1].dst
    passes += [LayerValues(rows * a * halves // 2, rows * b, rows * (a + b)) for a, b in model.linear_widths]
    kept = blocks[0].src * model.widths[0][0] if inputs_fetched else 0
    peak = 0
    outputs += [rows * out for _, out in model.linear_widths]
    for i, (layer, output) in enumerate(zip(passes, outputs, strict=True)):
        last = i + 1 == len(passes)
        normed = output if model.spec.norm == "layer" and not last else 0
        piece = min(normed, CHUNK_ROWS * model.spec.hidden)  # of rows that are normalised, in both passes
        masks = output + output // itemsize if cuda and not last else 0
        kept += layer.kept
        # Between two layers are the activation, which the next one keeps, and (backwards) two gradients.
        between = 3 * loss_rows * model.outputs + output if last else 2 * output + masks
        peak = max(peak, kept + layer.forward, kept + normed + piece + between + output, kept + output + layer.backward)
        kept += normed + masks
    return peak


def evaluation_values(model: Architecture, block: BlockSize, *, exchanged: bool) -> int:
    """Return the peak of an exact evaluation, its own copy of the input features included."""
    values = [layer.evaluation_values(block, exchanged=exchanged) for layer in model._layers]
    values += [block.dst * (a + b) for a, b in model.linear_widths]
    return block.dst * model.widths[0][0] + max(values)
