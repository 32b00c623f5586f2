from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.ranks import run_ranks
from support.training import AT_RATES, called_in_no_phase, train_at_rates

from harness.check.graphs import on_disk, random_graph
from harness.check.training import Case
from harness.graph.partition import Partition
from harness.models.layer import ModelSpec
from harness.runtime.run_config import TrainSpec


@pytest.mark.parametrize("final", [True, False])
def test_mini_batches_without_scores_never_read_the_parts_edges(
    final: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph may be too large for a layer on all of it; only the evaluation needs one."""
    read: list[str] = []
    load = Partition._load

    def watched(self: Partition, name: str) -> np.ndarray:
        read.append(name)
        return load(self, name)

    monkeypatch.setattr(Partition, "_load", watched)
    graph = random_graph(3)
    data = on_disk(graph, np.zeros(graph.nodes, np.int32), 1, False, tmp_path)
    spec = TrainSpec(epochs=2, threads=1, eval_every=0, final_eval=final)
    model = ModelSpec(name="sage", layers=2, hidden=8)
    trainer = Case(data, "graphsage", {"fanouts": 3, "batch_size": 8}, model, spec).trainer(0, 1)
    worker = trainer.worker
    with trainer.report.concluding():
        trainer.report.setup(worker, trainer.method, {}, {})
        trainer.run()
    assert ("indices" in read) == final
    found: dict[str, Any] = json.loads((worker.job.out / "rank0.json").read_text())
    assert (found["status"], found["edges"]) == ("ok", graph.edges)
    scores = [found["summary"][key] for key in ("best_val", "test_at_best_val", "final_val", "final_test")]
    assert [score is not None for score in scores] == [final] * 4
    assert [row["val_score"] is not None for row in found["epochs"]] == [False, final]
    assert (found["eval_s"] > 0) == final
    assert found["summary"]["spmm"] == worker.partition.full_block.engine.name


def test_all_that_an_epoch_does_is_in_a_named_phase(tmp_path: Path) -> None:
    """Between two phases is only the clock, so that the share in none is that of faults."""
    graph = random_graph(3)
    data = on_disk(graph, (np.arange(graph.nodes) % 2).astype(np.int32), 2, False, tmp_path)
    methods: dict[str, dict[str, Any]] = {
        "full": {},
        "pipegcn": {},
        "psc-gcn": {"staleness": 2, "rate": 0.5},
        "roc": {"budget_share": 0.5},
        "cagnet": {},
        "graphsage": {"fanouts": 3, "batch_size": 8},
        "dgs": {"fanouts": 3, "batch_size": 8, "period": 2, "explain": "inline", "explain_steps": 1},
        "vrgcn": {"batch_size": 8},
    }
    model = ModelSpec(name="sage", layers=2, hidden=8)
    cases = [Case(data, *method, model, TrainSpec(epochs=3, threads=1, clip=1.0)) for method in methods.items()]
    steps = {"Trainer._take", "Method.on_step_end", "DGS.on_step_end"}  # a method's own is not the trainer's to name
    for found in run_ranks(called_in_no_phase, 2, cases):
        assert {name: calls - steps for name, calls in zip(methods, found, strict=True) if calls - steps} == {}


@pytest.mark.parametrize(("method", "options"), [("full", {}), ("graphsage", {"fanouts": 3, "batch_size": 8})])
def test_at_least_a_phase_takes_what_it_computes_and_sends(
    method: str, options: dict[str, Any], tmp_path: Path
) -> None:
    graph = random_graph(3)
    data = on_disk(graph, (np.arange(graph.nodes) % 2).astype(np.int32), 2, False, tmp_path)
    model, spec = ModelSpec(name="sage", layers=2, hidden=8), TrainSpec(epochs=2, threads=1)
    case = Case(data, method, options, model, spec)
    for unrated, rated, computed in run_ranks(train_at_rates, 2, case, AT_RATES):
        names = [f"least_{phase}_s" for phase in ("fetch", "forward", "backward", "comm", "reduce")]
        assert [row[name] for row in unrated for name in names] == [None] * 10
        for row, (fetched, forward, backward) in zip(rated, computed, strict=True):
            others = sum(row[f"bytes_{purpose}"] for purpose in ("feature", "embedding", "gradient", "control"))
            rows = 2 * 4 * graph.features.shape[1] * fetched / AT_RATES.measured["copy"]
            seconds = [rows, forward, backward, others / 1e6, row["bytes_model"] / 1e6]
            assert [row[name] for name in names] == pytest.approx(seconds)
            assert min(seconds[1:]) > 0
            assert (fetched > 0) == (method == "graphsage")
