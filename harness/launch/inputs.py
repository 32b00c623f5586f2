"""What a trial's ranks read: the prepared graph and its partition, made once for all trials that share them.

What is not there yet is made by a process of its own, which runs this module like a rank, so that it dies and not the
runner if memory runs out. The kernel's OOM killer takes it before anything else of the user's.

A trial's id is known without its data. Where a record of that id has other fingerprints than the data of today, the
trial gets these into its configuration, and so an id of its own; see docs/design/records.md.
"""

from __future__ import annotations

import json
import math
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from harness.caches import cache_root
from harness.data.catalog import published
from harness.data.download import fetch
from harness.data.partition import lacks_room
from harness.data.partition.cached import (
    PartitionPaths,
    ensure_partitioned,
    ensure_rows,
    find_partitioned,
    partition_fingerprint,
    partition_table,
    row_type,
)
from harness.data.partition.view import TOTAL
from harness.data.prepared import fingerprint, open_graph
from harness.data.registry import dataset_info, find_prepared, find_source, generators, prepare, prepared_name
from harness.errors import DataUnavailable, UserError
from harness.files import RECORD, read_object, size_text
from harness.launch.group import run_group
from harness.launch.hardware import Capacity, capacity, cores
from harness.launch.namespaces import libc
from harness.launch.process import placements_of, scratch
from harness.results.record import Status
from harness.results.record_store import ResultStore, records_under
from harness.runtime.method import METHODS
from harness.spec import DatasetSpec
from harness.suite.schema import TrialConfig

T = TypeVar("T")
Report = Callable[[str], None]
"""Receives a line before something is made that may take a while."""
PREPARING = "preparing"  # begins what is reported while a data set is
OOM_SCORE = 900  # of 1000 at most: what the kernel adds when it looks for what to kill
_PARENT_DEATH = 1  # <linux/prctl.h>: PR_SET_PDEATHSIG


@dataclass(frozen=True)
class TrialInputs:
    """Names the directories of a trial's data and has what its record says of them and of the training partition."""

    graph: Path
    train_view: Path
    full_view: Path
    inductive: bool
    dataset: dict[str, Any]
    partition: list[dict[str, Any]]
    partition_fingerprint: str = ""
    rows: Path | None = None  # features by part, of batches that read them from a disk

    @property
    def fingerprint(self) -> str:
        """Return hex digits of the graph's content and of the part of each of its nodes."""
        return f"{self.dataset['fingerprint']}.{self.partition_fingerprint}"


class NotPrepared(Exception):  # noqa: N818 - what happened, and to whom, not a mistake
    """Preparing data ended otherwise than with data, or a UserError or DataUnavailable.

    `status` is that of the trials that need them, `log` the end of the process's output.
    """

    def __init__(self, status: Status, reason: str, log: str = "") -> None:
        self.status, self.log = status, log
        super().__init__(reason)


def is_inductive(trial: TrialConfig) -> bool:
    """Return whether training sees the training subgraph only: the suite says so, or else the data set does."""
    asked = trial.train.inductive
    return dataset_info(trial.dataset).inductive if asked is None else asked


def _split(trial: TrialConfig) -> dict[str, Any]:
    """Return what, with the graph and the partition's specification, decides how a graph is split."""
    return {"inductive": is_inductive(trial), "source": trial.plugins.get("partitioner")}


def _read_by(trial: TrialConfig) -> Hashable:
    """Return what decides the files that a trial reads."""
    return (
        trial.dataset.model_dump_json(),
        trial.partition.model_dump_json(),
        *_split(trial).values(),
        row_type(trial.method.options),
    )


class Remembered(dict[Hashable, Any]):
    """What was found for a key, or the error that the search ended in."""

    def once(self, key: Hashable, find: Callable[[], T]) -> T:
        """Return what `find` found the first time, or raise the error again that it raised."""
        if key not in self:
            try:
                self[key] = find()
            except Exception as error:
                self[key] = error
        found: T = self[key]
        if isinstance(found, Exception):
            raise found
        return found


