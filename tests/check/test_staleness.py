"""Training on stale boundary values is the recursion of PSC-GCN's Algorithm 1, to 1e-12 in float64."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import stale
from support.ranks import run_ranks
from support.stale import Rule
from support.training import Drawn, train_and_watch

from harness.check import oracle
from harness.check.graphs import OnDisk, dense_adjacency, on_disk, random_graph
from harness.check.training import Case, RankOutcome
from harness.models.gnn import GNN
from harness.models.layer import ModelSpec
from harness.runtime.run_config import TrainSpec

TOLERANCE = 1e-12
NODES = 40
WORLDS = [1, 2, 3]
GRAPHS = {
    "sage": random_graph(41, NODES, degree=6),
    "gcn": random_graph(42, NODES, degree=6, weighted=True),
    "mixhop": random_graph(43, NODES, degree=6),
}
MODELS = {
    "sage": ModelSpec(name="sage", layers=3, hidden=6, dropout=0, norm="layer"),
    "gcn": ModelSpec(name="gcn", layers=2, hidden=3, dropout=0),
    "mixhop": ModelSpec(name="mixhop", layers=2, order=2, hidden=6, dropout=0),
}
NARROW = {"sage": {2}, "gcn": {0}}  # layers of widths 7, 6, 6, 4 and 7, 3, 4 whose H W is fewer bytes
WHOLE: dict[str, Any] = {"rate": 1.0, "cache": "none"}
SAMPLED: dict[str, Any] = {"rate": 0.4, "refresh": 2}
METHODS: dict[str, tuple[str, dict[str, Any], Rule]] = {
    **{f"psc {tau}": ("psc-gcn", {"staleness": tau, **WHOLE}, Rule(tau)) for tau in range(4)},
    **{f"psc sampled {tau}": ("psc-gcn", {"staleness": tau, **SAMPLED}, Rule(tau)) for tau in range(4)},
    "psc random degree": (
        "psc-gcn",
        {"staleness": 1, "rate": 0.6, "sampler": "random", "cache": "degree", "capacity": 1.0},
        Rule(1),
    ),
    "psc sync": ("psc-gcn", {"staleness": 2, "warmup": "sync", **SAMPLED}, Rule(2, "sync")),
    "psc precompute": ("psc-gcn", {"staleness": 2, "precompute": True, **SAMPLED}, Rule(2)),
    "psc transformed": ("psc-gcn", {"staleness": 2, "transform_before_exchange": True, **SAMPLED}, Rule(2)),
    "pipe": ("pipegcn", {}, Rule(1)),
    "pipe sync smooth": (
        "pipegcn",
        {"staleness": 3, "warmup": "sync", "smoothing": True, "decay": 0.8},
        Rule(3, "sync", 0.8),
    ),
    "pipe smooth transformed": ("pipegcn", {"smoothing": True, "transform_before_exchange": True}, Rule(1, decay=0.95)),
}
MIXED = {"psc 1", "psc sampled 2", "pipe sync smooth"}  # methods that run mixhop, too
FAULTS = {name: (f"support.methods:{name}", WHOLE, Rule(1)) for name in ("Older", "Doubled", "Dropped")}
Run = list[tuple[RankOutcome, list[Drawn]]]


def parts_of(world: int) -> np.ndarray:
    return np.random.default_rng(world).integers(0, world, NODES)


def case(folder: Path, world: int, method: str, options: dict[str, Any], rule: Rule, model: str) -> Case:
    spec = TrainSpec(
        epochs=2 * rule.staleness + 4, precision="float64", threads=1, optimizer="sgd", lr=0.5, weight_decay=0.01
    )
    data = _stored(folder, world, model)
    return Case(data, method, options, MODELS[model], spec)


@functools.cache
def _stored(folder: Path, world: int, model: str) -> OnDisk:
    directory = folder / model
    directory.mkdir(exist_ok=True)
    return on_disk(GRAPHS[model], parts_of(world), world, False, directory)


def models_of(method: str) -> list[str]:
    return [model for model in MODELS if model != "mixhop" or method in MIXED]


@functools.cache
def runs(folder: Path, world: int) -> dict[tuple[str, str], Run]:
    """Run every method, and on two ranks every fault, in one group of `world` ranks."""
    methods = METHODS | (FAULTS if world == 2 else {})
    keys = [(name, model) for name in methods for model in models_of(name)]
    cases = [case(folder, world, *methods[name], model) for name, model in keys]
    by_rank = run_ranks(train_and_watch, world, cases)
    return {key: [ranks[i] for ranks in by_rank] for i, key in enumerate(keys)}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stale")


def simulated(run: Run, world: int, options: dict[str, Any], rule: Rule, model: str) -> stale.Result:
    """Return what the recursion says of the graphs that were drawn."""
    graph = GRAPHS[model]
    adjacency, x = dense_adjacency(graph), graph.features.astype(np.float64)
    matrices = [stale.drawn_matrix(drawn, adjacency, model) for drawn in drawn_graphs(run)]
    whole = oracle.propagation_matrix(adjacency, model)
    rows = np.flatnonzero(graph.train_mask & (graph.labels >= 0))
    return stale.train(
        matrices,
        parts_of(world),
        x,
        lambda logits: oracle.mean_loss(logits, graph.labels, rows),
        run[0][0].before,
        stale.Model(
            MODELS[model].name,
            MODELS[model].norm == "layer",
            NARROW[model] if options.get("transform_before_exchange") else (),
            MODELS[model].order,
        ),
        rule,
        lambda weights: torch.optim.SGD(weights, lr=0.5, weight_decay=0.01),
        whole @ torch.from_numpy(x) if options.get("precompute") else None,
    )


def drawn_graphs(run: Run) -> list[np.ndarray]:
    """Return the graph of each iteration, [N, N], of all ranks' rows."""
    graphs = [np.zeros((NODES, NODES)) for _ in run[0][1]]
    for _, drawn in run:
        for graph, edges in zip(graphs, drawn, strict=True):
            graph[edges.targets, edges.sources] = edges.weights
    return graphs


