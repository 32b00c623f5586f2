"""Counts: how often the nodes and edges of a graph are in the subgraphs that a picker draws."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
from numpy.typing import NDArray

from harness.data.store import atomic_directory, locked
from harness.graph.induction import induced
from harness.graph.layer_sample import Tables
from harness.graph.prefetch import fetch_ahead
from harness.graph.random import batch_seed
from harness.graph.topology import Topology

if TYPE_CHECKING:
    from harness.graph.subgraph_sampling import Picker

_COUNTED = 2**32 - 1  # the epoch that no training comes to, and nothing else is drawn by
_ROUND = 256  # draws between two words of how far it is


@dataclass(frozen=True, eq=False)
class Counts:
    """How many of `draws` subgraphs each node and each edge was in.

    Attributes:
        draws: C.
        nodes: int32 [N], C_i; memory-mapped where they were saved.
        edges: int32 [E], C_ij, aligned with the graph's `indices`; memory-mapped where they were saved.
        seconds: what the counting took, wall time; None where an earlier one's counts are used.
        threads: that drew; None where an earlier one's counts are used.
    """

    draws: int
    nodes: NDArray[np.int32]
    edges: NDArray[np.int32]
    seconds: float | None = None
    threads: int | None = None


def count(
    topology: Topology,
    pick: Picker,
    tables: Tables,
    draws: int,
    seed: int,
    threads: int,
    *,
    told: Callable[[int], None] | None = None,
) -> Counts:
    """Draw subgraphs, and count the nodes and edges that are in them (GraphSAINT, ICLR 2020, section 3.2).

    The k-th is that of `batch_seed(seed, 0, a number that no epoch has, k)`: the same for an equal seed, on
    every rank and for any number of threads, and none of training's. Memory: 4 bytes a node and an edge.
    What the first draw of a process needs, such as compiling, is left out of `seconds`.

    Args:
        topology: the graph.
        pick: draws the nodes.
        tables: of the graph's nodes.
        draws: subgraphs, 1 to 2^31 - 1.
        seed: non-negative.
        threads: that draw, and count by turns.
        told: is told now and then how many are counted.

    Raises:
        ValueError: `draws` is out of its bounds.
    """
    if not 0 < draws < 2**31:
        raise ValueError(f"{draws} draws: from 1 to 2^31 - 1 can be counted")
    nodes, edges = np.zeros(topology.num_nodes, np.int32), np.zeros(topology.indices.size, np.int32)
    turn = Lock()

    def draw(index: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        drawn = pick.pick(batch_seed(seed, 0, _COUNTED, index))
        places = induced(topology, drawn, tables, places=True).places
        assert places is not None
        return drawn, places

    def add(index: int) -> None:
        drawn, places = draw(index)
        with turn:
            _add(nodes, drawn)
            _add(edges, places)

    _add(nodes, draw(0)[0][:0])
    start = time.perf_counter()
    with ThreadPoolExecutor(threads, "counts") as pool:
        for first in range(0, draws, _ROUND):
            last = min(first + _ROUND, draws)
            list(pool.map(add, range(first, last)))
            if told is not None:
                told(last)
    return Counts(draws, nodes, edges, time.perf_counter() - start, threads)


def saved_counts(keep: Path, key: str, make: Callable[[], Counts], *, recount: str | None = None) -> Counts:
    """Return the counts that are kept under `key`; whoever asks first makes them.

    Others wait meanwhile, and all map the one copy. Who mapped counts that are made again keeps those.

    Args:
        keep: a directory of the graph's own.
        key: names all that the counts depend on: the picker, its options, seed and draws. A file's name.
        make: counts.
        recount: None, or who wants them made again, such as a trial: counts that were not made for it
            are replaced, so that of its ranks one alone counts.
    """
    target = keep / f"counts-{key}"
    with locked(target):
        made = None
        if not target.exists() or (recount is not None and _meta(target)["maker"] != recount):
            made = make()
            _save(made, target, recount)
        nodes, edges = (np.load(target / f"{name}.npy", mmap_mode="r") for name in ("nodes", "edges"))
        kept = Counts(_meta(target)["draws"], nodes, edges)
    return kept if made is None else replace(kept, seconds=made.seconds, threads=made.threads)


def _save(counts: Counts, target: Path, maker: str | None) -> None:
    with atomic_directory(target) as work:
        np.save(work / "nodes.npy", counts.nodes)
        np.save(work / "edges.npy", counts.edges)
        (work / "meta.json").write_text(json.dumps({"draws": counts.draws, "maker": maker}) + "\n")


def _meta(target: Path) -> dict[str, Any]:
    meta: dict[str, Any] = json.loads((target / "meta.json").read_text())
    return meta


@numba.njit(cache=True, nogil=True)
def _add(counts, places):  # type: ignore[no-untyped-def]
    for k in range(places.size):
        fetch_ahead(counts, places, k)
        counts[places[k]] += 1
