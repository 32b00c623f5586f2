"""What a mini-batch tells of its step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from support.ranks import run_ranks

from harness.check.graphs import on_disk, random_graph
from harness.check.training import Case
from harness.models.layer import ModelSpec
from harness.runtime.run_config import TrainSpec

Told = list[tuple[dict[str, float], list[tuple[int, int]]]]


def told(rank: int, world: int, case: Case) -> Told:
    """Return each step's figures and the shapes of its blocks."""
    trainer = case.trainer(rank, world)
    return [(step.stats, [(block.num_dst, block.num_src) for block in step.blocks]) for step in trainer.method.steps(0)]


def test_nodes_of_each_layer_are_those_of_its_blocks(tmp_path: Path) -> None:
    data = on_disk(random_graph(3, 60, degree=6), np.zeros(60, np.int64), 1, False, tmp_path)
    model = ModelSpec(name="sage", layers=3, hidden=4, dropout=0)
    options = {"fanouts": [2, 1, 2], "batch_size": 7}
    spec = TrainSpec(epochs=1, threads=1)
    [steps] = run_ranks(told, 1, Case(data, "harness_methods.graphsage:GraphSAGE", options, model, spec))
    assert len(steps) > 2
    for stats, shapes in steps:
        found = [stats[f"nodes_layer{i}"] for i in range(4)]
        assert found == [*(sources for _, sources in shapes), shapes[-1][0]]
        assert found[0] == stats["input_nodes"]
        assert found == sorted(found, reverse=True)
        assert "nodes_layer4" not in stats
