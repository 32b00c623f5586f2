"""Cluster-GCN: what an epoch is made of and costs, against clusters that are counted here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from harness_methods.clustergcn import ClusterGCN
from pydantic import ValidationError
from support.ranks import run_ranks
from support.subgraphs import Run, assert_bytes, assert_same_training, run_subgraphs
from support.wire import communicator
from torch import Tensor
from torch.nn.functional import cross_entropy

from harness.check.graphs import OnDisk, dense_adjacency, on_disk, random_graph
from harness.check.training import Case
from harness.errors import UserError
from harness.graph.csr import Topology
from harness.models.gnn import GNN
from harness.models.layer import BlockSize, ModelSpec
from harness.runtime.cost_models import MemoryCase, PartSize
from harness.runtime.features import RankRows
from harness.runtime.run_config import TrainSpec
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
    cases.append(Case(stored["labels"], METHOD, OPTIONS | {"clustered_by": "stream"}, MODEL, SPEC))
    by_rank = run_ranks(run_subgraphs, WORLD, cases)
    return {name: [rank[i] for rank in by_rank] for i, name in enumerate([*stored, "full", "exact", "stream"])}


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


def test_batches_are_of_the_clusters_that_another_partitioner_finds(runs: dict[str, list[Run]]) -> None:
    graph = GRAPHS["labels"]
    found = clusters(Topology(graph.indptr, graph.indices), CLUSTERS, 0, method="stream")
    assert (found != cluster_of("labels")).any()
    for taken in (taken for run in runs["stream"] for taken in run.epochs[0]):
        np.testing.assert_array_equal(np.sort(taken.nodes), np.flatnonzero(np.isin(found, found[taken.nodes])))


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


def test_the_default_fits_a_graph_of_fewer_nodes(tmp_path: Path) -> None:
    few = random_graph(84, 30, degree=4)
    single = on_disk(few, np.zeros(30, int), 1, False, tmp_path)
    (run,) = run_subgraphs(0, 1, [Case(single, METHOD, {}, MODEL, SPEC)])
    assert len(run.epochs) == EPOCHS


def test_memory_is_that_of_a_share_of_the_graph() -> None:
    """20 of 1000 nodes a cluster, two of them a batch, 3 % more in METIS' largest."""
    model = GNN(MODEL, FEATURES, CLASSES, seed=0, dtype=torch.float32)
    case = MemoryCase(PartSize(500, 20, 5000, 50), None, 40, 1000, 10_000, model, parts=2)
    found = ClusterGCN.memory(ClusterGCN.Options(clusters=50, per_batch=2), case)
    assert found["layers (Eq. 3)"] == 4 * 3 * 41 * (FEATURES + 6 + 6)
    assert found["clusters"] == 8 * 1000
    whole = ClusterGCN.memory(ClusterGCN.Options(clusters=1, per_batch=1), case)
    assert whole["layers (Eq. 3)"] == 4 * 3 * 1000 * (FEATURES + 6 + 6)


LOCAL = {"scope": "local", "clusters": 7, "per_batch": 2}  # ceil(7 / 3) a rank, two steps; rank 2 owns 4 nodes
ONE_EACH = {"scope": "local", "clusters": WORLD, "per_batch": 1}
LINEAR = SPEC.model_copy(update={"lr": 0.0, "epochs": 1})


@pytest.fixture(scope="module")
def local_runs(stored: dict[str, OnDisk]) -> dict[str, list[Run]]:
    """What each rank saw of scope local, by graph, and with one cluster a rank, by model and degrees."""
    cases = {name: Case(data, METHOD, LOCAL, MODEL, SPEC) for name, data in stored.items()}
    cases["+RF"] = Case(stored["labels"], METHOD, LOCAL | {"feature_rate": 0.6}, MODEL, SPEC)
    cases["host"] = Case(stored["labels"], METHOD, LOCAL | {"storage": "host"}, MODEL, SPEC)
    for model in ("sage", "gcn"):
        for degrees in ("graph", "batch"):
            spec = ModelSpec(name=model, layers=2, hidden=6, dropout=0)
            options = ONE_EACH | {"degrees": degrees}
            cases[f"{model} {degrees}"] = Case(stored["labels"], METHOD, options, spec, LINEAR)
    by_rank = run_ranks(run_subgraphs, WORLD, list(cases.values()))
    return {name: [rank[i] for rank in by_rank] for i, name in enumerate(cases)}


@pytest.mark.parametrize("name", [*GRAPHS, "+RF"])
def test_local_clusters_are_the_ranks_own_and_send_nothing(local_runs: dict[str, list[Run]], name: str) -> None:
    ranks, mask = local_runs[name], GRAPHS.get(name, GRAPHS["labels"]).train_mask
    for epoch in range(EPOCHS):
        for rank, run in enumerate(ranks):
            steps = run.epochs[epoch]
            assert len(steps) == 2  # of three clusters a rank, two a step
            met = np.concatenate([taken.nodes for taken in steps])
            np.testing.assert_array_equal(np.sort(met), np.flatnonzero(rank == PARTS))
            for taken in steps:
                np.testing.assert_array_equal(np.sort(taken.learnt), np.sort(taken.nodes[mask[taken.nodes]]))
            row = run.rows[epoch]
            assert row["stats"]["remote_nodes"] == 0
            assert {
                p: row[f"bytes_{p}"] for p in ("feature", "control", "embedding", "gradient", "swap")
            } == dict.fromkeys(("feature", "control", "embedding", "gradient", "swap"), 0)
        for together in zip(*(run.epochs[epoch] for run in ranks), strict=True):
            assert {taken.total for taken in together} == {sum(taken.learnt.size for taken in together)}


