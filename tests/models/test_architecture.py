"""Sizes without weights: held against the modules of torch that are trained."""

from __future__ import annotations

from itertools import pairwise, product
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch.utils.flop_counter import FlopCounterMode

from harness.graph.block import Block
from harness.graph.csr import CSR
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


def block_of(dst: int, src: int) -> Block:
    matrix = sp.random(dst, src, 0.2, format="csr", random_state=np.random.default_rng(dst))
    structure = torch.from_numpy(matrix.indptr.astype(np.int64)), torch.from_numpy(matrix.indices.astype(np.int32))
    return Block(CSR(*structure, src), torch.ones(src, dtype=torch.float64))


Read = list[tuple[int, int, int, bool]]


def passes_of(model: GNN, blocks: list[Block], rows: int, **given: Any) -> list[tuple[int, Read]]:
    """Return of each pass the operations that torch counts, and its sparse products, as `Work.rows` has them."""
    read: Read = []

    def watched(name: str) -> Any:
        original = getattr(Block, name)

        def call(block: Block, x: torch.Tensor, *others: Any) -> Any:
            # The gradient's rows are read by the backward pass of attention, as wide as those of z, its first argument.
            rows = block.num_dst if name == "attention_backward" else len(x)
            rounds = name.startswith("multiply")
            read.append((x.shape[1], block.adjacency.nnz, min(block.adjacency.nnz, rows), rounds))
            return original(block, x, *others)

        return mock.patch.object(Block, name, call)

    found: list[tuple[int, Read]] = []
    with watched("multiply"), watched("multiply_transposed"), watched("attention"), watched("attention_backward"):
        with FlopCounterMode(display=False) as counter:
            logits = model(blocks, torch.rand(rows, model.inputs, dtype=torch.float64), **given)
        found.append((counter.get_total_flops(), read.copy()))
        read.clear()
        with FlopCounterMode(display=False) as counter:
            logits.sum().backward()
        found.append((counter.get_total_flops(), read[::-1]))
    return found


@pytest.mark.parametrize("kind", ["nested", "exchanged", "transformed", "aggregated"])
@pytest.mark.parametrize(("name", "shape"), list(product(["sage", "gcn", "gat", "mixhop"], SHAPES)))
def test_work_is_what_the_passes_of_a_step_compute(name: str, shape: dict[str, object], kind: str) -> None:
    """Torch counts the dense products; the sparse ones are watched."""
    spec = ModelSpec.model_validate({"name": name, "hidden": 12, "heads": 3, **shape})
    model, inner, boundary = GNN(spec, 17, 5, seed=0, dtype=torch.float64), 25, 15
    given: dict[str, Any] = {}
    if kind == "nested":
        sizes = [20 * (model.depth + 1 - i) for i in range(model.depth + 1)]
        blocks, rows = [block_of(dst, src) for src, dst in pairwise(sizes)], sizes[0]
    else:
        blocks, rows = [block_of(inner, inner + boundary)] * model.depth, inner
        given["exchange"] = lambda h, layer: torch.cat([h, h.new_zeros(boundary, h.shape[1])])
        given["transform_first"] = kind == "transformed"
    if kind == "aggregated":
        if name == "gat":
            pytest.skip("attends: nothing can be aggregated before")
        given["aggregated"] = torch.rand(inner, 17, dtype=torch.float64)
    counted = passes_of(model, blocks, rows, **given)
    sizes_of = [BlockSize(block.num_dst, block.num_src, block.entries) for block in blocks]
    options = {"transform_first": kind == "transformed", "aggregated": kind == "aggregated"}
    for architecture in (model, Architecture(spec, 17, 5)):
        works = architecture.work(sizes_of, **options)
        assert [(work.flops, work.rows) for work in works] == counted


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
