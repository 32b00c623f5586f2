"""What a run would do, found out without doing any of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from harness.data.spec import DatasetSpec
from harness.errors import DataUnavailable
from harness.launch.inputs import is_inductive, missing_data
from harness.launch.memory import GraphSize, MemoryEstimate, estimate, exact
from harness.launch.network import why_not
from harness.launch.runner import RunOptions, is_done
from harness.results.record import Record
from harness.results.store import ResultStore, read_at, records_under
from harness.suite.schema import TrialConfig

State = Literal["run", "done", "skip"]


@dataclass(frozen=True)
class PlannedTrial:
    """A trial and what a run would do with it.

    `reason` says why it is skipped or runs again, `command` how to get its data; `done_status` is that of its
    record, if it has one; `memory` bytes of a rank.
    """

    trial: TrialConfig
    state: State
    reason: str | None
    command: str | None
    done_status: str | None
    memory: MemoryEstimate


def plan(trials: Sequence[TrialConfig], store: ResultStore, options: RunOptions) -> list[PlannedTrial]:
    """Return what `run_suite` would do with each of `trials`, in their order; nothing is written or built.

    Raises UserError for an unknown data set, a wrong option of one, or a damaged record.
    """
    planner = _Planner(
        options, {record.trial: record for record in map(read_at, records_under(store.directory))}
    )
    return [planner.plan(trial) for trial in trials]


@dataclass
class _Planner:
    """Remembers what trials have in common."""

    options: RunOptions
    records: dict[str, Record]
    _missing: dict[str, DataUnavailable | None] = field(default_factory=dict)
    _sizes: dict[str, GraphSize] = field(default_factory=dict)
    _tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for record in self.records.values():
            if record.partition:
                self._tables[_split_key(TrialConfig.model_validate(record.config))] = record.partition

    def plan(self, trial: TrialConfig) -> PlannedTrial:
        record = self.records.get(trial.id)
        status, memory = record.status if record else None, self._memory(trial)
        if is_done(status, self.options):
            return PlannedTrial(trial, "done", None, None, status, memory)
        if (missing := self._why_missing(trial.dataset)) is not None:
            return PlannedTrial(trial, "skip", missing.reason, missing.command, status, memory)
        if trial.network is not None and (reason := why_not(trial.network)) is not None:
            return PlannedTrial(trial, "skip", reason, None, status, memory)
        again = None if status is None else f"again, was {status}"
        return PlannedTrial(trial, "run", again, None, status, memory)

    def _why_missing(self, spec: DatasetSpec) -> DataUnavailable | None:
        key = spec.model_dump_json()
        if key not in self._missing:
            self._missing[key] = missing_data(spec, self.options.data_dir, self.options.cache)
        return self._missing[key]

    def _memory(self, trial: TrialConfig) -> MemoryEstimate:
        from harness.runtime.registry import load_method

        itemsize = 8 if trial.train.precision == "float64" else 4
        full_graph = load_method(trial.method.name).family == "full-graph"
        size, table = self._size(trial.dataset), self._tables.get(_split_key(trial))
        # An inductive trial's record has the table of the training graph, evaluation needs more.
        if table and not is_inductive(trial):
            return exact(table, size, trial.model, itemsize=itemsize, full_graph=full_graph)
        return estimate(size, trial.model, trial.partition.parts, itemsize=itemsize, full_graph=full_graph)

    def _size(self, spec: DatasetSpec) -> GraphSize:
        from harness.data.registry import dataset_info

        key = spec.model_dump_json()
        if key not in self._sizes:
            info = dataset_info(spec, self.options.data_dir)
            self._sizes[key] = GraphSize(info.nodes, info.edges, info.features, info.classes)
        return self._sizes[key]


def _split_key(trial: TrialConfig) -> str:
    """What decides how a trial's graph is split."""
    return trial.dataset.model_dump_json() + trial.partition.model_dump_json() + str(trial.train.inductive)
