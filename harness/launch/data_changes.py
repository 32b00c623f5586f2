"""Which finished trials ran on other data than there is now: they are kept, and run again as other trials.

A trial's id is known without its data. Where a record of that id has other fingerprints than the data of today, the
trial gets these into its configuration, and so an id of its own; see docs/design/records-and-resume.md.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from harness.errors import DataUnavailable, UserError
from harness.files import RECORD, read_bytes
from harness.launch.inputs import InputCache, is_inductive
from harness.launch.preparing import NotPrepared
from harness.results.record_store import ResultStore, records_under
from harness.suite.schema import TrialConfig

T = TypeVar("T")


def on_todays_data(
    trials: Sequence[TrialConfig],
    store: ResultStore,
    data_dir: Path | None = None,
    cache: Path | None = None,
    *,
    build: bool = True,
    wanted: Collection[TrialConfig] | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> tuple[list[TrialConfig], list[str]]:
    """Return the trials, those with a record of other data as trials of today's, and a line for each thing to be said.

    Looks at what is prepared already. `build`: data whose files are not those that a record is of are prepared, to see
    whether their content is, and partitions of changed data, or given by a file, are made; for those trials only that
    are `wanted` (None: all). `tell` shows a line before something is made.
    """
    told = {path.name.partition(".")[0]: path / "record.json" for path in records_under(store.directory)}
    records = {trial.id: found for trial in trials if trial.id in told and (found := _read(told[trial.id]))}
    if not records:
        return list(trials), []
    making = (trials if wanted is None else wanted) if build else ()
    look = _Look(data_dir, cache, {t.dataset.model_dump_json() for t in making}, {_reads(t) for t in making}, tell)
    settled = [look.settled(trial, records[trial.id]) if trial.id in records else trial for trial in trials]
    # Of trials that read the same, those without a record are told apart from older ones too: seeds stay one cell.
    new = {_reads(trial): trial.data for trial in settled if trial.data}
    for i, trial in enumerate(settled):
        if trial.id not in records and _reads(trial) in new:
            settled[i] = trial.model_copy(update={"data": new[_reads(trial)]})
    return settled, look.lines()


def _reads(trial: TrialConfig) -> Hashable:
    """Return what decides the files that a trial reads."""
    what = trial.dataset.model_dump_json(), trial.partition.model_dump_json()
    return *what, is_inductive(trial), trial.plugins.get("partitioner")


def _read(path: Path) -> dict[str, Any] | None:
    try:
        record = json.loads(read_bytes(path, RECORD))
    except (OSError, UserError, ValueError, RecursionError):
        return None  # whoever needs it says so
    return record if isinstance(record, dict) else None


@dataclass
class _Look:
    data_dir: Path | None
    cache: Path | None
    graphs: Set[str]  # data sets that may be prepared
    splits: Set[Hashable]  # what trials read whose partition may be made
    tell: Callable[[str], None]
    _changed: Counter[str] = field(default_factory=Counter)
    _unknown: Counter[str] = field(default_factory=Counter)
    _old: int = 0
    _known: dict[Hashable, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._inputs = InputCache(self.data_dir, self.cache, apart=True)

    def lines(self) -> list[str]:
        """Return what is to be said of all trials."""
        said = [
            f"{_trials(count)} ran on other data or another partition of '{name}': kept, and run again as other trials"
            for name, count in sorted(self._changed.items())
        ]
        said += [
            f"'{name}' has other files or parts than when {_trials(count)} ran: a run looks whether they are the same"
            for name, count in sorted(self._unknown.items())
        ]
        if self._old:
            said.append(f"older than fingerprints of data, and taken to be of today's: {_trials(self._old)}")
        return said

    def settled(self, trial: TrialConfig, record: dict[str, Any]) -> TrialConfig:
        """Return `trial`, or it on today's data if its record is of other data."""
        was = (record.get("dataset") or {}).get("fingerprint"), record.get("partition_fingerprint")
        if was[0] is None:
            self._old += record.get("status") == "ok"
            return trial
        graph = self._graph(trial, record)
        if graph is None:
            return trial
        now = self._once(("graph", graph), lambda: _fingerprint(graph)), self._partition(trial, graph)
        if now[0] == was[0] and (now[1] is None or now[1] == was[1]):
            return trial
        if now[1] is None and _reads(trial) not in self.splits:
            self._unknown[trial.dataset.name] += 1
            return trial
        try:
            data = f"{now[0]}.{now[1]}" if now[1] else self._inputs.get(trial, self.tell).fingerprint
        except (DataUnavailable, UserError, NotPrepared):
            return trial  # it is skipped, or fails, as any other
        self._changed[trial.dataset.name] += 1
        return trial.model_copy(update={"data": data})

    def _graph(self, trial: TrialConfig, record: dict[str, Any]) -> Path | None:
        """Return where the data set of today is prepared; None if it is that of the record, or cannot be had."""
        from harness.data.registry import find_prepared, generators, prepared_name

        spec, data_dir, cache = trial.dataset, self.data_dir, self.cache

        def locate() -> tuple[Path | None, str | None]:
            name = prepared_name(spec, data_dir=data_dir, cache=cache)
            return find_prepared(spec, data_dir=data_dir, cache=cache), name

        found, name = self._once(("where", spec.model_dump_json()), locate)
        same_files = name in (None, record["dataset"].get("prepared")) or spec.name in generators()
        if found is not None or same_files:
            return found
        if spec.model_dump_json() not in self.graphs:
            self._unknown[spec.name] += 1
            return None
        try:
            return self._inputs.graph(trial, self.tell)
        except (DataUnavailable, UserError, NotPrepared):
            return None

    def _partition(self, trial: TrialConfig, graph: Path) -> str | None:
        """Return the fingerprint of today's partition; None if nobody has made it yet."""
        from harness.data.partition.store import ensure_partitioned, find_partitioned, partition_fingerprint

        spec, source = trial.partition, trial.plugins.get("partitioner")
        inductive, cache = is_inductive(trial), self.cache

        def look() -> str | None:
            paths = find_partitioned(graph, spec, inductive=inductive, cache=cache, source=source)
            if paths is None and _reads(trial) in self.splits and spec.file is not None:
                paths = ensure_partitioned(graph, spec, inductive=inductive, cache=cache, source=source)
            return partition_fingerprint(paths) if paths else None

        try:
            return self._once((graph, spec.model_dump_json(), inductive, source), look)
        except UserError:
            return None

    def _once(self, key: Hashable, find: Callable[[], T]) -> T:
        if key not in self._known:
            self._known[key] = find()
        found: T = self._known[key]
        return found


def _fingerprint(graph: Path) -> str:
    from harness.data.store import fingerprint

    return fingerprint(graph)


def _trials(count: int) -> str:
    return "1 finished trial" if count == 1 else f"{count} finished trials"
