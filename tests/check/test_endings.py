"""What becomes of a trial whose replicas drift, or whose loss is not finite."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.ranks import run_ranks
from support.training import run_all_to_the_end

from harness.check.graphs import on_disk, random_graph
from harness.check.training import Case
from harness.models.layer import ModelSpec
from harness.runtime.run_config import TrainSpec

pytestmark = pytest.mark.slow

MODEL = ModelSpec(name="sage", layers=2, hidden=8, dropout=0.5, norm="layer")
SPEC = TrainSpec(epochs=6, threads=1, checksum_every=1, eval_every=3)


def test_how_trials_end(tmp_path: Path) -> None:
    parts = np.random.default_rng(3).integers(0, 2, 60)
    data = on_disk(random_graph(31), parts, 2, False, tmp_path)
    names = ["support.methods:Drifting", "support.methods:Exploding", "full"]
    ranks = run_ranks(run_all_to_the_end, 2, [Case(data, name, {}, MODEL, SPEC) for name in names])
    drifting, exploding, honest = zip(*ranks, strict=True)

    assert [r["status"] for r in drifting] == ["invalid", "invalid"]
    assert drifting[0]["reason"] == "replicas differ from rank 0's after epoch 2: ranks [1]"

    assert [r["status"] for r in exploding] == ["diverged", "diverged"]
    assert exploding[1]["reason"] == "loss is nan in epoch 2"
    assert len(exploding[0]["epochs"]) == 2

    assert [r["status"] for r in honest] == ["ok", "ok"]
    assert honest[0]["summary"]["checksum"] == honest[1]["summary"]["checksum"]
    assert [e["val_score"] is not None for e in honest[0]["epochs"]] == [False, False, True] * 2
