"""CAGNET with boundary sampling: the dense product over what was broadcast, who draws, bytes, equal copies."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.broadcasts import directed_graph, group_bits, sampled_products
from support.ranks import run_ranks

from harness.check import oracle
from harness.check.graphs import dense_adjacency, on_disk, random_graph
from harness.check.training import Case, RankOutcome, train
from harness.models.layer import ModelSpec
from harness.runtime.run_config import TrainSpec

WORLD, NODES, EPOCHS, ITEM = 4, 60, 3, 4
# Uneven parts; rank 2 has one node.
PARTS = np.repeat([0, 3, 1, 0, 2, 3], [10, 20, 9, 5, 1, 15])
GRAPHS = {"directed": directed_graph(81, NODES, weighted=True), "plain": random_graph(82, NODES)}
OPTIONS: list[dict[str, Any]] = [
    {"rate": 0.3},
    {"rate": 0.3, "replication": 2},
    {"rate": 0.4, "sampler": "fixed"},
    {"rate": 0.4, "sampler": "fixed", "replication": 2},
    {"rate": 0.02, "sampler": "fixed"},  # less than one row: one is sent
    {"rate": 0.0},
]
MODELS = {"sage": ModelSpec(name="sage", layers=1, dropout=0), "gcn": ModelSpec(name="gcn", layers=1, dropout=0)}
SPEC = TrainSpec(epochs=EPOCHS, precision="float64", threads=1)


def group_of(rank: int, replication: int) -> range:
    return range(rank - rank % replication, rank - rank % replication + replication)


def read_elsewhere(dense: np.ndarray, rank: int, replication: int) -> np.ndarray:
    """Nodes of `rank` with an edge into a part outside of its group."""
    others = ~np.isin(PARTS, list(group_of(rank, replication)))
    return np.flatnonzero(dense[others].any(0) & (rank == PARTS))


def factor(options: dict[str, Any], read: int) -> float:
    if options.get("sampler") != "fixed":
        return 1 / options["rate"] if options["rate"] else 0.0
    return read / max(1, round(options["rate"] * read))


@pytest.mark.slow
def test_products_are_those_of_what_was_broadcast(tmp_path: Path) -> None:
    cases, data = [], {}
    for name, graph in GRAPHS.items():
        (tmp_path / name).mkdir()
        data[name] = on_disk(graph, PARTS, WORLD, False, tmp_path / name)
    keys = [(name, model, k) for name in GRAPHS for model in MODELS for k in range(len(OPTIONS))]
    cases = [Case(data[name], "cagnet", OPTIONS[k], MODELS[model], SPEC) for name, model, k in keys]
    generator = torch.Generator().manual_seed(0)
    sizes = [(NODES, 5), (NODES, 5), (NODES, 6), (2, 3), (2, 3), (NODES, 6)]
    tensors = [torch.randn(size, dtype=torch.float64, generator=generator) for size in sizes]
    ranks = run_ranks(sampled_products, WORLD, cases, EPOCHS, tensors)
    for case, (name, model, k) in enumerate(keys):
        dense = dense_adjacency(GRAPHS[name])
        drawn = [
            _holds(dense, model, OPTIONS[k], [found[case][epoch] for found in ranks], tensors)
            for epoch in range(EPOCHS)
        ]
        alike = all(np.array_equal(drawn[0], other) for other in drawn[1:])
        assert alike == (OPTIONS[k]["rate"] == 0)


def _holds(
    dense: np.ndarray, model: str, options: dict[str, Any], found: list[list[np.ndarray]], tensors: list[torch.Tensor]
) -> np.ndarray:
    """Hold one epoch to the dense matrix, other groups' columns counted as they were sent; returns what they count."""
    replication, counts = options.get("replication", 1), np.zeros(NODES)
    for rank, (_, sent, *_) in enumerate(found):
        read = read_elsewhere(dense, rank, replication)
        assert set(sent) <= set(read)
        if options.get("sampler") == "fixed":
            assert sent.size == min(read.size, max(1, round(options["rate"] * read.size)))
        counts[sent] = factor(options, read.size)
    group = PARTS // replication
    counted = torch.from_numpy(np.where(group[:, None] == group[None, :], 1.0, counts[None, :]))
    matrix = oracle.propagation_matrix(dense, model) * counted
    weights = torch.from_numpy(dense) * counted + torch.eye(NODES, dtype=torch.float64)
    z = tensors[2].clone().requires_grad_()
    attended = oracle.attention(weights, z, tensors[3], tensors[4]).flatten(1)
    (attended_back,) = torch.autograd.grad(attended, z, tensors[5])
    wanted = [matrix @ tensors[0], matrix.T @ tensors[1], attended.detach(), attended_back]
    for nodes, _, *results in found:
        for got, want in zip(results, wanted, strict=True):
            np.testing.assert_allclose(got, want.numpy()[nodes], rtol=1e-10, atol=1e-12)
    return counts


