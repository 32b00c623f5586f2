"""Values (not bytes) that the layers of a model have in memory at once, as `harness.models` runs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

from harness.models.gnn import GNN
from harness.models.layers import GATLayer, GraphLayer
from harness.models.mixhop import MixHopLayer


@dataclass(frozen=True)
class BlockSize:
    """Destination rows, source rows and entries of a layer's block."""

    dst: int
    src: int
    edges: int


@dataclass(frozen=True)
class _Pass:
    """Values of one layer: what autograd keeps of it, and what is there beside during its passes."""

    kept: int
    forward: int
    backward: int


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
    narrow: bool = False,
    inputs_fetched: bool = False,
    loss_rows: int = 0,
    cuda: bool = False,
    itemsize: int = 4,
    least: bool = False,
) -> int:
    """Return the peak over a step's forward and backward pass, the input features themselves left out.

    Args:
        model: the replica.
        blocks: sizes of each block, input layer first.
        exchanged: inner rows become source rows by an exchange, which makes a new matrix of them.
        precompute: the first layer's aggregation is given.
        narrow: H W is exchanged where it is narrower.
        inputs_fetched: the first layer's input is fetched for the step.
        loss_rows: rows that the loss reads.
        cuda: dropout keeps a mask (a byte a value), ReLU its output.
        itemsize: bytes of a value.
        least: a lower bound, whichever of A (H W) and (A H) W the layers compute.

    Raises:
        UserError: `precompute` of a model that attends.
    """
    if precompute:
        model.require_fixed_aggregation()
    passes, outputs = list[_Pass](), list[int]()
    for module, own in model.by_layer(blocks):
        first = not passes
        given, narrowed = precompute and first, narrow and model.narrows(len(passes) * module.hops)
        passes.append(_graph_pass(model, module, first, own, exchanged, given, narrowed, least))
        outputs.append(own[-1].dst * module.outputs)
    rows = blocks[-1].dst
    passes += [_Pass(rows * a, rows * b, rows * (a + b)) for a, b in model.linear_widths]
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
        peak = max(
            peak, kept + layer.forward, kept + normed + between + output, kept + output + layer.backward
        )
        kept += normed + masks
    return peak


def evaluation_values(model: GNN, block: BlockSize, *, exchanged: bool, least: bool = False) -> int:
    """Return the peak of an exact evaluation, its own copy of the input features included."""
    rows, peak = block.dst, 0
    for layer, _ in model.by_layer([block] * model.depth):
        d, o = layer.inputs, layer.outputs
        source = block.src * d if exchanged else 0
        if isinstance(layer, MixHopLayer):
            hop = source + (block.src + rows * min(layer.hops, 2)) * d
            peak = max(peak, rows * (d + o) + max(hop, rows * (d + o)))
            continue
        if layer.attends:
            z = (block.src + rows) * layer.transformed
            peak = max(peak, rows * d + max(source + block.src * layer.transformed, z + 2 * rows * o))
            continue
        transformed, summed = block.src * o, rows * d
        sizes = block.edges, rows, block.src
        first = layer.transforms_first(*sizes, weights=False, inputs=False)
        between = transformed if first else summed
        between = min(transformed, summed) if least else between
        peak = max(peak, rows * d + source + between + 2 * rows * o)
    wide = max((a + b for a, b in model.linear_widths), default=0)
    return rows * model.widths[0][0] + max(peak, rows * wide)


