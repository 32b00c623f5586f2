"""Runs of Weights & Biases, written to disk; `wandb sync` uploads them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from harness.trackers.runs import TrackedRun, import_extra


def write(runs: Iterable[TrackedRun], out: Path) -> int:
    """Write `out/wandb/offline-run-...` of each run that has none there; returns how many."""
    wandb = import_extra("wandb", "wandb")
    out.mkdir(parents=True, exist_ok=True)  # or wandb takes another place
    written = 0
    for run in runs:
        if any(out.glob(f"wandb/offline-run-*-{run.trial}")):
            continue
        settings = wandb.Settings(silent=True, console="off", disable_git=True, save_code=False)
        with wandb.init(
            project=run.suite,
            id=run.trial,
            name=run.label,
            config=dict(run.params),
            dir=str(out),
            mode="offline",
            settings=settings,
        ) as logged:
            for epoch, now, metrics in run.steps():
                logged.log(metrics | {"training_s": now - run.started}, step=epoch)
            logged.summary.update({f"final/{name}": value for name, value in run.metrics.items()})
            logged.summary["status"] = run.status
        written += 1
    return written
