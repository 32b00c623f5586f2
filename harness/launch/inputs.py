"""What a trial's ranks read: the prepared graph and its partition, made once for all that share them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.errors import DataUnavailable, UserError
from harness.launch.process import cpu_limit
from harness.spec import DatasetSpec
from harness.suite.schema import TrialConfig

PREPARING = "preparing"  # begins what is told while a data set is


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


def is_inductive(trial: TrialConfig) -> bool:
    """Return whether training sees the training subgraph only: the suite says so, or else the data set does."""
    from harness.data.registry import dataset_info

    asked = trial.train.inductive
    return dataset_info(trial.dataset).inductive if asked is None else asked


def cores() -> int:
    """Return the whole cores this process may use: those it may run on, or fewer by its cgroup's quota; 1 at least."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, int(cpu_limit() or allowed)))


def usable_cores() -> list[int]:
    """Return the cores that this process may run on, as many as its quota allows; those of one processor core meet."""
    if not hasattr(os, "sched_getaffinity"):
        return list(range(cores()))
    return sorted(os.sched_getaffinity(0), key=lambda core: (_siblings(core), core))[: cores()]


def _siblings(core: int) -> int:
    """Return the first of the logical cores that are one core of the processor."""
    try:
        listed = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text()
        return int(listed.replace("-", ",").split(",")[0])
    except (OSError, ValueError):
        return core


def cores_of(trial: TrialConfig, nodes: int = 1, of: int | None = None) -> int:
    """Return the cores of each rank: as many as the suite says, or its share of a node's `of` cores (all).

    Never more than there are; where the suite says threads and not cores, at least one for each of them.
    """
    there = of or cores()
    share = max(there // math.ceil(trial.partition.parts / nodes), trial.train.threads or 1)
    return min(trial.train.cores or share, there)


def threads_of(trial: TrialConfig, nodes: int = 1, of: int | None = None) -> int:
    """Return the CPU threads of each rank: as many as the suite says, or one for each of its cores; see `cores_of`."""
    return trial.train.threads or cores_of(trial, nodes, of)


@dataclass
class InputCache:
    """Prepares inputs and remembers them, and what could not be had, for the trials that follow.

    `apart`: what is not there yet is made by a process of its own (`harness.launch.preparing`), which may run out of
    memory.
    """

    data_dir: Path | None = None
    cache: Path | None = None
    apart: bool = False
    _graphs: dict[str, Path | Exception] = field(default_factory=dict)
    _told: set[str] = field(default_factory=set)
    _described: dict[Path, dict[str, Any]] = field(default_factory=dict)
    _fingerprints: dict[Path, str] = field(default_factory=dict)
    _made: dict[str, Exception | None] = field(default_factory=dict)

    def get(self, trial: TrialConfig, tell: Callable[[str], None]) -> TrialInputs:
        """Return the inputs of `trial`. Raises DataUnavailable, DataError or UserError, and NotPrepared if `apart`."""
        from harness.data.partition.cached import ensure_partitioned, partition_fingerprint, partition_table

        if self.apart and not self._known(trial, lambda: self._is_there(trial)):
            self._make_apart(trial, tell)
            tell = _ignore  # it was said
        graph = self._graph(trial, tell)
        inductive = is_inductive(trial)
        source = trial.plugins.get("partitioner")
        split = f"{graph} {trial.partition.model_dump_json()} {inductive} {source}"
        if first := split not in self._told:
            self._told.add(split)
            tell(f"partitioning {trial.dataset.name} into {trial.partition.parts} ({trial.partition.method})")
        how: dict[str, Any] = {"inductive": inductive, "cache": self.cache, "source": source}
        views = ensure_partitioned(graph, trial.partition, **how, check=first, report=tell)
        table = partition_table(views.train)
        # Where nothing can be kept beside the files, all of them are read for their fingerprint.
        if graph not in self._described:
            self._described[graph] = _describe(graph)
        if views.full not in self._fingerprints:
            self._fingerprints[views.full] = partition_fingerprint(views)
        told = self._described[graph], table, self._fingerprints[views.full]
        return TrialInputs(graph, views.train, views.full, inductive, *told)

    def graph(self, trial: TrialConfig, tell: Callable[[str], None]) -> Path:
        """Return the prepared data set of `trial`; raises what `get` does."""
        from harness.data.registry import find_prepared

        if self.apart and not self._known(
            trial, lambda: find_prepared(trial.dataset, data_dir=self.data_dir, cache=self.cache) is not None
        ):
            self._make_apart(trial, tell, partitioned=False)
            tell = _ignore
        return self._graph(trial, tell)

    def _is_there(self, trial: TrialConfig) -> bool:
        """Return whether nothing is to be built for `trial`."""
        from harness.data.partition.cached import find_partitioned
        from harness.data.registry import find_prepared

        graph = find_prepared(trial.dataset, data_dir=self.data_dir, cache=self.cache)
        inductive, source = is_inductive(trial), trial.plugins.get("partitioner")
        return graph is not None and (
            find_partitioned(graph, trial.partition, inductive=inductive, cache=self.cache, source=source) is not None
        )

    def _known(self, trial: TrialConfig, look: Callable[[], bool]) -> bool:
        """Return what `look` finds; True also where it is known why the data set of `trial` cannot be had."""
        if isinstance(self._graphs.get(trial.dataset.model_dump_json()), Exception):
            return True
        try:
            return look()
        except UserError:
            return True  # said where it is prepared

    def _make_apart(self, trial: TrialConfig, tell: Callable[[str], None], *, partitioned: bool = True) -> None:
        """Make what `trial` reads, once; what that came to holds for all trials that read the same."""
        from harness.launch.preparing import prepare_apart

        data = trial.dataset.model_dump_json()
        key = data if not partitioned else f"{data} {trial.partition.model_dump_json()} {is_inductive(trial)} "
        key += str(trial.plugins.get("partitioner"))
        stages = [PREPARING]

        def note(text: str) -> None:
            stages.append(text)
            tell(text)

        if key not in self._made:
            self._made[key] = None
            try:
                prepare_apart(trial, self.data_dir, self.cache, note, partitioned=partitioned)
            except Exception as error:
                if stages[-1].startswith(PREPARING):
                    self._graphs[data] = error
                self._made[key] = error
        if (failed := self._made[key]) is not None:
            raise failed

    def _graph(self, trial: TrialConfig, tell: Callable[[str], None]) -> Path:
        from harness.data.registry import prepare

        key = trial.dataset.model_dump_json()
        if key not in self._graphs:
            tell(f"{PREPARING} {trial.dataset.name}")
            try:
                self._graphs[key] = prepare(trial.dataset, data_dir=self.data_dir, cache=self.cache, report=tell)
            except (DataUnavailable, UserError) as error:
                self._graphs[key] = error
        found = self._graphs[key]
        if isinstance(found, Exception):
            raise found
        return found


def _ignore(text: str) -> None:
    pass


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