def _graph_pass(
    model: GNN,
    layer: GraphLayer,
    first: bool,
    blocks: Sequence[BlockSize],
    exchanged: bool,
    aggregated: bool,
    narrow: bool,
    least: bool,
) -> _Pass:
    """Values of a graph layer; `GraphLayer.propagate` is what this follows.

    SyncExchange makes the source matrix new. A product keeps its input: the source matrix where H W comes
    first, the aggregation where A H does. The exchange's backward pass adds what peers send (about
    the boundary) to a copy of the inner rows. The first layer's input needs no gradient.
    """
    if isinstance(layer, MixHopLayer):
        return _mixed_pass(model, layer, first, blocks, exchanged, aggregated)
    (size,) = blocks
    if isinstance(layer, GATLayer):
        return _attention_pass(model, layer, first, size, exchanged, narrow)
    dst, src, d, o = size.dst, size.src, layer.inputs, layer.outputs
    boundary = size.src - size.dst if exchanged else 0
    # Without dropout the first layer's input is the feature matrix itself.
    own = 0 if first and model.spec.dropout == 0 else (dst if exchanged else src) * d
    to_input = 0 if first else dst * d
    if aggregated:
        return _Pass(2 * own, 2 * dst * o, dst * o)
    if narrow:
        return _Pass(own, (3 * dst + src) * o, to_input + (2 * dst + src + boundary) * o)
    back = 0 if first or not exchanged else (src + boundary + dst) * d
    to_source = 0 if first else src * (d + o)
    transformed = _Pass(
        own + (src * d if exchanged else 0),
        (2 * dst + src) * o,
        to_input + max((dst + src) * o, to_source, back),
    )
    spread = 0 if first else (2 * dst + src) * d
    summed = _Pass(own + dst * d, 2 * dst * o + (src * d if exchanged else 0), to_input + max(spread, back))
    if least:
        return _Pass(*map(min, astuple(transformed), astuple(summed)))
    chosen = layer.transforms_first(size.edges, dst, src, weights=True, inputs=not first)
    return transformed if chosen else summed


def _attention_pass(
    model: GNN, layer: GATLayer, first: bool, size: BlockSize, exchanged: bool, narrow: bool
) -> _Pass:
    """Values of a layer of attention: z = H W of the sources, the heads' outputs, and columns by head.

    Nothing is by edge. Kept are H where a product or ReLU reads it, z, query, total and peak, and the heads'
    outputs unless the normalisation keeps them. Backward: products of gradient and output, the state of the
    destinations, and the gradient of z, then that of H.
    """
    dst, src, d, w, heads = size.dst, size.src, layer.inputs, layer.transformed, layer.heads
    boundary = src - dst if exchanged else 0
    spec = model.spec
    source = src * d if exchanged and not narrow else 0
    plain = first and spec.dropout == 0
    own = 0 if plain or (first and source) else (dst if exchanged else src) * d
    shared = spec.norm == "layer" and not layer.average and not (spec.residual and d == layer.outputs)
    kept = own + source + src * w + 3 * dst * heads + (0 if shared else dst * w)
    forward = (
        src * heads + (dst * w if narrow or shared else 0) + (dst * layer.outputs if layer.average else 0)
    )
    states = (4 * dst + 2 * src) * heads
    through = (src + dst) * w + states + (dst * w if layer.average else 0)
    to_input = 0 if first else dst * d
    if narrow:
        return _Pass(kept, forward, max(through, (src + boundary + dst) * w, dst * w + to_input))
    to_source = 0 if first else src * (w + d)
    back = 0 if first or not exchanged else (src + boundary + dst) * d
    return _Pass(kept, forward, to_input + max(through, to_source, back))


def _mixed_pass(
    model: GNN,
    layer: MixHopLayer,
    first: bool,
    blocks: Sequence[BlockSize],
    exchanged: bool,
    aggregated: bool,
) -> _Pass:
    """Values of a layer of mixed powers, whose products keep H, every t_k and copies of the weights.

    A hop has its source matrix, new of an exchange, and a scaled copy. Backward, t_k is gone; there are its
    gradient, a scaled copy, and the gradient of the source; or that, what peers sent, and their sum.
    """
    d, outputs = layer.inputs, blocks[-1].dst * layer.outputs
    own = (blocks[0].dst if exchanged else blocks[0].src) * d
    kept = before = 0 if first and model.spec.dropout == 0 else own
    forward = backward = 0
    for hop, size in enumerate(blocks):
        if aggregated and hop == 0:
            kept += before
            continue
        kept += size.dst * d
        forward = max(forward, kept + (1 + exchanged) * size.src * d)
        boundary = size.src - size.dst if exchanged else 0
        backward = max(backward, size.src + max(size.dst, boundary))
    forward = max(forward - kept + outputs, 2 * outputs)
    return _Pass(kept + layer.weight.numel(), forward, outputs if first else backward * d)
