"""Find out what a run would do, without doing any of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from harness.data.catalog import DatasetInfo
from harness.gpus import why_unusable
from harness.launch.gpus import unlike_gpus
from harness.launch.inputs import cores, is_inductive, missing_data
from harness.launch.memory import Capacity, MemoryEstimate, Shortage, Table, capacity, estimate, shortage
from harness.launch.network import why_not
from harness.launch.options import RunOptions, is_done
from harness.models.architecture import Architecture
from harness.results.record import Record
from harness.results.record_store import ResultStore, read_at, records_under
from harness.results.stats import trials as trials_text
from harness.spec import DatasetSpec
from harness.suite.schema import TrialConfig

State = Literal["run", "done", "skip"]
T = TypeVar("T")


@dataclass(frozen=True)
class PlannedTrial:
    """Says what a run would do with a trial.

    `reason` says why it is skipped or runs again, `command` how to get its data; `done_status` is that of its
    record, if it has one; `memory` the ranks' and `shortage` where that is too much for the machines; `graph` is what
    is known of its data.
    """

    trial: TrialConfig
    state: State
    reason: str | None
    command: str | None
    done_status: str | None
    memory: MemoryEstimate
    graph: DatasetInfo
    shortage: Shortage | None = None


def plan(
    trials: Sequence[TrialConfig],
    store: ResultStore,
    options: RunOptions,
    machines: Capacity | None = None,
    records: Iterable[Record] | None = None,
) -> list[PlannedTrial]:
    """Return what `run_suite` would do with each of `trials`, in their order; nothing is written or built.

    `machines` would run them; None: this one. `records` are the store's; None: they are read.
    Raises UserError for an unknown data set, a wrong option of one, or a damaged record.
    """
    found = map(read_at, records_under(store.directory)) if records is None else records
    planner = _Planner(options, {record.trial: record for record in found}, machines or capacity())
    return [planner.plan(trial) for trial in trials]


def changed_code(trial: TrialConfig, record: Record) -> list[Path]:
    """Return the plugins' files that would run other code now than a trial's record is of."""
    kept = {"method": record.config.get("plugin"), **(record.config.get("plugins") or {})}
    was = {kind: (source or {}).get("sha256") for kind, source in kept.items()}
    changed = {now.file for kind, now in trial.sources.items() if was.get(kind) not in (None, now.sha256)}
    return sorted(changed)


def outdated(trials: Sequence[TrialConfig], store: ResultStore, options: RunOptions) -> list[str]:
    """Return a line for each plugin of which trials that a run would leave as they are ran other code."""
    of_plugins = {trial.id: trial for trial in trials if trial.sources}
    counts: Counter[Path] = Counter()
    for path in records_under(store.directory) if of_plugins else []:
        record = read_at(path)
        trial = of_plugins.get(record.trial)
        if trial and is_done(record.status, options):
            counts.update(changed_code(trial, record))
    return [
        f"{count} finished trial{'s' * (count > 1)} ran other code of {file}; --fresh runs them again"
        for file, count in sorted(counts.items())
    ]


def remarks(planned: Sequence[PlannedTrial], machine: Capacity | None) -> list[str]:
    """Return a line for each thing that is likely not meant: more ranks than cores or GPUs, no GPU.

    `machine` is this one; None where others run the trials: then what its cores and GPUs are is no matter.
    """
    gpus, here = len(machine.gpus) if machine else 0, cores()

    def crowded(trial: TrialConfig) -> str | None:
        ranks = trial.partition.parts
        if trial.device == "cuda" and not gpus:
            why, fix = why_unusable() or ("it shows none", "see `harness doctor`")
            return f"device cuda, and torch can use no GPU here: {why} ({fix})"
        if machine and (unlike := unlike_gpus(trial, machine.names)) is not None:
            return f"{unlike}; a run refuses them"
        if trial.device == "cuda" and ranks > gpus:
            return f"{ranks} ranks on {gpus} GPUs: they share them, and times say little"
        if trial.device == "cpu" and ranks * (trial.train.threads or 1) > here:
            return f"{ranks} ranks on {here} cores: times are of ranks that wait for one another"
        return None

    found: Counter[str] = Counter()
    for each in planned if machine else ():
        found.update(filter(None, [crowded(each.trial)]))
    return [f"{trials_text(count)}: {what}" for what, count in found.items()]


@dataclass
class _Planner:
    """Remembers what trials have in common."""

    options: RunOptions
    records: dict[str, Record]
    capacity: Capacity
    _tables: dict[str, tuple[Table | None, Table | None]] = field(default_factory=dict)
    _found: dict[Hashable, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for record in self.records.values():
            if record.partition:
                trial = TrialConfig.model_validate(record.config)
                # A record has the table of the training graph; an inductive trial is evaluated on another.
                self._tables[_split_key(trial)] = record.partition, None

    def plan(self, trial: TrialConfig) -> PlannedTrial:
        record = self.records.get(trial.id)
        status, memory = record.status if record else None, self._memory(trial)
        lacking = shortage(memory, trial.device, self.capacity)
        state, reason, command = self._state(trial, status)
        if record and state == "done" and (changed := changed_code(trial, record)):
            files = ", ".join(file.name for file in changed)
            reason = f"ran other code of {files}; --fresh runs it again"
        return PlannedTrial(trial, state, reason, command, status, memory, self._graph(trial.dataset)[0], lacking)

    def _state(self, trial: TrialConfig, status: str | None) -> tuple[State, str | None, str | None]:
        if is_done(status, self.options):
            return "done", None, None
        data, network = trial.dataset, trial.network
        directories = self.options.data_dir, self.options.cache
        missing = self._once(("missing", data.model_dump_json()), lambda: missing_data(data, *directories))
        if missing is not None:
            return "skip", missing.reason, missing.command
        if network is not None and (reason := self._once(network, lambda: why_not(network))) is not None:
            return "skip", reason, None
        return "run", None if status is None else f"again, was {status}", None

    def _once(self, key: Hashable, find: Callable[[], T]) -> T:
        if key not in self._found:
            self._found[key] = find()
        found: T = self._found[key]
        return found

    def _memory(self, trial: TrialConfig) -> MemoryEstimate:
        info, directory = self._graph(trial.dataset)
        inductive, key = is_inductive(trial), _split_key(trial)
        if key not in self._tables or (inductive and self._tables[key][1] is None):
            found = self._find_tables(trial, directory, inductive)
            self._tables[key] = found or self._tables.get(key, (None, None))
        train, full = self._tables[key]
        return estimate(trial, info, self._model(trial, info), inductive=inductive, train=train, full=full)

    def _find_tables(self, trial: TrialConfig, graph: Path | None, inductive: bool) -> tuple[Table, Table] | None:
        from harness.data.partition.store import find_partitioned, partition_table

        spec, cache = trial.partition, self.options.cache
        if graph is None:
            return None
        source = trial.plugins.get("partitioner")
        paths = find_partitioned(graph, spec, inductive=inductive, cache=cache, source=source)
        return (partition_table(paths.train), partition_table(paths.full)) if paths else None

    def _graph(self, spec: DatasetSpec) -> tuple[DatasetInfo, Path | None]:
        from harness.data.registry import dataset_info, find_prepared

        data_dir, cache = self.options.data_dir, self.options.cache

        def find() -> tuple[DatasetInfo, Path | None]:
            directory = find_prepared(spec, data_dir=data_dir, cache=cache)
            return dataset_info(spec, data_dir), directory

        return self._once(("graph", spec.model_dump_json()), find)

    def _model(self, trial: TrialConfig, graph: DatasetInfo) -> Architecture:
        spec, products = trial.model, trial.train.products
        source = trial.plugins.get("model")
        key = f"{spec.model_dump_json()} {source} {products} {graph.features} {graph.classes}"
        sizes = graph.features, graph.classes
        return self._once(key, lambda: Architecture(spec, *sizes, products=products, source=source))


def _split_key(trial: TrialConfig) -> str:
    """Return what decides how a trial's graph is split."""
    return trial.dataset.model_dump_json() + trial.partition.model_dump_json() + str(trial.train.inductive)
