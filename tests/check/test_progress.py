"""Pipelined methods come to their end with the right messages, whatever staleness, parts and speeds are."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.ranks import run_ranks
from support.training import run_all_to_the_end

from harness.check.graphs import on_disk, random_graph
from harness.check.training import Case
from harness.data.graph import GraphData
from harness.models.layer import ModelSpec
from harness.runtime.run_config import TrainSpec

NODES, FIRST, EPOCHS = 60, 20, 6
STALENESS = [0, 1, 2, 5]
MODEL = ModelSpec(name="sage", layers=3, hidden=4, dropout=0.5)
SAMPLED: dict[str, Any] = {"rate": 0.3, "refresh": 2, "capacity": 0.5}
SLOW = "support.methods:Slow"
TROUBLE = [
    ("no boundary at rank 0", 1),
    ("no boundary at rank 0", 5),
    ("trained on by rank 0 only", 0),
    ("trained on by rank 0 only", 2),
    ("no edges", 2),
]


def graphs() -> dict[str, GraphData]:
    """Return graphs of which rank 0 has the nodes 0 to 19, and trouble with some of them."""
    plain = random_graph(51, NODES)
    target = np.repeat(np.arange(NODES), np.diff(plain.indptr))
    inside = (plain.indices < FIRST) == (target < FIRST)
    starts = np.concatenate([[0], np.cumsum(np.bincount(target[inside], minlength=NODES))])
    return {
        "plain": plain,
        "no boundary at rank 0": dataclasses.replace(plain, indptr=starts, indices=plain.indices[inside]),
        "no edges": random_graph(52, NODES, degree=0),
        "trained on by rank 0 only": random_graph(53, NODES, train_only=range(FIRST)),
    }


def runs() -> list[tuple[str, str, dict[str, Any], int]]:
    """Return graph, method, options and epochs."""
    found = [(graph, "psc-gcn", {**SAMPLED, "staleness": tau}, EPOCHS) for graph, tau in TROUBLE]
    for tau in STALENESS:
        found += [("plain", method, {**SAMPLED, "staleness": tau}, EPOCHS) for method in ("psc-gcn", SLOW)]
    found += [("no edges", "pipegcn", {"staleness": tau}, EPOCHS) for tau in (0, 5)]
    for warmup in ("absent", "sync"):
        found.append(("plain", "psc-gcn", {**SAMPLED, "staleness": 5, "warmup": warmup}, 2))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3, 4])
def test_every_trial_ends_and_a_slow_rank_changes_no_bit(world: int, tmp_path: Path) -> None:
    node = np.arange(NODES)
    parts = np.where(node < FIRST, 0, 1 + node % (world - 1))
    data = {}
    for name, graph in graphs().items():
        (tmp_path / name).mkdir()
        data[name] = on_disk(graph, parts, world, False, tmp_path / name)
    cases = [
        Case(data[graph], method, options, MODEL, TrainSpec(epochs=epochs, threads=1, eval_every=0))
        for graph, method, options, epochs in runs()
    ]
    losses: dict[tuple[str, str, int], list[float]] = {}
    for run, *ranks in zip(runs(), *run_ranks(run_all_to_the_end, world, cases), strict=True):
        graph, method, options, epochs = run
        assert [report["status"] for report in ranks] == ["ok"] * world, run
        first, *others = ([row["loss"] for row in report["epochs"]] for report in ranks)
        assert all(other == first for other in others), run
        assert len(first) == epochs, run
        assert all(map(math.isfinite, first)), run
        if epochs == EPOCHS:
            losses[graph, method, options["staleness"]] = first
    for tau in STALENESS:
        assert losses["plain", SLOW, tau] == losses["plain", "psc-gcn", tau]
    # Without a boundary nothing can be stale.
    assert losses["no edges", "pipegcn", 5] == losses["no edges", "pipegcn", 0]
    assert losses["plain", "psc-gcn", 1] != losses["plain", "psc-gcn", 0]
