"""Sizes without weights: held against the modules of torch that are trained."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch

from harness.models.architecture import Architecture, evaluation_values, training_values
from harness.models.gnn import GNN
from harness.models.layer import MODELS, BlockSize, ModelSpec
from harness.registry import sha256_of
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


def test_anothers_layer_needs_no_memory_for_its_sizes(tmp_path: Path) -> None:
    """Its weights would take 1 PB."""
    file = tmp_path / "mine.py"
    file.write_text(
        "import torch\nfrom harness import GraphLayer\nfrom harness.plugin import MEAN\n"
        "class Mine(GraphLayer):\n    name = 'mine'\n    propagation = MEAN\n    forward = None\n"
        "    def __init__(self, inputs, outputs, *, products='auto'):\n"
        "        super().__init__(inputs, outputs, products=products)\n"
        "        self.second = torch.nn.Parameter(torch.ones(outputs, outputs) / outputs)\n"
    )
    source = PluginSource(file=file, module=None, cls="Mine", sha256=sha256_of(file))
    width = 16_000_000
    spec = ModelSpec.model_validate({"name": "mine", "layers": 2, "hidden": width})
    sizes = Architecture(spec, 64, 4, source=source)
    assert sizes.num_weights == 64 * width + width + width**2 + 4 * width + 4 + 16
    assert sizes.depth == 2


def test_a_layer_has_no_weights_until_it_is_a_module() -> None:
    for layer in (MODELS.load("sage"), MODELS.load("gcn")):
        assert not isinstance(layer(3, 4), torch.nn.Module)
        assert isinstance(layer.as_module()(3, 4), layer)
        assert layer.as_module() is layer.as_module()
        assert {p.dtype for p in layer.as_module()(3, 4).parameters()} == {torch.float32}
