"""The order of a part's rows changes the rounding of training and of scores, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.ranks import run_ranks

from harness.check.graphs import OnDisk, random_graph
from harness.check.training import Case, train
from harness.data.partition.cached import ensure_partitioned
from harness.data.prepared import write_graph
from harness.models.layer import ModelSpec
from harness.runtime.run_config import TrainSpec
from harness.spec import PartitionSpec

METHODS: list[tuple[str, dict[str, Any]]] = [("full", {}), ("full", {"overlap": True}), ("pipegcn", {})]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("weighted", "inductive"), [(False, False), (True, True)])
def test_an_order_changes_rounding_alone(weighted: bool, inductive: bool, tmp_path: Path) -> None:
    graph = random_graph(5, 90, weighted=weighted)
    write_graph(graph, tmp_path / "graph")
    data = [
        OnDisk(
            tmp_path / "graph",
            ensure_partitioned(
                tmp_path / "graph", PartitionSpec(parts=3, order=order), inductive=inductive, cache=tmp_path
            ),
            inductive,
        )
        for order in ("none", "rcm")
    ]
    spec = TrainSpec(epochs=4, threads=1, precision="float64")
    model = ModelSpec(name="sage", layers=2, hidden=8, norm="layer", dropout=0)
    cases = [Case(each, name, options, model, spec) for name, options in METHODS for each in data]
    for found in run_ranks(train, 3, cases, timeout_s=250):
        moved = False
        for plain, ordered in zip(found[::2], found[1::2], strict=True):
            for a, b in zip(plain.rows, ordered.rows, strict=True):
                assert a["loss"] == pytest.approx(b["loss"], rel=1e-9)
                moved = moved or a["loss"] != b["loss"]
                sent = [{key: row[key] for key in row if key.startswith("bytes_")} for row in (a, b)]
                assert sent[0] == sent[1]
            assert plain.rows[0]["loss"] != plain.rows[-1]["loss"]
            assert plain.scores == ordered.scores
            assert plain.scores["test"] is not None
            assert plain.broken is ordered.broken is None
        assert moved  # or the order of sums, and so no row, was another
