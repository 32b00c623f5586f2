"""A budget of GPU memory holds, and changes no value."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from harness.check.graphs import on_disk, random_graph
from harness.check.training import Case, train
from harness.models.layer import ModelSpec
from harness.runtime.run_config import TrainSpec

pytestmark = pytest.mark.gpu

NODES, WIDTH, MIB = 4000, 256, 1 << 20
MATRIX = NODES * WIDTH * 4


def test_a_budget_holds_and_losses_are_those_of_full(tmp_path: Path) -> None:
    """Autograd keeps more than four matrices for each of six layers; the budget is ten."""
    graph = random_graph(41, NODES, features=WIDTH)
    data = on_disk(graph, np.zeros(NODES, int), 1, False, tmp_path)
    model = ModelSpec(name="sage", layers=6, hidden=WIDTH, dropout=0.5, norm="layer")
    spec = TrainSpec(epochs=3, threads=1)
    products = torch.ones(8, 8, device="cuda")
    assert (products @ products).sum() > 0  # the workspace of products is there now

    def run(method: str, options: dict[str, float]) -> tuple[list[float], int]:
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        [outcome] = train(0, 1, [Case(data, method, options, model, spec, device="cuda")])
        return [row["loss"] for row in outcome.rows], torch.cuda.max_memory_allocated() - before

    losses, most = run("full", {})
    swapping, least = run("roc", {"budget_mib": 10 * MATRIX / MIB})
    assert swapping == pytest.approx(losses, rel=1e-6)
    beside = 20 * MIB  # structure, labels, weights and optimizer
    assert least <= 12 * MATRIX + beside < most
