"""Shards: of a prepared graph and its partitions what the ranks of one machine need, so that no machine needs it all.

A shard has a graph's edges, labels and masks, and the features of its ranks' nodes, by part. It lies in a directory
that is a cache (`HARNESS_CACHE`) of its own: runs find in it what they would have prepared.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.data.partition.cached import PartitionPaths, rows_place
from harness.data.prepared import Absent, atomic_directory, map_npy, open_graph, seal
from harness.deferred import numpy as np
from harness.errors import UserError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from harness.data.graph import GraphData

FEATURES = "features.npy"


class PartRows(Absent):
    """The features [N, F] of a data set, of which those of some parts are here; read by the data set's nodes."""

    def __init__(self, shape: tuple[int, ...], views: PartitionPaths, rows: Path) -> None:
        super().__init__(shape)
        self._owner, self._local = (map_npy(views.full / f"{name}.npy", "copy it again") for name in ("parts", "local"))
        files = (rows / views.full.name).glob("rank*.npy")
        self._files = {int(file.stem.removeprefix("rank")): map_npy(file, "copy it again") for file in files}

    def here(self, nodes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of the data set's nodes have their features here."""
        return np.isin(self._owner[nodes], [*self._files])

    def require(self, rank: int) -> None:
        """Raise UserError where the features of a rank's nodes are not here."""
        if rank not in self._files:
            what = f"features of rank {rank}'s nodes are asked for, this shard has those of {[*sorted(self._files)]}"
            raise UserError(what, fix="give each machine its own shard; `storage: host` needs the whole graph")

    def __getitem__(self, nodes: Any) -> NDArray[np.float32]:
        """Return float32 [nodes, F]. Raises UserError for a node of another machine."""
        owner, local = self._owner[nodes], self._local[nodes]
        found = np.empty((owner.size, self.shape[1]), np.float32)
        for rank in np.unique(owner).tolist():
            self.require(rank)
            own = owner == rank
            found[own] = self._files[rank][local[own]]
        return found


def open_here(directory: Path, views: PartitionPaths, rank: int) -> GraphData:
    """Open a prepared graph as `open_graph` does; of a shard the features of its parts are found by node.

    Raises UserError for a shard of another partition, or without the part of `rank`.
    """
    graph = open_graph(directory)
    if not isinstance(graph.features, Absent):
        return graph
    rows = rows_place(directory, views, "float32")
    if not rows.is_dir():
        what = "a shard without the features of this partition"
        raise UserError(what, file=directory, fix="write shards of this suite (`harness data shard`)")
    features: Any = PartRows(graph.features.shape, views, rows)
    features.require(rank)
    return replace(graph, features=features)


def write_shard(graph: Path, views: PartitionPaths, rows: Iterable[Path], ranks: Collection[int], cache: Path) -> None:
    """Write a prepared graph, its partition and its features by part into another cache, for `ranks` alone.

    Files are links where both caches are on one file system, else copies. What is there already is left as it is.
    """
    partition, shape = views.full.parent, open_graph(graph).features.shape
    if (views.full / "indptr.npy").exists():
        raise UserError("shards are of the graph's own order", key="partition.order", fix="leave it at none")
    parts = len(list(views.full.glob("rank*")))
    others = {name for rank in range(parts) if rank not in ranks for name in (f"rank{rank}", f"rank{rank}.npy")}
    _copy(graph, cache / "datasets" / graph.name, {FEATURES}, lambda work: Absent(shape).write(work))
    for place in (partition, *rows):
        _copy(place, cache / place.parent.name / place.name, others)


def _copy(source: Path, target: Path, left: Collection[str], more: Callable[[Path], None] = lambda work: None) -> None:
    if target.exists():
        return
    with atomic_directory(target) as work:
        shutil.copytree(
            source, work, ignore=lambda _, names: set(left) & set(names), copy_function=_link, dirs_exist_ok=True
        )  # fmt: skip
        more(work)
        seal(work)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
