"""Training whose products are of rounded operands, against training in float32."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.ranks import run_ranks

from harness.check.graphs import on_disk, random_graph
from harness.check.training import Case, RankOutcome, train
from harness.graph.block import Block
from harness.graph.csr import CSR
from harness.models.functional import ROUNDED_ROWS, Linear
from harness.models.gnn import GNN
from harness.models.layer import ModelSpec
from harness.models.shipped_layers import SageLayer
from harness.runtime.cost_models import MemoryCase, PartSize
from harness.runtime.method import METHODS as REGISTERED
from harness.runtime.run_config import TrainSpec

EPOCHS = 8
DRAWN = {"fanouts": 3, "batch_size": 10}
METHODS: dict[str, dict[str, Any]] = {"full": {}, "graphsage": DRAWN}
OTHERS: dict[str, dict[str, Any]] = {
    "bns-gcn": {"rate": 0.5}, "pipegcn": {}, "psc-gcn": {"rate": 0.5}, "adaqp": {}, "local": {}, "cagnet": {},
    "roc": {"budget_share": 0.5}, "sign": {"batch_size": 10}, "cooperative": DRAWN, "p3": DRAWN, "vrgcn": DRAWN,
    "dgs": DRAWN | {"period": 2, "explain": "inline"}, "fastgcn": {"sizes": 20, "batch_size": 10},
    "ladies": {"sizes": 20, "batch_size": 10}, "skewed": {"sizes": 20, "batch_size": 10},
    "clustergcn": {"clusters": 4, "per_batch": 1}, "gas": {"clusters": 4, "per_batch": 1}, "graphsaint": {"size": 20},
}  # fmt: skip
MODELS: list[dict[str, Any]] = [
    {"name": "gcn", "residual": True}, {"name": "gat", "heads": 2}, {"name": "mixhop", "hidden": 12},
    {"name": "sage", "dropout": 0.5},
]  # fmt: skip
# A rounded operand is off by 2^-9 of itself at most, 0.2 %. Of a loss 0.3 %; of how far the weights have moved 12 %.
LOSS, WEIGHTS = 0.003, 0.12


@pytest.mark.parametrize("rows", [1, ROUNDED_ROWS, ROUNDED_ROWS + 3])
def test_a_rounded_product_is_that_of_rounded_operands_summed_in_float32(rows: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight, bias, grad = (
        torch.randn(shape, generator=generator) for shape in ((rows, 40), (40, 9), (9,), (rows, 9))
    )
    operands = [tensor.clone().requires_grad_() for tensor in (x, weight, bias)]
    product = Linear()
    product.rounded = True
    out = product(*operands)
    found = torch.autograd.grad(out, operands, grad)
    wide = [tensor.bfloat16().double() for tensor in (x, weight, grad)]
    wanted = [wide[0] @ wide[1] + bias.double(), wide[2] @ wide[1].T, wide[0].T @ wide[2], grad.double().sum(0)]
    for got, want in zip((out, *found), wanted, strict=True):
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.double(), want, rtol=2**-7, atol=1e-2)
    # In bfloat16 itself sums of so many ones would stay at 256.
    ones = torch.ones(600, 2).requires_grad_()
    assert torch.autograd.grad(product(ones, torch.eye(2)).sum(), ones)[0].tolist() == [[1, 1]] * 600
    assert product(torch.ones(1, 600), torch.ones(600, 1)).item() == 600


def test_products_are_rounded_in_training_only() -> None:
    model = GNN(
        ModelSpec(layers=1, linear_layers=1, hidden=8, dropout=0), 5, 3, seed=0, dtype=torch.float32, rounded=True
    )
    products = [model.graph_layers[0].linear, model.linear_layers[0].product]
    assert all(product.rounded for product in products)
    model.eval()
    assert not any(product.rounded for product in products)
    model.train()
    assert all(product.rounded for product in products)
    assert all(weight.dtype == torch.float32 for weight in model.parameters())


@pytest.mark.parametrize("takes", [True, False])
def test_layers_are_given_rounded_rows_where_they_take_them(takes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SageLayer, "takes_rounded", takes)
    block = Block(CSR(torch.tensor([0, 1, 2]), torch.tensor([1, 0], dtype=torch.int32), 2), torch.ones(2))
    model, given = GNN(ModelSpec(layers=2, hidden=8), 5, 3, seed=0, dtype=torch.float32, rounded=True), []
    for layer in model.graph_layers:
        layer.register_forward_pre_hook(lambda _, arguments: given.append(arguments[1].dtype))
    model([block, block], torch.randn(2, 5)).sum().backward()
    model.eval()([block, block], torch.randn(2, 5))
    assert given == [torch.bfloat16 if takes else torch.float32] * 2 + [torch.float32] * 2
    assert all(weight.grad.dtype == torch.float32 for weight in model.parameters())


def test_the_memory_model_halves_what_products_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of widths 10, 8, 3 on 100 destinations and 120 sources, at the peak in the second layer, which transforms first.

    The first layer keeps its dropped-out inner rows and their aggregation, the second its inner rows and its sources.
    """
    model = GNN(ModelSpec(layers=2, hidden=8), 10, 3, seed=0, dtype=torch.float32)
    case = MemoryCase(
        train=PartSize(inner=100, boundary=20, edges=1000, cut=50), evaluated=None, train_nodes=40, nodes=200,
        edges=2000, model=model, parts=2,
    )  # fmt: skip
    plain, rounded = case.full_graph(), replace(case, rounded=True).full_graph()
    key = "layers, beside Eq. 3"
    assert rounded == plain | {key: plain[key] - 2 * (200 * 10 + 220 * 8)}
    monkeypatch.setattr(SageLayer, "takes_rounded", False)  # float32 rows are kept next to the products' own
    assert replace(case, rounded=True).full_graph() == plain | {key: plain[key] + 2 * (200 * 10 + 220 * 8)}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], list[RankOutcome]]:
    """By method and precision, those of two ranks."""
    graph = random_graph(5, nodes=120)
    data = on_disk(graph, np.arange(120) % 2, 2, False, tmp_path_factory.mktemp("data"))
    model = ModelSpec(layers=2, linear_layers=1, hidden=16, norm="layer", dropout=0)
    keys = [(method, precision) for method in METHODS for precision in ("float32", "bf16")]
    # Adam would make a whole step of a gradient that is all rounding.
    specs = {p: TrainSpec(epochs=EPOCHS, precision=p, optimizer="sgd", lr=0.05, threads=1) for _, p in keys}
    cases = [Case(data, method, METHODS[method], model, specs[precision]) for method, precision in keys]
    by_rank = run_ranks(train, 2, cases)
    return {key: [rank[k] for rank in by_rank] for k, key in enumerate(keys)}


