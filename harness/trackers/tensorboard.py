"""Event files of TensorBoard: a directory a trial; scalars of its epochs, and its metrics."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from harness.trackers.runs import TrackedRun, import_extra


def write(runs: Iterable[TrackedRun], out: Path) -> int:
    """Write `out/SUITE/TRIAL/events...` of each run that has no directory there; returns how many."""
    writers = import_extra("torch.utils.tensorboard", "tensorboard")
    written = 0
    for run in runs:
        directory = out / run.suite / run.trial
        if directory.exists():
            continue
        with writers.SummaryWriter(log_dir=str(directory)) as writer:
            for epoch, now, metrics in run.steps():
                for name, value in metrics.items():
                    writer.add_scalar(name, value, epoch, walltime=now)
            params = {key: value if value is not None else "none" for key, value in run.params.items()}
            metrics = {f"final/{name}": value for name, value in run.metrics.items()}
            labels = {"label": run.label, "status": run.status}
            writer.add_hparams(params | labels, metrics, run_name=".", global_step=0)
        written += 1
    return written
