"""Finished trials written for other tools to show: TensorBoard, MLflow, Weights & Biases."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from harness.errors import UserError
from harness.metrics import OF_CONFIG
from harness.results.frames import row_of
from harness.results.record import Record, flat_config
from harness.results.record_store import read_epochs, read_records
from harness.suite.schema import PLAIN_NAME

FIRST = ("loss", "lr", "train_score", "val_score", "test_score", "sampled_val_score", "sampled_test_score")
SUMS = ("bytes_", "stat_", "energy_")  # beginnings of what ranks have a share of
_ODD = re.compile(r"[^\w\-./ ]")  # what not every tracker takes in a name


@dataclass(frozen=True)
class TrackedRun:
    """A trial; `epochs` are row by row, index from 1, NaN where there is none.

    An epoch has the slowest rank's time, sums of bytes and the method's metrics, means of the phases' times over ranks.
    """

    suite: str
    trial: str
    label: str
    status: str
    started: float  # seconds since 1970
    params: Mapping[str, Any]  # the configuration as `section.key`
    metrics: Mapping[str, float]  # its numbers, as in `load_results`
    epochs: pd.DataFrame

    def steps(self) -> Iterator[tuple[int, float, dict[str, float]]]:
        """Yield each epoch's number, the time of its end (since 1970, training alone) and its metrics."""
        now = self.started
        for epoch, row in self.epochs.iterrows():
            known = {str(key): float(value) for key, value in row.items() if np.isfinite(value)}
            now += known.get("epoch_time_s", 0.0)
            yield int(str(epoch)), now, known


def read_runs(path: Path) -> list[TrackedRun]:
    """Read the trials of a results directory, a suite's or a trial's, as they started; UserError if none."""
    runs = (_run(record, place) for place, record in read_records(path, required=True).items())
    return sorted(runs, key=lambda run: run.started)


def import_extra(module: str, extra: str) -> Any:
    """Import what an extra installs; UserError that names the extra if it is not there."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        what = f"{extra} is not installed"
        raise UserError(what, key="--to", fix=f"python -m pip install '.[{extra}]'") from error


def _run(record: Record, place: Path) -> TrackedRun:
    if not all(re.fullmatch(PLAIN_NAME, name) for name in (record.suite, record.trial)):
        raise UserError("its suite and trial cannot name directories", file=place)
    numbers = {
        _ODD.sub("_", key): float(value)
        for key, value in row_of(record).items()
        if isinstance(value, int | float)
        and not isinstance(value, bool)
        and np.isfinite(value)
        and key not in OF_CONFIG
    }
    params = {_ODD.sub("_", key): value for key, value in flat_config(record.config).items()}
    started, epochs = datetime.fromisoformat(record.started).timestamp(), read_epochs(place / "epochs.parquet")
    columns: dict[str, Any] = {}
    if not epochs.empty:
        groups: Any = epochs.groupby("epoch", sort=True)
        columns["epoch_time_s"] = groups["epoch_time_s"].max()
        for name in map(str, epochs.select_dtypes("number")):
            if name in FIRST:
                columns[name] = groups[name].first()
            elif name.startswith(SUMS):
                columns[_ODD.sub("_", name)] = groups[name].sum(min_count=1)
            elif name.startswith("time_"):
                columns[name] = groups[name].mean()
    frame = pd.DataFrame(columns)
    frame.index += 1
    return TrackedRun(record.suite, record.trial, record.label, record.status, started, params, numbers, frame)


AT_ONCE = {"metrics": 1000, "params": 100}  # what MLflow takes in one call
LONGEST = 500  # characters of a parameter that every store takes


def write_mlflow(runs: Iterable[TrackedRun], out: Path | None) -> int:
    """Write each run that is not there yet; returns how many.

    `out`: a directory that gets an `mlflow.db`; None: wherever MLFLOW_TRACKING_URI says.
    """
    mlflow, entities = import_extra("mlflow", "mlflow"), import_extra("mlflow.entities", "mlflow")
    address = None
    if out is not None:  # MLflow has given up the store of plain files
        import_extra("sqlalchemy", "mlflow")
        out.mkdir(parents=True, exist_ok=True)
        address = f"sqlite:///{out.resolve() / 'mlflow.db'}"
    client = mlflow.MlflowClient(tracking_uri=address)
    written = 0
    for run in runs:
        experiment = client.get_experiment_by_name(run.suite)
        experiment_id = experiment.experiment_id if experiment else client.create_experiment(run.suite)
        same = f"tags.trial = '{run.trial}' and tags.started = '{run.started}'"
        if client.search_runs([experiment_id], same, max_results=1):
            continue
        start = end = int(1000 * run.started)  # milliseconds
        tags = {"trial": run.trial, "started": str(run.started), "status": run.status}
        new = client.create_run(experiment_id, start_time=start, tags=tags, run_name=run.label).info.run_id
        metrics = [entities.Metric(f"final/{name}", value, start, 0) for name, value in run.metrics.items()]
        for epoch, now, values in run.steps():
            end = int(1000 * now)
            metrics += [entities.Metric(name, value, end, epoch) for name, value in values.items()]
        params = [entities.Param(key, str(value)[:LONGEST]) for key, value in run.params.items()]
        for kind, items in (("params", params), ("metrics", metrics)):
            for at in range(0, len(items), AT_ONCE[kind]):
                client.log_batch(new, **{kind: items[at : at + AT_ONCE[kind]]})
        client.set_terminated(new, "FINISHED" if run.status == "ok" else "FAILED", end_time=end)
        written += 1
    return written


def write_tensorboard(runs: Iterable[TrackedRun], out: Path) -> int:
    """Write `out/SUITE/TRIAL/events...` of each run that has no directory there; returns how many."""
    writers = import_extra("torch.utils.tensorboard", "tensorboard")
    todo = [run for run in runs if not (out / run.suite / run.trial).exists()]
    for run in todo:
        with writers.SummaryWriter(log_dir=str(out / run.suite / run.trial)) as writer:
            for epoch, now, metrics in run.steps():
                for name, value in metrics.items():
                    writer.add_scalar(name, value, epoch, walltime=now)
            params = {key: value if value is not None else "none" for key, value in run.params.items()}
            metrics = {f"final/{name}": value for name, value in run.metrics.items()}
            labels = {"label": run.label, "status": run.status}
            writer.add_hparams(params | labels, metrics, run_name=".", global_step=0)
    return len(todo)


def write_wandb(runs: Iterable[TrackedRun], out: Path) -> int:
    """Write `out/wandb/offline-run-...` of each run that has none there; returns how many."""
    wandb = import_extra("wandb", "wandb")
    out.mkdir(parents=True, exist_ok=True)  # or wandb takes another place
    todo = [run for run in runs if not any(out.glob(f"wandb/offline-run-*-{run.trial}"))]
    for run in todo:
        settings = wandb.Settings(silent=True, console="off", disable_git=True, save_code=False)
        about = {"project": run.suite, "id": run.trial, "name": run.label, "config": dict(run.params)}
        with wandb.init(**about, dir=str(out), mode="offline", settings=settings) as logged:
            for epoch, now, metrics in run.steps():
                logged.log(metrics | {"training_s": now - run.started}, step=epoch)
            logged.summary.update({f"final/{name}": value for name, value in run.metrics.items()})
            logged.summary["status"] = run.status
    return len(todo)


Writer = Callable[[Sequence[TrackedRun], Any], int]
TRACKERS: Mapping[str, Writer] = {"mlflow": write_mlflow, "tensorboard": write_tensorboard, "wandb": write_wandb}
"""What writes for each tool: into a directory; for MLflow it may be None."""