@pytest.mark.parametrize("method", METHODS)
def test_it_follows_training_in_float32(method: str, outcomes: dict[tuple[str, str], list[RankOutcome]]) -> None:
    plain, rounded = outcomes[method, "float32"][0], outcomes[method, "bf16"][0]
    losses = np.array([[row["loss"] for row in outcome.rows] for outcome in (plain, rounded)])
    assert (losses[0] != losses[1]).any()
    np.testing.assert_allclose(losses[1], losses[0], rtol=LOSS)
    assert losses[1][-1] < losses[1][0]
    for name, weight in rounded.after.items():
        assert weight.dtype == np.float32
        moved = np.linalg.norm(plain.after[name] - plain.before[name])
        assert np.linalg.norm(weight - plain.after[name]) < WEIGHTS * moved, name
    # Rows, gradients and the all-reduce stay in float32.
    for one, other in zip(plain.traffic, rounded.traffic, strict=True):
        assert one == other


@pytest.mark.timeout(300)
def test_every_method_and_model_follows_it(tmp_path: Path) -> None:
    """Draws are those of float32, but for those that go by explanations or by norms of rows."""
    graph = random_graph(5, nodes=120)
    data, model = on_disk(graph, np.arange(120) % 2, 2, False, tmp_path), ModelSpec(hidden=16, dropout=0)
    runs = [(name, options, model) for name, options in OTHERS.items()]
    runs += [("full", options, model.model_copy(update=own)) for own in MODELS for options in ({}, {"overlap": True})]
    specs = [TrainSpec(epochs=3, precision=p, optimizer="sgd", lr=0.05, threads=1) for p in ("float32", "bf16")]
    runs = [run for run in runs if run[1:2] != ({"overlap": True},) or run[2].name != "gat"]
    cases = [Case(data, *run[:2], run[2], spec) for run in runs for spec in specs]
    first, second = run_ranks(train, 2, cases, timeout_s=240)
    assert {run[0] for run in runs} | METHODS.keys() == set(REGISTERED.names())
    for run, plain, rounded, other in zip(runs, first[::2], first[1::2], second[1::2], strict=True):
        losses = np.array([[row["loss"] for row in outcome.rows] for outcome in (plain, rounded)])
        np.testing.assert_allclose(losses[1], losses[0], rtol=0.03, err_msg=str(run))
        assert (losses[0] != losses[1]).any(), run
        for name, weight in rounded.after.items():
            np.testing.assert_array_equal(weight, other.after[name], str(run))


@pytest.mark.parametrize("method", METHODS)
def test_replicas_are_equal_bit_for_bit(method: str, outcomes: dict[tuple[str, str], list[RankOutcome]]) -> None:
    first, second = outcomes[method, "bf16"]
    for name, weight in first.after.items():
        np.testing.assert_array_equal(weight, second.after[name])
