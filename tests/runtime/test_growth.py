"""What a rank holds does not grow from epoch to epoch, once its buffers are made."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from runtime.test_integrity import SHIPPED
from support.ranks import run_ranks
from support.training import live_bytes

from harness.check.graphs import on_disk, random_graph
from harness.check.training import Case
from harness.models.layer import ModelSpec
from harness.runtime.method import METHODS
from harness.runtime.run_config import TrainSpec

NODES, EPOCHS = 200, 12
MOST = 1.2  # what is drawn anew each epoch is not always as much


def grown(cases: list[Case], kept: int = 0) -> list[float]:
    """Return by what factor the bytes of each case's last epochs exceed those of its first, with one rank of two.

    The least of five epochs: what is under way at an epoch's end is not kept.
    """
    (found, _) = run_ranks(live_bytes, 2, cases, kept, timeout_s=280)
    return [min(own[-5:]) / min(own[2:7]) for own in found]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_nothing_grows_with_the_epochs(tmp_path: Path) -> None:
    assert set(SHIPPED) == set(METHODS.names())
    graph = random_graph(5, NODES, degree=6, features=32)
    data = on_disk(graph, np.arange(NODES) % 2, 2, False, tmp_path)
    model, spec = ModelSpec(layers=2, hidden=16), TrainSpec(epochs=EPOCHS, threads=1)
    cases = [
        # An explanation that goes on is held for as long as it does.
        Case(data, name, options | ({"explain": "inline"} if name == "dgs" else {}), model, spec)
        for name, every in SHIPPED.items()
        for options in every
    ]
    found = dict(zip([f"{case.method} {case.options}" for case in cases], grown(cases), strict=True))
    assert {name: ratio for name, ratio in found.items() if ratio > MOST} == {}
    full = next(case for case in cases if case.method == "full")
    assert grown([full], kept=2000)[0] > MOST  # 8 kB a step are seen
