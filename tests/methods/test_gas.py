"""GAS against a dense simulation in float64, whose histories are whole arrays, and bytes against edges counted here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness_methods.gas import GAS
from numpy.typing import NDArray
from support.ranks import run_ranks
from torch import Tensor
from torch.nn.functional import cross_entropy, layer_norm

from harness.check.graphs import dense_adjacency, on_disk, random_graph
from harness.check.training import Case
from harness.data.graph import GraphData
from harness.models.gnn import GNN
from harness.models.layer import BlockSize, ModelSpec
from harness.runtime.cost_models import MemoryCase, PartSize
from harness.runtime.run_config import TrainSpec
from harness.runtime.worker import Worker

NODES, FEATURES, HIDDEN, CLASSES, ITEM, EPOCHS = 60, 7, 6, 4, 8, 4
GRAPH = random_graph(71, NODES, degree=5, features=FEATURES, classes=CLASSES)
SOME_CLASSES = random_graph(72, NODES, degree=5, features=FEATURES, classes=CLASSES, multilabel=True)
PARTS = np.random.default_rng(7).integers(0, 2, NODES)
SPEC = TrainSpec(epochs=EPOCHS, precision="float64", threads=1, optimizer="sgd", lr=0.5)
FROZEN = SPEC.model_copy(update={"lr": 0.0})
OPTIONS = {"clusters": 9, "per_batch": 2}
MODELS = {
    "sage": ModelSpec(name="sage", layers=3, hidden=HIDDEN, dropout=0, norm="layer"),
    "gcn": ModelSpec(name="gcn", layers=3, hidden=HIDDEN, dropout=0, residual=True),
    "gat": ModelSpec(name="gat", layers=2, hidden=HIDDEN, heads=2, dropout=0),
    "mixhop": ModelSpec(name="mixhop", layers=1, order=3, hidden=4, dropout=0),
}
SIMULATED = ("sage", "gcn")


@dataclass
class Trained:
    """A rank's epochs: rows of the record, targets by step, histories [n_in, width] by layer; weights at both ends."""

    rows: list[dict[str, Any]]
    targets: list[list[NDArray[np.int64]]]
    histories: list[dict[int, NDArray[np.float64]]]
    before: dict[str, NDArray[Any]]
    after: dict[str, NDArray[Any]]


def weights_of(worker: Worker) -> dict[str, NDArray[Any]]:
    return {name: value.detach().numpy().copy() for name, value in worker.model.named_parameters()}


def trained(rank: int, world: int, cases: list[Case]) -> list[Trained]:
    return [_trained(case, rank, world) for case in cases]


def _trained(case: Case, rank: int, world: int) -> Trained:
    trainer = case.trainer(rank, world)
    method, before = trainer.method, weights_of(trainer.worker)
    found = Trained([], [], [], before, {})
    for epoch in range(case.train.epochs):
        found.targets.append([batch.targets for batch in getattr(method, "batches", lambda _: [])(epoch)])
        found.rows.append(trainer.train_epoch(epoch))
        stores = getattr(method, "histories", {})
        found.histories.append({layer: store.inner.numpy().copy() for layer, store in stores.items()})
    method.close()
    found.after = weights_of(trainer.worker)
    return found


RUNS: dict[str, tuple[str, dict[str, Any], ModelSpec, TrainSpec]] = {
    **{f"{name} trained": ("gas", OPTIONS, MODELS[name], SPEC) for name in SIMULATED},
    **{f"{name} frozen": ("gas", OPTIONS, spec, FROZEN) for name, spec in MODELS.items()},
    **{f"{name} full": ("full", {}, spec, FROZEN.model_copy(update={"epochs": 1})) for name, spec in MODELS.items()},
    "several labels": ("gas", OPTIONS | {"feature_rate": 0.5}, MODELS["gcn"], SPEC),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, str], list[Trained]]:
    """What each rank saw, by the number of ranks and the run."""
    results = {}
    for world in (1, 2):
        data = {
            graph.multilabel: on_disk(graph, PARTS % world, world, False, tmp_path_factory.mktemp("gas"))
            for graph in (GRAPH, SOME_CLASSES)
        }
        cases = [
            Case(data[name == "several labels"], method, options, model, spec)
            for name, (method, options, model, spec) in RUNS.items()
        ]
        by_rank = run_ranks(trained, world, cases)
        results |= {(world, name): [rank[i] for rank in by_rank] for i, name in enumerate(RUNS)}
    return results


