from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness_methods.vrgcn import VRGCN, VRGCNOptions
from support.histories import Remembered, remember
from support.ranks import run_ranks

from harness.check import oracle
from harness.check.graphs import dense_adjacency, on_disk, random_graph
from harness.check.training import Case
from harness.data.graph import GraphData
from harness.errors import UserError
from harness.models.gnn import GNN
from harness.models.layer import ModelSpec
from harness.runtime.cost_models import MemoryCase, PartSize
from harness.runtime.run_config import TrainSpec
from harness.suite.expand import expand
from harness.suite.suite_file import load_suite

WORLD, NODES, FEATURES, CLASSES, HIDDEN, EPOCHS = 3, 60, 7, 4, 4, 4
GRAPH = random_graph(31, NODES, degree=8, features=FEATURES, classes=CLASSES)
PARTS = np.random.default_rng(0).integers(0, WORLD, NODES)
METHOD = "harness_methods.vrgcn:VRGCN"
FROZEN, ONCE, TWICE = (
    TrainSpec(epochs=epochs, lr=lr, precision=precision, threads=1, spmm="torch")
    for epochs, lr, precision in ((EPOCHS, 1e-30, "float64"), (1, 0.01, "float64"), (2, 0.01, "float32"))
)
SMALL, WHOLE = {"batch_size": 4}, {"batch_size": 0}


def model(name: str, layers: int = 3, **rest: Any) -> ModelSpec:
    return ModelSpec(name=name, layers=layers, hidden=rest.pop("hidden", HIDDEN), dropout=0, **rest)


def everyone() -> GraphData:
    """The same graph with every node in training: an epoch passes over them all."""
    none, labels = np.zeros(NODES, bool), np.where(GRAPH.labels < 0, 0, GRAPH.labels)
    return replace(GRAPH, labels=labels, train_mask=~none, val_mask=none, test_mask=none)


# With a hidden width of F a residual gcn needs its own features, too.
EXACT = {
    "sage": model("sage", 2, norm="layer"),
    "gcn": model("gcn", 2),
    "gcn residual": model("gcn", 2, hidden=FEATURES, residual=True),
    "gat": model("gat", 2),
    "mixhop": model("mixhop", 1, order=3),
}
# Of three hops each: mixhop's are one layer's.
DEEP = {"sage": model("sage"), "gcn": model("gcn"), "mixhop": EXACT["mixhop"]}
RUNS: dict[str, tuple[str, dict[str, Any], ModelSpec, TrainSpec]] = {
    **{f"{name} frozen": (METHOD, SMALL, spec, FROZEN) for name, spec in DEEP.items()},
    **{f"{name} first": (METHOD, WHOLE, spec, ONCE) for name, spec in DEEP.items()},
    **{f"{name} sampled": ("graphsage", WHOLE | {"fanouts": [-1, 2, 2]}, spec, ONCE) for name, spec in DEEP.items()},
    **{f"{name} exact": (METHOD, VRGCN.exact, spec, ONCE) for name, spec in EXACT.items()},
    **{f"{name} full": ("full", {}, spec, ONCE) for name, spec in EXACT.items()},
    **{name: (METHOD, SMALL, model(name), TWICE) for name in ("sage", "gcn", "gat")},
    "sage, half the columns": (METHOD, SMALL | {"feature_rate": 0.5, "feature_loss": 0.2}, model("sage"), TWICE),
    "gcn, one history": (METHOD, SMALL | {"fanouts": [-1, 2]}, model("gcn"), TWICE),
    **{
        f"{name} cached": (METHOD, SMALL | {"cache": "presampled"}, model(name), TWICE)
        for name in ("sage", "gcn", "gat")
    },
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[Remembered]]]:
    """What each rank remembers of each run."""
    some, all_ = (on_disk(graph, PARTS, WORLD, False, tmp_path_factory.mktemp("data")) for graph in (GRAPH, everyone()))
    cases = [
        Case(all_ if spec is FROZEN else some, method, options, layers, spec)
        for method, options, layers, spec in RUNS.values()
    ]
    by_rank = run_ranks(remember, WORLD, cases)
    return {name: [rank[i] for rank in by_rank] for i, name in enumerate(RUNS)}


