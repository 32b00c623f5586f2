"""What a run would do, found out without doing any of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.data.spec import DatasetSpec
from harness.errors import DataUnavailable, UserError
from harness.launch.inputs import missing_data
from harness.launch.memory import GraphSize, MemoryEstimate, estimate
from harness.launch.runner import RunOptions, is_done
from harness.results.store import ResultStore
from harness.suite.schema import TrialConfig

State = Literal["run", "done", "skip"]


@dataclass(frozen=True)
class PlannedTrial:
    """A trial and what a run would do with it.

    `reason` says why it is skipped or why it runs again, `command` how to get its data; `done_status` is that
    of its record, if there is one; `memory` bytes of a rank, None where the data set's size is not known.
    """

    trial: TrialConfig
    state: State
    reason: str | None
    command: str | None
    done_status: str | None
    memory: MemoryEstimate | None


def plan(trials: Sequence[TrialConfig], store: ResultStore, options: RunOptions) -> list[PlannedTrial]:
    """Return what `run_suite` would do with each of `trials`, in their order; nothing is written or built.

    Raises UserError for an unknown data set, a wrong option of one, or a damaged record.
    """
    statuses = store.finished()
    missing: dict[str, DataUnavailable | None] = {}
    planned = []
    for trial in trials:
        key = trial.dataset.model_dump_json()
        if key not in missing:
            missing[key] = missing_data(trial.dataset, options.data_dir, options.cache)
        planned.append(_plan_one(trial, statuses, missing[key], options))
    return planned


def _plan_one(
    trial: TrialConfig, statuses: Mapping[str, str], missing: DataUnavailable | None, options: RunOptions
) -> PlannedTrial:
    status, memory = statuses.get(trial.id), _memory(trial)
    if is_done(status, options):
        return PlannedTrial(trial, "done", None, None, status, memory)
    if missing is not None:
        return PlannedTrial(trial, "skip", missing.reason, missing.command, status, memory)
    again = None if status is None else f"again, was {status}"
    return PlannedTrial(trial, "run", again, None, status, memory)


def _memory(trial: TrialConfig) -> MemoryEstimate | None:
    size = graph_size(trial.dataset)
    if size is None:
        return None
    itemsize = 8 if trial.train.precision == "float64" else 4
    return estimate(
        size, trial.model, trial.partition.parts, itemsize=itemsize, full_graph=_is_full_graph(trial)
    )


def graph_size(spec: DatasetSpec) -> GraphSize | None:
    """Return the published figures of a data set; None where it does not say how large it is."""
    from harness.data.registry import dataset_info

    info = dataset_info(spec)
    figures = (info.nodes, info.edges, info.features, info.classes)
    return None if None in figures else GraphSize(*figures)


def _is_full_graph(trial: TrialConfig) -> bool:
    from harness.runtime.registry import load_method

    try:
        return load_method(trial.method.name).family == "full-graph"
    except UserError:
        return True
