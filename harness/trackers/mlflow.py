"""Runs of MLflow: an experiment a suite, a run a trial."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from harness.trackers.runs import TrackedRun, import_extra

AT_ONCE = {"metrics": 1000, "params": 100}  # what MLflow takes in one call
LONGEST = 500  # characters of a parameter that every store takes


def write(runs: Iterable[TrackedRun], out: Path | None) -> int:
    """Write each run that is not there yet; returns how many.

    `out`: a directory that gets an `mlflow.db`; None: wherever MLFLOW_TRACKING_URI says.
    """
    mlflow, entities = import_extra("mlflow", "mlflow"), import_extra("mlflow.entities", "mlflow")
    client = mlflow.MlflowClient(tracking_uri=None if out is None else _database(out))
    written = 0
    for run in runs:
        experiment = client.get_experiment_by_name(run.suite)
        experiment_id = experiment.experiment_id if experiment else client.create_experiment(run.suite)
        if _there(client, experiment_id, run):
            continue
        start, end = _milliseconds(run.started), _milliseconds(run.started)
        tags = {"trial": run.trial, "started": str(run.started), "status": run.status}
        new = client.create_run(experiment_id, start_time=start, tags=tags, run_name=run.label).info.run_id
        metrics = [entities.Metric(f"final/{name}", value, start, 0) for name, value in run.metrics.items()]
        for epoch, now, values in run.steps():
            end = _milliseconds(now)
            metrics += [entities.Metric(name, value, end, epoch) for name, value in values.items()]
        params = [entities.Param(key, str(value)[:LONGEST]) for key, value in run.params.items()]
        for kind, items in (("params", params), ("metrics", metrics)):
            for some in _batches(items, AT_ONCE[kind]):
                client.log_batch(new, **{kind: some})
        client.set_terminated(new, "FINISHED" if run.status == "ok" else "FAILED", end_time=end)
        written += 1
    return written


def _database(out: Path) -> str:
    """Return the address of a store in a directory; MLflow has given up the one of plain files."""
    import_extra("sqlalchemy", "mlflow")
    out.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{out.resolve() / 'mlflow.db'}"


def _there(client: Any, experiment_id: str, run: TrackedRun) -> bool:
    asked = f"tags.trial = '{run.trial}' and tags.started = '{run.started}'"
    return bool(client.search_runs([experiment_id], asked, max_results=1))


def _milliseconds(seconds: float) -> int:
    return int(1000 * seconds)


def _batches(items: list[Any], size: int) -> Iterator[list[Any]]:
    rest = iter(items)
    while some := list(itertools.islice(rest, size)):
        yield some
