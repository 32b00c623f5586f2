"""The model of the tutorial, as it is written: GIN, with every method."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from docs.pages import block
from numpy.typing import NDArray
from support.ranks import run_ranks
from torch import Tensor

from harness.check.claims import EXACT_SPEC, difference, train_dense
from harness.check.graphs import TinyGraphs
from harness.check.training import Case, RankOutcome, train
from harness.launch.planner import plan
from harness.launch.slots import RunOptions
from harness.models.gnn import GNN
from harness.models.layer import MODELS, ModelSpec
from harness.registry import find_plugins
from harness.results.record_store import ResultStore
from harness.runtime.method import METHODS
from harness.spec import PluginSource
from harness.suite.expand import expand
from harness.suite.suite_file import load_suite

pytestmark = pytest.mark.slow

EPS = 0.25
SPECS = {
    "gin": ModelSpec(name="gin", options={"eps": EPS}, layers=3, hidden=6, dropout=0, norm="layer"),
    "gin-residual": ModelSpec(name="gin", layers=2, hidden=5, dropout=0, residual=True),
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "gin.py"
    path.write_text(block("model", "python"))
    return path


@pytest.fixture(scope="module")
def source(file: Path) -> PluginSource:
    return find_plugins([str(file)])["model", "gin"]


def dense(spec: ModelSpec) -> Callable[[NDArray[np.float64], Tensor, dict[str, Tensor]], Tensor]:
    """GIN by its formula: (1 + eps) h + A h, two layers of a perceptron, LayerNorm and ReLU between layers."""

    def logits(adjacency: NDArray[np.float64], x: Tensor, weights: dict[str, Tensor]) -> Tensor:
        h, eps = x, spec.options.get("eps", 0.0)
        for i in range(spec.layers):
            own = {key: weights[f"graph_layers.{i}.{key}"] for key in ("weight", "bias", "second")}
            summed = (1 + eps) * h + torch.from_numpy(adjacency) @ h
            hidden = summed @ own["weight"] + own["bias"]
            out = torch.where(hidden > 0, hidden, 0) @ own["second"]  # no gradient at 0
            if i + 1 < spec.layers:
                out = out + h if spec.residual and h.shape[1] == out.shape[1] else out
                if spec.norm == "layer":
                    mean, variance = out.mean(1, keepdim=True), out.var(1, unbiased=False, keepdim=True)
                    out = (out - mean) / torch.sqrt(variance + 1e-5)
                    out = out * weights[f"norms.{i}.weight"] + weights[f"norms.{i}.bias"]
                out = torch.where(out > 0, out, 0)
            h = out
        return h

    return logits


# sign trains another model, and p3 refuses a layer that is no sum over the columns of its input.
EXACT = [name for name in METHODS.names() if METHODS.load(name).exact is not None and name not in ("sign", "p3")]


@pytest.fixture(scope="module")
def outcomes(
    source: PluginSource, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, str], list[RankOutcome]]:
    """What each of two ranks saw of every method at its exact setting, by method and model."""
    graphs = TinyGraphs(tmp_path_factory.mktemp("graphs"))
    keys = [(method, name) for method in EXACT for name in SPECS]
    cases = [
        Case(
            graphs.get("weighted", 2).stored, method, METHODS.load(method).exact or {}, SPECS[name], EXACT_SPEC,
            plugins={"model": source},
        )
        for method, name in keys
    ]  # fmt: skip
    return dict(zip(keys, zip(*run_ranks(train, 2, cases, timeout_s=240), strict=True), strict=True))


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("method", EXACT)
def test_every_method_trains_it_as_one_process_does(
    method: str, name: str, outcomes: dict[tuple[str, str], list[RankOutcome]], source: PluginSource, tmp_path: Path
) -> None:
    graph = TinyGraphs(tmp_path).get("weighted", 2).graph
    width, classes = graph.features.shape[1], graph.num_classes
    network = GNN(SPECS[name], width, classes, seed=0, dtype=torch.float64, source=source)
    want = train_dense(graph, False, network, dense(SPECS[name]))
    for outcome in outcomes[method, name]:
        assert difference(outcome, want) == ""


def test_its_suite_is_planned_with_its_memory(file: Path, tmp_path: Path) -> None:
    (file.parent / "gin.yaml").write_text(block("model", "yaml"))
    trials = expand(load_suite(file.parent / "gin.yaml"), device="cpu")
    assert {trial.model.options["eps"] for trial in trials} == {0.1}
    assert {trial.plugins["model"].file for trial in trials} == {file}
    planned = plan(trials, ResultStore(tmp_path, "gin"), RunOptions())
    assert all(min(map(sum, (part.values() for part in each.memory))) > 0 for each in planned)


def test_a_method_with_a_model_of_its_own_is_not_given_its_code(file: Path) -> None:
    (file.parent / "gin.yaml").write_text(block("model", "yaml"))
    trials = expand(load_suite(file.parent / "gin.yaml", overrides=["methods=[full, sign]"]), device="cpu")
    found = {(t.method.name, t.model.name, "model" in t.plugins) for t in trials}
    assert found == {("full", "gin", True), ("sign", "mixhop", False)}


def test_its_memory_is_more_than_that_of_a_layer_without_a_perceptron(source: PluginSource) -> None:
    from harness.models.layer import BlockSize, GraphLayer, LayerCase

    layer = MODELS.load("gin", source)(8, 4)
    case = LayerCase(ModelSpec(), [BlockSize(10, 30, 100)], exchanged=True)
    own, base = layer.training_values(case), GraphLayer.training_values(layer, case)
    assert (own.kept - base.kept, own.forward - base.forward, own.backward - base.backward) == (40, 40, 40)
