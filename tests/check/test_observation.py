"""What is measured, scored and checked beside the training changes no bit of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import pytest
from support.methods import SMALL
from support.ranks import run_ranks

from harness.check.graphs import TinyGraphs
from harness.check.training import Case
from harness.models.layer import ModelSpec
from harness.runtime.comm import Scope
from harness.runtime.method import METHODS
from harness.runtime.run_config import MiniBatchOptions, Timing, TrainSpec

pytestmark = pytest.mark.slow
EPOCHS = 4
REHEARSED = "after a rehearsal"
OPTIONS: dict[str, dict[str, Any]] = SMALL | {
    "bns-gcn": {"rate": 0.5},
    "graphsage": SMALL["graphsage"] | {"prefetch": 2},  # a rehearsal ends amid what was fetched ahead
}
CACHED = [
    name
    for name in METHODS.names()
    if issubclass(METHODS.load(name).Options, MiniBatchOptions) and name not in ("cooperative", "p3")  # fetch no row
]
WATCHED: dict[str, dict[str, Any]] = {
    "as little as there is": {"eval_every": 0, "checksum_every": 100},
    "every epoch": {"eval_every": 1, "checksum_every": 1},
    "by the own sampler too": {"eval_every": 1, "checksum_every": 3, "sampled_eval": True},
    REHEARSED: {"eval_every": 2, "sampled_eval": True},
}
MODEL = ModelSpec(name="sage", layers=2, hidden=8, dropout=0.5, norm="layer")


@dataclass
class Trained:
    """A trial that was run whole: its weights' checksum, its losses, and bytes by scope and purpose."""

    checksum: str
    losses: list[float]
    sent: dict[str, dict[str, int]]


def trained(rank: int, world: int, cases: list[tuple[Case, bool]]) -> list[Trained]:
    """Run each trial whole, after a rehearsal or without one."""
    found = []
    for case, rehearsed in cases:
        trainer = case.trainer(rank, world, rehearsed=rehearsed)
        if not rehearsed:
            trainer.report.setup(trainer.worker, trainer.method, {}, {})
        trainer.run()
        sent = {scope: trainer.worker.traffic.sent(scope) for scope in get_args(Scope)}
        losses = [row["loss"] for row in trainer.report.epochs]
        found.append(Trained(trainer.check_replicas(EPOCHS - 1), losses, sent))
    return found


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Mapping[tuple[str, str], Trained]:
    graphs = TinyGraphs(tmp_path_factory.mktemp("graphs"))
    data = graphs.get("inductive", 2).stored

    def case(name: str, watched: dict[str, Any], **more: Any) -> Case:
        spec = TrainSpec(epochs=EPOCHS, threads=1, **watched)
        timing: Timing = "wall" if watched is WATCHED[REHEARSED] else "off"  # or nothing is rehearsed
        return Case(data, name, OPTIONS.get(name, {}) | more, MODEL, spec, timing=timing)

    cases = {(name, watched): case(name, WATCHED[watched]) for name in METHODS.names() for watched in WATCHED}
    cases |= {(name, "with a cache"): case(name, {"eval_every": 2}, cache="degree") for name in CACHED}

    def run(keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Trained]:
        results, _ = run_ranks(trained, 2, [(cases[key], key[1] == REHEARSED) for key in keys], timeout_s=240)
        return dict(zip(keys, results, strict=True))

    return run(list(cases))


@pytest.mark.parametrize("name", METHODS.names())
def test_weights_are_the_same_bits_whatever_is_watched(name: str, outcomes: Mapping[Any, Trained]) -> None:
    first, *others = (outcomes[name, watched] for watched in WATCHED)
    assert len(set(first.losses)) == EPOCHS
    assert [(other.checksum, other.losses) for other in others] == [(first.checksum, first.losses)] * 3


@pytest.mark.parametrize("name", METHODS.names())
def test_bytes_of_a_rehearsal_are_told_apart(name: str, outcomes: Mapping[Any, Trained]) -> None:
    plain, rehearsed = (outcomes[name, watched].sent for watched in ("by the own sampler too", REHEARSED))
    assert {scope: rehearsed[scope] for scope in ("setup", "epoch")} == {
        scope: plain[scope] for scope in ("setup", "epoch")
    }
    assert set(plain["compile"].values()) == {0}
    assert rehearsed["compile"]["model"] > 0
    assert 2 * rehearsed["eval"]["embedding"] == plain["eval"]["embedding"]


@pytest.mark.parametrize("name", CACHED)
def test_weights_are_the_same_bits_with_a_cache(name: str, outcomes: Mapping[Any, Trained]) -> None:
    cached, plain = outcomes[name, "with a cache"], outcomes[name, "every epoch"]
    assert (cached.checksum, cached.losses) == (plain.checksum, plain.losses)
