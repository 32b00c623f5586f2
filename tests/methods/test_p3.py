"""P3 loses what graphsage loses on the same draws; what it sends is what dense matrices say of its batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from support.ranks import run_ranks
from support.training import run_all_to_the_end

from harness.check.graphs import dense_adjacency, on_disk, random_graph
from harness.check.training import Case, RankError, RankOutcome, train
from harness.models.layer import ModelSpec
from harness.registry import sha256_of
from harness.runtime.method import METHODS
from harness.runtime.run_config import TrainSpec
from harness.spec import PluginSource

NODES, ITEM = 60, 8
SPEC = TrainSpec(epochs=2, precision="float64", threads=1)
DRAWN: dict[str, Any] = {"fanouts": 3, "batch_size": 5}
MODELS = {
    "sage": ModelSpec(name="sage", layers=2, hidden=6, dropout=0, norm="layer"),
    "residual": ModelSpec(name="sage", layers=2, hidden=7, dropout=0, residual=True),
    "alone": ModelSpec(name="gcn", layers=1, dropout=0),
    "gcn": ModelSpec(name="gcn", layers=2, linear_layers=1, hidden=6, dropout=0),
    "gat": ModelSpec(name="gat", layers=2, hidden=6, heads=2, dropout=0),
    "mixhop": ModelSpec(name="mixhop", layers=2, order=2, hidden=6, dropout=0),
}
KINDS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "ahead": {"prefetch": 2},
    "weighted": {"weights": "propagation"},
    "labor": {"sampler": "labor"},
    "important": {"sampler": "labor", "importance": 1},
    "asking": {"topology": "owner"},
}
RUNS = [("sage", kind) for kind in KINDS] + [(model, "uniform") for model in MODELS if model != "sage"]
PLUGINS = '''
import torch
from harness import GraphLayer
from harness.plugin import MEAN


class Isomorphism(GraphLayer):
    """(1 + eps) h W + A h W + b with an eps of the layer."""

    name = "isomorphism"
    propagation = MEAN

    def forward(self, block, h, fetch, transform_first=False, aggregated=None):
        rows = fetch(h)
        return self.linear(1.5 * block.own_rows(rows) + block.aggregate(rows, self.propagation), self.weight, self.bias)


class Squared(GraphLayer):
    """(A h^2) W, in the sum of whose rows columns do not mix, and a norm of the rows, in which they do."""

    name = "squared"
    propagation = MEAN

    def forward(self, block, h, fetch, transform_first=False, aggregated=None):
        rows = fetch(h)
        found = block.aggregate(rows / rows.norm(dim=1, keepdim=True), self.propagation)
        return self.linear(found, self.weight, self.bias)


class Learning(GraphLayer):
    """(1 + eps) h W + b with an eps that is learnt: no column's, and no term of the sum."""

    name = "learning"
    propagation = MEAN

    def __init__(self, inputs, outputs, transformed=None, *, products="auto"):
        super().__init__(inputs, outputs, transformed, products=products)
        self.eps = self.parameter(1)

    def forward(self, block, h, fetch, transform_first=False, aggregated=None):
        return self.linear((1 + self.eps) * block.own_rows(fetch(h)), self.weight, self.bias)


class Joined(GraphLayer):
    """[h | A h] W + b, whose weights are of no columns in a row."""

    name = "joined"
    propagation = MEAN

    def __init__(self, inputs, outputs, transformed=None, *, products="auto"):
        super().__init__(inputs, outputs, transformed, products=products)
        self.both = self.parameter(2 * inputs, outputs)

    def forward(self, block, h, fetch, transform_first=False, aggregated=None):
        rows = fetch(h)
        both = torch.cat([block.own_rows(rows), block.aggregate(rows, self.propagation)], 1)
        return self.linear(both, self.both, self.bias)
