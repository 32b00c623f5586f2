"""DGS: what guided batches read and send, explanations beside the training, and their faults."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from harness_methods.dgs import DGS, GuidedBatch
from harness_methods.dgs.explainer import Guidance
from support.explanations import learnt_guidance, run_with_faults
from support.planted import auc, planted
from support.ranks import run_ranks

from harness.check.graphs import OnDisk, on_disk, random_graph
from harness.check.training import Case, RankOutcome, train
from harness.models.layer import ModelSpec
from harness.runtime.run_config import TrainSpec

WORLD, NODES, FEATURES, ITEM, EPOCHS = 3, 60, 7, 8, 3
GRAPH = random_graph(71, NODES, degree=6, features=FEATURES)
PARTS = np.random.default_rng(3).integers(0, WORLD, NODES)
MODEL = ModelSpec(name="sage", layers=2, hidden=5, dropout=0)
SPEC = TrainSpec(epochs=EPOCHS, precision="float64", threads=1, eval_every=0)
Report = dict[str, Any]
METHOD = "harness_methods.dgs:DGS"
SMALL: dict[str, Any] = {"fanouts": 2, "batch_size": 3, "explain": "inline", "explain_steps": 5}
STEPS = max(  # of an epoch
    -(-np.flatnonzero(GRAPH.train_mask & (rank == PARTS)).size // 3) for rank in range(WORLD)
)
ALONE = "no remote nodes", "background"
VARIANTS = {"both": 5, "fs-only": 5, "ns-only": FEATURES}  # columns that travel once a rank is guided
EXACT = {"fanouts": -1, "batch_size": 0, "feature_rate": 1.0, "period": 1, "explain": "inline", "explain_steps": 5}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> OnDisk:
    return on_disk(GRAPH, PARTS, WORLD, False, tmp_path_factory.mktemp("dgs"))


@pytest.fixture(scope="module")
def outcomes(data: OnDisk) -> dict[str, list[RankOutcome]]:
    """What each rank saw of each run."""
    guided = SMALL | {"feature_rate": 0.7, "period": STEPS}
    runs: dict[str, tuple[str, dict[str, Any]]] = {
        **{variant: (METHOD, guided | {"variant": variant}) for variant in VARIANTS},
        "graphsage": ("harness_methods.graphsage:GraphSAGE", {"fanouts": 2, "batch_size": 3}),
        "unbiased": (METHOD, guided | {"estimator": "unbiased"}),
        "prefetched": (METHOD, guided | {"prefetch": 1, "period": 1}),
        "unmoved": (METHOD, guided | {"threshold": 1e9}),
        "exact mean": (METHOD, EXACT),
        "exact unbiased": (METHOD, EXACT | {"estimator": "unbiased"}),
        "full": ("harness_methods.full:Full", {}),
    }
    cases = [Case(data, method, options, MODEL, SPEC) for method, options in runs.values()]
    by_rank = run_ranks(train, WORLD, cases)
    return {name: [rank[i] for rank in by_rank] for i, name in enumerate(runs)}


def losses(ranks: list[RankOutcome]) -> list[float]:
    return [row["loss"] for row in ranks[0].rows]


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["mean", "unbiased"])
def test_with_everything_drawn_guidance_changes_nothing(outcomes: dict[str, list[RankOutcome]], estimator: str) -> None:
    exact, full = outcomes[f"exact {estimator}"], outcomes["full"]
    assert exact[0].rows[-1]["stats"]["guided_steps"] == 1
    assert losses(exact) == pytest.approx(losses(full), rel=1e-9)
    for name, gradient in full[0].gradients.items():
        np.testing.assert_allclose(exact[0].gradients[name], gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_bytes_are_those_of_the_columns_that_matter(outcomes: dict[str, list[RankOutcome]], variant: str) -> None:
    ranks = outcomes[variant]
    sets = 0 if variant == "ns-only" else 4 * VARIANTS[variant] * WORLD * (WORLD - 1)
    for epoch in range(EPOCHS):
        rows = [rank.rows[epoch] for rank in ranks]
        remote = sum(row["stats"]["remote_nodes"] for row in rows)
        width = VARIANTS[variant] if epoch else FEATURES
        assert remote > 0
        assert sum(row["bytes_feature"] for row in rows) == remote * width * ITEM
        told = sum(row["bytes_control"] for row in rows) - 4 * remote - 8 * STEPS * WORLD * (WORLD - 1)
        # Every rank tells its columns when it is first guided, and again when they change.
        assert told == [0, sets][epoch] if epoch < 2 else told in range(0, sets + 1, max(1, sets // WORLD))


@pytest.mark.slow
def test_guidance_comes_into_use_and_ages(outcomes: dict[str, list[RankOutcome]]) -> None:
    for rank in outcomes["both"]:
        first, *others = (row["stats"] for row in rank.rows)
        assert first["guided_steps"] == first["mask_age"] == first["explanations"] == 0
        for row in others:
            assert row["explanations"] == 1
            assert row["guided_steps"] == STEPS
            assert row["mask_age"] >= STEPS * (STEPS + 1) / 2
            assert row["explain_steps"] == 5
            assert row["explain_s"] > 0


@pytest.mark.slow
def test_unguided_is_graphsage_and_guided_is_not(outcomes: dict[str, list[RankOutcome]]) -> None:
    plain = losses(outcomes["graphsage"])
    for name in (*VARIANTS, "unbiased"):
        assert losses(outcomes[name])[0] == plain[0]
        assert losses(outcomes[name])[1] != plain[1]
    found = {losses(outcomes[name])[1] for name in (*VARIANTS, "unbiased")}
    assert len(found) == len(VARIANTS) + 1


@pytest.mark.slow
def test_masks_that_never_moved_guide_nothing(outcomes: dict[str, list[RankOutcome]]) -> None:
    """The threshold ends every explanation at its first step: the training is `graphsage`'s, whole rows travel."""
    plain, unmoved = outcomes["graphsage"], outcomes["unmoved"]
    assert losses(unmoved) == losses(plain)
    for ours, theirs in zip(unmoved, plain, strict=True):
        for epoch, (row, other) in enumerate(zip(ours.rows, theirs.rows, strict=True)):
            stats = row["stats"]
            assert row["bytes_feature"] == other["bytes_feature"]
            assert stats["guided_steps"] == stats["explanations"] == stats["explain_failed"] == 0
            assert stats["explain_unmoved"] == (epoch > 0)


