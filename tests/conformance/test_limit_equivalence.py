"""Truth 1: at its exact setting, a method is single-process full-graph training, to 1e-9 in float64."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harness.conformance import oracle
from harness.conformance.graphs import OnDisk, dense_adjacency, on_disk, random_graph
from harness.conformance.ranks import run_ranks
from harness.conformance.training import Case, Outcome, train
from harness.data.graph import GraphData
from harness.models.gnn import GNN
from harness.models.spec import ModelSpec
from harness.runtime.registry import load_method, method_names
from harness.runtime.spec import TrainSpec

TOLERANCE = 1e-9
EPOCHS = 3
MODELS = {
    "sage": ModelSpec(name="sage", layers=3, hidden=6, dropout=0, norm="layer"),
    "gcn": ModelSpec(name="gcn", layers=2, hidden=6, dropout=0),
    "sage-tail-residual": ModelSpec(
        name="sage", layers=2, linear_layers=2, hidden=7, dropout=0, residual=True
    ),
    "gcn-narrow-input": ModelSpec(name="gcn", layers=2, hidden=3, dropout=0, norm="layer"),
    "gat": ModelSpec(name="gat", layers=3, hidden=6, heads=2, dropout=0, norm="layer", residual=True),
    "gat-tail": ModelSpec(name="gat", layers=2, linear_layers=1, hidden=3, heads=3, dropout=0),
    "mixhop": ModelSpec(name="mixhop", layers=2, hidden=6, order=2, dropout=0, norm="layer"),
    "mixhop-tail-residual": ModelSpec(
        name="mixhop", layers=2, linear_layers=1, hidden=8, order=3, dropout=0, residual=True
    ),
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


# `full` runs every model on every graph; the other methods, which share both, two models on each graph, in
# turn. The options of all full-graph methods run on one model a graph, in turn; in the models that `narrow`
# leaves out no product is narrower (in mixhop it does nothing), those of gat are never precomputed.
PAIRS = [
    ["sage", "gcn"],
    ["gat", "sage-tail-residual"],
    ["gcn-narrow-input", "gat-tail"],
    ["mixhop", "mixhop-tail-residual"],
]
EXTRA = {
    "narrow": ["sage", "gcn-narrow-input", "gcn", "gat-tail", "mixhop"],
    "precompute": [name for name, model in MODELS.items() if model.name != "gat"],
}


@functools.cache
def runs_of(name: str) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """Return what is run of a method, by graph: models and options."""
    method, runs = load_method(name), {}
    for turn, graph in enumerate(GRAPHS):
        runs[graph] = [
            (model, method.exact) for model in (MODELS if name == "full" else PAIRS[turn % len(PAIRS)])
        ]
        if method.family == "full-graph":
            runs[graph] += [
                (models[turn % len(models)], {**method.exact, option: True})
                for option, models in EXTRA.items()
            ]
    return runs


CASES = [(graph, method) for graph in GRAPHS for method in method_names()]


def chunks(nodes: int, world: int) -> np.ndarray:
    return np.minimum(np.arange(nodes) * world // 60, world - 1)


@functools.cache
def outcomes(world: int, folder: Path) -> dict[tuple[str, str], list[list[Outcome]]]:
    """Run every case in one group of `world` ranks; returns what each rank saw of each of its runs."""
    stored: dict[str, OnDisk] = {}
    for name, (graph, inductive) in GRAPHS.items():
        directory = folder / name
        directory.mkdir(exist_ok=True)
        stored[name] = on_disk(graph, chunks(60, world), world, inductive, directory)
    spec = TrainSpec(epochs=EPOCHS, precision="float64", threads=1)
    cases = {
        key: [
            Case(stored[key[0]], key[1], options, MODELS[model], spec)
            for model, options in runs_of(key[1])[key[0]]
        ]
        for key in CASES
    }
    by_rank = [
        iter(rank) for rank in run_ranks(train, world, list(itertools.chain(*cases.values())), timeout_s=200)
    ]
    return {key: [[next(rank) for _ in runs] for rank in by_rank] for key, runs in cases.items()}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("limit")


@functools.cache
def expected(graph_name: str, model_name: str) -> dict[str, Any]:
    """Train the dense oracle from the weights that the seed gives."""
    (graph, inductive), model = GRAPHS[graph_name], MODELS[model_name]
    adjacency, x = dense_adjacency(graph), graph.features.astype(np.float64)
    shared: dict[str, Any] = {
        "model": model.name,
        "layers": model.layers,
        "linear": model.linear_layers,
        "norm": model.norm == "layer",
        "residual": model.residual,
        "order": model.order,
    }
    seen = np.flatnonzero(graph.train_mask) if inductive else np.arange(len(x))
    matrix = oracle.propagation_matrix(adjacency[np.ix_(seen, seen)], model.name)
    labelled = graph.labels >= 0 if graph.labels.ndim == 1 else np.ones(len(x), bool)
    rows = np.flatnonzero((graph.train_mask & labelled)[seen])
    network = GNN(model, x.shape[1], graph.num_classes, seed=0, dtype=torch.float64)
    before = {name: value.detach().numpy() for name, value in network.named_parameters()}
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
    return {"losses": losses, "gradients": gradients, "scores": scores, "before": before, "after": weights}


def close(actual: np.ndarray, wanted: np.ndarray, scale: float) -> bool:
    return bool(np.abs(actual - wanted).max(initial=0) <= TOLERANCE * scale)


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize(("graph", "method"), CASES)
def test_exact_setting_is_full_graph_training(graph: str, method: str, world: int, folder: Path) -> None:
    ranks = outcomes(world, folder)[graph, method]
    for i, (model, options) in enumerate(runs_of(method)[graph]):
        for outcome in (rank[i] for rank in ranks):
            check(outcome, expected(graph, model), f"{model} {options}")
            first = ranks[0][i].after
            assert all(np.array_equal(value, first[name]) for name, value in outcome.after.items())


def check(outcome: Outcome, want: dict[str, Any], where: str) -> None:
    """Hold what a rank saw against the oracle."""
    assert all(np.array_equal(value, outcome.before[name]) for name, value in want["before"].items()), where
    losses = [row["loss"] for row in outcome.rows]
    np.testing.assert_allclose(losses, want["losses"], rtol=TOLERANCE, err_msg=where)
    scale = max(np.abs(g).max() for g in want["gradients"].values())
    assert outcome.gradients.keys() == want["gradients"].keys()
    for name, gradient in want["gradients"].items():
        assert close(outcome.gradients[name], gradient, scale), (where, name)
    for name, value in want["after"].items():
        np.testing.assert_allclose(
            outcome.after[name], value.detach().numpy(), rtol=1e-6, atol=1e-8, err_msg=where
        )
    assert outcome.scores == pytest.approx(want["scores"], abs=1e-12), where


def test_every_method_names_its_exact_setting() -> None:
    for name in method_names():
        assert load_method(name).Options(**load_method(name).exact)
