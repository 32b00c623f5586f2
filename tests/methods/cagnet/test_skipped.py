"""CAGNET with skipped broadcasts (SANCUS): a dense simulation of what each group reads, bytes, memory, resuming."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness_methods.cagnet import CAGNET
from support.ranks import run_ranks
from torch import Tensor

from harness.check import oracle
from harness.check.graphs import dense_adjacency, on_disk, random_graph
from harness.check.training import Case, resumed, train
from harness.errors import UserError
from harness.models.layer import ModelSpec
from harness.runtime.checkpoint import CheckpointPlace
from harness.runtime.run_config import TrainSpec

WORLD, NODES, FEATURES, HIDDEN, CLASSES, ITEM, EPOCHS = 4, 60, 14, 6, 3, 8, 8
GRAPH = random_graph(83, NODES, degree=5, features=FEATURES, classes=CLASSES)
# Uneven parts; rank 2 has one node.
PARTS = np.repeat([0, 3, 1, 0, 2, 3], [10, 20, 9, 5, 1, 15])
SPEC = TrainSpec(epochs=EPOCHS, precision="float64", threads=1, optimizer="sgd", lr=0.5)
MODELS = {
    "sage": ModelSpec(name="sage", layers=3, hidden=HIDDEN, dropout=0),
    "gcn": ModelSpec(name="gcn", layers=2, hidden=HIDDEN, dropout=0),
    "gat": ModelSpec(name="gat", layers=2, hidden=HIDDEN, heads=2, dropout=0),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "drift": {"drift": 0.1, "staleness": 3},
    "in groups": {"drift": 0.2, "staleness": 2, "replication": 2},
    "transformed": {"drift": 0.1, "transform_before_exchange": True},
    "once in three": {"drift": 1e9, "staleness": 2},
}
RUNS = [(model, kind) for model in MODELS for kind in OPTIONS if (model, kind) != ("gat", "transformed")]


@dataclass
class Trained:
    """A rank's epochs as recorded, the weights at both ends, and the bytes of the rows that it keeps."""

    rows: list[dict[str, Any]]
    before: dict[str, Tensor]
    after: dict[str, Tensor]
    kept: int
    expected: int
    warnings: list[str]


def trained(rank: int, world: int, cases: list[Case]) -> list[Trained]:
    found = []
    for case in cases:
        trainer = case.trainer(rank, world)
        method, model = trainer.method, trainer.worker.model
        assert isinstance(method, CAGNET)
        before = {name: value.detach().clone() for name, value in model.named_parameters()}
        rows = [trainer.train_epoch(epoch) for epoch in range(case.train.epochs)]
        after = {name: value.detach().clone() for name, value in model.named_parameters()}
        kept = sum(rows.nbytes for layer in method.state()["rows"].values() for rows in layer.values())
        expected = method.memory_components()["broadcast last"]
        found.append(Trained(rows, before, after, kept, expected, method.warnings))
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], list[Trained]]:
    data = on_disk(GRAPH, PARTS, WORLD, False, tmp_path_factory.mktemp("skipped"))
    cases = [Case(data, "cagnet", OPTIONS[kind], MODELS[model], SPEC) for model, kind in RUNS]
    by_rank = run_ranks(trained, WORLD, cases)
    return {key: [rank[i] for rank in by_rank] for i, key in enumerate(RUNS)}


