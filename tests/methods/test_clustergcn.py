"""Cluster-GCN: what an epoch is made of and costs, against clusters that are counted here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from harness_methods.clustergcn import ClusterGCN
from support.subgraphs import Run, assert_bytes, assert_same_training, run_subgraphs

from harness.check.graphs import OnDisk, on_disk, random_graph
from harness.check.training import Case, run_ranks
from harness.errors import UserError
from harness.graph.csr import Topology
from harness.models.gnn import GNN
from harness.models.spec import ModelSpec
from harness.runtime.cost_models import MemoryCase, PartSize
from harness.runtime.spec import TrainSpec
from harness.sampling.subgraphs import clusters

WORLD, NODES, FEATURES, CLASSES, ITEM, EPOCHS = 3, 60, 7, 4, 8, 2
CLUSTERS, PER_BATCH = 9, 2
GRAPHS = {
    "labels": random_graph(81, NODES, degree=6),
    "rows of labels": random_graph(82, NODES, degree=6, multilabel=True),
    "one trainer": random_graph(83, NODES, train_only=range(20)),
}
# Rank 2 owns so little that no cluster is its own.
PARTS = np.where(np.arange(NODES) >= 56, 2, np.random.default_rng(5).integers(0, 2, NODES))
MODEL = ModelSpec(name="sage", layers=3, hidden=6, dropout=0, norm="layer")
SPEC = TrainSpec(epochs=EPOCHS, precision="float64", threads=1)
OPTIONS = {"clusters": CLUSTERS, "per_batch": PER_BATCH}
METHOD = "harness_methods.clustergcn:ClusterGCN"


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, OnDisk]:
    return {
        name: on_disk(graph, PARTS, WORLD, False, tmp_path_factory.mktemp("cluster")) for name, graph in GRAPHS.items()
    }


@pytest.fixture(scope="module")
def runs(stored: dict[str, OnDisk]) -> dict[str, list[Run]]:
    """What each rank saw, by graph; of the first graph also full-graph training and the exact setting."""
    cases = [Case(data, METHOD, OPTIONS, MODEL, SPEC) for data in stored.values()]
    cases.append(Case(stored["labels"], "harness_methods.full:Full", {}, MODEL, SPEC))
    cases.append(Case(stored["labels"], METHOD, ClusterGCN.exact, MODEL, SPEC))
    by_rank = run_ranks(run_subgraphs, WORLD, cases)
    return {name: [rank[i] for rank in by_rank] for i, name in enumerate([*stored, "full", "exact"])}


def cluster_of(name: str) -> np.ndarray:
    graph = GRAPHS[name]
    return clusters(Topology(graph.indptr, graph.indices), CLUSTERS, 0)


def trainers(cluster: np.ndarray) -> np.ndarray:
    """The rank that owns most of each cluster's nodes, the lowest of several."""
    owned = [[np.sum(PARTS[cluster == c] == r) for r in range(WORLD)] for c in range(CLUSTERS)]
    return np.array([row.index(max(row)) for row in owned])


@pytest.mark.parametrize("name", GRAPHS)
def test_an_epoch_goes_through_every_cluster_and_training_node_once(runs: dict[str, list[Run]], name: str) -> None:
    cluster, ranks = cluster_of(name), runs[name]
    trainer = trainers(cluster)
    mask = GRAPHS[name].train_mask
    orders = set()
    for epoch in range(EPOCHS):
        seen = []
        for rank, run in enumerate(ranks):
            for taken in run.epochs[epoch]:
                found = np.unique(cluster[taken.nodes])
                assert found.size <= PER_BATCH
                assert (trainer[found] == rank).all()
                np.testing.assert_array_equal(np.sort(taken.nodes), np.flatnonzero(np.isin(cluster, found)))
                np.testing.assert_array_equal(np.sort(taken.learnt), np.sort(taken.nodes[mask[taken.nodes]]))
                assert taken.weights is None
                seen.append(found)
        np.testing.assert_array_equal(np.sort(np.concatenate(seen)), np.arange(CLUSTERS))
        orders.add(str(seen))
        steps = [run.epochs[epoch] for run in ranks]
        assert len({len(own) for own in steps}) == 1
        for together in zip(*steps, strict=True):
            assert {taken.total for taken in together} == {sum(taken.learnt.size for taken in together)}
    assert len(orders) == EPOCHS
    assert not any(taken.nodes.size for taken in ranks[2].epochs[0])
    losses = [[row["loss"] for row in run.rows] for run in ranks]
    assert losses[0] == losses[1] == losses[2]
    assert np.isfinite(losses[0]).all()


@pytest.mark.parametrize("name", GRAPHS)
def test_bytes_are_the_closed_form(runs: dict[str, list[Run]], name: str) -> None:
    cluster, ranks = cluster_of(name), runs[name]
    trainer = trainers(cluster)
    remote = int((trainer[cluster] != PARTS).sum())
    steps = max(-(-np.sum(trainer == rank) // PER_BATCH) for rank in range(WORLD))
    peers = 8 * steps * WORLD * (WORLD - 1)
    label = CLASSES * ITEM if GRAPHS[name].multilabel else 8
    assert remote > 5
    for epoch in range(EPOCHS):
        assert_bytes(ranks, epoch, remote=remote, peers=peers, row=FEATURES * ITEM, label=label)


def test_one_cluster_is_full_graph_training(runs: dict[str, list[Run]], tmp_path: Path) -> None:
    single = on_disk(GRAPHS["labels"], np.zeros(NODES, int), 1, False, tmp_path)
    (alone,) = run_subgraphs(0, 1, [Case(single, METHOD, ClusterGCN.exact, MODEL, SPEC)])
    for full, exact in zip(runs["full"], runs["exact"], strict=True):
        assert_same_training(full, exact)
        assert_same_training(full, alone)


def test_more_clusters_than_nodes(tmp_path: Path) -> None:
    single = on_disk(GRAPHS["labels"], np.zeros(NODES, int), 1, False, tmp_path)
    with pytest.raises(UserError, match="61 clusters of a training graph of 60 nodes"):
        run_subgraphs(0, 1, [Case(single, METHOD, {"clusters": 61}, MODEL, SPEC)])


def test_memory_is_that_of_a_share_of_the_graph() -> None:
    """20 of 1000 nodes a cluster, two of them a batch, 3 % more in METIS' largest."""
    model = GNN(MODEL, FEATURES, CLASSES, seed=0, dtype=torch.float32)
    case = MemoryCase(PartSize(500, 20, 5000, 50), None, 40, 1000, 10_000, model, parts=2)
    found = ClusterGCN.memory(ClusterGCN.Options(clusters=50, per_batch=2), case)
    assert found["layers (Eq. 3)"] == 4 * 3 * 41 * (FEATURES + 6 + 6)
    assert found["clusters"] == 8 * 1000
    whole = ClusterGCN.memory(ClusterGCN.Options(clusters=1, per_batch=1), case)
    assert whole["layers (Eq. 3)"] == 4 * 3 * 1000 * (FEATURES + 6 + 6)