def furthest(run: Run, want: stale.Result) -> float:
    """Return the largest relative difference of losses, and of gradients and weights to their largest."""
    errors = []
    for outcome, _ in run:
        losses = np.array([row["loss"] for row in outcome.rows])
        errors.append(np.abs(losses / np.array(want.losses) - 1).max())
        for got, wanted in ((outcome.gradients, want.gradients), (outcome.after, want.after)):
            assert got.keys() == wanted.keys()
            scale = max(np.abs(value).max() for value in wanted.values())
            errors.append(max(np.abs(got[name] - wanted[name]).max() for name in wanted) / scale)
    return max(errors)


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", METHODS)
def test_training_is_the_stale_recursion(name: str, world: int, folder: Path) -> None:
    _, options, rule = METHODS[name]
    for model in models_of(name):
        run = runs(folder, world)[name, model]
        assert furthest(run, simulated(run, world, options, rule, model)) <= TOLERANCE, model


@pytest.mark.slow
@pytest.mark.parametrize("model", NARROW)
def test_graphs_are_drawn_anew_from_true_edges_with_changing_probabilities(model: str, folder: Path) -> None:
    graphs = drawn_graphs(runs(folder, 3)["psc sampled 3", model])
    adjacency = dense_adjacency(GRAPHS[model])
    assert all(not (graph[adjacency == 0]).any() for graph in graphs)
    shares = [np.count_nonzero(graph) / np.count_nonzero(adjacency) for graph in graphs]
    assert 0.2 < min(shares) < max(shares) < 0.6
    assert all(not np.array_equal(a, b) for a, b in itertools.pairwise(graphs))
    # A drawn edge counts a/p; graph 2 is the first whose p are not epsilon but know the norms of iteration 0.
    uniform = [np.allclose((graph / np.where(adjacency > 0, adjacency, 1))[graph > 0], 2.5) for graph in graphs]
    assert uniform == [t - 3 < 2 for t in range(len(graphs))]


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen(fault: str, folder: Path) -> None:
    _, options, rule = FAULTS[fault]
    for model in models_of(fault):
        run = runs(folder, 2)[fault, model]
        assert furthest(run, simulated(run, 2, options, rule, model)) > 1e-4, model


