"""Models: their specification in a suite, and the layers they are made of, with propagation and memory formula."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, cast

from pydantic import Field, ValidationInfo, model_validator

from harness.deferred import torch
from harness.errors import UserError
from harness.graph.block import Arriving, Block, Propagation, Transform
from harness.models.functional import Linear
from harness.registry import Registered, Registry
from harness.spec import Spec, with_options

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module, Parameter
else:
    Module = object

Fetch = Callable[["Tensor"], Any]
"""Makes source rows of a layer's inner rows: a tensor, or with `takes_arriving` maybe an `Arriving`."""
HopFetch = Callable[["Tensor", int], Any]

Products = Literal["auto", "aggregate-first", "transform-first"]
"""The order of A H W: the cheaper one for a layer's sizes, (A H) W, or A (H W)."""

KEPT = "kept"
"""Context of validation: of what was run. It fitted its layer then; to ask that would import torch."""


# A multiply-add of an SpMM costs about this many of a GEMM's: measured 10 against 44 G/s on one core.
SPMM_COST = 4.0


OWN_KEYS = frozenset(("heads", "order"))
"""Keys of a suite's `model` that are of use only to layers whose `reads` name them."""


class ModelSpec(Spec):
    """Architecture shared by every trial of a suite."""

    name: str = Field("sage", description="graph layer: a name of `harness list models`")
    layers: int = Field(2, ge=1, le=1_000, description="graph layers")
    linear_layers: int = Field(0, ge=0, le=1_000, description="linear layers behind the graph layers")
    hidden: int = Field(64, ge=1, le=1 << 24, description="hidden width")
    norm: Literal["layer", "none"] = Field("none", description="normalisation between layers")
    dropout: float = Field(0.5, ge=0, lt=1, description="dropout on every layer's input")
    residual: bool = Field(False, description="add a layer's input to its output where the widths agree")
    heads: int = Field(4, ge=1, le=1_000, description="attention heads of gat; the hidden width must be divisible")
    order: int = Field(
        2, ge=1, le=100, description="highest power of A in mixhop; the hidden width must be divisible by order + 1"
    )

    options: dict[str, Any] = Field(
        default_factory=dict, description="the model's own options; write `name: {NAME: {option: value}}`"
    )

    @model_validator(mode="before")
    @classmethod
    def _name_with_options(cls, data: Any) -> Any:
        return with_options(data, "name", "options")

    @model_validator(mode="after")
    def _fits_its_layer(self, info: ValidationInfo) -> Self:
        if info.context == KEPT:
            return self
        # A plugin's is checked where the suite's plugins are known.
        if (layer := MODELS.loaded(self.name)) is not None:
            layer.check_spec(self)
        return self

    @property
    def label(self) -> str:
        """Name and size: "sage-2+2x512" has 2 graph and 2 linear layers of width 512; h4: 4 heads, k2: order 2."""
        tail = f"+{self.linear_layers}" if self.linear_layers else ""
        layer = MODELS.loaded(self.name)
        own = layer.label(self) if layer else ""
        return f"{self.name}-{self.layers}{tail}x{self.hidden}{own}"


@dataclass(frozen=True)
class BlockSize:
    """Destination rows, source rows and entries of a layer's block, and the rows that the layer is given.

    These are the destinations (`inner` None), unless the last layer picks some of them.
    """

    dst: int
    src: int
    edges: int
    inner: int | None = None

    @property
    def given(self) -> int:
        """Rows that an exchange makes source rows of."""
        return self.dst if self.inner is None else self.inner


@dataclass
class Work:
    """What is computed, as far as it decides how long that takes.

    Attributes:
        flops: operations of dense products.
        rows: of each product with a sparse matrix the values of a row, its entries (a row is read for each), how many
            rows are read at least once, and whether they are in bfloat16 where products are of rounded operands.
    """

    flops: float = 0.0
    rows: list[tuple[int, int, int, bool]] = field(default_factory=list)

    def read(self, width: int, entries: int, distinct: int, *, rounds: bool = False) -> None:
        """Add a product with a sparse matrix of so many `entries`, of `distinct` rows at most."""
        self.rows.append((width, entries, min(entries, distinct), rounds))


