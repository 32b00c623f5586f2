"""What a trial's ranks read: the prepared graph and its partition, made once for all trials that share them.

What is not there yet is made by a process of its own, which runs this module like a rank, so that it dies and not the
runner if memory runs out. The kernel's OOM killer takes it before anything else of the user's.

A trial's id is known without its data. Where a record of that id has other fingerprints than the data of today, the
trial gets these into its configuration, and so an id of its own; see docs/design/records-and-resume.md.
"""

from __future__ import annotations

import json
import math
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from harness.errors import DataUnavailable, UserError
from harness.files import RECORD, read_bytes
from harness.launch.group import run_group
from harness.launch.hardware import cores
from harness.launch.namespaces import libc
from harness.launch.process import placements_of, scratch
from harness.results.record import Status
from harness.spec import DatasetSpec
from harness.suite.schema import TrialConfig

if TYPE_CHECKING:
    from harness.results.record_store import ResultStore

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
    from harness.data.registry import dataset_info

    asked = trial.train.inductive
    return dataset_info(trial.dataset).inductive if asked is None else asked


def _split(trial: TrialConfig) -> dict[str, Any]:
    """Return what, with the graph and the partition's specification, decides how a graph is split."""
    return {"inductive": is_inductive(trial), "source": trial.plugins.get("partitioner")}


def _read_by(trial: TrialConfig) -> Hashable:
    """Return what decides the files that a trial reads."""
    return trial.dataset.model_dump_json(), trial.partition.model_dump_json(), *_split(trial).values()


@dataclass
class InputCache:
    """Prepares inputs and remembers them, and what could not be had, for the trials that follow.

    `apart`: what is not there yet is made by a process of its own, which may run out of memory.
    """

    data_dir: Path | None = None
    cache: Path | None = None
    apart: bool = False
    _graphs: dict[str, Path | Exception] = field(default_factory=dict)
    _described: dict[Path, dict[str, Any]] = field(default_factory=dict)
    _inputs: dict[Hashable, TrialInputs | Exception] = field(default_factory=dict)

    def get(self, trial: TrialConfig, report: Report) -> TrialInputs:
        """Return the inputs of `trial`. Raises DataUnavailable, DataError or UserError, and NotPrepared if `apart`."""
        key = _read_by(trial)
        if key not in self._inputs:
            try:
                self._inputs[key] = self._make(trial, report)
            except Exception as error:
                self._inputs[key] = error
        found = self._inputs[key]
        if isinstance(found, Exception):
            raise found
        return found

    def graph(self, trial: TrialConfig, report: Report) -> Path:
        """Return the prepared data set of `trial`; raises what `get` does."""
        return self._graph(trial, self._make_missing(trial, report, partitioned=False))

    def _make(self, trial: TrialConfig, report: Report) -> TrialInputs:
        from harness.data.partition.cached import ensure_partitioned, partition_fingerprint, partition_table

        report = self._make_missing(trial, report, partitioned=True)
        graph, split = self._graph(trial, report), _split(trial)
        report(f"partitioning {trial.dataset.name} into {trial.partition.parts} ({trial.partition.method})")
        views = ensure_partitioned(graph, trial.partition, **split, cache=self.cache, report=report)
        if graph not in self._described:
            self._described[graph] = _describe(graph)
        return TrialInputs(
            graph,
            views.train,
            views.full,
            split["inductive"],
            self._described[graph],
            partition_table(views.train),
            partition_fingerprint(views),
        )

    def _make_missing(self, trial: TrialConfig, report: Report, *, partitioned: bool) -> Report:
        """Have a process make what `trial` reads and is not there; return what reports the stages that follow."""
        from harness.data.partition.cached import find_partitioned
        from harness.data.registry import find_prepared

        data, stage = trial.dataset.model_dump_json(), PREPARING
        if not self.apart or isinstance(self._graphs.get(data), Exception):
            return report
        try:
            found = find_prepared(trial.dataset, data_dir=self.data_dir, cache=self.cache)
            if found is not None and partitioned:
                split = _split(trial)
                found = found if find_partitioned(found, trial.partition, **split, cache=self.cache) else None
            if found is not None:
                return report
        except UserError:
            return report  # it is raised again where the data are prepared

        def note(text: str) -> None:
            nonlocal stage
            stage = text
            report(text)

        try:
            prepare_apart(trial, self.data_dir, self.cache, note, partitioned=partitioned)
        except Exception as error:
            if stage.startswith(PREPARING):
                self._graphs[data] = error  # for trials with other partitions, too
            raise
        return lambda text: None  # the process has reported all stages

    def _graph(self, trial: TrialConfig, report: Report) -> Path:
        from harness.data.registry import prepare

        key = trial.dataset.model_dump_json()
        if key not in self._graphs:
            report(f"{PREPARING} {trial.dataset.name}")
            try:
                self._graphs[key] = prepare(trial.dataset, data_dir=self.data_dir, cache=self.cache, report=report)
            except (DataUnavailable, UserError) as error:
                self._graphs[key] = error
        found = self._graphs[key]
        if isinstance(found, Exception):
            raise found
        return found


