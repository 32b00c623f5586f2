"""Where few nodes are trained on, a last layer of their rows alone gives the losses, weights and bytes of all rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.ranks import run_ranks
from support.training import train_all_rows, train_last_rows

from harness.check.graphs import on_disk, random_graph
from harness.check.training import Case
from harness.models.layer import ModelSpec
from harness.runtime.method import METHODS
from harness.runtime.run_config import TrainSpec

MODELS: list[dict[str, Any]] = [
    {"name": "sage"},
    {"name": "gcn", "residual": True},
    {"name": "gat", "heads": 2},
    {"name": "mixhop", "order": 2, "hidden": 9},
    {"name": "sage", "linear_layers": 1, "dropout": 0},  # behind the last layer there are masks for fewer rows
]
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("full", {}),
    ("full", {"transform_before_exchange": True, "precompute": True}),
    ("full", {"overlap": True}),
    ("full", {"storage": "disk"}),
    ("bns-gcn", {"rate": 0.4}),
    ("bns-gcn", {"rate": 0.4, "overlap": True}),
    ("pipegcn", {}),
    ("psc-gcn", {"rate": 0.5}),
    ("adaqp", {}),
    ("roc", {}),
    ("local", {}),
    ("cagnet", {}),
]


def test_every_full_graph_method_is_here() -> None:
    shipped = {name for name in METHODS.names() if METHODS.load(name).family == "full-graph"}
    assert shipped == {name for name, _ in OPTIONS}


def fits(method: str, options: dict[str, Any], model: dict[str, Any]) -> bool:
    return model["name"] != "gat" or not ({"overlap", "precompute"} & set(options) or method == "adaqp")


@pytest.mark.quick(2)
@pytest.mark.timeout(300)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("weighted", [False, True])
def test_losses_weights_and_bytes_are_those_of_all_rows(weighted: bool, model: dict[str, Any], tmp_path: Path) -> None:
    graph = random_graph(8, weighted=weighted, train_only=range(0, 60, 2))
    learnt = np.flatnonzero(graph.train_mask)
    assert 5 < learnt.size < graph.nodes / 4
    data = on_disk(graph, (np.arange(graph.nodes) % 3).astype(np.int32), 3, False, tmp_path)
    spec = TrainSpec(epochs=3, threads=1, precision="float64")
    usual: dict[str, Any] = {"layers": 3, "norm": "layer", "hidden": 8}
    cases = [
        Case(data, name, options, ModelSpec(**usual | model), spec)
        for name, options in OPTIONS
        if fits(name, options, model)
    ]
    ranks = zip(*(run_ranks(run, 3, cases, timeout_s=250) for run in (train_all_rows, train_last_rows)), strict=True)
    for rank, both in enumerate(ranks):
        for case, (whole, rows), (last, fewer) in zip(cases, *both, strict=True):
            assert rows == graph.nodes // 3
            assert fewer == (rows if case.method == "cagnet" else (learnt % 3 == rank).sum())
            for a, b in zip(whole.rows, last.rows, strict=True):
                assert b["loss"] == pytest.approx(a["loss"], rel=1e-9), case
                sent = [{key: value for key, value in row.items() if key.startswith("bytes_")} for row in (a, b)]
                assert sent[0] == sent[1]
            for name, weights in whole.after.items():
                np.testing.assert_allclose(last.after[name], weights, rtol=1e-7, atol=1e-9)
            assert whole.broken is last.broken is None
            assert whole.flags == last.flags
