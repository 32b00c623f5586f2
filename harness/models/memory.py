"""Values (not bytes) that the layers of a model have in memory at once, as `harness.models` runs them."""

from __future__ import annotations

from collections.abc import Sequence

from harness.models.gnn import GNN
from harness.models.layer import BlockSize, LayerCase, LayerValues


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
        model: the replica.
        blocks: sizes of each block, input layer first.
        exchanged: inner rows become source rows by an exchange, which makes a new matrix of them.
        precompute: the first layer's aggregation is given.
        transform_first: H W is exchanged where it is narrower.
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


def evaluation_values(model: GNN, block: BlockSize, *, exchanged: bool, least: bool = False) -> int:
    """Return the peak of an exact evaluation, its own copy of the input features included."""
    rows, peak = block.dst, 0
    for layer, _ in model.by_layer([block] * model.depth):
        peak = max(peak, layer.evaluation_values(block, exchanged=exchanged, least=least))
    wide = max((a + b for a, b in model.linear_widths), default=0)
    return rows * model.widths[0][0] + max(peak, rows * wide)
