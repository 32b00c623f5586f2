"""SIGN is full-graph training of its own model, on rows that are exchanged once; the oracle is dense, in float64."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from support.ranks import run_ranks
from torch import Tensor

from harness.check.graphs import OnDisk, dense_adjacency, on_disk, random_graph
from harness.check.training import Case, RankOutcome, train
from harness.data.graph import GraphData
from harness.models.layer import ModelSpec
from harness.results.record import of_workload, other_model
from harness.runtime.evaluation import columns_at_once
from harness.runtime.method import METHODS
from harness.runtime.run_config import TrainSpec
from harness.suite.expand import expand
from harness.suite.schema import Suite

NODES, FEATURES = 60, 7
PARTS = np.random.default_rng(3).integers(0, 4, NODES)
SPEC = TrainSpec(epochs=4, precision="float64", threads=1, optimizer="sgd", lr=0.5)
MODELS = {
    "sage": ModelSpec(name="sage", layers=2, hidden=6, dropout=0, norm="layer"),
    "gcn": ModelSpec(name="gcn", layers=3, linear_layers=2, hidden=5, dropout=0),
    "gat": ModelSpec(name="gat", layers=2, hidden=6, heads=2, dropout=0),
    "mixhop": ModelSpec(name="mixhop", layers=2, order=3, hidden=4, options={"propagation": "mean"}),
}
FEW = SPEC.model_copy(update={"eval_memory": 3 * 4 * NODES * 8})  # three columns of features at a time, or four
WHOLE = {"batch_size": 0}
RUNS: list[tuple[str, dict[str, Any]]] = [
    ("sage", {}), ("gcn", {}), ("sage", {"powers": "last", "hops": 3}), ("gcn", {"powers": "last"}),
    ("gat", {"hops": 1}),
]  # fmt: skip


def powers(adjacency: NDArray[np.float64], x: NDArray[np.float64], model: str, hops: int) -> list[Tensor]:
    """Return X, A X, ..., A^hops X by dense products: A is D^-1 A for sage, else D^-1/2 (A + I) D^-1/2."""
    if model == "sage":
        degree = adjacency.sum(1)
        matrix = adjacency / np.where(degree > 0, degree, 1)[:, None]
    else:
        looped = adjacency + np.eye(len(adjacency))
        root = np.sqrt(looped.sum(1))
        matrix = looped / root[:, None] / root[None, :]
    found = [x]
    for _ in range(hops):
        found.append(matrix @ found[-1])
    return [torch.from_numpy(each) for each in found]


def logits(rows: list[Tensor], weights: dict[str, Tensor], model: ModelSpec, options: dict[str, Any]) -> Tensor:
    """Return SIGN's logits of rows of X, A X, ..., A^K X, or SGC's of the last ones."""
    weight, bias = weights["graph_layers.0.weight"], weights["graph_layers.0.bias"]
    if options.get("powers") == "last":
        return rows[-1] @ weight + bias
    blocks = weight.split(model.hidden, dim=1)
    h = torch.cat([x @ w for x, w in zip(rows, blocks, strict=True)], 1) + bias
    linear = max(1, model.linear_layers)
    for i in range(linear):
        if model.norm == "layer":
            gain, shift = weights[f"norms.{i}.weight"], weights[f"norms.{i}.bias"]
            h = torch.nn.functional.layer_norm(h, h.shape[1:], gain, shift)
        h = torch.relu(h) @ weights[f"linear_layers.{i}.weight"].T + weights[f"linear_layers.{i}.bias"]
    return h


def single_process(outcome: RankOutcome, graph: GraphData, model: ModelSpec, options: dict[str, Any]) -> list[float]:
    """Return the losses of training on all training nodes by autograd, from the rank's first weights."""
    hops = options.get("hops") or model.layers
    rows = powers(dense_adjacency(graph), graph.features.astype(np.float64), model.name, hops)
    chosen = torch.from_numpy(np.flatnonzero(graph.train_mask & (graph.labels >= 0)))
    labels = torch.from_numpy(graph.labels)[chosen]
    weights = {key: torch.from_numpy(value.copy()).requires_grad_() for key, value in outcome.before.items()}
    optimizer, losses = torch.optim.SGD(weights.values(), lr=SPEC.lr), []
    for _ in range(SPEC.epochs):
        optimizer.zero_grad()
        output = logits(rows, weights, model, options)
        loss = torch.nn.functional.cross_entropy(output[chosen], labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    output = logits(rows, weights, model, options).argmax(1).numpy()
    tested = graph.test_mask & (graph.labels >= 0)
    assert outcome.scores["test"] == pytest.approx((output == graph.labels)[tested].mean(), abs=1e-12)
    for name, value in weights.items():
        np.testing.assert_allclose(outcome.after[name], value.detach().numpy(), rtol=1e-9, atol=1e-11)
    return losses


@functools.cache
def stored(folder: Path, world: int, weighted: bool) -> tuple[GraphData, OnDisk]:
    graph = random_graph(21, NODES, degree=6, features=FEATURES, weighted=weighted)
    return graph, on_disk(graph, PARTS % world, world, False, folder)


@pytest.mark.quick(2)
@pytest.mark.parametrize(("world", "weighted"), [(3, True), (1, False), (2, True), (4, False), (4, True), (2, False)])
def test_with_all_training_nodes_a_step_it_is_single_process_training_of_its_model(
    world: int, weighted: bool, tmp_path: Path
) -> None:
    graph, data = stored(tmp_path, world, weighted)
    cases = [Case(data, "sign", options | WHOLE, MODELS[name], SPEC) for name, options in RUNS]
    # `full` trains the same model by exchanging every hop in every epoch.
    full = [replace(case, method="full", options={}, model=case.trained) for case in cases[:3]]
    few = [replace(case, train=FEW, options=case.options | {"storage": "disk"}) for case in cases]
    by_rank = run_ranks(train, world, cases + full + few)
    for outcomes in by_rank:
        for outcome, (name, options) in zip(outcomes, [*RUNS, *RUNS[:3], *RUNS], strict=True):
            want = single_process(outcome, graph, MODELS[name], options)
            assert [row["loss"] for row in outcome.rows] == pytest.approx(want, rel=1e-9)
            assert outcome.broken is None


@pytest.mark.parametrize(("name", "options"), RUNS[:4])
def test_boundary_rows_are_sent_once_a_hop_before_the_first_epoch_and_never_again(
    name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    """Byte for byte, from the definition: rank i is sent each node of B_i once a hop, F values of 8 bytes."""
    graph, data = stored(tmp_path, 3, False)
    edge, owner = dense_adjacency(graph) != 0, PARTS % 3
    boundary = [int((edge[owner == rank].any(0) & (owner != rank)).sum()) for rank in range(3)]
    hops = options.get("hops") or MODELS[name].layers
    cases = [Case(data, "sign", options | {"batch_size": size}, MODELS[name], SPEC) for size in (0, 4)]
    cases.append(replace(cases[0], train=FEW))
    for outcomes in zip(*run_ranks(train, 3, cases), strict=True):
        for rank, outcome in enumerate(outcomes):
            rows = [row for row in outcome.traffic if row["purpose"] in ("feature", "embedding", "gradient")]
            seen = {}
            for row in rows:
                key = row["scope"], row["purpose"], row["layer"]
                seen[key] = seen.get(key, 0) + row["received_bytes"]
            found = {key: size for key, size in seen.items() if key[0] == "setup"}
            one = boundary[rank] * FEATURES * 8
            assert found == {("setup", "embedding" if hop else "feature", hop): one for hop in range(hops)}
            assert {row["scope"] for row in rows} <= {"setup", "eval"}
            sent = {row["purpose"] for row in outcome.traffic if row["scope"] == "epoch" and row["sent_bytes"]}
            assert sent == {"model"}


@pytest.mark.parametrize(
    ("most", "want"), [(None, 100), (10**9, 100), (4 * 50 * 8 * 40, 32), (4 * 50 * 8 * 15, 15), (1, 1)]
)
def test_columns_are_as_many_as_there_is_room_for_and_whole_cache_lines(most: int | None, want: int) -> None:
    assert columns_at_once(100, 50, 8, most) == want


def read_batches(rank: int, world: int, case: Case) -> list[list[tuple[Any, ...]]]:
    """Return of each step of two epochs the nodes, the inputs, the aggregated inputs, labels and divisor."""
    method, found = case.trainer(rank, world).method, []
    for epoch in range(2):
        steps = [(s.nodes, s.inputs(), s.aggregated(), s.loss.labels, s.loss.total) for s in method.steps(epoch)]
        found.append([tuple(x.numpy() if isinstance(x, Tensor) else x for x in step) for step in steps])
    return found


def test_a_batch_has_the_powers_of_its_nodes_rows_and_an_epoch_each_training_node_once(tmp_path: Path) -> None:
    graph, data = stored(tmp_path, 2, True)
    by_rank = run_ranks(read_batches, 2, Case(data, "sign", {"batch_size": 4}, MODELS["gcn"], SPEC))
    want = [each.numpy() for each in powers(dense_adjacency(graph), graph.features.astype(np.float64), "gcn", 3)]
    training = np.flatnonzero(graph.train_mask & (graph.labels >= 0))
    orders = []
    for epoch in range(2):
        steps = [found[epoch] for found in by_rank]
        assert len(steps[0]) == len(steps[1]) > 1
        drawn = np.concatenate([nodes for own in steps for nodes, *_ in own])
        orders.append(drawn.tolist())
        assert sorted(drawn) == training.tolist()
        for one, other in zip(*steps, strict=True):
            assert one[4] == other[4] == len(one[0]) + len(other[0])
        for nodes, own, aggregated, labels, _ in (step for each in steps for step in each):
            np.testing.assert_array_equal(own, want[0][nodes])
            np.testing.assert_allclose(aggregated, np.concatenate([p[nodes] for p in want[1:]], 1), rtol=1e-12)
            np.testing.assert_array_equal(labels, graph.labels[nodes])
    assert orders[0] != orders[1]


def trained_seconds(rank: int, world: int, case: Case) -> tuple[float, list[float], list[float], float]:
    """Return seconds of precomputation, in the set-up and by epoch; of each epoch; and those that count as training."""
    trainer = case.trainer(rank, world, rehearsed=True)
    trainer.begin()
    for epoch in range(2):
        row = trainer.train_epoch(epoch)
        trainer.report.epochs.append(row)
        trainer._follow_seconds(row, evaluated=False)
    before, times = ([row[key] for row in trainer.report.epochs] for key in ("precompute_s", "epoch_time_s"))
    return trainer.report._data["spans"]["setup"]["precompute"], before, times, trainer.trained_s


def test_its_set_up_counts_as_training(tmp_path: Path) -> None:
    """For `train.seconds`, as for the time to a target (tests/results/test_reduce.py): of each the slowest rank's."""
    _, data = stored(tmp_path, 2, False)
    by_rank = run_ranks(trained_seconds, 2, Case(data, "sign", {}, MODELS["sage"], SPEC))
    for span, before, _, _ in by_rank:
        assert before == [span, 0.0]
        assert span > 0
    want = max(before[0] for _, before, _, _ in by_rank)
    want += sum(max(epoch) for epoch in zip(*(times for _, _, times, _ in by_rank), strict=True))
    assert [trained for *_, trained in by_rank] == pytest.approx([want] * 2, abs=1e-8)


@pytest.mark.parametrize(
    ("name", "options", "want"),
    [
        ("sage", {}, "mixhop-1+1x18k2-mean"),
        ("gcn", {}, "mixhop-1+2x20k3"),
        ("gat", {"hops": 4}, "mixhop-1+1x30k4"),
        ("gcn", {"powers": "last", "hops": 2}, "mixhop-1x5k2-last"),
        ("sage", {"powers": "last"}, "mixhop-1x6k2-mean-last"),
        ("mixhop", {}, "mixhop-1+1x12k2-mean"),
    ],
)
def test_its_model_is_one_layer_of_powers_and_linear_ones(name: str, options: dict[str, Any], want: str) -> None:
    method, model = METHODS.load("sign"), MODELS[name]
    own = method.model_of(method.Options(**options), model)
    assert own is not None
    assert own.label == want
    assert (own.dropout, own.norm, own.heads) == (model.dropout, model.norm, ModelSpec().heads)


def test_a_trial_has_its_model_and_says_what_the_suites_is() -> None:
    written = {
        "name": "own", "datasets": ["sbm"], "methods": ["full", {"sign": {"hops": [2, 3]}}],
        "model": {"layers": 2, "hidden": 8}, "per_method": {"sign": {"model": {"dropout": 0.2}}},
    }  # fmt: skip
    full, two, three = expand(Suite.model_validate(written))
    assert (full.model.label, full.shared) == ("sage-2x8", {})
    assert [(trial.model.label, trial.model.dropout) for trial in (two, three)] == [
        ("mixhop-1+1x24k2-mean", 0.2), ("mixhop-1+1x32k3-mean", 0.2),
    ]  # fmt: skip
    assert all(trial.workload == full.workload for trial in (two, three))
    configs = [trial.model_dump(mode="json") for trial in (full, two, three)]
    assert [of_workload(config)["model"] for config in configs] == [configs[0]["model"]] * 3
    assert [other_model(config) for config in configs] == [None, "mixhop", "mixhop"]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"hops": 0}, "hops\n.*greater than or equal to 1"),
        ({"powers": "first"}, "powers\n.*'all' or 'last'"),
        ({"batch_size": -1}, "batch_size\n.*greater than or equal to 0"),
        ({"cache": "degree"}, "cache\n.*Extra inputs"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], what: str) -> None:
    with pytest.raises(ValidationError, match=what):
        METHODS.load("sign").Options(**options)