def _describe(directory: Path) -> dict[str, Any]:
    from harness.data.prepared import fingerprint, open_graph

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


def missing_data(spec: DatasetSpec, data_dir: Path | None, cache: Path | None) -> DataUnavailable | None:
    """Return why a data set cannot be had without a download, or None if it can; nothing is built.

    A file that is there but damaged is found out when it is read.
    """
    from harness.caches import cache_root
    from harness.data.catalog import published
    from harness.data.registry import find_source, prepare

    entry = published().get(spec.name)
    if entry is None or find_source(spec.name, entry, data_dir, (cache or cache_root()) / "raw" / spec.name):
        return None
    try:
        # Without files it can only find what it prepared before.
        prepare(spec, data_dir=data_dir, cache=cache)
    except DataUnavailable as missing:
        return missing
    return None


def prepare_apart(
    trial: TrialConfig, data_dir: Path | None, cache: Path | None, report: Report, *, partitioned: bool = True
) -> None:
    """Have what `trial` reads prepared, and `partitioned`, in `cache`, by a process that ends with this one.

    Raises what `InputCache.get` does, and NotPrepared.
    """
    doing = "preparing data"

    def note(event: dict[str, Any]) -> None:
        nonlocal doing
        report(doing := event["text"])

    with scratch() as folder:
        job, places = folder / "job.json", (None if each is None else str(each) for each in (data_dir, cache))
        job.write_text(json.dumps([trial.model_dump(mode="json"), partitioned, *places]))
        ranks = placements_of(range(1), 1)
        worker = "harness.launch.inputs"
        # Cold: a fork server has the threads of ranks, and its pages would count for what is killed.
        group = run_group(job, ranks, threads=cores(), timeout_s=math.inf, on_progress=note, worker=worker)
    if group.status == "ok":
        return
    said = group.ranks[0] if group.ranks else {}
    if "command" in said:
        raise DataUnavailable(said["reason"], said["command"])
    if "mistake" in said:
        raise UserError(said["mistake"])
    raise NotPrepared(group.status, f"while {doing}, the process {group.failures[0].reason}", group.log)


def main(job: Path) -> None:
    """Prepare what a file names, and write stages and the outcome next to it as a rank does."""
    with suppress(OSError):  # Linux has it
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))
    if sys.platform == "linux":
        # A partitioner may hold the interpreter for minutes, so that no thread could see the runner's end.
        libc("prctl", _PARENT_DEATH, signal.SIGKILL)
    config, partitioned, *places = json.loads(job.read_text())
    data_dir, cache = (None if each is None else Path(each) for each in places)

    def report(text: str) -> None:
        with job.with_name("progress.jsonl").open("a") as stream:
            stream.write(json.dumps({"event": "stage", "text": text}) + "\n")

    end: dict[str, Any] = {"status": "error"}
    try:
        inputs, trial = InputCache(data_dir, cache), TrialConfig.model_validate(config)
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
    cache: Path | None = None,
    *,
    build: bool = True,
    wanted: Collection[TrialConfig] | None = None,
    report: Report = lambda text: None,
) -> tuple[list[TrialConfig], list[str]]:
    """Return the trials, those with a record of other data as trials of today's, and lines for the user.

    Looks at what is prepared already. `build`: data whose files are not those that a record is of are prepared, to see
    whether their content is, and partitions of changed data, or given by a file, are made; for those trials only that
    are `wanted` (None: all).
    """
    from harness.results.record_store import records_under

    recorded = {path.name.partition(".")[0]: path / "record.json" for path in records_under(store.directory)}
    records = {trial.id: found for trial in trials if trial.id in recorded and (found := _read(recorded[trial.id]))}
    if not records:
        return list(trials), []
    making = (trials if wanted is None else wanted) if build else ()
    today = _TodaysData(
        InputCache(data_dir, cache, apart=True),
        {trial.dataset.model_dump_json() for trial in making},
        {_read_by(trial) for trial in making},
        report,
    )
    settled = [today.settled(trial, records[trial.id]) if trial.id in records else trial for trial in trials]
    # Trials without a record that read the same become other trials than older ones too: seeds stay one cell.
    new = {_read_by(trial): trial.data for trial in settled if trial.data}
    for i, trial in enumerate(settled):
        if trial.id not in records and _read_by(trial) in new:
            settled[i] = trial.model_copy(update={"data": new[_read_by(trial)]})
    return settled, today.lines()


