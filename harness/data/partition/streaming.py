"""Partitioners for graphs that METIS has no memory for: a stream, KaMinPar, and METIS on a graph of clusters."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import Field

from harness.data.graph import compiled
from harness.data.partition.view import Floats, Ints
from harness.data.prepared import chunk_rows
from harness.deferred import numpy as np
from harness.errors import UserError
from harness.spec import Spec

if TYPE_CHECKING:
    from numpy.typing import NDArray

FENNEL = 1.5  # the exponent of a part's cost
PARHIP = 0b111011  # no weights; offsets of 64 bits, all else of 32
WEIGHTED = 0b111001  # with weights of nodes


class StreamOptions(Spec):
    """Options of a stream."""

    rule: Literal["fennel", "ldg"] = Field("fennel", description="which part a node joins; see the class")
    passes: int = Field(1, ge=1, description="times that the stream is read: from the second on a node knows all parts")
    slack: float = Field(0.1, ge=0, description="how much larger than the mean a part may be")


class KaMinParOptions(Spec):
    """Options of KaMinPar."""

    preset: Literal["fast", "default", "eco", "strong"] = Field(
        "default", description="KaMinPar's settings: faster, or better"
    )
    slack: float = Field(0.03, ge=0, description="how much larger than the mean a part may be")
    threads: int = Field(1, ge=1, description="threads; with several the same seed gives other parts each time")


def stream(indptr: Ints, indices: Ints, weight: Floats, count: int, seed: int, options: StreamOptions) -> Ints:
    """Return the part of each node, int32 [N]: nodes join parts one after the other, in an order of their own."""
    order = np.random.default_rng([seed, len("stream")]).permutation(weight.size)
    total, edges = float(weight.sum()), indices.size / 2
    capacity = (1 + options.slack) * total / count
    cost = edges * count ** (FENNEL - 1) / total**FENNEL if options.rule == "fennel" else 0.0
    part, load = np.full(weight.size, -1, np.int32), np.zeros(count)
    for _ in range(options.passes):
        _stream(indptr, indices, order, weight, capacity, cost * FENNEL, part, load)
    return part


@compiled
def _best(there: Floats, load: Floats, weight: float, capacity: float, cost: float) -> int:
    """Return the part for a node with `there` neighbours in each: of those with room the best, else the emptiest."""
    best, most = -1, -np.inf
    for p in range(load.size):
        if load[p] + weight <= capacity:
            score = there[p] - cost * load[p] ** 0.5 if cost else (there[p] + 1e-9) * (1 - load[p] / capacity)
            if score > most:
                best, most = p, score
    return best if best >= 0 else int(load.argmin())


@compiled
def _stream(
    indptr: Ints, indices: Ints, order: Ints, weight: Floats, capacity: float, cost: float, part: Ints, load: Floats
) -> None:
    """Give each node of `order` a part, in place; `cost` 0: LDG's rule."""
    there = np.zeros(load.size)
    for node in order:
        if part[node] >= 0:
            load[part[node]] -= weight[node]
        for entry in range(indptr[node], indptr[node + 1]):
            at = part[indices[entry]]
            if at >= 0 and indices[entry] != node:
                there[at] += 1
        best = _best(there, load, weight[node], capacity, cost)
        part[node] = best
        load[best] += weight[node]
        for entry in range(indptr[node], indptr[node + 1]):
            at = part[indices[entry]]
            if at >= 0:
                there[at] = 0.0


def kaminpar(
    indptr: Ints, indices: Ints, weight: NDArray[np.int64] | None, count: int, seed: int, options: KaMinParOptions
) -> Ints:
    """Return the part of each node, int32 [N], of a symmetric graph; UserError where KaMinPar is not installed."""
    try:
        import kaminpar as library  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        fix = "pip install 'gnn-harness[kaminpar]'"
        raise UserError("kaminpar cannot be imported", key="partition.method", fix=fix) from error
    context: Any = library.context_by_name(options.preset)
    with tempfile.TemporaryDirectory(prefix="harness-kaminpar-") as place:  # it reads files, not arrays
        file = Path(place) / "graph.parhip"
        _write_parhip(file, indptr, indices, weight)
        graph = library.load_graph(str(file), library.GraphFileFormat.PARHIP)
    library.reseed(seed % 2**31)
    partitioner = library.KaMinPar(options.threads, context)
    return np.asarray(partitioner.compute_partition(graph, count, options.slack), np.int32)


def _write_parhip(file: Path, indptr: Ints, indices: Ints, weight: NDArray[np.int64] | None) -> None:
    """Write a graph in ParHIP's binary format: header, where each node's neighbours lie in the file, neighbours."""
    nodes, rows = indptr.size - 1, chunk_rows((1,), 8)
    with file.open("wb") as out:
        np.array([WEIGHTED if weight is not None else PARHIP, nodes, indices.size], np.uint64).tofile(out)
        for start in range(0, nodes + 1, rows):
            (24 + 8 * (nodes + 1) + 4 * indptr[start : start + rows].astype(np.uint64)).astype(np.uint64).tofile(out)
        for start in range(0, indices.size, rows):
            indices[start : start + rows].astype(np.uint32).tofile(out)
        if weight is not None:
            weight.astype(np.int32).tofile(out)


class CoarsenedOptions(Spec):
    """Options of a graph that is coarsened first."""

    coarsest: int = Field(50_000, ge=100, description="nodes that METIS gets at most, if the graph can be contracted")
    passes: int = Field(3, ge=1, description="times that nodes look for a cluster on each level, and for a part")
    slack: float = Field(0.03, ge=0, description="how much larger than the mean a part may be")


