from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from support.products import train_and_watch_widths
from support.ranks import run_ranks
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from harness.check import oracle
from harness.check.graphs import on_disk, random_graph
from harness.check.training import Case
from harness.graph.block import Block
from harness.graph.csr import CSR
from harness.models.layer import KEPT, SPMM_COST, GraphLayer, ModelSpec, Products
from harness.models.shipped_layers import GATLayer, GCNLayer, SageLayer
from harness.runtime.run_config import TrainSpec

ORDERS: list[Products] = ["aggregate-first", "transform-first"]
LAYERS: dict[str, type[GCNLayer | SageLayer]] = {"sage": SageLayer, "gcn": GCNLayer}


def block_of(dense: np.ndarray, rows: int) -> Block:
    """Return the block of the first `rows` rows of a dense matrix, whose values are edge weights."""
    matrix = sp.csr_matrix(dense[:rows])
    structure = torch.from_numpy(matrix.indptr.astype(np.int64)), torch.from_numpy(matrix.indices)
    adjacency = CSR(*structure, len(dense), torch.from_numpy(matrix.data))
    return Block(adjacency, torch.from_numpy(dense.sum(1)))


def weights_of(seed: int, nodes: int) -> np.ndarray:
    """Return symmetric edge weights, dense; some nodes have no edge."""
    rng = np.random.default_rng(seed)
    upper = np.triu(rng.random((nodes, nodes)) * (rng.random((nodes, nodes)) < 0.3), 1)
    upper[:, ::5] = upper[::5] = 0
    return upper + upper.T


@dataclass
class Run:
    """A forward and a backward pass: the widths of its sparse products, and all multiply-adds' cost."""

    out: Tensor
    gradients: list[Tensor]
    widths: list[int] = field(default_factory=list)
    cost: float = 0


def run(layer: GraphLayer, block: Block, h: Tensor, weights: bool, inputs: bool) -> Run:
    for parameter in layer.parameters():
        parameter.requires_grad_(weights)
    h = h.clone().requires_grad_(inputs)
    widths: list[int] = []

    def watched(matrix: CSR, x: Tensor) -> Tensor:
        widths.append(x.shape[1])
        return multiply(matrix, x)

    multiply = block.engine.multiply
    watching = block.engine._replace(multiply=watched)
    with mock.patch.object(block, "engine", watching), FlopCounterMode(display=False) as counter:
        out = layer(block, h, lambda rows: rows)
        if out.requires_grad:
            out.square().sum().backward()
    gradients = [x.grad for x in (h, *layer.parameters()) if x.grad is not None]
    dense = counter.get_total_flops() / 2
    return Run(out.detach(), list(gradients), widths, dense + SPMM_COST * block.adjacency.nnz * sum(widths))


