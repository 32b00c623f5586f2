from __future__ import annotations

import torch

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