def dense_part(name: str, degrees: str, weights: dict[str, Tensor], rank: int) -> Tensor:
    """The rank's part by itself: the sum of its training nodes' losses, from a dense adjacency in float64."""
    graph, nodes = GRAPHS["labels"], np.flatnonzero(rank == PARTS)
    whole = torch.from_numpy(dense_adjacency(graph)).double()
    inside = whole[nodes][:, nodes]
    degree = inside.sum(1) if degrees == "batch" else whole[nodes].sum(1)
    if name == "gcn":
        root = (degree + 1).rsqrt()
        adjacency = root[:, None] * (inside + torch.eye(nodes.size)) * root[None, :]
    else:
        adjacency = inside / degree.clamp(min=1)[:, None]
    h = torch.from_numpy(np.asarray(graph.features[nodes])).double()
    for i in (0, 1):
        layer = f"graph_layers.{i}."
        own = h @ weights[layer + "weight_self"] if name == "sage" else 0
        h = own + adjacency @ h @ weights[layer + "weight"] + weights[layer + "bias"]
        h = h if i else h.relu()
    rows = np.flatnonzero(graph.train_mask[nodes])
    return cross_entropy(h[rows], torch.from_numpy(graph.labels[nodes[rows]]), reduction="sum")


@pytest.mark.parametrize("degrees", ["graph", "batch"])
@pytest.mark.parametrize("name", ["sage", "gcn"])
def test_local_training_is_that_of_the_parts_summed(local_runs: dict[str, list[Run]], name: str, degrees: str) -> None:
    """One cluster a rank, against dense training of each part: its loss and gradients, summed over the parts."""
    found = local_runs[f"{name} {degrees}"]
    model = GNN(ModelSpec(name=name, layers=2, hidden=6, dropout=0), FEATURES, CLASSES, seed=0, dtype=torch.float64)
    weights = {key: p.detach().requires_grad_() for key, p in model.named_parameters()}
    total = sum(dense_part(name, degrees, weights, rank) for rank in range(WORLD)) / GRAPHS["labels"].train_mask.sum()
    gradients = dict(zip(weights, torch.autograd.grad(total, list(weights.values())), strict=True))
    for run in found:
        assert run.rows[0]["loss"] == pytest.approx(total.item(), rel=1e-9)
        for key, gradient in gradients.items():
            np.testing.assert_allclose(run.gradients[key], gradient.numpy(), rtol=1e-9, atol=1e-12)


def test_rows_on_the_host_are_the_same_and_local_features_lose_columns(local_runs: dict[str, list[Run]]) -> None:
    kept, host, fewer = ([row["loss"] for row in local_runs[n][0].rows] for n in ("labels", "host", "+RF"))
    assert host == pytest.approx(kept, rel=1e-9)
    assert fewer != pytest.approx(kept, rel=1e-3)
    rows = [run.rows[0] for run in local_runs["host"]]
    assert sum(row["bytes_swap"] for row in rows) == NODES * FEATURES * ITEM
    assert sum(row["bytes_feature"] + row["bytes_control"] for row in rows) == 0


@pytest.mark.slow
def test_own_rows_keep_the_columns_alone() -> None:
    owner, row = np.zeros(5, np.int32), np.arange(5, dtype=np.int32)
    inner = torch.arange(20.0).view(5, 4) + 1
    store = RankRows(communicator(0, 1), inner, owner, row)
    asked = np.array([3, 1])
    assert torch.equal(store.gather(asked), inner[[3, 1]])
    expected = inner[[3, 1]] * torch.tensor([1.0, 0, 0, 1])
    assert torch.equal(store.gather(asked, torch.tensor([0, 3])), expected)


def test_memory_of_scope_local_is_that_of_a_share_of_the_part() -> None:
    """50 clusters are 25 a part: 20 of its 500 nodes each, two of them a batch, 3 % more in METIS' largest."""
    model = GNN(MODEL, FEATURES, CLASSES, seed=0, dtype=torch.float32)
    case = MemoryCase(PartSize(500, 20, 5000, 50), None, 40, 1000, 10_000, model, parts=2)
    options = ClusterGCN.Options(clusters=50, per_batch=2, scope="local")
    found = ClusterGCN.memory(options, case)
    assert found["layers (Eq. 3)"] == 4 * 3 * 41 * (FEATURES + 6 + 6)
    assert found["clusters"] == 8 * 500 + 1000
    whole = ClusterGCN.memory(options.model_copy(update={"clusters": 2, "per_batch": 1}), case)
    assert whole["layers (Eq. 3)"] == 4 * 3 * 500 * (FEATURES + 6 + 6)
    assert whole["sampled blocks"] == case.matrices(BlockSize(500, 500, 4950))


def test_local_has_no_cache() -> None:
    with pytest.raises(ValidationError, match="cache: scope 'local' reads no remote node"):
        ClusterGCN.Options(scope="local", cache="degree")


def test_options_that_came_later_leave_ids_as_they_were() -> None:
    assert not {"scope", "degrees"} & ClusterGCN.Options().model_dump().keys()
    assert ClusterGCN.Options(scope="local", degrees="batch").model_dump()["scope"] == "local"