CLUSTER, GROWTH = 128, 8  # nodes of a cluster on the first level at most, and by how much more on each further one
SHARE = 20  # clusters of a part at least: larger ones could not be balanced
STUCK = 0.95  # of the nodes: a contraction that leaves more is the last
WEIGHTS = 2**30  # of all edges together at most, since METIS adds them up in 32 bits


class Level(NamedTuple):
    """A graph on the way from fine to coarse, symmetric: entries' weights (empty: 1 each), and nodes'."""

    indptr: Ints
    indices: Ints
    edges: Ints
    nodes: Ints  # int64

    def clusters(self, most: int, passes: int) -> Ints:
        """Return the cluster of each node, int32 [N] from 0 on, of `most` weight each at most."""
        label, size = np.arange(self.nodes.size, dtype=np.int32), self.nodes.copy()
        for _ in range(passes):
            _move(self.indptr, self.indices, self.edges, self.nodes, float(most), label, size)
        used = np.zeros(label.size, np.bool_)
        used[label] = True
        return (np.cumsum(used, dtype=np.int32) - 1)[label]

    def contracted(self, cluster: Ints, place: Path) -> Level:
        """Return the graph of clusters, its entries in files of `place`."""
        weights = np.bincount(cluster, self.nodes).astype(np.int64)
        starts = np.concatenate([[0], np.cumsum(np.bincount(cluster))])
        members, pointers = _grouped(cluster, starts), np.zeros(starts.size, np.int64)
        graph = self.indptr, self.indices, self.edges, members, starts, cluster
        none = np.empty(0, np.int32)
        count = _contract(*graph, pointers, none, none)
        files = (place / f"{weights.size}-{name}.npy" for name in ("indices", "edges"))
        columns, edges = (np.lib.format.open_memmap(file, "w+", np.int32, (max(1, count),))[:count] for file in files)
        _contract(*graph, pointers, columns, edges)
        return Level(pointers, columns, edges, weights)


def coarsened(
    finest: Level, count: int, options: CoarsenedOptions, partition: Callable[[Level], Ints]
) -> NDArray[np.int32]:
    """Return the part of each node, int32 [N]: of a graph of clusters of clusters, by `partition`, then made better."""
    limit = max(int(finest.nodes.max()), int(finest.nodes.sum()) // (SHARE * count))
    most, levels, level = CLUSTER * max(1, round(float(finest.nodes.mean()))), list[tuple[Level, Ints]](), finest
    with tempfile.TemporaryDirectory(prefix="harness-coarsened-") as place:
        while level.nodes.size > options.coarsest:
            cluster = level.clusters(min(most, limit), options.passes)
            if int(cluster.max()) + 1 > STUCK * level.nodes.size:
                break
            levels.append((level, cluster))
            level, most = level.contracted(cluster, Path(place)), most * GROWTH
        part = np.asarray(partition(level), np.int32)
        capacity = (1 + options.slack) * float(finest.nodes.sum()) / count
        for level, cluster in reversed(levels):
            part = part[cluster]
            load = np.bincount(part, level.nodes, count).astype(np.int64)
            for _ in range(options.passes):
                _move(level.indptr, level.indices, level.edges, level.nodes, capacity, part, load)
    return part


@compiled
def _move(indptr: Ints, indices: Ints, edges: Ints, nodes: Ints, most: float, part: Ints, load: Ints) -> None:
    """Move each node, in place, to the part or cluster with most of its edges, of those that `most` leaves room in."""
    there = np.zeros(load.size, np.int64)
    for node in range(part.size):
        own = part[node]
        for e in range(indptr[node], indptr[node + 1]):
            if indices[e] != node:
                there[part[indices[e]]] += edges[e] if edges.size else 1
        best = own
        for e in range(indptr[node], indptr[node + 1]):
            at = part[indices[e]]
            if there[at] > there[best] and load[at] + nodes[node] <= most:
                best = at
        for e in range(indptr[node], indptr[node + 1]):
            there[part[indices[e]]] = 0
        part[node] = best
        load[own] -= nodes[node]
        load[best] += nodes[node]


@compiled
def _grouped(cluster: Ints, starts: Ints) -> Ints:
    """Return the nodes cluster by cluster, each ascending; `starts`: where a cluster's begin."""
    members, end = np.empty(cluster.size, np.int32), starts[:-1].copy()
    for node in range(cluster.size):
        members[end[cluster[node]]] = node
        end[cluster[node]] += 1
    return members


@compiled
def _contract(
    indptr: Ints, indices: Ints, edges: Ints, members: Ints, starts: Ints, cluster: Ints, pointers: Ints,
    columns: Ints, weights: Ints,
) -> int:  # fmt: skip
    """Fill `pointers` of the graph of clusters, its columns and weights where they have room; return its entries."""
    there, seen, total = np.zeros(starts.size - 1, np.int64), np.empty(starts.size - 1, np.int32), 0
    for own in range(starts.size - 1):
        count = 0
        for k in range(starts[own], starts[own + 1]):
            for e in range(indptr[members[k]], indptr[members[k] + 1]):
                at = cluster[indices[e]]
                if at != own:
                    if not there[at]:
                        seen[count] = at
                        count += 1
                    there[at] += edges[e] if edges.size else 1
        for i in range(count):
            if columns.size:
                columns[total + i] = seen[i]
                weights[total + i] = there[seen[i]]
            there[seen[i]] = 0
        total += count
        pointers[own + 1] = total
    return total