def lacks_clusters(
    trial: TrialConfig, table: Sequence[Mapping[str, Any]], machine: Capacity | None = None
) -> tuple[str, str] | None:
    """Return why ranks cannot cluster a partitioned graph in a machine's memory, and what can; None if they can.

    `table`: of the training graph's partition; `machine`: None for this one.
    """
    method = METHODS.load(trial.method.name, trial.plugin)
    spec = method.clustering(method.Options(**trial.method.options))
    if spec is None:
        return None
    nodes, edges = (sum(row[key] for row in table if row["part"] != TOTAL) for key in ("inner", "edges"))
    return lacks_room(spec, nodes, edges, (machine or capacity()).machine, key="clustered_by")


@dataclass
class InputCache:
    """Prepares inputs and remembers them, and what could not be had, for the trials that follow.

    `apart`: what is not there yet is made by a process of its own, which may run out of memory.
    """

    data_dir: Path | None = None
    apart: bool = False
    known: Remembered = field(default_factory=Remembered)

    def get(self, trial: TrialConfig, report: Report) -> TrialInputs:
        """Return the inputs of `trial`. Raises DataUnavailable, DataError or UserError, and NotPrepared if `apart`."""
        found = self.known.once(_read_by(trial), lambda: self._make(trial, report))
        if problem := lacks_clusters(trial, found.partition):
            raise UserError(problem[0], key=f"methods.{trial.method.name}", fix=problem[1])
        return found

    def graph(self, trial: TrialConfig, report: Report) -> Path:
        """Return the prepared data set of `trial`; raises what `get` does."""
        return self._graph(trial, self._make_missing(trial, report, partitioned=False))

    def missing(self, spec: DatasetSpec) -> DataUnavailable | None:
        """Return what `missing_data` does, looked for once."""
        # In a list: an error that is found would be raised.
        return self.known.once(("missing", spec.model_dump_json()), lambda: [missing_data(spec, self.data_dir)])[0]

    def found_graph(self, spec: DatasetSpec) -> Path | None:
        """Return where a data set lies prepared; None if it does not: nothing is built."""
        return find_prepared(spec, data_dir=self.data_dir)

    def found_partition(self, trial: TrialConfig, graph: Path) -> PartitionPaths | None:
        """Return where the partition of a prepared data set lies; None if there is none yet: nothing is built."""
        return find_partitioned(graph, trial.partition, **_split(trial))

    def make_partition(self, trial: TrialConfig, graph: Path, **options: Any) -> PartitionPaths:
        """Partition a prepared data set, if that is not done yet."""
        return ensure_partitioned(graph, trial.partition, room=capacity().machine, **_split(trial), **options)

    def _make(self, trial: TrialConfig, report: Report) -> TrialInputs:
        report = self._make_missing(trial, report, partitioned=True)
        directory = self._graph(trial, report)
        report(f"partitioning {trial.dataset.name} into {trial.partition.parts} ({trial.partition.method})")
        views = self.make_partition(trial, directory, report=report)

        def describe() -> dict[str, Any]:
            graph = open_graph(directory)
            return {
                "name": graph.name,
                "nodes": len(graph.indptr) - 1,
                "edges": len(graph.indices),
                "features": int(graph.features.shape[1]),
                "classes": graph.num_classes,
                "multilabel": graph.multilabel,
                "origin": graph.origin,
                "note": graph.note,
                "train_nodes": int(graph.train_mask.sum()),
                "prepared": directory.name,
                "fingerprint": fingerprint(directory),
            }

        described, table = self.known.once(directory, describe), partition_table(views.train)
        own, rows = partition_fingerprint(views), None
        if (dtype := row_type(trial.method.options)) is not None:
            report(f"writing the features of {trial.dataset.name} by part, as {dtype}")
            rows = ensure_rows(directory, views, dtype, report=report)
        return TrialInputs(directory, views.train, views.full, is_inductive(trial), described, table, own, rows)

    def _make_missing(self, trial: TrialConfig, report: Report, *, partitioned: bool) -> Report:
        """Have a process make what `trial` reads and is not there; return what reports the stages that follow."""
        data, doing = trial.dataset.model_dump_json(), f"{PREPARING} data"
        if not self.apart or isinstance(self.known.get(data), Exception):
            return report
        try:
            found = self.found_graph(trial.dataset)
            if found is not None and (not partitioned or self.found_partition(trial, found)):
                return report
        except UserError:
            return report  # it is raised again where the data are prepared

        def note(event: dict[str, Any]) -> None:
            nonlocal doing
            report(doing := event["text"])

        with scratch() as folder:
            job, data_dir = folder / "job.json", self.data_dir and str(self.data_dir)
            job.write_text(json.dumps([trial.model_dump(mode="json"), partitioned, data_dir]))
            # Cold: a fork server has the threads of ranks, and its pages would count for what is killed.
            ranks, worker = placements_of(range(1), 1), "harness.launch.inputs"
            group = run_group(job, ranks, threads=cores(), timeout_s=math.inf, on_progress=note, worker=worker)
        if group.status == "ok":
            return lambda text: None  # the process has reported all stages
        said = group.ranks[0] if group.ranks else {}
        error: Exception = NotPrepared(
            group.status, f"while {doing}, the process {group.failures[0].reason}", group.log
        )
        if "command" in said:
            error = DataUnavailable(said["reason"], said["command"])
        elif "mistake" in said:
            error = UserError(said["mistake"])
        if doing.startswith(PREPARING):
            self.known[data] = error  # for trials with other partitions, too
        raise error

    def _graph(self, trial: TrialConfig, report: Report) -> Path:
        def make() -> Path:
            report(f"{PREPARING} {trial.dataset.name}")
            return prepare(trial.dataset, data_dir=self.data_dir, report=report)

        return self.known.once(trial.dataset.model_dump_json(), make)


