"""GraphSAINT's node sampler: subgraphs, weights and bytes of each step, against chances found here."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from scipy import optimize
from support.graphs import OnDisk, dense_adjacency, on_disk, random_graph
from support.ranks import run_ranks
from support.subgraphs import Run, assert_bytes, assert_same_training, run_subgraphs
from support.training import Case

from harness.models.gnn import GNN
from harness.models.spec import ModelSpec
from harness.runtime.memory_model import MemoryCase, PartSize
from harness.runtime.spec import TrainSpec
from methods.saint_node import SAINTNode

WORLD, NODES, FEATURES, CLASSES, ITEM, EPOCHS, SIZE = 3, 60, 7, 4, 8, 2, 8
GRAPHS = {
    "labels": random_graph(91, NODES, degree=6),
    "rows of labels": random_graph(92, NODES, degree=6, multilabel=True),
    "one trainer": random_graph(93, NODES, train_only=range(20)),
}
PARTS = np.minimum(np.arange(NODES) // 20, WORLD - 1)
MODEL = ModelSpec(name="gcn", layers=2, hidden=6, dropout=0)
SPEC = TrainSpec(epochs=EPOCHS, precision="float64", threads=1)
METHOD = "methods.saint_node:SAINTNode"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Run]]:
    """What each rank saw, by graph; of the first graph also full-graph training and the exact setting."""
    stored: dict[str, OnDisk] = {
        name: on_disk(graph, PARTS, WORLD, False, tmp_path_factory.mktemp("saint"))
        for name, graph in GRAPHS.items()
    }
    cases = [Case(data, METHOD, {"size": SIZE}, MODEL, SPEC) for data in stored.values()]
    cases.append(Case(stored["labels"], "methods.full:Full", {}, MODEL, SPEC))
    cases.append(Case(stored["labels"], METHOD, SAINTNode.exact, MODEL, SPEC))
    by_rank = run_ranks(run_subgraphs, WORLD, cases)
    return {name: [rank[i] for rank in by_rank] for i, name in enumerate([*stored, "full", "exact"])}


def probabilities(name: str) -> np.ndarray:
    """min(1, c q) that sum to the size; c by a root finder, q by dense matrices of a GCN."""
    dense = dense_adjacency(GRAPHS[name])
    root = 1 / np.sqrt(dense.sum(1) + 1)
    q = ((root[:, None] * dense * root) ** 2).sum(0)
    q[q == 0] = q[q > 0].min()
    c = optimize.brentq(lambda c: np.minimum(1, c * q).sum() - SIZE, 0, 1e6, xtol=1e-14, rtol=1e-14)
    return np.minimum(1, c * q)


@pytest.mark.parametrize("name", GRAPHS)
def test_steps_learn_from_the_training_nodes_of_their_subgraphs(
    runs: dict[str, list[Run]], name: str
) -> None:
    p, mask, ranks = probabilities(name), GRAPHS[name].train_mask, runs[name]
    subgraphs = set()
    for epoch in range(EPOCHS):
        for run in ranks:
            assert len(run.epochs[epoch]) == math.ceil(NODES / (WORLD * SIZE))
            for taken in run.epochs[epoch]:
                np.testing.assert_array_equal(taken.learnt, taken.nodes[mask[taken.nodes]])
                assert taken.weights is not None
                np.testing.assert_allclose(taken.weights, 1 / p[taken.learnt], rtol=1e-9)
                assert taken.total == WORLD * mask.sum()
                subgraphs.add(taken.nodes.tobytes())
    taken = [taken for run in ranks for steps in run.epochs for taken in steps]
    assert len(subgraphs) == len(taken)  # no two ranks, steps or epochs have the same
    assert abs(sum(t.nodes.size for t in taken) - len(taken) * SIZE) < 4 * math.sqrt(len(taken) * SIZE)
    losses = [[row["loss"] for row in run.rows] for run in ranks]
    assert losses[0] == losses[1] == losses[2]
    assert np.isfinite(losses[0]).all()


@pytest.mark.parametrize("name", GRAPHS)
def test_bytes_are_the_closed_form(runs: dict[str, list[Run]], name: str) -> None:
    ranks = runs[name]
    for epoch in range(EPOCHS):
        remote = sum(
            int((PARTS[taken.nodes] != rank).sum())
            for rank, run in enumerate(ranks)
            for taken in run.epochs[epoch]
        )
        peers = 8 * len(ranks[0].epochs[epoch]) * WORLD * (WORLD - 1)
        label = CLASSES * ITEM if GRAPHS[name].multilabel else 8
        assert remote > 10
        assert sum(run.rows[epoch]["stats"]["remote_nodes"] for run in ranks) == remote
        assert_bytes(ranks, epoch, remote=remote, peers=peers, row=FEATURES * ITEM, label=label)


def test_all_nodes_are_full_graph_training(runs: dict[str, list[Run]], tmp_path: Path) -> None:
    single = on_disk(GRAPHS["labels"], np.zeros(NODES, int), 1, False, tmp_path)
    (alone,) = run_subgraphs(0, 1, [Case(single, METHOD, SAINTNode.exact, MODEL, SPEC)])
    for full, exact in zip(runs["full"], runs["exact"], strict=True):
        assert_same_training(full, exact)
        assert_same_training(full, alone)


def test_no_nodes_are_no_subgraph() -> None:
    with pytest.raises(ValidationError, match="at least 1 node"):
        SAINTNode.Options(size=0)


def test_memory_is_that_of_the_expected_nodes() -> None:
    model = GNN(MODEL, FEATURES, CLASSES, seed=0, dtype=torch.float32)
    case = MemoryCase(PartSize(500, 20, 5000, 50), None, 40, 1000, 10_000, model, parts=2)
    for size, nodes in ((100, 100), (5000, 1000), (-1, 1000)):
        found = SAINTNode.memory(SAINTNode.Options(size=size), case)
        assert found["layers (Eq. 3)"] == 4 * 3 * nodes * (FEATURES + 6)
        assert found["probabilities"] == 8 * 1000