class Simulation:
    """All ranks' layers on dense rows, of which a group reads other groups' as they were broadcast last."""

    def __init__(self, model: ModelSpec, options: dict[str, Any]) -> None:
        self.model, self.options = model, options
        self.group = torch.from_numpy(PARTS // options.get("replication", 1))
        self.last, self.skipped = dict[int, Tensor](), Counter[tuple[int, int]]()
        adjacency = dense_adjacency(GRAPH)
        self.matrix = oracle.propagation_matrix(adjacency, model.name)
        # gcn's rows are sent as they are summed.
        degree = adjacency.sum(1, keepdims=True) + 1 if model.name == "gcn" else np.ones((NODES, 1))
        self.scale = torch.from_numpy(degree**-0.5)
        self.broadcast, self.started = Counter[int](), set[int]()  # rows by layer, of an epoch; layers seen before

    def send(self, layer: int, rows: Tensor) -> None:
        """Broadcast of the layer's `rows` [N, width] those of ranks where they have drifted."""
        now = rows.detach()
        last, scale = self.last.setdefault(layer, now.clone()), self.scale
        for rank in range(WORLD):
            own = torch.from_numpy(rank == PARTS)
            change = (scale * (now - last))[own].norm()
            near = change <= self.options["drift"] * (scale * last)[own].norm()
            few = self.skipped[layer, rank] < self.options.get("staleness", 10)
            if layer in self.started and few and near:
                self.skipped[layer, rank] += 1
            else:
                self.skipped[layer, rank] = 0
                last[own] = now[own]
                self.broadcast[layer] += int(own.sum())
        self.started.add(layer)

    def of_groups(self, now: Tensor, last: Tensor) -> Tensor:
        """Return what each group reads, [groups, N, ...]; gradients of other groups' `last` rows are those of `now`."""
        ours = torch.stack([self.group == group for group in self.group.unique()])
        return torch.where(ours.reshape(*ours.shape, *[1] * (now.dim() - 1)), now, now + (last - now).detach())

    def attended(self, layer: int, z: Tensor, w: dict[str, Tensor]) -> Tensor:
        """Return the heads' rows [N, heads, width]; keys' gradients, too, are those of today's rows."""
        self.send(layer, z)
        heads = []
        of_heads = zip(z.chunk(2, 1), self.last[layer].chunk(2, 1), w["weight_src"], w["weight_dst"], strict=True)
        for now, last, source, target in of_heads:
            rows, keys = self.of_groups(now, last), self.of_groups(now @ source, last @ source)
            score = (now @ target)[:, None] + keys[self.group]
            score = torch.where(score > 0, score, 0.2 * score)
            alpha = torch.softmax(score + self.matrix.log(), 1)
            heads.append(torch.einsum("ij,ijk->ik", alpha, rows[self.group]))
        return torch.stack(heads, 1)

    def aggregated(self, layer: int, rows: Tensor) -> Tensor:
        """Return the rows' weighted sums [N, width]."""
        self.send(layer, rows)
        return torch.einsum("ij,ijk->ik", self.matrix, self.of_groups(rows, self.last[layer])[self.group])

    def logits(self, w: dict[str, Tensor]) -> Tensor:
        """Return the logits of all nodes with the weights `w`."""
        self.broadcast.clear()
        h, name = torch.from_numpy(GRAPH.features.astype(np.float64)), self.model.name
        for layer in range(self.model.layers):
            of = {key.rsplit(".", 1)[1]: w[key] for key in w if key.startswith(f"graph_layers.{layer}.")}
            weight, final = of["weight"], layer + 1 == self.model.layers
            inputs, outputs = weight.shape
            if name == "gat":
                heads = self.attended(layer, h @ weight, of)
                out = heads.mean(1) if final else heads.flatten(1)
            elif "transform_before_exchange" in self.options and outputs * (1 if layer else 2) < inputs:
                out = self.aggregated(layer, h @ weight)
            else:
                out = self.aggregated(layer, h) @ weight
            out = out + of["bias"]
            if name == "sage":
                out = out + h @ of["weight_self"]
            h = out if final else out.relu()
        return h


@pytest.mark.parametrize(("name", "kind"), RUNS)
def test_training_is_that_of_a_dense_simulation(
    found: dict[tuple[str, str], list[Trained]], name: str, kind: str
) -> None:
    ranks, model = found[name, kind], MODELS[name]
    simulation = Simulation(model, OPTIONS[kind])
    labels, learnt = GRAPH.labels, np.flatnonzero(GRAPH.train_mask & (GRAPH.labels >= 0))
    w = {key: value.clone().requires_grad_() for key, value in ranks[0].before.items()}
    optimizer, counts = torch.optim.SGD(w.values(), lr=SPEC.lr), Counter[bool]()
    others, copies = WORLD // OPTIONS[kind].get("replication", 1) - 1, OPTIONS[kind].get("replication", 1) - 1
    for epoch in range(EPOCHS):
        optimizer.zero_grad()
        loss = oracle.mean_loss(simulation.logits(w), labels, learnt)
        loss.backward()
        optimizer.step()
        for rank, run in enumerate(ranks):
            assert run.rows[epoch]["loss"] == pytest.approx(loss.item(), rel=1e-9), (epoch, rank)
        seen: Counter[str] = Counter()
        for run in ranks:
            seen.update(run.rows[epoch]["stats"])
        assert seen == {f"broadcast_rows_layer{layer}": simulation.broadcast[layer] for layer in range(model.layers)}
        counts.update(simulation.broadcast[layer] == NODES for layer in range(1, model.layers))
        if name == "sage":  # all layers but the last of width HIDDEN
            widths = [FEATURES, *[HIDDEN] * (model.layers - 1)]
            if kind == "transformed":
                widths = [HIDDEN, HIDDEN, CLASSES]
            rows = [others * simulation.broadcast[layer] + 2 * copies * NODES for layer in range(model.layers)]
            values = [count * width for count, width in zip(rows, widths, strict=True)]
            bytes_of = {key: sum(run.rows[epoch][f"bytes_{key}"] for run in ranks) for key in ("feature", "embedding")}
            assert bytes_of == {"feature": values[0] * ITEM, "embedding": sum(values[1:]) * ITEM}
    assert min(counts[True], counts[False]) > 0  # some broadcasts were skipped, others not
    for key, value in w.items():
        np.testing.assert_allclose(ranks[0].after[key].numpy(), value.detach().numpy(), rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize(("name", "kind"), RUNS)
def test_memory_has_the_rows_that_are_kept(found: dict[tuple[str, str], list[Trained]], name: str, kind: str) -> None:
    """A rank takes other parts to be as large as its own: over the ranks of a column that adds up."""
    ranks, replication = found[name, kind], OPTIONS[kind].get("replication", 1)
    for first in range(replication):
        column = ranks[first::replication]
        assert sum(run.kept for run in column) == sum(run.expected for run in column) > 0


def test_a_resumed_run_skips_the_same_broadcasts(tmp_path: Path) -> None:
    data = on_disk(GRAPH, PARTS, WORLD, False, tmp_path)
    place = CheckpointPlace(directory=tmp_path / "checkpoints", lineage="0", resume=True)
    case = Case(data, "cagnet", OPTIONS["in groups"], MODELS["sage"], SPEC, checkpoints=place)
    whole, again = run_ranks(train, WORLD, [case]), run_ranks(resumed, WORLD, case, 3)
    for (straight,), (cut,) in zip(whole, again, strict=True):
        assert [row["stats"] for row in straight.rows[3:]] == [row["stats"] for row in cut.rows[-EPOCHS + 3 :]]
        assert straight.rows[-1]["loss"] == cut.rows[-1]["loss"]
        for key, value in straight.after.items():
            np.testing.assert_array_equal(value, cut.after[key])


def test_a_drift_that_skips_nothing_is_said_with_the_least_that_was_seen(tmp_path: Path) -> None:
    data = on_disk(GRAPH, PARTS, WORLD, False, tmp_path)
    dropout = MODELS["sage"].model_copy(update={"dropout": 0.5})
    cases = [Case(data, "cagnet", {"drift": drift}, dropout, SPEC) for drift in (0.01, 2.0)]
    quiet, skipping = zip(*run_ranks(trained, WORLD, cases), strict=True)
    for rank, run in enumerate(quiet):
        (line,) = run.warnings
        assert line.startswith(f"rank {rank} skipped no broadcast: drift is 0.01, the least was ")
        assert float(line.rsplit(" ", 1)[1]) > 0.01
    assert not any(run.warnings for run in skipping)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"drift": 0.1, "rate": 0.5}, "leave it or rate out"), ({"staleness": 3}, "staleness: .* give it")],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises((UserError, ValueError), match=message):
        CAGNET.Options(**options)