@dataclass(frozen=True)
class LayerCase:
    """What the memory and the work of a layer depend on in a step, besides the layer."""

    spec: ModelSpec  # the model's
    blocks: Sequence[BlockSize]  # sizes of the layer's blocks, one a hop
    first: bool = False  # its input are the input features, which need no gradient and are counted elsewhere
    exchanged: bool = False  # inner rows become source rows by an exchange, which makes a new matrix of them
    aggregated: bool = False  # its first aggregation is given
    transform_first: bool = False  # H W is exchanged
    communicates: bool = False  # the blocks exchange what they are given, H of layers that do not attend

    @property
    def boundary(self) -> int:
        """Rows that the exchange of the first block receives."""
        return self.blocks[0].src - self.blocks[0].given if self.exchanged else 0

    @property
    def keeps_input(self) -> bool:
        """Whether autograd keeps the input besides: without dropout the first one is the feature matrix."""
        return not (self.first and self.spec.dropout == 0)


@dataclass(frozen=True)
class LayerValues:
    """Values (not bytes) of a layer: what autograd keeps, and what else is there during its passes."""

    kept: int
    forward: int
    backward: int


@dataclass(frozen=True)
class Shape:
    """The shape of weights that are not there."""

    sizes: tuple[int, ...]

    def numel(self) -> int:
        """Return how many they are."""
        return math.prod(self.sizes)