@pytest.mark.parametrize("model", MODELS)
def test_without_staleness_or_without_cut_edges_the_oracle_is_full_graph_training(model: str) -> None:
    graph, spec = GRAPHS[model], MODELS[model]
    x, rows = graph.features.astype(np.float64), np.flatnonzero(graph.train_mask & (graph.labels >= 0))
    matrix = oracle.propagation_matrix(dense_adjacency(graph), model)
    network = GNN(spec, x.shape[1], graph.num_classes, seed=0, dtype=torch.float64)
    before = {name: value.detach().numpy() for name, value in network.named_parameters()}
    weights = {name: torch.from_numpy(value.copy()).requires_grad_() for name, value in before.items()}
    optimizer, losses = torch.optim.SGD(weights.values(), lr=0.5), []
    for _ in range(6):
        optimizer.zero_grad()
        shape = {"layers": spec.layers, "linear": 0, "norm": spec.norm == "layer", "residual": False}
        shape["order"] = spec.order
        loss = oracle.mean_loss(
            oracle.logits(matrix, torch.from_numpy(x), weights, model=model, **shape), graph.labels, rows
        )
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    for parts, rule in ((parts_of(3), Rule(0)), (np.zeros(NODES), Rule(2))):
        got = stale.train(
            [matrix] * 6,
            parts,
            x,
            lambda logits: oracle.mean_loss(logits, graph.labels, rows),
            before,
            stale.Model(spec.name, spec.norm == "layer", order=spec.order),
            rule,
            lambda tensors: torch.optim.SGD(tensors, lr=0.5),
        )
        np.testing.assert_allclose(got.losses, losses, rtol=1e-12)
        for name, value in weights.items():
            np.testing.assert_allclose(got.after[name], value.detach().numpy(), rtol=1e-10, atol=1e-12)


def scalars(layers: int) -> dict[str, np.ndarray]:
    """Weights of a GraphSAGE of width 1 with two classes."""
    rng = np.random.default_rng(7)
    widths = [1] * layers + [2]
    found = {}
    for i in range(layers):
        shape = (widths[i], widths[i + 1])
        found[f"graph_layers.{i}.weight"] = rng.random(shape)
        found[f"graph_layers.{i}.bias"] = rng.random(shape[1])
        found[f"graph_layers.{i}.weight_self"] = rng.random(shape)
    return found


@pytest.mark.parametrize("staleness", [1, 2])
def test_the_oracle_is_algorithm_1_written_out_for_two_nodes(staleness: int) -> None:
    """Two ranks of one node and an edge between them: what a node reads and sends is the other's row."""
    layers, steps, x, eye = 3, 7, np.array([[1.0], [-0.4]]), np.eye(2)
    weights = scalars(layers)
    w, v, b = (
        [weights[f"graph_layers.{i}.{kind}"].copy() for i in range(layers)]
        for kind in ("weight", "weight_self", "bias")
    )
    rows: list[list[np.ndarray]] = []
    sent: list[list[np.ndarray]] = []
    losses = []
    for t in range(steps):
        h, read = [x], []
        rows.append(h)
        for i in range(layers):
            read.append(rows[t - staleness][i][::-1] if t >= staleness else np.zeros_like(h[i]))
            out = h[i] @ v[i] + read[i] @ w[i] + b[i]
            h.append(np.maximum(out, 0) if i + 1 < layers else out)
        share = np.exp(h[-1]) / np.exp(h[-1]).sum(1, keepdims=True)
        losses.append(-np.log(np.diag(share)).mean())
        gradient, changes = (share - eye) / 2, []
        sent.append([np.empty(0)] * layers)
        for i in reversed(range(layers)):
            changes.append((i, read[i].T @ gradient, h[i].T @ gradient, gradient.sum(0)))
            sent[t][i] = (gradient @ w[i].T)[::-1]
            fresh = gradient @ v[i].T + (sent[t - staleness][i] if t >= staleness else 0)
            gradient = fresh * (h[i] > 0)
        for i, dw, dv, db in changes:
            w[i], v[i], b[i] = w[i] - 0.3 * dw, v[i] - 0.3 * dv, b[i] - 0.3 * db
    swap = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    got = stale.train(
        [swap] * steps,
        np.array([0, 1]),
        x,
        lambda logits: oracle.mean_loss(logits, np.array([0, 1]), np.arange(2)),
        weights,
        stale.Model("sage", norm=False),
        Rule(staleness),
        lambda tensors: torch.optim.SGD(tensors, lr=0.3),
    )
    np.testing.assert_allclose(got.losses, losses, rtol=1e-13)
    for i in range(layers):
        np.testing.assert_allclose(got.after[f"graph_layers.{i}.weight"], w[i], rtol=1e-12)
        np.testing.assert_allclose(got.after[f"graph_layers.{i}.weight_self"], v[i], rtol=1e-12)
