from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from harness.errors import UserError
from harness.graph.block import Block
from harness.graph.csr import CSR
from harness.models.gnn import GNN
from harness.models.spec import ModelSpec


def test_float32_with_linear_layers_follows_float64() -> None:
    """The compiled products of float32 against torch's own in float64, for new and recurring row counts."""
    nodes = 3000
    spec = ModelSpec(name="sage", layers=1, linear_layers=2, hidden=40, dropout=0)
    ring = CSR(torch.arange(nodes + 1), ((torch.arange(nodes) + 1) % nodes).int(), nodes)
    x = torch.randn(nodes, 24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gradients = {}
    for dtype in (torch.float64, torch.float32):
        model = GNN(spec, 24, 7, seed=1, dtype=dtype)
        block = Block(ring, torch.ones(nodes, dtype=dtype))
        for _ in range(2):
            model.zero_grad()
            out = model([block], x.to(dtype))
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
    assert [model.narrows(layer) for layer in range(2)] == [False, False]
    tail = GNN(
        ModelSpec(name="gat", layers=1, linear_layers=1, hidden=6, heads=3),
        13,
        5,
        seed=0,
        dtype=torch.float32,
    )
    assert tail.graph_layers[0].weight.shape == (13, 6)
    assert tail.narrows(0)
    with pytest.raises(ValidationError, match="heads: a hidden width of 6 is not divisible by 4"):
        ModelSpec(name="gat", hidden=6)


def test_attention_cannot_be_computed_before_training() -> None:
    sage, gat = (
        GNN(ModelSpec(name=name, hidden=8), 4, 3, seed=0, dtype=torch.float32) for name in ("sage", "gat")
    )
    sage.require_fixed_aggregation()
    with pytest.raises(UserError, match="precompute: gat aggregates with weights that it learns"):
        gat.require_fixed_aggregation()
