"""Training on a GPU is training on a CPU, and plain timing adds no wait for the device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.ranks import run_ranks
from support.training import unsynchronised_epochs

from harness.check.graphs import on_disk, random_graph
from harness.check.training import Case, train
from harness.models.layer import ModelSpec
from harness.runtime.method import METHODS
from harness.runtime.run_config import TrainSpec

pytestmark = pytest.mark.gpu

GRAPH = random_graph(11)
MODELS = {
    "sage": ModelSpec(name="sage", layers=3, hidden=6, dropout=0, norm="layer"),
    "gcn": ModelSpec(name="gcn", layers=2, hidden=6, dropout=0),
}


def case(folder: Path, world: int, method: str, options: dict[str, Any], model: str, device: str) -> Case:
    directory = folder / f"{world}"
    directory.mkdir(exist_ok=True)
    stored = on_disk(GRAPH, np.arange(60) * world // 60, world, False, directory)
    spec = TrainSpec(epochs=3, precision="float64", threads=1)
    return Case(stored, method, options, MODELS[model], spec, device=device)


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("method", METHODS.names())
def test_losses_and_gradients_are_those_of_the_cpu(method: str, model: str, world: int, tmp_path: Path) -> None:
    """With two ranks on one GPU, through gloo and the host."""
    exact = METHODS.load(method).exact
    [[expected]] = run_ranks(train, 1, [case(tmp_path, 1, method, exact, model, "cpu")])
    for [found] in run_ranks(train, world, [case(tmp_path, world, method, exact, model, "cuda")]):
        for row, wanted in zip(found.rows, expected.rows, strict=True):
            assert row["loss"] == pytest.approx(wanted["loss"], rel=1e-9)
        for name, gradient in expected.gradients.items():
            np.testing.assert_allclose(found.gradients[name], gradient, rtol=1e-7, atol=1e-10)
        assert found.scores == expected.scores


@pytest.mark.parametrize("model", MODELS)
def test_explanations_of_a_gpus_model_guide_like_those_of_a_cpus(model: str, tmp_path: Path) -> None:
    """Draws and columns are the host's: they are the same as long as masks differ by rounding only."""
    options = {"fanouts": 2, "batch_size": 8, "period": 1, "explain": "inline", "explain_steps": 5}
    expected, found = (
        run_ranks(train, 2, [case(tmp_path, 2, "dgs", options, model, device)]) for device in ("cpu", "cuda")
    )
    for [wanted], [own] in zip(expected, found, strict=True):
        assert own.rows[-1]["stats"]["guided_steps"] > 0
        assert [row["bytes_feature"] for row in own.rows] == [row["bytes_feature"] for row in wanted.rows]
        assert [row["loss"] for row in own.rows] == pytest.approx([r["loss"] for r in wanted.rows], rel=1e-6)


def test_an_epoch_of_plain_timing_never_waits_for_the_device(tmp_path: Path) -> None:
    [losses] = run_ranks(unsynchronised_epochs, 1, case(tmp_path, 1, "full", {}, "sage", "cuda"))
    assert losses[2] < losses[0]


def test_float32_is_not_tf32(tmp_path: Path) -> None:
    """Unless a plugin turns it on, which the record tells."""
    torch.backends.cuda.matmul.allow_tf32 = True
    worker = case(tmp_path, 1, "full", {}, "sage", "cuda").trainer(0, 1).worker
    assert worker.device.type == "cuda"
    assert not torch.backends.cuda.matmul.allow_tf32
