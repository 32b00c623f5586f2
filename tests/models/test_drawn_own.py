"""Models on blocks whose destinations need not be sources, against dense matrices of all nodes, with autograd."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from harness.check.graphs import random_graph
from harness.graph.block import Block, OwnRows
from harness.graph.csr import CSR, Topology
from harness.models.gnn import GNN
from harness.models.layer import ModelSpec
from harness.sampling.layerwise import LayerSampler
from harness.sampling.sample import LayerSample, Tables, propagation_scales

NODES, WIDTH, CLASSES = 80, 5, 4
MODELS: dict[str, dict[str, Any]] = {
    "sage": {"name": "sage"},
    "gcn": {"name": "gcn", "norm": "layer"},
    "gcn residual": {"name": "gcn", "residual": True},
    "gat": {"name": "gat", "heads": 2},
    "mixhop": {"name": "mixhop", "order": 2, "hidden": 6},
    "mixhop mean": {"name": "mixhop", "order": 2, "hidden": 6, "options": {"propagation": "mean"}},
}


class Dense:
    """A layer's draw as matrices [N, N] and columns [N, 1]."""

    def __init__(self, layer: LayerSample, topology: Topology, model: GNN) -> None:
        own = layer.own
        assert own is not None
        left, right = propagation_scales(topology, model.propagation)
        right = np.ones(NODES) if right is None else right
        rows = layer.destinations[np.repeat(np.arange(layer.num_dst), np.diff(layer.indptr))]
        values = np.ones(layer.indices.size) if layer.values is None else layer.values
        scale = np.ones(NODES)
        if layer.dst_scale is not None:
            scale[layer.destinations] = layer.dst_scale
        counts, found, loop = np.zeros((NODES, NODES)), np.zeros(NODES), np.zeros(NODES)
        np.add.at(counts, (rows, layer.sources[layer.indices]), values)
        there = layer.destinations[own.at]
        found[there], loop[there] = own.scale, own.loop
        counts *= scale[:, None]
        self.counts = torch.from_numpy(counts)
        self.matrix = torch.from_numpy(left[:, None] * counts * right)
        if model.propagation.self_loop:
            self.matrix += torch.from_numpy(np.diag(left * right * loop))
        self.own = torch.from_numpy(found).unsqueeze(1)
        self.destinations = torch.from_numpy(layer.destinations)


def attention(draw: Dense, z: Tensor, layer: Any) -> Tensor:
    """The heads' outputs [N, heads, width]: a softmax whose terms are multiplied by what edges count."""
    z = z.view(NODES, layer.heads, -1)
    there = (draw.own > 0).double()
    query = (z * layer.weight_dst).sum(2) * there
    key = (z * layer.weight_src).sum(2)
    score = torch.nn.functional.leaky_relu(query.unsqueeze(1) + key.unsqueeze(0), 0.2)
    counts = (draw.counts + torch.diag(draw.own.squeeze(1))).unsqueeze(2)
    weight = counts * score.exp()
    total = weight.sum(1, keepdim=True)
    return torch.einsum("ijh,jhw->ihw", weight / torch.where(total > 0, total, 1), z)


def dense_layer(layer: Any, draws: list[Dense], h: Tensor) -> Tensor:
    if layer.name == "sage":
        (draw,) = draws
        return draw.own * (h @ layer.weight_self) + draw.matrix @ h @ layer.weight + layer.bias
    if layer.name == "gcn":
        (draw,) = draws
        return draw.matrix @ h @ layer.weight + layer.bias
    if layer.name == "gat":
        (draw,) = draws
        heads = attention(draw, h @ layer.weight, layer)
        return (heads.mean(1) if layer.average else heads.flatten(1)) + layer.bias
    powers, parts = h, list[Tensor]()
    for weight, k in zip(layer.weight.chunk(layer.hops + 1, 1), range(layer.hops + 1), strict=True):
        own = powers
        for draw in draws[k:]:
            own = draw.own * own
        parts.append(own @ weight)
        powers = draws[k].matrix @ powers if k < layer.hops else powers
    return (torch.stack(parts).sum(0) if layer._add else torch.cat(parts, 1)) + layer.bias


def dense_forward(model: GNN, draws: list[Dense], x: Tensor) -> Tensor:
    h = x
    layers: list[Any] = list(model.graph_layers)
    for i, layer in enumerate(layers):
        mine = draws[i * layer.hops : (i + 1) * layer.hops]
        out = dense_layer(layer, mine, h)
        if i + 1 < len(layers):
            if model.spec.residual and h.shape[1] == out.shape[1]:
                for draw in mine:
                    h = draw.own * h
                out = out + h
            out = torch.relu(model.norms[i](out))
        h = out
    return h[draws[-1].destinations]


@pytest.mark.parametrize("estimator", ["poisson", "ladies"])
@pytest.mark.parametrize("name", MODELS)
def test_forward_and_gradients_are_those_of_dense_matrices(name: str, estimator: Any) -> None:
    graph = random_graph(3, nodes=NODES, degree=6, weighted=True)
    topology = Topology(graph.indptr, graph.indices, graph.weights)
    spec = ModelSpec(**{"layers": 3, "hidden": 8, "dropout": 0, **MODELS[name]})
    model = GNN(spec, WIDTH, CLASSES, seed=2, dtype=torch.float64)
    sampler = LayerSampler(
        topology, model.propagation, Tables(NODES), reads_own=model.reads_own, estimator=estimator, layers="paper"
    )
    lost = 0
    for seed in range(4):
        rng = np.random.default_rng(seed)
        targets = rng.permutation(NODES)[:12].astype(np.int64)
        layers = sampler.sample(targets, [25] * model.depth, seed).layers
        lost += sum(layer.own.at.size < layer.num_dst for layer in layers if layer.own)
        x = torch.from_numpy(rng.normal(size=(NODES, WIDTH))).requires_grad_()
        weights = torch.from_numpy(rng.normal(size=(12, CLASSES)))
        parameters = [x, *model.parameters()]
        where = {"device": torch.device("cpu"), "dtype": torch.float64}
        blocks = [layer.block(topology, **where) for layer in layers]  # type: ignore[arg-type]
        out = model(blocks, x[torch.from_numpy(layers[0].sources)])
        want = dense_forward(model, [Dense(layer, topology, model) for layer in layers], x)
        torch.testing.assert_close(out, want, rtol=1e-10, atol=1e-12)
        found = torch.autograd.grad((out * weights).sum(), parameters)
        expected = torch.autograd.grad((want * weights).sum(), parameters)
        for mine, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)
    assert lost > 4


def test_nothing_drawn_is_nothing_but_the_bias() -> None:
    """Two destinations without any source."""
    empty = CSR(torch.zeros(3, dtype=torch.int64), torch.empty(0, dtype=torch.int32), 0)
    none = torch.empty(0, dtype=torch.int64)
    own = OwnRows(torch.tensor([2.0, 0.0]), none, none, torch.empty(0), torch.empty(0))
    block = Block(empty, torch.empty(0), own=own)
    for name in ("sage", "gcn", "gat"):
        model = GNN(ModelSpec(name=name, layers=1, hidden=8, dropout=0), 3, CLASSES, seed=0, dtype=torch.float32)
        bias: Any = model.graph_layers[0].bias
        bias.data.copy_(torch.arange(4.0))
        out = model([block], torch.empty((0, 3)))
        assert torch.equal(out, torch.arange(4.0).expand(2, 4)), name
        out.sum().backward()
        assert torch.equal(bias.grad, torch.full((4,), 2.0))
        assert not model.graph_layers[0].weight.grad.any()