def test_equal_features_are_not_chosen_by_position() -> None:
    """The best ones in any case, of equal ones any: after a first step of Adam all have moved as far."""
    width, best = 200, [3, 150]
    features = torch.full((width,), 0.5)
    features[best] = 0.6
    method = SimpleNamespace(options=DGS.Options(feature_rate=0.5), kept_columns=width // 2)
    guidance = Guidance(np.zeros(NODES, np.float32), features, step=7)
    batch = GuidedBatch(0, np.arange(1), total=1, common=0, guidance=guidance, importance=None)
    chosen = [DGS.columns(method, SimpleNamespace(batch=batch)).tolist() for _ in range(2)]  # type: ignore
    assert chosen[0] == chosen[1] == sorted(set(chosen[0]))
    assert len(chosen[0]) == width // 2
    assert set(best) <= set(chosen[0])
    assert 30 <= sum(column < width // 2 for column in chosen[0]) <= 70


@pytest.mark.slow
def test_batches_ahead_are_guided_later(outcomes: dict[str, list[RankOutcome]]) -> None:
    """The first explanation is of the first step's model; two batches were handed out by then."""
    for rank in outcomes["prefetched"]:
        first, second, _ = (row["stats"] for row in rank.rows)
        assert first["guided_steps"] == STEPS - 2 == 1
        assert first["mask_age"] == 2
        assert second["guided_steps"] == STEPS


FAULTY = [
    ("none", "background"),
    ("failing from the second", "inline"),
    ("not finite", "inline"),
    ("not finite", "background"),
    ("endless", "background"),
]


@pytest.fixture(scope="module")
def reports(data: OnDisk, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], list[Report]]:
    """What the ranks report of trials whose explanations have faults, and of one without remote nodes."""
    cases = [
        (Case(data, METHOD, SMALL | {"period": 2, "explain": explain}, MODEL, SPEC), fault) for fault, explain in FAULTY
    ]
    alone = on_disk(random_graph(72, NODES, degree=0), PARTS, WORLD, False, tmp_path_factory.mktemp("alone"))
    cases.append((Case(alone, METHOD, SMALL | {"period": 1}, MODEL, SPEC), "none"))
    by_rank = run_ranks(run_with_faults, WORLD, cases)
    found = {key: [rank[i] for rank in by_rank] for i, key in enumerate([*FAULTY, ALONE])}
    assert all(report["status"] == "ok" for ranks in found.values() for report in ranks)
    return found


def total(report: Report, figure: str) -> float:
    return sum(float(row["stats"].get(figure, 0)) for row in report["epochs"])


@pytest.mark.slow
def test_an_explanation_that_is_never_done_holds_up_nothing(reports: dict[tuple[str, str], list[Report]]) -> None:
    for report in reports["endless", "background"]:
        assert total(report, "guided_steps") == total(report, "explanations") == 0
        assert total(report, "explain_late") == (EPOCHS * STEPS - 1) // 2 - 1  # none behind the last step


@pytest.mark.slow
def test_masks_that_are_not_finite_are_not_used(reports: dict[tuple[str, str], list[Report]]) -> None:
    beside = reports["not finite", "background"]  # on a busy machine none may have ended, or behind the last step
    for report in (*reports["not finite", "inline"], *beside):
        failed = total(report, "explain_failed")
        assert failed >= 1 or report in beside
        assert len(report["remarks"]) == (failed > 0) or (failed == 0 and report in beside)
        for remark in report["remarks"]:
            assert "explanations failed: " in remark
            assert "(the last: ExplanationError: the loss of step 1 is nan)" in remark
            assert remark.endswith("trained on with no masks")
        assert total(report, "guided_steps") == 0


@pytest.mark.slow
def test_where_an_explanation_fails_the_last_good_masks_stay(reports: dict[tuple[str, str], list[Report]]) -> None:
    for report in reports["failing from the second", "inline"]:
        [remark] = report["remarks"]
        assert "(the last: RuntimeError: the explanation broke)" in remark
        assert remark.endswith("trained on with the last good masks")
        assert total(report, "explanations") == 1
        assert total(report, "explain_failed") >= 1
        assert total(report, "guided_steps") == EPOCHS * STEPS - 2


@pytest.mark.slow
def test_a_sound_trial_has_nothing_to_remark(reports: dict[tuple[str, str], list[Report]]) -> None:
    for report in reports["none", "background"]:
        assert report["remarks"] == []
        assert total(report, "explain_failed") == 0


@pytest.mark.slow
def test_without_remote_nodes_nothing_is_explained(reports: dict[tuple[str, str], list[Report]]) -> None:
    for report in reports[ALONE]:
        assert total(report, "explanations") == total(report, "guided_steps") == 0


@pytest.mark.slow
def test_training_finds_what_is_planted(tmp_path: Path) -> None:
    plant = planted(5)
    data = on_disk(plant.graph, plant.parts, 2, False, tmp_path)
    spec = TrainSpec(epochs=6, lr=0.01, threads=1, eval_every=0)
    options = {
        "fanouts": 8,
        "batch_size": 50,
        "period": 15,
        "explain": "inline",
        "explainer": "harness",
        "threshold": 0,
    }
    models = [ModelSpec(name=name, layers=2, hidden=16, dropout=0) for name in ("sage", "gcn")]
    cases = [Case(data, METHOD, options, model, spec) for model in models]
    for rank, learnt in enumerate(run_ranks(learnt_guidance, 2, cases)):
        rim = (plant.parts != rank) & (np.diff(plant.graph.indptr) == 0)  # what leads to the rank's core
        for importance, features in learnt:
            assert auc(importance[rim], plant.telling_nodes[rim]) > 0.9
            assert auc(features, plant.telling_features) > 0.9


def test_one_rank_alone_is_graphsage(tmp_path: Path) -> None:
    data = on_disk(GRAPH, np.zeros(NODES, np.int64), 1, False, tmp_path)
    cases = [
        Case(data, METHOD, SMALL | {"period": 1}, MODEL, SPEC),
        Case(data, "harness_methods.graphsage:GraphSAGE", {"fanouts": 2, "batch_size": 3}, MODEL, SPEC),
    ]
    [(ours, theirs)] = run_ranks(train, 1, cases)
    assert losses([ours]) == losses([theirs])