def matrix(name: str) -> Tensor:
    """Return D^-1 A for sage, else D^-1/2 (A + I) D^-1/2."""
    adjacency = dense_adjacency(GRAPH).astype(np.float64)
    if name == "sage":
        return torch.from_numpy(adjacency / np.maximum(adjacency.sum(1), 1)[:, None])
    looped = adjacency + np.eye(NODES)
    root = np.sqrt(looped.sum(1))
    return torch.from_numpy(looped / root[:, None] / root[None, :])


def rows_of(
    nodes: NDArray[np.int64], histories: list[Tensor], w: dict[str, Tensor], model: ModelSpec
) -> tuple[list[Tensor], Tensor]:
    """Return what each layer but the first reads of `nodes`, and their logits; other nodes' rows are the histories'.

    `histories` are [N, width] by layer, the first one the features.
    """
    aggregate, rows = matrix(model.name)[nodes], list[Tensor]()
    for i, history in enumerate(histories):
        every = history if i == 0 else history.index_copy(0, torch.from_numpy(nodes), rows[-1])
        name = f"graph_layers.{i}."
        out = aggregate @ every @ w[name + "weight"] + w[name + "bias"]
        if model.name == "sage":
            out = out + every[nodes] @ w[name + "weight_self"]
        if i + 1 == len(histories):
            return rows, out
        if model.residual and every.shape[1] == out.shape[1]:
            out = out + every[nodes]
        if model.norm == "layer":
            out = layer_norm(out, out.shape[1:], w[f"norms.{i}.weight"], w[f"norms.{i}.bias"])
        rows.append(out.relu())
    raise AssertionError("no layer")


