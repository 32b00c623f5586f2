"""Truth 1: at its exact setting, a method is single-process full-graph training, to 1e-9 in float64."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from support import oracle
from support.graphs import OnDisk, dense_adjacency, on_disk, random_graph
from support.ranks import run_ranks
from support.training import Case, Outcome, train

from harness.data.graph import GraphData
from harness.models.spec import ModelSpec
from harness.runtime.registry import load_method, method_names
from harness.runtime.spec import TrainSpec

TOLERANCE = 1e-9
EPOCHS = 3
FULL_GRAPH_VARIANTS = [{}, {"narrow": True}, {"precompute": True}]
MODELS = {
    "sage": ModelSpec(name="sage", layers=3, hidden=6, dropout=0, norm="layer"),
    "gcn": ModelSpec(name="gcn", layers=2, hidden=6, dropout=0),
    "sage-tail-residual": ModelSpec(
        name="sage", layers=2, linear_layers=2, hidden=7, dropout=0, residual=True
    ),
    "gcn-narrow-input": ModelSpec(name="gcn", layers=2, hidden=3, dropout=0, norm="layer"),
}
GRAPHS: dict[str, tuple[GraphData, bool]] = {
    "transductive": (random_graph(1), False),
    "inductive": (random_graph(2), True),
    "multilabel": (random_graph(3, multilabel=True), False),
    "weighted": (random_graph(6, weighted=True), False),
    "weighted-inductive": (random_graph(7, weighted=True), True),
    # Nodes 0 to 19 are rank 0's: at P > 1 the others have no training node.
    "one-trainer": (random_graph(4, train_only=range(20)), False),
    # No edges at all: no rank has a boundary.
    "no-boundary": (random_graph(5, degree=0), False),
}


def variants(name: str) -> list[dict[str, object]]:
    method = load_method(name)
    extra = FULL_GRAPH_VARIANTS if method.family == "full-graph" else [{}]
    return [{**method.exact, **options} for options in extra]


CASES = [
    (graph, model, method, index)
    for graph, model, method in itertools.product(GRAPHS, MODELS, method_names())
    for index in range(len(variants(method)))
]


def chunks(nodes: int, world: int) -> np.ndarray:
    return np.minimum(np.arange(nodes) * world // 60, world - 1)


@functools.cache
def outcomes(world: int, folder: Path) -> dict[tuple[str, str, str, int], list[Outcome]]:
    """Run every case in one group of `world` ranks."""
    stored: dict[str, OnDisk] = {}
    for name, (graph, inductive) in GRAPHS.items():
        directory = folder / name
        directory.mkdir(exist_ok=True)
        stored[name] = on_disk(graph, chunks(60, world), world, inductive, directory)
    spec = TrainSpec(epochs=EPOCHS, precision="float64", threads=1)
    cases = [
        Case(stored[graph], method, variants(method)[index], MODELS[model], spec)
        for graph, model, method, index in CASES
    ]
    by_rank = run_ranks(train, world, cases, timeout_s=200)
    return {key: [ranks[i] for ranks in by_rank] for i, key in enumerate(CASES)}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("limit")


def expected(
    graph: GraphData, inductive: bool, model: ModelSpec, before: dict[str, np.ndarray]
) -> dict[str, object]:
    """Train the dense oracle from the weights `before`."""
    adjacency, x = dense_adjacency(graph), graph.features.astype(np.float64)
    shared = {
        "model": model.name,
        "layers": model.layers,
        "linear": model.linear_layers,
        "norm": model.norm == "layer",
        "residual": model.residual,
    }
    seen = np.flatnonzero(graph.train_mask) if inductive else np.arange(len(x))
    matrix = oracle.propagation_matrix(adjacency[np.ix_(seen, seen)], model.name)
    labelled = graph.labels >= 0 if graph.labels.ndim == 1 else np.ones(len(x), bool)
    rows = np.flatnonzero((graph.train_mask & labelled)[seen])
    weights = {k: torch.from_numpy(v.copy()).requires_grad_() for k, v in before.items()}
    optimizer = torch.optim.Adam(weights.values(), lr=0.01)
    losses = []
    for _ in range(EPOCHS):
        optimizer.zero_grad()
        output = oracle.logits(matrix, torch.from_numpy(x[seen]), weights, **shared)
        loss = oracle.mean_loss(output, graph.labels[seen], rows)
        loss.backward()
        gradients = {k: w.grad.numpy().copy() for k, w in weights.items()}
        optimizer.step()
        losses.append(loss.item())
    whole = oracle.propagation_matrix(adjacency, model.name)
    output = oracle.logits(whole, torch.from_numpy(x), weights, **shared)
    masks = {"train": graph.train_mask, "val": graph.val_mask, "test": graph.test_mask}
    scores = {k: oracle.scores(output, graph.labels, np.flatnonzero(m & labelled)) for k, m in masks.items()}
    return {"losses": losses, "gradients": gradients, "scores": scores, "after": weights}


def close(actual: np.ndarray, wanted: np.ndarray, scale: float) -> bool:
    return bool(np.abs(actual - wanted).max(initial=0) <= TOLERANCE * scale)


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize(("graph", "model", "method", "index"), CASES)
def test_exact_setting_is_full_graph_training(
    graph: str, model: str, method: str, index: int, world: int, folder: Path
) -> None:
    ranks = outcomes(world, folder)[graph, model, method, index]
    data, inductive = GRAPHS[graph]
    want = expected(data, inductive, MODELS[model], ranks[0].before)
    scale = max(np.abs(g).max() for g in want["gradients"].values())
    for outcome in ranks:
        losses = [row["loss"] for row in outcome.rows]
        np.testing.assert_allclose(losses, want["losses"], rtol=TOLERANCE)
        assert outcome.gradients.keys() == want["gradients"].keys()
        for name, gradient in want["gradients"].items():
            assert close(outcome.gradients[name], gradient, scale), name
        for name, value in want["after"].items():
            assert np.array_equal(outcome.after[name], ranks[0].after[name])
            np.testing.assert_allclose(outcome.after[name], value.detach().numpy(), rtol=1e-6, atol=1e-8)
        assert outcome.scores == pytest.approx(want["scores"], abs=1e-12)


def test_every_method_names_its_exact_setting() -> None:
    for name in method_names():
        assert load_method(name).Options(**load_method(name).exact)
