"""Exchanges that go on while inner rows are summed give the losses, weights and bytes of those that are awaited."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.ranks import run_ranks

from harness.check.graphs import on_disk, random_graph
from harness.check.training import Case, train
from harness.errors import UserError
from harness.models.layer import ModelSpec
from harness.runtime.run_config import TrainSpec

MODELS: list[dict[str, Any]] = [
    {"name": "sage"},
    {"name": "gcn"},
    {"name": "mixhop", "order": 2, "hidden": 9},
    {"name": "sage", "residual": True},
]
METHODS: list[tuple[str, dict[str, Any]]] = [
    ("full", {}),
    ("full", {"transform_before_exchange": True}),
    ("full", {"precompute": True, "codec": "int8", "feedback": True}),
    ("bns-gcn", {"rate": 0.4}),
    ("bns-gcn", {"rate": 0.4, "sampler": "fixed"}),
    ("bns-gcn", {"rate": 1.0}),
    ("bns-gcn", {"rate": 0.0}),
]


@pytest.mark.quick(1)
@pytest.mark.timeout(300)
@pytest.mark.parametrize("weighted", [False, True])
def test_overlap_changes_rounding_alone(weighted: bool, tmp_path: Path) -> None:
    graph = random_graph(3, weighted=weighted)
    data = on_disk(graph, (np.arange(graph.nodes) % 3).astype(np.int32), 3, False, tmp_path)
    spec = TrainSpec(epochs=3, threads=1, precision="float64")
    usual: dict[str, Any] = {"layers": 3, "norm": "layer", "hidden": 8}
    cases = [
        Case(data, name, options | {"overlap": overlap}, ModelSpec(**usual | model), spec)
        for model in MODELS
        for name, options in METHODS
        for overlap in (False, True)
    ]
    for found in run_ranks(train, 3, cases, timeout_s=250):
        for waited, overlapped in zip(found[::2], found[1::2], strict=True):
            for a, b in zip(waited.rows, overlapped.rows, strict=True):
                assert a["loss"] == pytest.approx(b["loss"], rel=1e-9)
                sent = [{key: value for key, value in row.items() if key.startswith("bytes_")} for row in (a, b)]
                assert sent[0] == sent[1]
            for name, weights in waited.after.items():
                np.testing.assert_allclose(overlapped.after[name], weights, rtol=1e-7, atol=1e-9)
            assert overlapped.broken is waited.broken is None
            # Halves round otherwise: were no bit another, nothing would have been overlapped.
            moved = sum(row["bytes_embedding"] for row in overlapped.rows)
            assert bool(moved) == any((overlapped.after[name] != own).any() for name, own in waited.after.items())


@pytest.mark.parametrize(("method", "model"), [("full", "gat"), ("cagnet", "sage"), ("pipegcn", "sage")])
def test_what_reads_all_rows_at_once_is_refused(method: str, model: str, tmp_path: Path) -> None:
    graph = random_graph(3)
    data = on_disk(graph, np.zeros(graph.nodes, np.int32), 1, False, tmp_path)
    spec = TrainSpec(epochs=1, threads=1)
    case = Case(data, method, {"overlap": True}, ModelSpec(name=model, layers=2, hidden=8), spec)
    with pytest.raises(UserError, match="does not sum over inner rows apart"):
        case.trainer(0, 1)