def simulate(ranks: list[Trained], model: ModelSpec) -> None:
    """Hold losses, histories and weights of several epochs against SGD on the same batches."""
    labels, learnt = torch.from_numpy(GRAPH.labels), GRAPH.train_mask & (GRAPH.labels >= 0)
    w = {key: torch.from_numpy(value.copy()).requires_grad_() for key, value in ranks[0].before.items()}
    features = torch.from_numpy(GRAPH.features.astype(np.float64))
    histories = [features, *(torch.zeros(NODES, HIDDEN, dtype=torch.float64) for _ in range(model.layers - 1))]
    optimizer = torch.optim.SGD(w.values(), lr=SPEC.lr)
    for epoch in range(EPOCHS):
        losses = []
        for together in zip(*(rank.targets[epoch] for rank in ranks), strict=True):
            optimizer.zero_grad()
            # All ranks read before any of them writes.
            made = [rows_of(nodes, histories, w, model) for nodes in together]
            histories = [each.clone() for each in histories]
            total = torch.zeros((), dtype=torch.float64)
            for nodes, (rows, logits) in zip(together, made, strict=True):
                at = learnt[nodes]
                total = total + cross_entropy(logits[at], labels[nodes[at]], reduction="sum")
                for history, fresh in zip(histories[1:], rows, strict=True):
                    history[nodes] = fresh.detach()
            losses.append(total.item())
            (total / learnt[np.concatenate(together)].sum()).backward()
            optimizer.step()
        for rank, run in enumerate(ranks):
            assert run.rows[epoch]["loss"] == pytest.approx(sum(losses) / learnt.sum(), rel=1e-9)
            for layer, rows in run.histories[epoch].items():
                own = histories[layer].numpy()[rank == PARTS % len(ranks)]
                np.testing.assert_allclose(rows, own, rtol=1e-9, atol=1e-12)
    for key, value in w.items():
        np.testing.assert_allclose(ranks[0].after[key], value.detach().numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("name", SIMULATED)
def test_training_is_that_of_a_dense_simulation(
    found: dict[tuple[int, str], list[Trained]], name: str, world: int
) -> None:
    ranks = found[world, f"{name} trained"]
    assert min(len(steps) for steps in ranks[0].targets) > 1
    simulate(ranks, MODELS[name])


@pytest.mark.parametrize("name", SIMULATED)
def test_with_frozen_weights_a_history_is_exact_after_as_many_epochs_as_its_layer(
    found: dict[tuple[int, str], list[Trained]], name: str
) -> None:
    ranks, model = found[2, f"{name} frozen"], MODELS[name]
    w = {key: torch.from_numpy(value) for key, value in ranks[0].before.items()}
    nothing = [torch.zeros(NODES, HIDDEN, dtype=torch.float64)] * (model.layers - 1)
    features = torch.from_numpy(GRAPH.features.astype(np.float64))
    exact, _ = rows_of(np.arange(NODES), [features, *nothing], w, model)
    for rank, run in enumerate(ranks):
        for epoch, histories in enumerate(run.histories):
            assert list(histories) == [1, 2]
            for layer, rows in histories.items():
                error = np.abs(rows - exact[layer - 1].numpy()[rank == PARTS]).max()
                assert (error < 1e-12) == (epoch + 1 >= layer), (rank, epoch, layer)


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_with_frozen_weights_the_loss_becomes_that_of_full_graph_training(
    found: dict[tuple[int, str], list[Trained]], name: str, world: int
) -> None:
    (full,), losses = ([row["loss"] for row in found[world, f"{name} {kind}"][0].rows] for kind in ("full", "frozen"))
    assert abs(losses[0] - full) > 1e-4
    assert losses[-1] == pytest.approx(full, rel=1e-12)


BYTES = {
    "sage trained": (GRAPH, FEATURES, 8, [HIDDEN] * 2),
    "gat frozen": (GRAPH, FEATURES, 8, [HIDDEN]),
    "mixhop frozen": (GRAPH, FEATURES, 8, [FEATURES] * 2),  # powers of A times the features
    "several labels": (SOME_CLASSES, round(FEATURES / 2), CLASSES * ITEM, [HIDDEN] * 2),
}


@pytest.mark.parametrize("name", BYTES)
def test_bytes_are_those_of_neighbours_that_are_counted_here(
    found: dict[tuple[int, str], list[Trained]], name: str
) -> None:
    graph, columns, label, widths = BYTES[name]
    ranks, adjacency = found[2, name], dense_adjacency(graph)
    for epoch in range(EPOCHS):
        want, pushed = {"feature": 0, "embedding": 0, "control": 0}, 0
        for rank, run in enumerate(ranks):
            assert len(run.targets[epoch]) == len(ranks[0].targets[epoch])
            for nodes in run.targets[epoch]:
                near = np.setdiff1d(np.flatnonzero(adjacency[nodes].any(0)), nodes)
                own, halo = (int((PARTS[each] != rank).sum()) for each in (nodes, near))
                pushed += own
                want["feature"] += (own + halo) * columns * ITEM
                want["embedding"] += (own + halo) * sum(widths) * ITEM  # each is either written or read
                ids = (own + halo) * (1 + len(widths)) + own
                want["control"] += 4 * ids + label * own + 8 * (2 + 2 * len(widths))
        assert {key: sum(run.rows[epoch][f"bytes_{key}"] for run in ranks) for key in want} == want
        assert sum(run.rows[epoch]["stats"]["pushed_nodes"] for run in ranks) == pushed > 0
        assert sum(run.rows[epoch]["bytes_gradient"] for run in ranks) == 0


def test_memory_has_a_batch_with_its_halo_and_histories() -> None:
    """20 of 1000 nodes a cluster, two of them a batch, 3 % more in METIS' largest; 4 edges of a node at most."""
    model = GNN(MODELS["sage"], FEATURES, CLASSES, seed=0, dtype=torch.float32)
    part = PartSize(500, 20, 1500, 50)
    case = MemoryCase(part, None, 40, 1000, 3000, model, parts=2, most_edges=lambda rows: 4 * rows)
    options = GAS.Options(clusters=50, per_batch=2)
    found = GAS.memory(options, case)
    block = BlockSize(41, 41 + 164, 164)
    assert found["histories"] == 4 * 2 * HIDDEN * (500 + 205)
    assert found["sampled blocks"] == case.matrices(block)
    assert found["clusters"] == 8 * 1000
    whole = GAS.memory(options.model_copy(update={"clusters": 1, "per_batch": 1}), case)
    assert whole["histories"] == 4 * 2 * HIDDEN * (500 + 1000)


def test_one_layer_has_no_history(tmp_path: Path) -> None:
    (run,) = trained(0, 1, [_alone(GRAPH, MODELS["gcn"].model_copy(update={"layers": 1}), tmp_path)])
    assert run.histories == [{}] * EPOCHS
    assert run.rows[-1]["loss"] < run.rows[0]["loss"]


def _alone(graph: GraphData, model: ModelSpec, folder: Path) -> Case:
    return Case(on_disk(graph, np.zeros(NODES, int), 1, False, folder), "gas", OPTIONS, model, SPEC)