@pytest.mark.quick(1)
@pytest.mark.parametrize("replication", [1, 2])
@pytest.mark.parametrize("name", ["sage", "gat"])
def test_bytes_are_of_the_rows_that_are_kept(tmp_path: Path, replication: int, name: str) -> None:
    """Forward and backward K rows for each other rank of a column; groups pass on all their rows."""
    graph, spec = GRAPHS["directed"], TrainSpec(epochs=EPOCHS, threads=1)
    data = on_disk(graph, PARTS, WORLD, False, tmp_path)
    model = ModelSpec(name=name, layers=2, hidden=6, heads=2, dropout=0.5)
    options = {"rate": 0.4, "sampler": "fixed", "replication": replication}
    ranks = run_ranks(train, WORLD, [Case(data, "cagnet", options, model, spec)])
    outcomes: list[RankOutcome] = [found[0] for found in ranks]
    read = [read_elsewhere(dense_adjacency(graph), rank, replication).size for rank in range(WORLD)]
    kept = sum(min(n, max(1, round(0.4 * n))) for n in read)
    assert 0 < kept < 0.5 * NODES
    others, copies, item = WORLD // replication - 1, replication - 1, ITEM * EPOCHS
    sent: dict[tuple[str, int], int] = defaultdict(int)
    for outcome in outcomes:
        for row in outcome.traffic:
            if row["scope"] == "epoch":
                sent[row["purpose"], row["layer"]] += row["sent_bytes"]
    assert sent["control", -1] == EPOCHS * (4 * others * kept + 8 * WORLD * (WORLD - 1))
    features = graph.features.shape[1]
    if name == "sage":
        assert sent["feature", 0] == (others * kept + 2 * copies * NODES) * features * item
        assert sent["embedding", 1] == (others * kept + 2 * copies * NODES) * 6 * item
        assert sent["gradient", 0] == 0
        assert sent["gradient", 1] == (others * kept + copies * NODES) * 6 * item
        return
    for layer, width in enumerate([6, 2 * graph.num_classes]):
        rows = 2 * others * kept * width + 2 * copies * NODES * (width + 4)
        assert sent["embedding" if layer else "feature", layer] == rows * item
        assert sent["gradient", layer] == (others * kept * (width + 2) + copies * NODES * (width + 6)) * item


def test_copies_stay_equal(tmp_path: Path) -> None:
    data = on_disk(random_graph(65), np.arange(NODES) * 4 // NODES, 4, False, tmp_path)
    spec = TrainSpec(epochs=EPOCHS, threads=1)
    models = [ModelSpec(name=name, layers=2, hidden=8, dropout=0.5) for name in ("sage", "gat")]
    cases = [Case(data, "cagnet", {"replication": 2, "rate": 0.3}, model, spec) for model in models]
    bits = run_ranks(group_bits, 4, cases)
    for case in range(2):
        assert bits[0][case] == bits[1][case]
        assert bits[2][case] == bits[3][case]
        assert len({*bits[0][case], *bits[2][case]}) == 8 * EPOCHS
