"""Subgraphs of a rank's own choice: options, what draws them, and the counts that normalise them."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from harness import MiniBatchOptions, Source
from harness.graph import Topology
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
    induced,
    missing_degree,
)

from .counts import CountedChances, Counts, PresentMean, count, saved_counts
from .frontier import FrontierSampler
from .node_samplers import EdgeEndsSampler, ForestFireSampler, MultiWalkSampler, WalkSampler

if TYPE_CHECKING:
    from harness import Worker


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