'''


def parts(world: int) -> np.ndarray:
    return np.random.default_rng(3).integers(0, world, NODES)


def of_both(
    folder: Path, world: int, runs: list[tuple[str, str]], *, features: int = 7, **graph: Any
) -> dict[tuple[str, str], list[list[RankOutcome]]]:
    """Return what the ranks of both methods saw, graphsage's first."""
    data = on_disk(random_graph(5, NODES, features=features, **graph), parts(world), world, False, folder)
    cases = [
        Case(data, name, DRAWN | KINDS[kind], MODELS[model], SPEC)
        for model, kind in runs
        for name in ("graphsage", "p3")
    ]
    by_rank = run_ranks(train, world, cases, timeout_s=240)
    found = [[ranks[i] for ranks in by_rank] for i in range(len(cases))]
    return {run: found[2 * i : 2 * i + 2] for i, run in enumerate(runs)}


@pytest.mark.quick(1)
@pytest.mark.parametrize(("world", "features"), [(3, 7), (1, 7), (2, 7), (4, 7), (4, 3)])
def test_losses_weights_and_scores_are_those_of_graphsage(world: int, features: int, tmp_path: Path) -> None:
    """Columns are not dealt evenly, or some rank has none."""
    for run, (sage, own) in of_both(tmp_path, world, RUNS, features=features).items():
        for theirs, mine in zip(sage, own, strict=True):
            assert [row["loss"] for row in mine.rows] == pytest.approx(
                [row["loss"] for row in theirs.rows], rel=1e-9
            ), run
            for name, weights in theirs.after.items():
                np.testing.assert_allclose(mine.after[name], weights, rtol=1e-6, atol=1e-9, err_msg=f"{run} {name}")
            assert mine.scores == theirs.scores
        for one, other in zip(sage[0].rows, own[0].rows, strict=True):
            drawn = [
                name
                for name in one["stats"]
                if name.startswith("nodes_layer") or name in ("drawn_edges", "input_nodes")
            ]
            assert [one["stats"][name] for name in drawn] == [other["stats"][name] for name in drawn]


@pytest.mark.slow
@pytest.mark.parametrize("graph", [{"weighted": True}, {"multilabel": True}], ids=str)
def test_edges_with_weights_and_several_labels(graph: dict[str, Any], tmp_path: Path) -> None:
    runs = [("sage", kind) for kind in ("uniform", "weighted", "labor")] + [("gat", "uniform"), ("mixhop", "uniform")]
    for sage, own in of_both(tmp_path, 3, runs, **graph).values():
        losses = [[row["loss"] for row in each[0].rows] for each in (sage, own)]
        assert losses[1] == pytest.approx(losses[0], rel=1e-9)


@pytest.mark.parametrize("name", ["sage", "gat"])
def test_bytes_are_those_of_the_neighbourhoods(name: str, tmp_path: Path) -> None:
    """With all neighbours and all training nodes in a batch, whose sources are two hops of a dense matrix away."""
    world, features = 3, 7
    graph, owner = random_graph(5, NODES, features=features), parts(3)
    data = on_disk(graph, owner, world, False, tmp_path)
    cases = [Case(data, "p3", {"fanouts": -1, "batch_size": 0}, MODELS[name], SPEC)]
    ranks = [found for (found,) in run_ranks(train, world, cases)]
    edges = dense_adjacency(graph) != 0
    trains = graph.train_mask & (graph.labels >= 0)
    reached = [(owner == rank) & trains for rank in range(world)]
    rows = [nodes | edges[nodes].any(0) for nodes in reached]
    sources = [nodes | edges[nodes].any(0) for nodes in rows]
    width, column = MODELS[name].hidden, [2, 2, 3]
    summed = sources if name == "gat" else rows
    sent = 0
    for rank, seen in enumerate(ranks):
        back = width * ITEM * (world - 1) * summed[rank].sum()
        forth = width * ITEM * sum(summed[q].sum() for q in range(world) if q != rank)
        words = 4 * (sources[rank].sum() + rows[rank].sum() + edges[rows[rank]].sum()) + ITEM * rows[rank].sum()
        control = (world - 1) * (words + 4 * 8)  # four arrays, of each its length
        for row in seen.rows:
            assert (row["bytes_embedding"], row["bytes_gradient"]) == (forth, back)
            assert (row["bytes_control"], row["bytes_feature"], row["bytes_swap"]) == (control, 0, 0)
        before = [row for row in seen.traffic if row["scope"] == "setup" and row["purpose"] == "feature"]
        assert sum(row["sent_bytes"] for row in before) == (owner == rank).sum() * (features - column[rank]) * ITEM
        sent += sum(row["sent_bytes"] for row in before)
    assert sent == pytest.approx(NODES * features * ITEM * (world - 1) / world, rel=0.1)


def test_a_rank_reads_its_columns_of_every_batch(tmp_path: Path) -> None:
    graph = random_graph(5, NODES)
    data = on_disk(graph, parts(3), 3, False, tmp_path)
    by_rank = run_ranks(read_columns, 3, Case(data, "p3", DRAWN, MODELS["sage"], SPEC))
    for steps in zip(*by_rank, strict=True):
        assert [columns for columns, _, _ in steps] == [(0, 2), (2, 4), (4, 7)]
        for (start, stop), nodes, inputs in steps:
            assert np.array_equal(nodes, steps[0][1])
            assert np.array_equal(inputs, graph.features[nodes][:, start:stop])


def read_columns(rank: int, world: int, case: Case) -> list[tuple[tuple[int, int], np.ndarray, np.ndarray]]:
    trainer = case.trainer(rank, world)
    found = []
    for step in trainer.method.steps(0):
        assert step.first is not None
        assert step.nodes is not None
        columns = step.first.columns
        found.append(((columns.start, columns.stop), np.asarray(step.nodes), step.inputs.numpy()))  # type: ignore[union-attr]
    return found


def own_model(folder: Path, name: str) -> tuple[ModelSpec, dict[str, PluginSource]]:
    file = folder / "layers.py"
    file.write_text(PLUGINS)
    source = PluginSource(file=file, module=None, cls=name.capitalize(), sha256=sha256_of(file))
    return ModelSpec(name=name, layers=2, hidden=6, dropout=0), {"model": source}


def test_a_layer_of_a_plugin_that_is_a_sum_over_columns_is_trained(tmp_path: Path) -> None:
    data = on_disk(random_graph(5, NODES), parts(2), 2, False, tmp_path)
    model, plugins = own_model(tmp_path, "isomorphism")
    cases = [Case(data, name, DRAWN, model, SPEC, plugins=plugins) for name in ("graphsage", "p3")]
    sage, own = run_ranks(train, 2, cases)[0]
    assert [row["loss"] for row in own.rows] == pytest.approx([row["loss"] for row in sage.rows], rel=1e-9)


@pytest.mark.parametrize("name", ["squared", "learning", "joined"])
def test_a_layer_that_is_no_sum_over_columns_is_refused(name: str, tmp_path: Path) -> None:
    data = on_disk(random_graph(5, NODES), np.zeros(NODES, np.int64), 1, False, tmp_path)
    model, plugins = own_model(tmp_path, name)
    with pytest.raises(RankError, match=f"model.name: the first layer of {name} is no sum over the columns"):
        run_ranks(train, 1, [Case(data, "p3", DRAWN, model, SPEC, plugins=plugins)])


def test_attention_with_a_residual_of_whole_features_is_refused(tmp_path: Path) -> None:
    data = on_disk(random_graph(5, NODES), np.zeros(NODES, np.int64), 1, False, tmp_path)
    model = ModelSpec(name="gat", layers=2, hidden=7, heads=1, residual=True)
    with pytest.raises(RankError, match=r"model\.residual: gat adds whole rows of the features, which no rank has"):
        run_ranks(train, 1, [Case(data, "p3", DRAWN, model, SPEC)])


@pytest.mark.parametrize(
    "option",
    [{"storage": "host"}, {"cache": "degree"}, {"feature_rate": 0.5}, {"feature_loss": 0.1}, {"scope": "local"}],
)
def test_options_of_fetched_features_are_refused(option: dict[str, Any]) -> None:
    (name,) = option
    with pytest.raises(ValidationError, match=f"{name}: p3 fetches no features: leave it out"):
        METHODS.load("p3").Options(**option)


@pytest.mark.slow
@pytest.mark.parametrize("inductive", [False, True])
def test_inference_on_everything_scores_like_the_exact_evaluation(inductive: bool, tmp_path: Path) -> None:
    data = on_disk(random_graph(5, NODES), parts(3), 3, inductive, tmp_path)
    spec = SPEC.model_copy(update={"sampled_eval": True, "eval_every": 1})
    cases = [Case(data, "p3", {"fanouts": -1, "batch_size": 4}, MODELS["sage"], spec)]
    (found,) = run_ranks(run_all_to_the_end, 3, cases)[0]
    for row in found["epochs"]:
        assert row["sampled_val_score"] == pytest.approx(row["val_score"])
        assert row["sampled_test_score"] == pytest.approx(row["test_score"])


def test_dropout_takes_other_values_of_each_rank_s_columns(tmp_path: Path) -> None:
    """On average as many as of whole rows: a layer whose weights are 1 sums to what is left, times 1 / (1 - rate)."""
    data = on_disk(random_graph(5, NODES, features=8), parts(2), 2, False, tmp_path)
    model = MODELS["sage"].model_copy(update={"dropout": 0.5})
    masks = run_ranks(dropped, 2, Case(data, "p3", DRAWN, model, SPEC))
    assert masks[0].shape == masks[1].shape
    assert np.mean([mask.mean() for mask in masks]) == pytest.approx(0.5, abs=0.05)
    assert np.mean(masks[0] == masks[1]) == pytest.approx(0.5, abs=0.05)


def dropped(rank: int, world: int, case: Case) -> np.ndarray:
    trainer = case.trainer(rank, world)
    seen: list[np.ndarray] = []
    for step in trainer.method.steps(0):
        first = step.first
        assert first is not None

        class Watched:
            columns = first.columns

            def __call__(self, layer: Any, blocks: Any, x: Any, first: Any = first) -> Any:
                seen.append(x.numpy() == 0)
                return first(layer, blocks, x)

        trainer.worker.model(step.blocks, step.inputs, first=Watched())
    return np.concatenate(seen)
