"""Subgraphs of a rank's own choice: options, how often nodes and edges are drawn, and what they count for it."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, Self

import numba
import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from harness import MiniBatchOptions, Source, batch_seed
from harness.data import atomic_directory, locked
from harness.graph import Topology, fetch_ahead, gather
from harness.sampling import (
    ClippedNodes,
    ImportanceSubgraphs,
    Induced,
    NodeSampler,
    Normaliser,
    SubgraphBatch,
    Subgraphs,
    SubgraphSampler,
    Tables,
    as_graph,
    as_layer,
    induced,
    missing_degree,
)

from .frontier import FrontierSampler
from .node_samplers import EdgeEndsSampler, ForestFireSampler, MultiWalkSampler, WalkSampler

if TYPE_CHECKING:
    from harness import Worker
    from harness.sampling import NodeSampler


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
    sampler: NodeSampler,
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
        sampler: draws the nodes.
        tables: of the graph's nodes.
        draws: subgraphs, 1 to 2^31 - 1.
        seed: non-negative.
        threads: that draw, and count by turns.
        told: called now and then with the number that is counted.

    Raises:
        ValueError: `draws` is out of its bounds.
    """
    if not 0 < draws < 2**31:
        raise ValueError(f"{draws} draws: from 1 to 2^31 - 1 can be counted")
    nodes, edges = np.zeros(topology.num_nodes, np.int32), np.zeros(topology.indices.size, np.int32)
    turn = Lock()

    def draw(index: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        drawn = sampler.sample(batch_seed(seed, 0, _COUNTED, index))
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
        key: names all that the counts depend on: the sampler, its options, seed and draws. A file's name.
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


@dataclass(frozen=True, eq=False)
class CountedChances:
    """Weighs by chances that were counted (GraphSAINT, Zeng et al., ICLR 2020, section 3.2).

    An edge j -> i of a subgraph counts w_ij / alpha_ij, alpha_ij = C_ij / C_i: for a destination i that is in
    it, the sum has the full aggregation as its expectation, but for the error of the counts. The loss of
    node i counts 1 / lambda_i, lambda_i = C_i / C: the sum of losses, were the logits exact, has the sum
    over all nodes as its expectation. What no counted subgraph had, and one has now, counts as if one had had
    it: its chance is small, and not known better.

    The layer's values are w_ij / C_ij, symmetric where the weights are; C_i is its `dst_scale`.

    Args:
        topology: the graph; its structure is symmetric, and its columns ascend.
        counts: of subgraphs that are drawn as those that are weighed.
    """

    topology: Topology
    counts: Counts

    @property
    def needs_places(self) -> bool:
        """See `Normaliser`."""
        return True

    def weigh(self, nodes: NDArray[np.int64], found: Induced) -> SubgraphBatch:
        """See `Normaliser`."""
        counts, layer = self.counts, as_layer(nodes, as_graph(self.topology, found))
        together = np.maximum(gather(counts.edges, found.places), 1)
        values = (1.0 if layer.values is None else layer.values) / together
        times = np.maximum(counts.nodes[nodes], 1).astype(np.float64)
        return SubgraphBatch(replace(layer, values=values, dst_scale=times), counts.draws / times)


@dataclass(frozen=True, eq=False)
class PresentMean:
    """Weighs nothing by chances: a node's aggregation is the mean of those neighbours that are there.

    The sum over them is scaled by deg_i / (its degree within the subgraph), degrees being sums of weights
    where edges have any: divided by deg_i, the full graph's, it is a mean. Biased towards nodes that are
    drawn often, and so is the loss, in which all nodes count alike. With all nodes in the subgraph nothing
    is scaled.

    Args:
        topology: the graph; its structure is symmetric, and its columns ascend.
    """

    topology: Topology

    @property
    def needs_places(self) -> bool:
        """See `Normaliser`."""
        return self.topology.weights is not None

    def weigh(self, nodes: NDArray[np.int64], found: Induced) -> SubgraphBatch:
        """See `Normaliser`."""
        graph = as_graph(self.topology, found)
        scale = missing_degree(self.topology, nodes, graph)
        return SubgraphBatch(replace(as_layer(nodes, graph), dst_scale=scale), None)


NodeSamplerName = Literal["frontier", "rw", "mrw", "edge", "forest-fire"]


def make_node_sampler(
    name: NodeSamplerName,
    topology: Topology,
    size: int,
    *,
    frontier: int = 1000,
    enlargement: float = 3.0,
    length: int = 3,
    burn: float = 0.7,
) -> NodeSampler:
    """Return what draws the nodes of subgraphs.

    Args:
        name: `rw` makes size // (length + 1) walks, `edge` draws size // 2 edges, at least 1; the others go
            on until there are `size` nodes, where so many can be reached.
        topology: the graph.
        size: nodes of a subgraph, the same budget for all.
        frontier: nodes from which `frontier` and `mrw` go on at a time.
        enlargement: of `frontier`'s Dashboard.
        length: steps of a walk of `rw`.
        burn: chance of `forest-fire` to burn one more neighbour.
    """
    if name == "frontier":
        return FrontierSampler(topology, size, frontier=frontier, enlargement=enlargement)
    if name == "rw":
        return WalkSampler(topology, size, length=length)
    if name == "mrw":
        return MultiWalkSampler(topology, size, walkers=frontier)
    if name == "edge":
        return EdgeEndsSampler(topology, size)
    return ForestFireSampler(topology, size, burn=burn)


@dataclass(frozen=True, eq=False)
class InducedPart:
    """All edges between some nodes of a graph.

    Attributes:
        topology: the part's own graph.
        tables: of its nodes.
        nodes: int64 [part's N], ascending: what they are in the whole graph.
        missing: float64 [part's N], a node's degree in the whole graph / that in the part; 1 where it has
            none here.
    """

    topology: Topology
    tables: Tables
    nodes: NDArray[np.int64]
    missing: NDArray[np.float64]

    @classmethod
    def of(cls, whole: Topology, nodes: NDArray[np.int64], tables: Tables) -> InducedPart:
        """Return the part on the distinct, ascending `nodes`; `tables` are those of the whole graph.

        Takes time linear in the sum of the nodes' degrees.
        """
        found = induced(whole, nodes, tables, places=whole.weights is not None)
        own = as_graph(whole, found)
        return cls(own, Tables(nodes.size), nodes, missing_degree(whole, nodes, own))


@dataclass(frozen=True, eq=False)
class InPart:
    """Weighs a part's subgraphs by another normaliser, and says of what nodes of the whole graph they are.

    What edges to other parts would count goes to those within the part, in proportion.
    """

    part: InducedPart
    normaliser: Normaliser

    @property
    def needs_places(self) -> bool:
        """See `Normaliser`."""
        return self.normaliser.needs_places

    def weigh(self, nodes: NDArray[np.int64], found: Induced) -> SubgraphBatch:
        """See `Normaliser`; `nodes` are the part's, those of the layer the whole graph's."""
        batch, missing = self.normaliser.weigh(nodes, found), self.part.missing[nodes]
        scale = batch.layer.dst_scale
        layer = replace(
            batch.layer, sources=self.part.nodes[nodes], dst_scale=missing if scale is None else scale * missing
        )
        return replace(batch, layer=layer)


class SubgraphOptions(MiniBatchOptions):
    """How subgraphs are drawn, and what their edges and losses count."""

    sampler: Literal["frontier", "rw", "mrw", "edge", "node", "forest-fire"] = Field(
        "frontier", description="draws the nodes of a subgraph; see `harness_methods.graphsaint.subgraphs`"
    )
    size: int = Field(8000, ge=-1, description="nodes of a subgraph, for rw and edge at most; -1: all")
    frontier: int = Field(1000, ge=1, description="frontier, mrw: nodes from which it goes on at a time")
    enlargement: float = Field(3.0, gt=1, repr=False, description="frontier: the Dashboard's spare room")
    length: int = Field(3, ge=1, description="rw: steps of a walk")
    burn: float = Field(0.7, gt=0, lt=1, description="forest-fire: chance to burn one more neighbour")
    normalise: bool = Field(True, description="weigh edges and losses by their chances to be drawn")
    coverage: float = Field(
        50.0, gt=0, repr=False, description="subgraphs that are drawn to count: so many times the graph's nodes"
    )
    recount: bool = Field(False, repr=False, description="count anew, even if the counts are in the cache")
    clip: int = Field(1, ge=1, description="drop nodes at random until their number is a multiple")
    transpose: Literal["auto", "permuted", "counted"] = Field(
        "auto", description="of subgraphs, for the backward pass: none where values are symmetric, "
        "values permuted in one pass, or built by counting"
    )  # fmt: skip

    @model_validator(mode="after")
    def _some_nodes(self) -> Self:
        if self.size == 0:
            raise ValueError("size: a subgraph has at least 1 node, or -1 for all")
        return self


class SubgraphDraws:
    """Makes what draws subgraphs of the whole graph, or of a part of it.

    Args:
        worker: the rank.
        options: say how.

    Attributes:
        metrics: `presampled` subgraphs, seconds and threads of the counting; of the last that is kept.
    """

    def __init__(self, worker: Worker, options: SubgraphOptions) -> None:
        self._worker, self._options = worker, options
        self.metrics: dict[str, float | None] = {}

    def of_graph(self, source: Source) -> SubgraphSampler:
        """Return what draws from the whole graph; its counts are kept with it."""
        topology, tables = source.topology, source.tables
        keep = Path(self._worker.partition.meta["topology"])
        sampler, normaliser = self._drawing(source, topology, tables, keep, self._worker.world)
        return self._sampler(source, topology, sampler, normaliser, tables)

    def of_part(self, source: Source, nodes: NDArray[np.int64], keep: Path | None) -> SubgraphSampler:
        """Return what draws from the part of the graph on the ascending `nodes`; see `InPart`.

        Its counts are kept in the directory `keep`, if there is one.
        """
        part = InducedPart.of(source.topology, nodes, source.tables)
        sampler, normaliser = self._drawing(source, part.topology, part.tables, keep, self._worker.rank)
        return self._sampler(source, part.topology, sampler, InPart(part, normaliser), part.tables)

    def _sampler(
        self, source: Source, topology: Topology, sampler: NodeSampler, normaliser: Normaliser, tables: Tables
    ) -> SubgraphSampler:
        if self._options.transpose != "auto":
            normaliser = _Transposed(normaliser, self._options.transpose)
        return SubgraphSampler(Subgraphs(topology, sampler, normaliser, tables), source.depth)

    def _drawing(
        self, source: Source, topology: Topology, tables: Tables, keep: Path | None, rank: int
    ) -> tuple[NodeSampler, Normaliser]:
        """Return what draws nodes of a graph, and what weighs the subgraphs.

        `rank` is the counts' seed, that of the trial is not: trials on one graph share them.
        """
        options = self._options
        if options.sampler == "node" or not 0 <= options.size < topology.num_nodes:
            known = ImportanceSubgraphs(topology, source.propagation, tables, options.size)
            sampler, normaliser = known.sampler, known.normaliser
        else:
            sampler = make_node_sampler(
                options.sampler, topology, options.size,
                frontier=options.frontier, enlargement=options.enlargement,
                length=options.length, burn=options.burn,
            )  # fmt: skip
            normaliser = None
        if options.clip > 1:
            sampler, normaliser = ClippedNodes(sampler, options.clip), None
        if not options.normalise:
            return sampler, PresentMean(topology)
        if normaliser is None:
            counts = self._counts(source, topology, sampler, tables, keep, rank)
            normaliser = CountedChances(topology, counts)
        return sampler, normaliser

    def _counts(
        self, source: Source, topology: Topology, sampler: NodeSampler, tables: Tables, keep: Path | None, rank: int
    ) -> Counts:
        worker, options = self._worker, self._options
        nodes = topology.num_nodes
        draws = math.ceil(options.coverage * nodes / (options.size if 0 < options.size < nodes else nodes))

        def make() -> Counts:
            return count(
                topology, sampler, tables, draws, rank, worker.job.threads,
                told=lambda done: worker.tell(f"counting subgraphs: {done} of {draws}"),
            )  # fmt: skip

        if keep is None:
            return make()
        told = options.model_dump(include={"sampler", "size", "frontier", "enlargement", "length", "burn", "clip"}) | {
            "draws": draws,
            "rank": rank,
        }
        if options.sampler == "node":
            told["norm"] = source.propagation.name  # its chances depend on the model's
        key = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]
        counts = saved_counts(keep, key, make, recount=worker.job.attempt if options.recount else None)
        self.metrics = {"presampled": draws, "presample_s": counts.seconds, "presample_threads": counts.threads}
        return counts


@dataclass(frozen=True, eq=False)
class _Transposed:
    """Weighs as another normaliser, and forgets that values are symmetric, or that the structure is."""

    normaliser: Normaliser
    transpose: Literal["permuted", "counted"]

    @property
    def needs_places(self) -> bool:
        return self.normaliser.needs_places

    def weigh(self, nodes: NDArray[np.int64], found: Induced) -> SubgraphBatch:
        batch = self.normaliser.weigh(nodes, found)
        if self.transpose == "permuted":
            return replace(batch, layer=replace(batch.layer, symmetric="structure"))
        return replace(batch, layer=replace(batch.layer, symmetric="no"))