def dense_rows(spec: ModelSpec) -> list[torch.Tensor]:
    """Return what every hop aggregates [N, width] and the logits, in full-graph training, no update yet."""
    network = GNN(spec, FEATURES, CLASSES, seed=0, dtype=torch.float64)
    weights = {name: value.detach() for name, value in network.named_parameters()}
    matrix = oracle.propagation_matrix(dense_adjacency(GRAPH), spec.name)
    rows = [torch.from_numpy(GRAPH.features.astype(np.float64))]
    for i in range(spec.layers):
        w = {k.rsplit(".", 1)[1]: v for k, v in weights.items() if k.startswith(f"graph_layers.{i}.")}
        if spec.name == "mixhop":
            logits = oracle.mixed(matrix, rows[0], w["weight"], spec.order, add=True) + w["bias"]
            return [torch.linalg.matrix_power(matrix, k) @ rows[0] for k in range(spec.order)] + [logits]
        out = matrix @ (rows[-1] @ w["weight"]) + w["bias"]
        if spec.name == "sage":
            out = out + rows[-1] @ w["weight_self"]
        rows.append(out.clamp(min=0) if i + 1 < spec.layers else out)
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("name", DEEP)
def test_with_frozen_weights_histories_become_the_rows_and_the_sampling_noise_goes(
    found: dict[str, list[list[Remembered]]], name: str
) -> None:
    """Layer l's history is exact after l passes, the loss from pass L on; before, neither is."""
    ranks, rows = found[f"{name} frozen"], dense_rows(DEEP[name])
    exact = float(torch.nn.functional.cross_entropy(rows[-1], torch.from_numpy(everyone().labels)))
    errors = [abs(epoch.row["loss"] - exact) for epoch in ranks[0]]
    assert min(errors[:2]) > 1e-4
    assert max(errors[2:]) < 1e-12
    for rank, layer, epoch in itertools.product(range(WORLD), (1, 2), range(EPOCHS)):
        error = np.abs(ranks[rank][epoch].histories[layer] - rows[layer].numpy()[rank == PARTS]).max()
        assert (error < 1e-12) == (epoch + 1 >= layer), (rank, layer, epoch)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(f"{name} first", f"{name} sampled") for name in DEEP] + [(f"{name} exact", f"{name} full") for name in EXACT],
)
def test_the_first_step_is_sampling_behind_an_exact_layer_and_with_all_neighbours_it_is_exact(
    found: dict[str, list[list[Remembered]]], ours: str, theirs: str
) -> None:
    """With a history of 0 the formula is deg/k A h of what is drawn, and the seeds draw the same."""
    (one,), (other,) = found[ours][0], found[theirs][0]
    assert one.row["loss"] == pytest.approx(other.row["loss"], rel=1e-12)
    for key, gradient in one.gradients.items():
        np.testing.assert_allclose(gradient, other.gradients[key], rtol=1e-9, atol=1e-12)
    assert (one.row["bytes_embedding"] > 0) == ("first" in ours)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "width", "histories"),
    [
        ("sage", 2 * FEATURES, [1, 2]),
        ("gcn", FEATURES, [1, 2]),
        ("gcn, one history", FEATURES, [2]),
        ("gat", FEATURES, [1, 2]),
        ("sage, half the columns", FEATURES, [1, 2]),
    ],
)
def test_bytes_are_the_closed_form(
    found: dict[str, list[list[Remembered]]], name: str, width: int, histories: list[int]
) -> None:
    """From the sets of nodes that each step reads and writes."""
    for epoch in range(2):
        want = {"feature": 0, "embedding": 0, "control": 0}
        figures = {"history_nodes": 0, "written_nodes": 0, "remote_nodes": 0}
        for rank, epochs in enumerate(found[name]):
            for step in epochs[epoch].steps:
                assert sorted(step.read) == sorted(step.written) == histories
                sets = [("remote", "feature", width, step.inputs)]
                sets += [("history", "embedding", HIDDEN, nodes) for nodes in step.read.values()]
                sets += [("written", "embedding", HIDDEN, nodes) for nodes in step.written.values()]
                for figure, purpose, values, nodes in sets:
                    remote = int((PARTS[nodes] != rank).sum())
                    figures[f"{figure}_nodes"] += remote
                    want[purpose] += remote * values * 4
                    want["control"] += 4 * remote + 8 * (WORLD - 1)
        rows = [epochs[epoch].row for epochs in found[name]]
        assert {p: sum(row[f"bytes_{p}"] for row in rows) for p in want} == want
        assert {f: sum(row["stats"][f] for row in rows) for f in figures} == figures
        assert all(want.values())
        assert all(math.isfinite(row["loss"]) for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "linear"), [("sage", True), ("gat", False)])
def test_attention_reads_no_history_of_what_is_fresh(
    found: dict[str, list[list[Remembered]]], name: str, linear: bool
) -> None:
    steps = [step for ranks in found[name] for epoch in ranks for step in epoch.steps]
    both = [np.intersect1d(step.read[layer], step.written[layer]).size for step in steps for layer in (1, 2)]
    assert any(both) == linear


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sage", "gcn", "gat"])
def test_a_cache_changes_nothing_but_the_features_that_are_sent(
    found: dict[str, list[list[Remembered]]], name: str
) -> None:
    for plain, cached in zip(found[name][0], found[f"{name} cached"][0], strict=True):
        assert plain.row["loss"] == cached.row["loss"]
        assert plain.row["bytes_feature"] > cached.row["bytes_feature"]
        assert plain.row["bytes_embedding"] == cached.row["bytes_embedding"]


@pytest.mark.parametrize("option", ["prefetch: 1", "storage: host"])
def test_what_cannot_be_is_refused_when_the_suite_is_read(option: str, tmp_path: Path) -> None:
    suite = tmp_path / "suite.yaml"
    suite.write_text(f"name: x\ndatasets: [sbm]\nmethods:\n  - {METHOD}: {{{option}}}\n")
    with pytest.raises(UserError, match=option.split(":")[0]):
        expand(load_suite(suite))


def test_memory_has_histories_and_aggregated_features() -> None:
    part = PartSize(inner=100, boundary=20, edges=1000, cut=50)
    case = MemoryCase(
        train=part, evaluated=None, train_nodes=40, nodes=200, edges=2000, parts=2,
        model=GNN(model("sage"), FEATURES, CLASSES, seed=0, dtype=torch.float32),
    )  # fmt: skip
    found = VRGCN.memory(VRGCNOptions(batch_size=10), case)
    # 10 targets, 30 fresh rows of layer 2, 90 of layer 1, and whatever history the 200 nodes have.
    assert found["histories"] == 4 * HIDDEN * (2 * 100 + (90 + 200) + (30 + 200))
    assert found["aggregated features"] == 4 * FEATURES * (2 * 100 + 90)
    assert VRGCN.memory(VRGCNOptions(fanouts=-1), case)["histories"] == 0