@pytest.mark.parametrize("order", ["auto", *ORDERS])
@pytest.mark.parametrize("name", LAYERS)
def test_every_order_is_the_formula(name: str, order: Products) -> None:
    """Against dense matrices, forward and backward; a block has fewer rows than sources."""
    dense = weights_of(0, 20)
    x = torch.from_numpy(np.random.default_rng(1).random((20, 5)))
    layer = LAYERS[name].as_module()(5, 3, products=order).double()
    layer.reset(torch.Generator().manual_seed(0))
    found = run(layer, block_of(dense, 12), x, weights=True, inputs=True)
    matrix, own = oracle.propagation_matrix(dense, name)[:12], x.clone().requires_grad_()
    want = matrix @ own @ layer.weight + layer.bias
    if isinstance(layer, SageLayer):
        want = want + own[:12] @ layer.weight_self
    torch.testing.assert_close(found.out, want.detach(), rtol=1e-12, atol=1e-12)
    gradients = torch.autograd.grad(want.square().sum(), [own, *layer.parameters()])
    for one, other in zip(found.gradients, gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    if order != "auto":
        assert found.widths == ([5, 5] if order == "aggregate-first" else [3, 3])


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("order", ["auto", *ORDERS])
def test_heads_that_add_up_inputs_are_those_that_add_up_products(order: Products, average: bool) -> None:
    """Against the formula over all pairs, forward and backward; a block has fewer rows than sources."""
    dense, heads = weights_of(0, 20), 2
    x = torch.from_numpy(np.random.default_rng(1).random((20, 5)))
    layer = GATLayer.as_module()(5, 6, heads, average, products=order).double()
    layer.reset(torch.Generator().manual_seed(0))
    torch.nn.init.normal_(layer.bias)
    found = run(layer, block_of(dense, 12), x, weights=True, inputs=True)
    own, width = x.clone().requires_grad_(), 6 if average else 3
    z = (own @ layer.weight).view(20, heads, width)
    logits = (z * layer.weight_src).sum(2)[None] + (z[:12] * layer.weight_dst).sum(2)[:, None]
    counts = torch.from_numpy(dense[:12] + np.eye(12, 20)).unsqueeze(2)
    weights = counts * torch.nn.functional.leaky_relu(logits, 0.2).exp()
    sums = torch.einsum("ijh,jhw->ihw", weights / weights.sum(1, keepdim=True), z)
    want = (sums.mean(1) if average else sums.flatten(1)) + layer.bias
    torch.testing.assert_close(found.out, want.detach(), rtol=1e-12, atol=1e-12)
    gradients = torch.autograd.grad(want.square().sum(), [own, *layer.parameters()])
    for one, other in zip(found.gradients, gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_heads_add_up_inputs_where_these_are_narrower() -> None:
    assert not GATLayer(256, 41, 4, True).attends_inputs
    assert GATLayer(16, 172, 4, True).attends_inputs
    assert not GATLayer(16, 64, 4, False).attends_inputs  # 16 values a head


def test_auto_has_the_least_multiply_adds() -> None:
    """Counted by torch and a watched engine, whatever gradients are asked for; each order wins at times."""
    winners = set()
    for rows, inputs, outputs in product((6, 20, 40), (2, 6, 9, 12), (2, 6, 9)):
        block = block_of(weights_of(rows, 40), rows)
        h, layer = torch.ones(40, inputs, dtype=torch.float64), GCNLayer.as_module()
        for asked in product((True, False), repeat=2):
            costs = [run(layer(inputs, outputs, products=order).double(), block, h, *asked).cost for order in ORDERS]
            chosen = run(layer(inputs, outputs).double(), block, h, *asked).cost
            assert chosen == min(costs), (rows, inputs, outputs, asked)
            winners.add((asked, bool(costs[0] < costs[1]), inputs > outputs))
    # A wider input is aggregated first where its gradient is not needed, and not too much wider.
    assert {((True, False), True, True), ((True, False), False, True)} <= winners
    assert {((True, True), True, False), ((True, True), False, True)} <= winners


def test_the_order_reaches_the_layers_of_a_trial(tmp_path: Path) -> None:
    """Two ranks, widths 7, 6 and 4: an epoch with its backward pass; one result."""
    data = on_disk(random_graph(1), np.arange(60) // 30, 2, False, tmp_path)
    model = ModelSpec(name="gcn", layers=2, hidden=6, dropout=0)
    specs = [TrainSpec(epochs=1, precision="float64", threads=1, products=order) for order in ORDERS]
    cases = [Case(data, "full", {}, model, spec) for spec in specs]
    for (aggregated, first), (transformed, second) in run_ranks(train_and_watch_widths, 2, cases):
        # The aggregation of the features is not reversed, that of H W is.
        assert first == [7, 6, 6]
        assert second == [6, 4, 4, 6]
        for name, gradient in aggregated.gradients.items():
            np.testing.assert_allclose(transformed.gradients[name], gradient, rtol=1e-9, atol=1e-12)


def test_what_was_run_is_not_asked_again_whether_it_fits_its_layer() -> None:
    misfit = {"name": "gat", "hidden": 7, "heads": 2}
    with pytest.raises(ValueError, match="heads"):
        ModelSpec.model_validate(misfit)
    assert ModelSpec.model_validate(misfit, context=KEPT).hidden == 7
