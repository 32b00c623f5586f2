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

from harness.graph.induction import Induced
from harness.graph.layer_sample import Tables
from harness.graph.node_sampling import NodeSampler
from harness.graph.normalise import CountedChances, PresentMean
from harness.graph.part import InPart, Part
from harness.graph.pickers import make_picker
from harness.graph.subgraph_counts import Counts, count, saved_counts
from harness.graph.subgraph_sampling import ClippedPicker, Normaliser, Picker, SubgraphBatch, Subgraphs
from harness.graph.topology import Topology
from harness.runtime.minibatch import MiniBatchOptions
from harness.runtime.samplers import SubgraphSampler
from harness.runtime.source import Source

if TYPE_CHECKING:
    from harness.runtime.worker import Worker


class SubgraphOptions(MiniBatchOptions):
    """How subgraphs are drawn, and what their edges and losses count."""

    sampler: Literal["frontier", "rw", "mrw", "edge", "node", "forest-fire"] = Field(
        "frontier", description="draws the nodes of a subgraph; see `harness.graph.pickers`"
    )
    size: int = Field(8000, ge=-1, description="nodes of a subgraph, for rw and edge at most; -1: all")
    frontier: int = Field(1000, ge=1, description="frontier, mrw: nodes from which it goes on at a time")
    enlargement: float = Field(3.0, gt=1, repr=False, description="frontier: the Dashboard's spare room")
    length: int = Field(3, ge=1, description="rw: steps of a walk")
    burn: float = Field(0.7, gt=0, lt=1, description="forest-fire: chance to burn one more neighbour")
    normalise: bool = Field(True, description="weigh edges and losses by their chances to be drawn")
    coverage: float = Field(
        50.0,
        gt=0,
        repr=False,
        description="subgraphs that are drawn to count: so many times the graph's nodes",
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
        figures: `presampled` subgraphs, seconds and threads of the counting; of the last that is kept.
    """

    def __init__(self, worker: Worker, options: SubgraphOptions) -> None:
        self._worker, self._options = worker, options
        self.figures: dict[str, float | None] = {}

    def of_graph(self, source: Source) -> SubgraphSampler:
        """Return what draws from the whole graph; its counts are kept with it."""
        topology, tables = source.topology, source.tables
        keep = Path(self._worker.partition.meta["topology"])
        picker, normaliser = self._drawing(source, topology, tables, keep, self._worker.world)
        return self._sampler(source, topology, picker, normaliser, tables)

    def of_part(self, source: Source, nodes: NDArray[np.int64], keep: Path | None) -> SubgraphSampler:
        """Return what draws from the part of the graph on the ascending `nodes`; see `InPart`.

        Its counts are kept in the directory `keep`, if there is one.
        """
        part = Part.of(source.topology, nodes, source.tables)
        picker, normaliser = self._drawing(source, part.topology, part.tables, keep, self._worker.rank)
        return self._sampler(source, part.topology, picker, InPart(part, normaliser), part.tables)

    def _sampler(
        self, source: Source, topology: Topology, picker: Picker, normaliser: Normaliser, tables: Tables
    ) -> SubgraphSampler:
        if self._options.transpose != "auto":
            normaliser = _Transposed(normaliser, self._options.transpose)
        return SubgraphSampler(Subgraphs(topology, picker, normaliser, tables), source.depth)

    def _drawing(
        self, source: Source, topology: Topology, tables: Tables, keep: Path | None, rank: int
    ) -> tuple[Picker, Normaliser]:
        """Return what picks nodes of a graph, and what weighs the subgraphs.

        `rank` is the counts' seed, that of the trial is not: trials on one graph share them.
        """
        options = self._options
        if options.sampler == "node" or not 0 <= options.size < topology.num_nodes:
            known = NodeSampler(topology, source.norm, tables, options.size)
            picker, normaliser = known.picker, known.normaliser
        else:
            picker = make_picker(
                options.sampler, topology, options.size,
                frontier=options.frontier, enlargement=options.enlargement,
                length=options.length, burn=options.burn,
            )  # fmt: skip
            normaliser = None
        if options.clip > 1:
            picker, normaliser = ClippedPicker(picker, options.clip), None
        if not options.normalise:
            return picker, PresentMean(topology)
        if normaliser is None:
            counts = self._counts(source, topology, picker, tables, keep, rank)
            normaliser = CountedChances(topology, counts)
        return picker, normaliser

    def _counts(
        self,
        source: Source,
        topology: Topology,
        picker: Picker,
        tables: Tables,
        keep: Path | None,
        rank: int,
    ) -> Counts:
        worker, options = self._worker, self._options
        nodes = topology.num_nodes
        draws = math.ceil(options.coverage * nodes / (options.size if 0 < options.size < nodes else nodes))

        def make() -> Counts:
            return count(
                topology, picker, tables, draws, rank, worker.job.threads,
                told=lambda done: worker.tell(f"counting subgraphs: {done} of {draws}"),
            )  # fmt: skip

        if keep is None:
            return make()
        told = options.model_dump(
            include={"sampler", "size", "frontier", "enlargement", "length", "burn", "clip"}
        ) | {"draws": draws, "rank": rank}
        if options.sampler == "node":
            told["norm"] = source.norm  # its chances depend on the model's
        key = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]
        counts = saved_counts(keep, key, make, recount=worker.job.attempt if options.recount else None)
        self.figures = {
            "presampled": draws,
            "presample_s": counts.seconds,
            "presample_threads": counts.threads,
        }
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