def missing_data(spec: DatasetSpec, data_dir: Path | None) -> DataUnavailable | None:
    """Return why a data set cannot be had without a download, or None if it can; nothing is built or read."""
    entry = published().get(spec.name)
    if entry is None or find_source(spec.name, entry, data_dir, cache_root() / "raw" / spec.name):
        return None
    try:
        # Without files it can only find what it prepared before.
        prepare(spec, data_dir=data_dir)
    except DataUnavailable as missing:
        return missing
    return None


def download_missing(trials: Iterable[TrialConfig], data_dir: Path | None, report: Report) -> list[str]:
    """Download the published sets that trials lack; return why one cannot be had.

    `report` receives size, source and licence of each before its first byte.
    """
    failed = []
    for name, spec in {trial.dataset.name: trial.dataset for trial in trials}.items():
        if missing_data(spec, data_dir) is None:
            continue
        entry = published()[name]
        size = f", {size_text(entry.info.size_bytes)}" if entry.info.size_bytes else ""
        report(f"{name} is not here: downloading it{size}, from {entry.info.source} (--no-download leaves it out)")
        try:
            fetch(entry, cache_root() / "raw" / name)
        except (UserError, DataUnavailable) as error:
            failed.append(f"{name} cannot be downloaded: {error}")
    return failed


def main(job: Path) -> None:
    """Prepare what a file names, and write stages and the outcome next to it as a rank does."""
    with suppress(OSError):  # Linux has it
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))
    if sys.platform == "linux":
        # A partitioner may hold the interpreter for minutes, so that no thread could see the runner's end.
        libc("prctl", _PARENT_DEATH, signal.SIGKILL)
    config, partitioned, data_dir = json.loads(job.read_text())

    def report(text: str) -> None:
        with job.with_name("progress.jsonl").open("a") as stream:
            stream.write(json.dumps({"event": "stage", "text": text}) + "\n")

    end: dict[str, Any] = {"status": "error"}
    try:
        inputs, trial = InputCache(data_dir and Path(data_dir)), TrialConfig.model_validate(config)
        (inputs.get if partitioned else inputs.graph)(trial, report)
        end["status"] = "ok"
    except DataUnavailable as missing:
        end |= {"reason": missing.reason, "command": missing.command}
    except UserError as error:
        end["mistake"] = str(error)
    except MemoryError as error:
        end = {"status": "oom", "reason": f"out of memory: {error}"}
    except Exception as error:
        traceback.print_exc()
        end["reason"] = f"{type(error).__name__}: {error}"
    job.with_name("rank0.json").write_text(json.dumps({"rank": 0, **end}))


