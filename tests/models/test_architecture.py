"""Sizes without weights: held against the modules of torch that are trained."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch

from harness.models.architecture import Architecture, evaluation_values, training_values
from harness.models.gnn import GNN
from harness.models.layer import MODELS, BlockSize
from harness.models.sage import SageLayer
from harness.models.spec import ModelSpec
from harness.spec import PluginSource

SHAPES = [{"layers": 1}, {"layers": 2, "norm": "layer"}, {"layers": 3, "linear_layers": 2, "norm": "layer"}]


@pytest.mark.parametrize(("name", "shape"), list(product(MODELS.names(), SHAPES)))
def test_it_is_that_of_the_model_with_weights(name: str, shape: dict[str, object]) -> None:
    spec = ModelSpec.model_validate({"name": name, "hidden": 12, "heads": 3, **shape})
    sizes, model = Architecture(spec, 7, 5), GNN(spec, 7, 5, seed=0, dtype=torch.float32)
    assert sizes.num_weights == model.num_weights == sum(p.numel() for p in model.parameters())
    linear = [(layer.in_features, layer.out_features) for layer in model.linear_layers]
    assert sizes.linear_widths == model.linear_widths == linear
    assert (sizes.widths, sizes.hops, sizes.depth) == (model.widths, model.hops, model.depth)
    assert sizes.widest_evaluated == model.widest_evaluated
    blocks = [BlockSize(10, 30, 100)] * sizes.depth
    for exchanged in (False, True):
        needed = [training_values(each, blocks, exchanged=exchanged) for each in (sizes, model)]
        assert needed[0] == needed[1]
        needed = [evaluation_values(each, blocks[0], exchanged=exchanged) for each in (sizes, model)]
        assert needed[0] == needed[1]


def test_a_layer_has_no_weights_until_it_is_a_module() -> None:
    for layer in (MODELS.load("sage"), MODELS.load("gcn")):
        assert not isinstance(layer(3, 4), torch.nn.Module)
        assert isinstance(layer.as_module()(3, 4), layer)
        assert layer.as_module() is layer.as_module()
        assert {p.dtype for p in layer.as_module()(3, 4).parameters()} == {torch.float32}


def test_sizes_of_a_plugins_model_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its layers are torch modules, whose weights would be 2 PB."""
    spec = ModelSpec(layers=3, hidden=1 << 24)
    source = PluginSource(file=Path(__file__), module=None, cls="SageLayer", sha256="0")
    monkeypatch.setattr("harness.registry.Registry.load", lambda *_: SageLayer)
    assert Architecture(spec, 64, 10, source=source).num_weights == Architecture(spec, 64, 10).num_weights > 1 << 48
