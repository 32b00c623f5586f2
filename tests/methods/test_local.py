"""Partition-local training is full-graph training on the graph without the edges between parts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.ranks import run_ranks

from harness.check import oracle
from harness.check.graphs import MODELS, dense_adjacency, on_disk, random_graph
from harness.check.training import Case, RankOutcome, train
from harness.data.graph import GraphData
from harness.runtime.method import METHODS
from harness.runtime.run_config import TrainSpec

NODES = 60
PARTS = np.random.default_rng(3).integers(0, 2, NODES)
SPEC = TrainSpec(epochs=4, precision="float64", threads=1, optimizer="sgd", lr=0.5)


def without_cut_edges(graph: GraphData) -> GraphData:
    rows = np.repeat(np.arange(NODES), np.diff(graph.indptr))
    inside = PARTS[rows] == PARTS[graph.indices]
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows[inside], minlength=NODES))])
    weights = None if graph.weights is None else graph.weights[inside]
    return replace(graph, indptr=indptr.astype(np.int64), indices=graph.indices[inside], weights=weights)


WHOLE = {"scope": "local", "fanouts": -1, "batch_size": 0}  # what draws nothing


@pytest.mark.quick(2)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("method", "options"),
    [("local", {}), ("graphsage", WHOLE), ("graphsage", WHOLE | {"sampler": "labor", "importance": 1})],
)
def test_it_is_single_process_training_without_the_edges_between_parts(
    method: str, options: dict[str, Any], weighted: bool, tmp_path: Path
) -> None:
    graph = random_graph(21, NODES, degree=6, weighted=weighted)
    data = on_disk(graph, PARTS, 2, False, tmp_path)
    models = {name: MODELS[name] for name in ("sage", "gcn", "gat", "mixhop")}
    cases = [Case(data, method, options, model, SPEC) for model in models.values()]
    by_rank = run_ranks(train, 2, cases)
    inside = dense_adjacency(without_cut_edges(graph))
    for k, (name, model) in enumerate(models.items()):
        first, second = by_rank[0][k], by_rank[1][k]
        for weight, value in first.after.items():
            np.testing.assert_array_equal(value, second.after[weight])
        assert first.rows[-1]["loss"] == pytest.approx(single_process(first, graph, inside, model, name), rel=1e-9)
        assert {row["purpose"] for row in first.traffic if row["scope"] == "epoch"} == {"model"}


def single_process(outcome: RankOutcome, graph: GraphData, adjacency: np.ndarray, model, name: str) -> float:
    """Return the loss of the last epoch of float64 training by dense matrices."""
    matrix = oracle.propagation_matrix(adjacency, name)
    x, rows = (
        torch.from_numpy(graph.features.astype(np.float64)),
        np.flatnonzero(graph.train_mask & (graph.labels >= 0)),
    )
    weights = {key: torch.from_numpy(value.copy()).requires_grad_() for key, value in outcome.before.items()}
    optimizer, loss = torch.optim.SGD(weights.values(), lr=SPEC.lr), torch.zeros(())
    for _ in range(SPEC.epochs):
        optimizer.zero_grad()
        logits = oracle.logits(
            matrix, x, weights, model=name, layers=model.layers, linear=model.linear_layers,
            norm=model.norm == "layer", residual=model.residual, order=model.order,
        )  # fmt: skip
        loss = oracle.mean_loss(logits, graph.labels, rows)
        loss.backward()
        optimizer.step()
    return loss.item()


@pytest.mark.parametrize(
    ("method", "options", "what"),
    [
        ("local", {"precompute": True}, "precompute: local exchanges no rows"),
        ("local", {"codec": "int8"}, "codec: local exchanges no rows"),
        ("graphsage", {"scope": "local", "cache": "degree"}, "scope: 'local' reads no remote node"),
        ("graphsage", {"scope": "local", "topology": "owner"}, "scope: 'local' reads no remote node"),
    ],
)
def test_what_would_exchange_rows_is_refused(method: str, options: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        METHODS.load(method).Options(**options)
