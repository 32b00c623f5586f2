"""Progress: the best score so far, and when to stop."""

from __future__ import annotations

from typing import Any

from harness.runtime.spec import TrainSpec


class Progress:
    """Follows the validation score over evaluations."""

    def __init__(self, spec: TrainSpec) -> None:
        self._spec = spec
        self._best: dict[str, Any] | None = None
        self._since_best = 0
        self._time_to_target: float | None = None
        self.last_val: float | None = None
        self.stopped: str | None = None

    def evaluated(self, row: dict[str, Any], epochs: list[dict[str, Any]]) -> None:
        """Take in the scores of `row`, the last of `epochs`."""
        val = self.last_val = row["val_score"]
        if val is None:
            return
        if self._best is None or val > self._best["val_score"]:
            self._best, self._since_best = row, 0
        else:
            self._since_best += 1
        target, patience = self._spec.target, self._spec.patience
        if target is not None and val >= target and self._time_to_target is None:
            self._time_to_target = sum(e["epoch_time_s"] for e in epochs)
            if self._spec.stop_at_target:
                self.stopped = "target"
        if patience is not None and self._since_best >= patience:
            self.stopped = "patience"

    def summary(self, epochs: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the figures of the whole trial."""
        best, last = self._best or {}, epochs[-1]
        return {
            "epochs": len(epochs),
            "best_val": best.get("val_score"),
            "test_at_best_val": best.get("test_score"),
            "sampled_test_at_best_val": best.get("sampled_test_score"),
            "best_epoch": best.get("epoch"),
            "final_val": last["val_score"],
            "final_test": last["test_score"],
            "final_loss": last["loss"],
            "time_to_target_s": self._time_to_target,
            "stopped": self.stopped or "epochs",
            "warmup_epochs": self._spec.warmup,
        }
