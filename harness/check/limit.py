"""Limit equivalence: at its exact setting a method is single-process full-graph training."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.check import oracle
from harness.check.graphs import LIMITS, MODELS, PAIRS, TinyGraphs, dense_adjacency, is_inductive, tiny_graph
from harness.check.runs import Check, CheckRun, Judged, Subject
from harness.check.training import RankOutcome
from harness.data.graph import GraphData
from harness.models.gnn import GNN
from harness.runtime.spec import TrainSpec

TOLERANCE = 1e-9
EPOCHS = 3
SPEC = TrainSpec(epochs=EPOCHS, precision="float64", threads=1)
DenseLogits = Callable[[NDArray[np.float64], Tensor, oracle.Weights], Tensor]


def limit_runs(
    subject: Subject, options: dict[str, Any], graphs: TinyGraphs, world: int, every_model: bool = False
) -> Iterator[CheckRun]:
    """Yield runs on every graph: two models each, in turn, or all of them."""
    for turn, name in enumerate(LIMITS):
        for model in MODELS if every_model else PAIRS[turn % len(PAIRS)]:
            yield CheckRun(subject, options, graphs.get(name, world), world, model, MODELS[model], SPEC)


def exact_check(runs: Sequence[CheckRun], options: dict[str, Any]) -> Check:
    """Return the check that `runs`, with these options, are full-graph training."""
    words = ", ".join(f"{key}={value}" for key, value in options.items()) or "the defaults"
    claim = f"{words}: losses, gradients and scores of full-graph training, to {TOLERANCE:g} ({len(runs)} runs)"
    return Check("exact", claim, runs, _judge)


def _judge(results: Judged) -> list[str]:
    found = []
    for run, ranks in results:
        want = expected(run.tiny.name, run.model)
        for outcome in ranks if isinstance(ranks, list) else []:
            assert isinstance(outcome, RankOutcome)
            if wrong := difference(outcome, want):
                found.append(f"{run}: {wrong}")
                break
    return found


@dataclass(frozen=True)
class Expected:
    """What full-graph training does: as `RankOutcome`, the losses by epoch."""

    losses: list[float]
    gradients: dict[str, NDArray[Any]]
    scores: dict[str, float]
    after: dict[str, NDArray[Any]]


@functools.cache
def expected(graph_name: str, model_name: str) -> Expected:
    """Train the dense oracle on a tiny graph, from the weights that seed 0 gives."""
    graph, model = tiny_graph(graph_name), MODELS[model_name]

    def logits(adjacency: NDArray[np.float64], x: Tensor, weights: oracle.Weights) -> Tensor:
        return oracle.logits(
            oracle.propagation_matrix(adjacency, model.name), x, weights,
            model=model.name, layers=model.layers, linear=model.linear_layers,
            norm=model.norm == "layer", residual=model.residual, order=model.order,
        )  # fmt: skip

    network = GNN(model, graph.features.shape[1], graph.num_classes, seed=0, dtype=torch.float64)
    return train_dense(graph, is_inductive(graph_name), network, logits)


def train_dense(graph: GraphData, inductive: bool, network: GNN, logits: DenseLogits) -> Expected:
    """Train for `EPOCHS` in one process, in float64.

    Args:
        graph: what is trained on and, the whole of it, evaluated.
        inductive: it is trained on its training subgraph.
        network: gives the weights.
        logits: returns those of all nodes, from a dense adjacency, features and weights.
    """
    adjacency, x = dense_adjacency(graph), torch.from_numpy(graph.features.astype(np.float64))
    seen = np.flatnonzero(graph.train_mask) if inductive else np.arange(len(x))
    labelled = graph.labels >= 0 if graph.labels.ndim == 1 else np.ones(len(x), bool)
    rows = np.flatnonzero((graph.train_mask & labelled)[seen])
    weights = {name: value.detach().clone().requires_grad_() for name, value in network.named_parameters()}
    optimizer = torch.optim.Adam(weights.values(), lr=SPEC.lr)
    losses, gradients = [], dict[str, NDArray[Any]]()
    for _ in range(EPOCHS):
        optimizer.zero_grad()
        output = logits(adjacency[np.ix_(seen, seen)], x[seen], weights)
        loss = oracle.mean_loss(output, graph.labels[seen], rows)
        loss.backward()
        gradients = {name: w.grad.numpy().copy() for name, w in weights.items() if w.grad is not None}
        optimizer.step()
        losses.append(loss.item())
    output = logits(adjacency, x, weights)
    masks = {"train": graph.train_mask, "val": graph.val_mask, "test": graph.test_mask}
    scores = {k: oracle.scores(output, graph.labels, np.flatnonzero(m & labelled)) for k, m in masks.items()}
    return Expected(losses, gradients, scores, {name: w.detach().numpy() for name, w in weights.items()})


def difference(outcome: RankOutcome, want: Expected) -> str:
    """Return what a rank saw that the oracle did not, in a few words; "" if nothing."""
    for epoch, (row, loss) in enumerate(zip(outcome.rows, want.losses, strict=True)):
        if not abs(row["loss"] - loss) <= TOLERANCE * abs(loss):  # no number is none that is close
            return f"loss of epoch {epoch} expected {loss:.10g}, seen {row['loss']:.10g}"
    if outcome.gradients.keys() != want.gradients.keys():
        missing = sorted(want.gradients.keys() ^ outcome.gradients.keys())
        return f"gradients of {', '.join(missing)} expected, or not expected"
    scale = max(float(np.abs(gradient).max()) for gradient in want.gradients.values())
    for name, gradient in want.gradients.items():
        apart = float(np.abs(outcome.gradients[name] - gradient).max(initial=0))
        if not apart <= TOLERANCE * scale:
            return f"gradient of {name} is {apart / scale:.2g} of the largest apart from the expected one"
    for name, value in want.after.items():
        if not np.allclose(outcome.after[name], value, rtol=1e-6, atol=1e-8):
            return f"{name} is another one after {EPOCHS} epochs"
    for split, score in want.scores.items():
        seen = outcome.scores[split]
        if seen is None or not abs(seen - score) <= 1e-12:
            return f"{split} score expected {score}, seen {seen}"
    return ""