def on_todays_data(
    trials: Sequence[TrialConfig],
    store: ResultStore,
    data_dir: Path | None = None,
    making: Collection[TrialConfig] = (),
    report: Report = lambda text: None,
) -> tuple[list[TrialConfig], list[str]]:
    """Return the trials, those with a record of other data as trials of today's, and lines for the user.

    Looks at what is prepared already. For the trials of `making` data whose files are not those that a record is of are
    prepared, to see whether their content is, and partitions of changed data, or given by a file, are made.
    """
    recorded = {path.name.partition(".")[0]: path / "record.json" for path in records_under(store.directory)}
    # A record that is damaged is reported by the command that needs it.
    found = {trial.id: read_object(recorded[trial.id], RECORD) for trial in trials if trial.id in recorded}
    records = {id_: record for id_, record in found.items() if record is not None}
    if not records:
        return list(trials), []
    data, splits = {trial.dataset.model_dump_json() for trial in making}, {_read_by(trial) for trial in making}
    today = _TodaysData(InputCache(data_dir, apart=True), data, splits, report)
    settled = [today.settled(trial, records[trial.id]) if trial.id in records else trial for trial in trials]
    # Trials without a record that read the same become other trials than older ones too: seeds stay one cell.
    new = {_read_by(trial): trial.data for trial in settled if trial.data}
    for i, trial in enumerate(settled):
        if trial.id not in records and _read_by(trial) in new:
            settled[i] = trial.model_copy(update={"data": new[_read_by(trial)]})
    return settled, today.lines()


@dataclass
class _TodaysData:
    """Compares records with the data of today; `graphs` and `splits` may be made for it."""

    inputs: InputCache
    graphs: Set[str]
    splits: Set[Hashable]
    report: Report
    _changed: Counter[str] = field(default_factory=Counter)
    _unknown: Counter[str] = field(default_factory=Counter)

    def lines(self) -> list[str]:
        """Return what the user should know of all trials."""
        said = [
            f"{_trials(count)} ran on other data or another partition of '{name}': kept, and run again as other trials"
            for name, count in sorted(self._changed.items())
        ]
        said += [
            f"'{name}' has other files or parts than when {_trials(count)} ran: a run looks whether they are the same"
            for name, count in sorted(self._unknown.items())
        ]
        return said

    def settled(self, trial: TrialConfig, record: dict[str, Any]) -> TrialConfig:
        """Return `trial`, or it on today's data if its record is of other data."""
        was = (record.get("dataset") or {}).get("fingerprint"), record.get("partition_fingerprint")
        if was[0] is None:
            return trial
        graph = self._graph(trial, record)
        if graph is None:
            return trial
        now = self.inputs.known.once(("graph", graph), lambda: fingerprint(graph)), self._partition(trial, graph)
        if now[0] == was[0] and (now[1] is None or now[1] == was[1]):
            return trial
        if now[1] is None and _read_by(trial) not in self.splits:
            self._unknown[trial.dataset.name] += 1
            return trial
        try:
            data = f"{now[0]}.{now[1]}" if now[1] else self.inputs.get(trial, self.report).fingerprint
        except (DataUnavailable, UserError, NotPrepared):
            return trial  # it is skipped, or fails, as any other
        self._changed[trial.dataset.name] += 1
        return trial.model_copy(update={"data": data})

    def _graph(self, trial: TrialConfig, record: dict[str, Any]) -> Path | None:
        """Return where the data set of today is prepared; None if it is that of the record, or cannot be had."""
        spec, key, inputs = trial.dataset, trial.dataset.model_dump_json(), self.inputs
        found = inputs.known.once(("found", key), lambda: inputs.found_graph(spec))
        name = inputs.known.once(("name", key), lambda: prepared_name(spec, data_dir=inputs.data_dir))
        same_files = name in (None, record["dataset"].get("prepared")) or spec.name in generators()
        if found is not None or same_files:
            return found
        if key not in self.graphs:
            self._unknown[spec.name] += 1
            return None
        try:
            return inputs.graph(trial, self.report)
        except (DataUnavailable, UserError, NotPrepared):
            return None

    def _partition(self, trial: TrialConfig, graph: Path) -> str | None:
        """Return the fingerprint of today's partition; None if there is none yet."""

        def look() -> str | None:
            paths = self.inputs.found_partition(trial, graph)
            if paths is None and _read_by(trial) in self.splits and trial.partition.file is not None:
                paths = self.inputs.make_partition(trial, graph)
            return partition_fingerprint(paths) if paths else None

        try:
            return self.inputs.known.once((graph, _read_by(trial)), look)
        except UserError:
            return None


def _trials(count: int) -> str:
    return "1 finished trial" if count == 1 else f"{count} finished trials"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
