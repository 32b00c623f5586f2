from __future__ import annotations

from typing import Any

from harness.runtime.run_config import TrainSpec
from harness.runtime.trainer import EarlyStopping


def follow(spec: TrainSpec, scores: list[float | None]) -> tuple[EarlyStopping, list[dict[str, Any]]]:
    progress, epochs = EarlyStopping(spec), []
    for i, score in enumerate(scores):
        row = {"epoch": i, "loss": 1.0, "val_score": score, "test_score": None}
        row["test_score"] = None if score is None else score - 0.1
        epochs.append(row)
        progress.evaluated(row)
        if progress.stopped:
            break
    return progress, epochs


def test_the_first_best_validation_score_counts() -> None:
    progress, epochs = follow(TrainSpec(), [0.2, 0.6, 0.6, 0.5])
    summary = progress.summary(epochs)
    assert (summary["best_val"], summary["best_epoch"], summary["test_at_best_val"]) == (0.6, 1, 0.5)
    assert (summary["final_val"], summary["stopped"], summary["epochs"]) == (0.5, "epochs", 4)


def test_patience_counts_evaluations_without_a_better_one() -> None:
    progress, epochs = follow(TrainSpec(patience=2), [0.3, 0.2, 0.4, 0.4, 0.1, 0.9])
    assert progress.stopped == "patience"
    assert len(epochs) == 5


def test_the_target_records_its_first_epoch_and_may_stop() -> None:
    progress, epochs = follow(TrainSpec(target=0.5), [0.3, 0.5, 0.9])
    assert progress.summary(epochs)["target_epoch"] == 1
    assert progress.stopped is None
    progress, epochs = follow(TrainSpec(target=0.5, stop_at_target=True), [0.3, 0.5, 0.9])
    assert (progress.stopped, len(epochs)) == ("target", 2)


def test_a_data_set_without_validation_nodes_has_no_best() -> None:
    progress, epochs = follow(TrainSpec(patience=1), [None, None])
    assert progress.summary(epochs)["best_val"] is None
    assert progress.stopped is None
