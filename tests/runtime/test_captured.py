"""Captured steps: what is replayed trains as what is done anew; where there is nothing to capture, one line says so.

Work is captured on the fake device (tests/support/fake_device.py); how fast a GPU is with it is not measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.on_device import train_captured
from support.ranks import run_ranks

from harness.check.graphs import TinyGraphs
from harness.check.training import Case, RankError
from harness.errors import UserError
from harness.models.layer import ModelSpec
from harness.runtime.run_config import TrainSpec
from harness.runtime.step import WARM
from harness.suite.expand import expand
from harness.suite.schema import Suite

SPEC = TrainSpec(epochs=6, precision="float64", threads=1)
MODELS = {
    "sage": ModelSpec(name="sage", layers=2, hidden=6, dropout=0, norm="layer"),
    "gat": ModelSpec(name="gat", layers=2, hidden=6, heads=2, dropout=0),
}


def case(tmp_path: Path, method: str = "full", model: str = "sage", **options: Any) -> Case:
    return Case(TinyGraphs(tmp_path).get("transductive", 1).stored, method, options, MODELS[model], SPEC)


@pytest.mark.quick(1)
@pytest.mark.parametrize(("model", "options"), [("sage", {}), ("sage", {"precompute": True}), ("gat", {})])
def test_replayed_steps_train_the_same(model: str, options: dict[str, Any], tmp_path: Path) -> None:
    [(plain, captured, (work, replays))] = run_ranks(train_captured, 1, case(tmp_path, model=model, **options))
    assert [row["loss"] for row in captured.rows] == [row["loss"] for row in plain.rows]
    assert captured.scores == plain.scores
    assert captured.broken is None
    for name, weights in plain.after.items():
        np.testing.assert_array_equal(captured.after[name], weights)
        assert not np.array_equal(captured.after[name], captured.before[name])
    assert work > 10
    assert replays == SPEC.epochs - WARM


def test_a_wait_for_the_device_is_refused_in_a_capture(tmp_path: Path) -> None:
    with pytest.raises(RankError, match="not permitted when stream is capturing"):
        run_ranks(train_captured, 1, case(tmp_path), True)


@pytest.mark.slow
def test_steps_that_differ_are_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(RankError, match=r"train\.cuda_graphs: the method's steps differ from one another"):
        run_ranks(train_captured, 1, case(tmp_path, "graphsage", fanouts=2, batch_size=4))


@pytest.mark.parametrize(
    ("device", "sections", "message"),
    [
        ("cpu", {}, "device cpu has no CUDA graphs (leave it out, or --device cuda)"),
        ("cuda", {"methods": "graphsage"}, "the steps of graphsage differ from one another "
         "(leave it out, or take a method like `full`)"),
        ("cuda", {"partition": {"parts": 2}}, "2 ranks exchange rows inside a step (partition.parts: 1)"),
        ("cuda", {"timing": "plain"}, "timing plain looks into steps, and a replay cannot be looked into "
         "(timing: wall)"),
    ],
)  # fmt: skip
def test_what_cannot_be_captured_is_told_in_one_line(device: str, sections: dict[str, Any], message: str) -> None:
    usual = {"name": "s", "datasets": "digits", "methods": "full", "timing": "wall", "train": {"cuda_graphs": True}}
    with pytest.raises(UserError) as error:
        expand(Suite(**usual | sections), device=device)
    assert str(error.value).endswith(f"train.cuda_graphs: {message}")


def test_what_can_be_captured_has_an_id_of_its_own() -> None:
    usual = {"name": "s", "datasets": "digits", "methods": "full", "timing": "wall"}
    [plain], [captured] = (expand(Suite(**usual, train=train), device="cuda") for train in ({}, {"cuda_graphs": True}))
    assert captured.train.cuda_graphs
    assert captured.id != plain.id
