"""What is measured, scored and checked beside the training changes no bit of it."""

from __future__ import annotations

from typing import Any

import pytest
from support.methods import SMALL

from harness.check.graphs import TinyGraphs
from harness.check.training import Case, run_ranks
from harness.models.spec import ModelSpec
from harness.runtime.method import METHODS
from harness.runtime.minibatch import MiniBatchOptions
from harness.runtime.spec import TrainSpec

EPOCHS = 4
OPTIONS: dict[str, dict[str, Any]] = SMALL | {"bns-gcn": {"rate": 0.5}}
CACHED = [name for name in METHODS.names() if issubclass(METHODS.load(name).Options, MiniBatchOptions)]
WATCHED: dict[str, dict[str, Any]] = {
    "as little as there is": {"eval_every": 0, "checksum_every": 100},
    "every epoch": {"eval_every": 1, "checksum_every": 1},
    "by the own sampler too": {"eval_every": 1, "checksum_every": 3, "sampled_eval": True},
}
MODEL = ModelSpec(name="sage", layers=2, hidden=8, dropout=0.5, norm="layer")


def trained(rank: int, world: int, cases: list[Case]) -> list[tuple[str, list[float]]]:
    """Run each trial whole; returns the checksum of its weights, and its losses."""
    found = []
    for case in cases:
        trainer = case.trainer(rank, world)
        trainer.report.setup(trainer.worker, trainer.method, 0.0)
        trainer.run()
        found.append((trainer.check_replicas(EPOCHS - 1), [row["loss"] for row in trainer.report.epochs]))
    return found


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Any]:
    graphs = TinyGraphs(tmp_path_factory.mktemp("graphs"))
    data = graphs.get("inductive", 2).stored

    def case(name: str, watched: dict[str, Any], **more: Any) -> Case:
        spec = TrainSpec(epochs=EPOCHS, threads=1, **watched)
        return Case(data, name, OPTIONS.get(name, {}) | more, MODEL, spec, timing="off")

    cases = {(name, watched): case(name, WATCHED[watched]) for name in METHODS.names() for watched in WATCHED}
    cases |= {(name, "with a cache"): case(name, {"eval_every": 2}, cache="degree") for name in CACHED}
    results, _ = run_ranks(trained, 2, list(cases.values()), timeout_s=240)
    return dict(zip(cases, results, strict=True))


@pytest.mark.parametrize("name", METHODS.names())
def test_weights_are_the_same_bits_whatever_is_watched(name: str, outcomes: dict[Any, Any]) -> None:
    first, *others = (outcomes[name, watched] for watched in WATCHED)
    assert len(set(first[1])) == EPOCHS
    assert others == [first, first]


@pytest.mark.parametrize("name", CACHED)
def test_weights_are_the_same_bits_with_a_cache(name: str, outcomes: dict[Any, Any]) -> None:
    assert outcomes[name, "with a cache"] == outcomes[name, "every epoch"]
