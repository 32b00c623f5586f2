"""Exact evaluation in pieces: the dense model's logits, no more at once than is allowed, nothing left behind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.evaluations import held_tensors, logits_in_pieces, sizes
from support.ranks import run_ranks

from harness.check import oracle
from harness.check.graphs import dense_adjacency, on_disk, random_graph
from harness.check.training import Case
from harness.models.layer import ModelSpec
from harness.runtime.run_config import TrainSpec

WORLD, NODES = 3, 60
GRAPH = random_graph(91, NODES, degree=8, weighted=True)
PARTS = np.random.default_rng(3).integers(0, WORLD, NODES)
MODELS = [
    ModelSpec(name="sage", layers=3, hidden=6, dropout=0.5, norm="layer"),
    ModelSpec(name="gcn", layers=2, hidden=9, linear_layers=1, residual=True),
    ModelSpec(name="gat", layers=2, hidden=6, heads=2),
    ModelSpec(name="mixhop", layers=2, hidden=6, order=2),
]
SPEC = TrainSpec(epochs=2, precision="float64", threads=1)


def scored_by_ogb(classes: np.ndarray) -> float:
    """The accuracy of test nodes that OGB's leaderboards have, of predicted classes [N]."""
    from ogb.nodeproppred import Evaluator  # slow to import

    own = {"y_true": GRAPH.labels[GRAPH.test_mask, None], "y_pred": classes[GRAPH.test_mask, None]}
    return float(Evaluator("ogbn-arxiv").eval(own)["acc"])


def test_logits_are_the_dense_model_s_in_any_number_of_pieces(tmp_path: Path) -> None:
    data = on_disk(GRAPH, PARTS, WORLD, False, tmp_path)
    limits = [64.0, 1e-3, 2e-4]
    cases = [Case(data, "bns-gcn", {"rate": 0.5}, model, SPEC) for model in MODELS]
    ranks = run_ranks(logits_in_pieces, WORLD, cases, limits)
    adjacency, x = dense_adjacency(GRAPH), torch.from_numpy(GRAPH.features.astype(np.float64))
    for k, model in enumerate(MODELS):
        weights = {name: torch.from_numpy(value) for name, value in ranks[0][k]["weights"].items()}
        want = oracle.logits(
            oracle.propagation_matrix(adjacency, model.name), x, weights, model=model.name, layers=model.layers,
            linear=model.linear_layers, norm=model.norm == "layer", residual=model.residual, order=model.order,
        ).numpy()  # fmt: skip
        pieces, by_ogb = set(), scored_by_ogb(want.argmax(1))
        for rank in ranks:
            for limit, (logits, scores, count, received) in zip(limits, rank[k]["found"], strict=True):
                np.testing.assert_allclose(logits, want[rank[k]["nodes"]], rtol=1e-10, atol=1e-12)
                right = (want.argmax(1) == GRAPH.labels)[GRAPH.test_mask]
                assert scores["test"] == pytest.approx(right.mean(), abs=1e-12)
                assert scores["test"] == pytest.approx(by_ogb, abs=1e-12)
                pieces.add(count)
                # A share of each owner's nodes is rounded up.
                assert received <= limit * 2**20 + (WORLD - 1) * 8 * 12
        assert len(pieces) == 3
        assert min(pieces) == 1


HELD_GRAPH = random_graph(92, 900, degree=12, features=200)
HELD_PARTS = np.arange(900) * 2 // 900
HELD_MODEL = ModelSpec(name="sage", layers=2, hidden=256, dropout=0.5)
HELD_SPEC = TrainSpec(epochs=2, threads=1)
SCALARS = 256  # bytes of losses and counts that come and go; an evaluation's degrees alone are 1,800


@pytest.mark.slow
def test_between_evaluations_a_rank_holds_its_training_alone(tmp_path: Path) -> None:
    """At p = 0.01: neither the whole block nor a boundary row; but for scalars, to the byte."""
    data = on_disk(HELD_GRAPH, HELD_PARTS, 2, False, tmp_path)
    (tmp_path / "inductive").mkdir()
    inductive = on_disk(HELD_GRAPH, HELD_PARTS, 2, True, tmp_path / "inductive")
    small = HELD_SPEC.model_copy(update={"evaluation_mib": 0.1})
    case = Case(data, "bns-gcn", {"rate": 0.01}, HELD_MODEL, HELD_SPEC)
    cases = [case, replace(case, train=small), replace(case, data=inductive), replace(case, options={"rate": 1.0})]
    ranks = run_ranks(held_tensors, 2, cases)
    parts = run_ranks(sizes, 2, case)
    for rank, (whole, pieces, trained_apart, full) in enumerate(ranks):
        part = parts[rank]
        inner, sources, edges = part["inner"], part["inner"] + part["boundary"], part["edges"]
        parameters = 2 * 200 * 256 + 256 + 2 * 256 * HELD_GRAPH.num_classes + HELD_GRAPH.num_classes
        features = 4 * 200 * inner
        labels = 8 * (inner + part["train"] + part["labelled"])
        # What samples are drawn from: the edges, their transpose, the degrees.
        edges_twice = 8 * (inner + 1) + 8 * (sources + 1) + 2 * 4 * edges
        routes = 8 * parts[1 - rank]["boundary"]  # of the inner rows that the other one may ask for
        want = features + labels + edges_twice + routes + 4 * sources + 4 * (4 * parameters + 1) + 4
        for epoch in (whole, pieces):
            assert all(abs(held - want) < SCALARS for held in epoch[:4])
        assert max(full[:4]) - min(full[:4]) < SCALARS
        # Of the other graph there are the rows of the splits, afterwards.
        assert trained_apart[1] - trained_apart[0] < 8 * inner + SCALARS
        assert max(trained_apart[1:4]) - min(trained_apart[1:4]) < SCALARS
        # In four pieces there is a quarter of the boundary rows at once, 200 wide, and a copy of the edges.
        assert whole[4] - pieces[4] > 4 * 200 * part["boundary"] * 0.5
