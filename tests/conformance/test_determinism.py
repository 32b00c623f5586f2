"""Truth 4, and the check of replicas: same seed, same bits; a drifting replica is caught."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from harness.conformance.graphs import OnDisk, on_disk, random_graph
from harness.conformance.ranks import run_ranks
from harness.conformance.training import Case, run_to_the_end, train
from harness.models.spec import ModelSpec
from harness.runtime.registry import method_names
from harness.runtime.spec import TrainSpec

MODEL = ModelSpec(name="sage", layers=2, hidden=8, dropout=0.5, norm="layer")
SPEC = TrainSpec(epochs=6, threads=1, checksum_every=1, eval_every=3)
SMALL = {  # where the defaults would draw all of 60 nodes
    "graphsage": {"fanouts": 2, "batch_size": 5},
    "vrgcn": {"batch_size": 5},
    "fastgcn": {"sizes": 20, "batch_size": 5},
    "ladies": {"sizes": 10, "batch_size": 5},
    "skewed": {"sizes": 10, "batch_size": 5},
    "graphsaint": {"size": 20, "frontier": 5, "coverage": 5},
    "clustergcn": {"clusters": 6, "per_batch": 2},
    "dgs": {"fanouts": 2, "batch_size": 5, "period": 2, "explain": "inline"},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> OnDisk:
    parts = np.random.default_rng(3).integers(0, 2, 60)
    return on_disk(random_graph(31), parts, 2, False, tmp_path_factory.mktemp("determinism"))


def losses(data: OnDisk, seed: int) -> dict[str, list[float]]:
    cases = [Case(data, name, SMALL.get(name, {}), MODEL, SPEC, seed) for name in method_names()]
    first, second = run_ranks(train, 2, cases)
    for ours, theirs in zip(first, second, strict=True):
        assert all(np.array_equal(ours.after[k], theirs.after[k]) for k in ours.after)
        assert [row["loss"] for row in ours.rows] == [row["loss"] for row in theirs.rows]
    return {name: [row["loss"] for row in o.rows] for name, o in zip(method_names(), first, strict=True)}


def test_same_seed_same_losses_bit_for_bit(data: OnDisk) -> None:
    once, again, other = losses(data, 0), losses(data, 0), losses(data, 1)
    assert once == again
    assert all(once[name] != other[name] for name in once)


def test_a_drifting_replica_makes_the_trial_invalid(data: OnDisk) -> None:
    reports = run_ranks(run_to_the_end, 2, Case(data, "support.methods:Drifting", {}, MODEL, SPEC))
    assert [r["status"] for r in reports] == ["invalid", "invalid"]
    assert reports[0]["reason"] == "replicas differ from rank 0's after epoch 2: ranks [1]"


def test_a_loss_that_is_not_finite_makes_the_trial_diverged(data: OnDisk) -> None:
    reports = run_ranks(run_to_the_end, 2, Case(data, "support.methods:Exploding", {}, MODEL, SPEC))
    assert [r["status"] for r in reports] == ["diverged", "diverged"]
    assert reports[1]["reason"] == "loss is nan in epoch 2"
    assert len(reports[0]["epochs"]) == 2


def test_an_honest_trial_is_ok(data: OnDisk, tmp_path: Path) -> None:
    first, second = run_ranks(run_to_the_end, 2, Case(data, "full", {}, MODEL, SPEC))
    assert (first["status"], second["status"]) == ("ok", "ok")
    assert first["summary"]["checksum"] == second["summary"]["checksum"]
    assert [e["val_score"] is not None for e in first["epochs"]] == [False, False, True] * 2