def _read(path: Path) -> dict[str, Any] | None:
    try:
        record = json.loads(read_bytes(path, RECORD))
    except (OSError, UserError, ValueError, RecursionError):
        return None  # a command that needs the record says so
    return record if isinstance(record, dict) else None


@dataclass
class _TodaysData:
    """Compares records with the data of today; `graphs` and `splits` may be made for it."""

    inputs: InputCache
    graphs: Set[str]
    splits: Set[Hashable]
    report: Report
    _changed: Counter[str] = field(default_factory=Counter)
    _unknown: Counter[str] = field(default_factory=Counter)
    _old: int = 0
    _known: dict[Hashable, Any] = field(default_factory=dict)

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
        if self._old:
            said.append(f"older than fingerprints of data, and taken to be of today's: {_trials(self._old)}")
        return said

    def settled(self, trial: TrialConfig, record: dict[str, Any]) -> TrialConfig:
        """Return `trial`, or it on today's data if its record is of other data."""
        from harness.data.prepared import fingerprint

        was = (record.get("dataset") or {}).get("fingerprint"), record.get("partition_fingerprint")
        if was[0] is None:
            self._old += record.get("status") == "ok"
            return trial
        graph = self._graph(trial, record)
        if graph is None:
            return trial
        now = self._once(("graph", graph), lambda: fingerprint(graph)), self._partition(trial, graph)
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
        from harness.data.registry import find_prepared, generators, prepared_name

        spec, where = trial.dataset, {"data_dir": self.inputs.data_dir, "cache": self.inputs.cache}
        key = "where", spec.model_dump_json()
        found, name = self._once(key, lambda: (find_prepared(spec, **where), prepared_name(spec, **where)))
        same_files = name in (None, record["dataset"].get("prepared")) or spec.name in generators()
        if found is not None or same_files:
            return found
        if spec.model_dump_json() not in self.graphs:
            self._unknown[spec.name] += 1
            return None
        try:
            return self.inputs.graph(trial, self.report)
        except (DataUnavailable, UserError, NotPrepared):
            return None

    def _partition(self, trial: TrialConfig, graph: Path) -> str | None:
        """Return the fingerprint of today's partition; None if there is none yet."""
        from harness.data.partition.cached import ensure_partitioned, find_partitioned, partition_fingerprint

        spec, how = trial.partition, {**_split(trial), "cache": self.inputs.cache}

        def look() -> str | None:
            paths = find_partitioned(graph, spec, **how)
            if paths is None and _read_by(trial) in self.splits and spec.file is not None:
                paths = ensure_partitioned(graph, spec, **how)
            return partition_fingerprint(paths) if paths else None

        try:
            return self._once((graph, spec.model_dump_json(), *_split(trial).values()), look)
        except UserError:
            return None

    def _once(self, key: Hashable, find: Callable[[], T]) -> T:
        if key not in self._known:
            self._known[key] = find()
        found: T = self._known[key]
        return found


def _trials(count: int) -> str:
    return "1 finished trial" if count == 1 else f"{count} finished trials"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