class GraphLayer(Registered, Module):
    """A graph layer: how it propagates, what its exchange sends, what it holds in memory.

    Objects of the class have sizes and no weights, for plans; those of `as_module()` are torch modules.

    A model is made of layers of one kind; a subclass with a `name` is a model that suites can name. It sets
    `propagation` and defines `forward(block, h, fetch, transform_first, aggregated)`, which returns [num_dst, outputs]:
    `h` [rows, inputs] is what `fetch` turns into the source rows, `transform_first` says to exchange H W, `aggregated`
    [num_dst, inputs] replaces the propagation of `h`. `propagate` is A H W for layers that have such a product.
    What is said of memory here follows it, and is for layers that hold no more than SAGE's.

    Args:
        inputs, outputs: widths of the layer's input and output.
        transformed: width of H W if it is another.
        products: the order of A H W, where nothing else decides it.
    """

    kind = "model"
    group = "harness.models"
    name: ClassVar[str]
    Options: ClassVar[type[Spec]] = Spec  # its own, in a suite `model: {name: {gin: {eps: 0.1}}}`
    propagation: Propagation  # that it aggregates with, or that samplers take for one
    reads: ClassVar[frozenset[str]] = frozenset()  # which of `OWN_KEYS` of a suite's `model` it depends on
    attends: ClassVar[bool] = False  # its aggregation depends on weights that are learnt
    reads_own: bool = True  # a node's own row, for which its aggregation has no self loop
    can_transform_first: ClassVar[bool] = True  # H W can be exchanged instead of H
    takes_rounded: ClassVar[bool] = False  # `h` and `aggregated` may be in bfloat16, of which `linear` makes float32
    takes_arriving: ClassVar[bool] = False  # what `fetch` returns goes into `Block.aggregate` alone: see `Arriving`
    _module: ClassVar[type]
    hops: int = 1  # aggregations one behind the other, each with a block of its own

    def __init__(
        self, inputs: int, outputs: int, transformed: int | None = None, *, products: Products = "auto"
    ) -> None:
        super().__init__()
        self.inputs, self.outputs, self.linear, self.products = inputs, outputs, Linear(), products
        self.transformed = outputs if transformed is None else transformed
        self.weight = self.parameter(inputs, self.transformed)
        self.bias = self.parameter(outputs)

    def parameter(self, *shape: int) -> Parameter:
        """Return new weights, zeros until `reset`; where the layer is no module, their shape."""
        return cast("Parameter", Shape(shape))

    @property
    def num_weights(self) -> int:
        """How many weights it has."""
        return sum(value.numel() for value in vars(self).values() if isinstance(value, Shape))

    @classmethod
    def as_module(cls) -> type[Self]:
        """Return the subclass whose objects are torch modules, with weights."""
        if "_module" not in vars(cls):
            has = {
                "__module__": cls.__module__,
                "__doc__": cls.__doc__,
                "parameter": lambda self, *shape: torch.nn.Parameter(torch.zeros(shape)),
                "num_weights": property(lambda self: sum(each.numel() for each in self.parameters())),
            }
            cls._module = type(cls.__name__, (cls, torch.nn.Module), has)
        return cast("type[Self]", cls._module)

    @classmethod
    def check_class(cls, where: str) -> None:
        """See `Registered`: a layer has a propagation and a `forward`."""
        super().check_class(where)
        if not isinstance(getattr(cls, "propagation", None), Propagation):
            raise UserError(f"'{where}' has no propagation", fix="write `propagation = harness.plugin.MEAN`, or alike")
        if not hasattr(cls, "forward"):
            raise UserError(f"'{where}' has no forward", fix="define it in the class")

    @classmethod
    def check_spec(cls, spec: ModelSpec) -> None:
        """Raise a ValueError "key: what is wrong" if there is no such model."""

    @classmethod
    def label(cls, spec: ModelSpec) -> str:
        """Return what of its own options a label of the model ends in."""
        return ""

    @classmethod
    def build(cls, spec: ModelSpec, inputs: int, outputs: int, *, last: bool, products: Products) -> Self:
        """Return a layer of the model; `last`: its output is the logits."""
        return cls(inputs, outputs, products=products)

    @classmethod
    def options_of(cls, spec: ModelSpec) -> Any:
        """Return the model's own options, an `Options`."""
        return cls.Options(**spec.options)

    def reset(self, generator: torch.Generator) -> None:
        """Glorot-uniform weights and zero biases."""
        for parameter in self.parameters():
            if parameter.dim() == 2:
                bound = math.sqrt(6 / sum(parameter.shape))
                torch.nn.init.uniform_(parameter, -bound, bound, generator=generator)

    def run(
        self, blocks: Sequence[Block], h: Tensor, fetch: HopFetch, transform_first: bool, aggregated: Tensor | None
    ) -> Tensor:
        """Return the output on the blocks of all hops; `fetch` is called with the hop, from 0."""
        out: Tensor = self(blocks[0], h, lambda rows: fetch(rows, 0), transform_first, aggregated)
        return out

    def reached(self, hop: int) -> Tensor:
        """Return the weights that multiply what a node's row sends in a hop, [inputs, width]."""
        return self.weight

    def propagate(
        self, block: Block, h: Tensor, fetch: Fetch, transform_first: bool, into: Tensor | None = None
    ) -> Tensor:
        """Return A H W [num_dst, outputs], in the order that `transforms_first` says; or `into`, and it in place.

        A block that communicates is given H, as the papers send it, but with `transform_first`. Arguments as of
        `forward`.
        """
        if transform_first:
            found = self.aggregate(block, fetch(self.linear(h, self.weight)))
            return found if into is None else into.add_(found)
        source = fetch(h)
        own = source.own if isinstance(source, Arriving) else source
        weights, inputs = (torch.is_grad_enabled() and x.requires_grad for x in (self.weight, own))
        sizes = block.entries, block.num_dst, block.num_src
        if not block.communicates and self.transforms_first(*sizes, weights=weights, inputs=inputs):
            found = self.aggregate(block, source, lambda rows: self.linear(rows, self.weight))
            return found if into is None else into.add_(found)
        return self.linear(self.aggregate(block, source), self.weight, into=into)

    def aggregate(self, block: Block, h: Tensor | Arriving, of: Transform | None = None) -> Tensor:
        """Return the layer's propagation of rows, as `Block.aggregate` does, of rounded ones where products are."""
        return block.aggregate(h, self.propagation, of, rounded=self.linear.rounded)

    def transforms_first(self, entries: int, num_dst: int, num_src: int, *, weights: bool, inputs: bool) -> bool:
        """Return whether to compute A (H W), not (A H) W: as `products` says, or as is cheaper.

        Counted are the multiply-adds of both passes (Zeng et al., JPDC 2021, section 6.1, where every gradient is
        needed) on a block of so many entries and rows; `weights` and `inputs` say whether the gradients of W and
        of H will be asked for. For that of W, A (H W) takes A^T to the gradient, and (A H) W has A H.
        """
        if self.products != "auto":
            return self.products == "transform-first"
        gemms = (1 + weights + inputs) * self.inputs * self.outputs
        transformed = SPMM_COST * entries * (1 + (weights or inputs)) * self.outputs + num_src * gemms
        return transformed < SPMM_COST * entries * (1 + inputs) * self.inputs + num_dst * gemms

    def work(self, case: LayerCase, forward: Work, backward: Work) -> None:
        """Add what the passes of a step compute; `propagate` is what this follows.

        Weights besides W are taken to multiply the destinations' rows. What is done value by value is left out.
        """
        size, gradients = case.blocks[-1], 1 if case.first else 2  # of weights, and of what they multiply
        early = case.transform_first or (
            self.can_transform_first
            and not case.communicates
            and self.transforms_first(size.edges, size.dst, size.src, weights=True, inputs=not case.first)
        )
        others = self.num_weights - self.inputs * self.transformed - self.outputs
        rows = size.src if early and not (case.transform_first or case.aggregated) else size.dst
        flops = 2 * (rows * self.inputs * self.transformed + size.dst * others)
        forward.flops, backward.flops = forward.flops + flops, backward.flops + gradients * flops
        width = self.transformed if early else self.inputs
        for each in case.blocks[case.aggregated :]:
            forward.read(width, each.edges, each.src, rounds=not case.communicates)
            if early or not case.first:
                backward.read(width, each.edges, each.dst, rounds=not case.communicates)

    def training_values(self, case: LayerCase) -> LayerValues:
        """Return what the layer has in memory in a step; `propagate` is what this follows.

        A product keeps its input: the source matrix where H W comes first, the aggregation where A H does. The
        exchange's backward pass adds what peers send (about the boundary) to a copy of the inner rows.
        """
        (size,) = case.blocks
        dst, src, given, d, o = size.dst, size.src, size.given, self.inputs, self.outputs
        own = (given if case.exchanged else src) * d if case.keeps_input else 0
        to_input = 0 if case.first else given * d
        if case.aggregated:
            return LayerValues(2 * own, 2 * dst * o, dst * o)
        if case.transform_first:
            through = to_input + (2 * dst + src + case.boundary) * o
            return LayerValues(own, (3 * dst + src) * o, through)
        back = (src + case.boundary + given) * d if case.exchanged and not case.first else 0
        source = src * d if case.exchanged else 0
        to_source, spread = (0, 0) if case.first else (src * (d + o), (2 * dst + src) * d)
        through = to_input + max((dst + src) * o, to_source, back)
        transformed = LayerValues(own + source, (2 * dst + src) * o, through)
        summed = LayerValues(own + dst * d, 2 * dst * o + source, to_input + max(spread, back))
        chosen = self.transforms_first(size.edges, dst, src, weights=True, inputs=not case.first)
        return transformed if chosen else summed

    def evaluation_values(self, block: BlockSize, *, exchanged: bool) -> int:
        """Return the values at the peak of an exact evaluation of the layer, which exchanges the narrower of H and H W.

        `block.src`: the inner rows and those of the boundary that are received at once.
        """
        rows, d, o = block.dst, self.inputs, self.outputs
        if self.can_transform_first and self.transformed < d:
            return rows * (d + 3 * o) + (block.src * self.transformed if exchanged else 0)
        return 2 * rows * (d + o) + (block.src * d if exchanged else 0)


MODELS: Registry[type[GraphLayer]] = Registry(GraphLayer, "harness.models", others=["gnn"])  # which imports torch
