from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from harness.errors import UserError
from harness.graph.block import Block
from harness.graph.csr import CSR
from harness.models.gnn import GNN
from harness.models.layer import ModelSpec

NODES = 3000
RING = CSR(torch.arange(NODES + 1), ((torch.arange(NODES) + 1) % NODES).int(), NODES)


@pytest.mark.parametrize(
    "spec",
    [
        ModelSpec(name="sage", layers=1, linear_layers=2, hidden=40, dropout=0),
        ModelSpec(name="mixhop", layers=2, hidden=45, dropout=0),
    ],
    ids=lambda spec: spec.name,
)
def test_float32_follows_float64(spec: ModelSpec) -> None:
    """The compiled products of float32 against torch's own in float64, for new and recurring row counts."""
    x = torch.randn(NODES, 24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gradients = {}
    for dtype in (torch.float64, torch.float32):
        model = GNN(spec, 24, 7, seed=1, dtype=dtype)
        block = Block(RING, torch.ones(NODES, dtype=dtype))
        for _ in range(2):
            model.zero_grad()
            out = model([block] * model.depth, x.to(dtype))
            out.square().sum().backward()
        gradients[dtype] = {"logits": out, **{n: p.grad for n, p in model.named_parameters()}}
    for name, want in gradients[torch.float64].items():
        error = (gradients[torch.float32][name].double() - want).abs().max()
        assert error < 1e-5 * want.abs().max(), name


def test_heads_stand_side_by_side_but_for_logits() -> None:
    spec = ModelSpec(name="gat", layers=2, hidden=6, heads=3)
    assert spec.label == "gat-2x6h3"
    model = GNN(spec, 10, 5, seed=0, dtype=torch.float32)
    assert [tuple(layer.weight.shape) for layer in model.graph_layers] == [(10, 3 * 2), (6, 3 * 5)]
    assert model.widths == [(10, 6), (6, 5)]
    # Sent are H W of 6 with their gradients, or 10; H of 6, or H W of 15.
    assert [model.transforms_first(layer) for layer in range(2)] == [False, False]
    tail = GNN(ModelSpec(name="gat", layers=1, linear_layers=1, hidden=6, heads=3), 13, 5, seed=0, dtype=torch.float32)
    assert tail.graph_layers[0].weight.shape == (13, 6)
    assert tail.transforms_first(0)
    with pytest.raises(ValidationError, match="heads: a hidden width of 6 is not divisible by 4"):
        ModelSpec(name="gat", hidden=6)


def test_orders_stand_side_by_side_but_for_logits() -> None:
    spec = ModelSpec(name="mixhop", layers=2, hidden=12, order=3, linear_layers=0)
    assert spec.label == "mixhop-2x12k3"
    model = GNN(spec, 40, 5, seed=0, dtype=torch.float32)
    assert [tuple(layer.weight.shape) for layer in model.graph_layers] == [(40, 4 * 3), (12, 4 * 5)]
    assert model.depth == 6
    assert model.widths == [(40, 40), (40, 40), (40, 12), (12, 12), (12, 12), (12, 5)]
    assert not any(model.transforms_first(block) for block in range(model.depth))
    assert [model.layer_of(block)[1] for block in range(6)] == [0, 1, 2, 0, 1, 2]
    # What a hop sends meets no weights of the powers below.
    layer = model.graph_layers[1]
    for hop, columns in enumerate([range(5, 20), range(10, 20), range(15, 20)]):
        assert torch.equal(layer.reached(hop), layer.weight[:, list(columns)])
    model.require_fixed_aggregation()
    with pytest.raises(ValueError, match="runs on 6 blocks, not 2"):
        model([Block(RING, torch.ones(NODES))] * 2, torch.ones(NODES, 40))
    with pytest.raises(ValidationError, match="order: a hidden width of 64 is not divisible by 3"):
        ModelSpec(name="mixhop")


def test_hops_take_their_blocks_in_turn_and_the_output_has_the_last_one_s_rows() -> None:
    """Two hops on different shrinking blocks without edges: left are self loops of 1 / (degree + 1)."""
    first, second = (
        Block(CSR(torch.zeros(dst + 1, dtype=torch.int64), torch.empty(0, dtype=torch.int32), src), degree)
        for dst, src, degree in ((4, 6, torch.arange(6.0)), (3, 4, torch.arange(4.0)))
    )
    model = GNN(ModelSpec(name="mixhop", layers=1, order=2, hidden=3, dropout=0), 5, 7, seed=0, dtype=torch.float32)
    x = torch.rand(6, 5, generator=torch.Generator().manual_seed(0))
    weights, bias = model.graph_layers[0].weight.chunk(3, 1), torch.rand(7)
    model.graph_layers[0].bias.data.copy_(bias)
    loop = (1 / torch.arange(1.0, 4.0)).unsqueeze(1)
    want = x[:3] @ weights[0] + loop * x[:3] @ weights[1] + loop**2 * x[:3] @ weights[2] + bias
    torch.testing.assert_close(model([first, second], x), want)


def test_attention_cannot_be_computed_before_training() -> None:
    sage, gat = (GNN(ModelSpec(name=name, hidden=8), 4, 3, seed=0, dtype=torch.float32) for name in ("sage", "gat"))
    sage.require_fixed_aggregation()
    with pytest.raises(UserError, match="precompute: gat aggregates with weights that it learns"):
        gat.require_fixed_aggregation()
