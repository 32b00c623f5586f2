"""GraphSAINT: training on drawn subgraphs of the whole graph, or of each rank's own part."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from harness import Bytes, BytesCase, Metric, MiniBatchMethod, Sampler, Source, Step
from harness import numpy as np
from harness.plugin import (
    Batch,
    ClippedNodes,
    DrawCount,
    Drawn,
    FeatureStore,
    ImportanceSubgraphs,
    LayerSample,
    Loaded,
    MemoryCase,
    MiniBatchOptions,
    NodeSampler,
    Normaliser,
    PartitionSpec,
    Subgraphs,
    SubgraphSampler,
    SubgraphsOnDevice,
    Tables,
    Topology,
    clusters,
    common_order,
    subgraph_batches,
    subgraph_size,
    whole_subgraphs,
)

from .subgraphs import CountedChances, Counts, Part, PresentMean, count, make_node_sampler, saved_counts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from harness import Worker
    from harness.plugin import Communicator


SIZE, FRONTIER = 8000, 1000  # the authors' code's
COUNTING = (
    "what drawing, inducing and counting them took, and the threads that did it; none where the cache had "
    "the counts. Of scope local the largest of the ranks"
)


class GraphSAINTOptions(MiniBatchOptions):
    """Options of GraphSAINT."""

    sampler: Literal["frontier", "rw", "mrw", "edge", "node", "forest-fire"] = Field(
        "frontier", description="draws the nodes of a subgraph; see `harness_methods.graphsaint.subgraphs`"
    )
    size: DrawCount | None = Field(
        None, description="nodes of a subgraph, for rw and edge at most; default: 8000, or an eighth of the "
        "graph it is drawn from where those are fewer; -1: all"
    )  # fmt: skip
    frontier: int | None = Field(
        None, ge=1, description="frontier, mrw: nodes from which it goes on at a time; default: 1000, or an eighth of "
        "the subgraph's where those are fewer"
    )  # fmt: skip
    roots: bool = Field(True, description="frontier: its first nodes, which are uniform, belong to the subgraph")
    entered: bool = Field(
        False, description="frontier: nodes belong to the subgraph as they come into the frontier, as in the authors' "
        "codes, not when they are popped"
    )  # fmt: skip
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
    steps: int | None = Field(None, ge=1, description="steps of an epoch; default: as many nodes as the graph has")
    scope: Literal["global", "local"] = Field(
        "global", description="draw from the whole graph, or from the rank's own part of it"
    )
    reshuffle: int = Field(0, ge=0, description="scope local: epochs between new parts; 0: never")
    pieces: int = Field(16, ge=1, repr=False, description="reshuffle: METIS clusters a rank is dealt")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.entered and not self.roots:
            raise ValueError("entered: roots come into the frontier, too; leave roots at true")
        if self.size is not None and (why := self.no_room(self.size)):
            raise ValueError(f"frontier: {why}")
        if self.reshuffle and self.scope != "local":
            raise ValueError("reshuffle: belongs to scope 'local'; set it, or leave reshuffle at 0")
        if self.cache != "none" and self.scope == "local":
            raise ValueError("cache: scope 'local' reads no remote node; leave cache at 'none'")
        return self

    @property
    def nodes_of_host(self) -> str:
        """Which option has nodes drawn on the host where a GPU does the rest; "" where it draws them, too."""
        if self.clip > 1:
            return f"clip {self.clip}"
        return "" if self.sampler in ("node", "rw", "mrw", "edge") else f"sampler {self.sampler}"

    def size_on(self, nodes: int, parts: int) -> int:
        """Return the nodes of a subgraph (-1: all) of a training graph of so many, in so many parts."""
        return subgraph_size(self.size, SIZE, nodes if self.scope == "global" else nodes // parts)

    def frontier_of(self, size: int) -> int:
        """Return the nodes that a frontier has at a time, for a subgraph of so many."""
        return self.frontier or max(1, min(FRONTIER, size // (SIZE // FRONTIER)))

    def no_room(self, size: int) -> str:
        """Say why the frontier's roots alone would be a subgraph of so many nodes; "" if they would not."""
        if self.sampler != "frontier" or not self.roots or size <= 1 or self.frontier_of(size) < size:
            return ""
        return f"{self.frontier_of(size)} roots leave no room for others in subgraphs of {size} nodes; give fewer"


class GraphSAINT(MiniBatchMethod[GraphSAINTOptions]):
    """Training on drawn subgraphs (GraphSAINT; Zeng et al., JPDC 2021; normalisation: ICLR 2020).

    Each step every rank draws a subgraph of its own, all layers run on it. `sampler` draws the nodes, then
    all edges between them are taken: frontier (Algorithms 2 to 4), rw and edge (Algorithm 5), mrw and
    forest-fire (section 3.3), node (ICLR 2020, section 3.4). `size` is the budget of all: rw has
    size // (length + 1) walks, edge draws size // 2 edges. With a `pool` so many subgraphs are drawn at once
    by as many threads as the rank has, whenever none is left (Algorithm 8). On a GPU subgraphs are induced and weighed
    there, from a copy of the graph or of the part; rw, mrw, edge and node draw there, too. The nodes of the others, and
    with `clip`, the host draws one after the other.

    With `normalise` C subgraphs are drawn before the training, C size = `coverage` N, which count how often
    there are node v (C_v) and edge u -> v (C_uv): the edge counts A_vu C_v / C_uv, the loss of v C / C_v
    (ICLR 2020, section 3.2; what was never seen counts as seen once); node's chances are known and
    need no counts. The step's loss is divided by all training nodes, in scope global also by P. Without,
    a node's neighbours that are there are averaged, degrees being the full graph's, and the loss is the
    mean over ranks of the mean over the subgraph's training nodes.

    `scope: local` draws from the rank's part alone: no feature is sent, edges between parts count nothing,
    their weight goes to those within. Every `reshuffle` epochs parts are made anew, of METIS clusters dealt
    at random; features of nodes that were not there are fetched once, labels with every batch.

    An epoch has ceil(N / (P size)) steps, or `steps`. Exact with all nodes, on which every rank then trains.
    Bytes of S steps, R nodes of whose subgraphs are other ranks' (`stat_remote_nodes`, of all ranks): R rows
    of features; as control 4 R + 8 S P (P - 1) with their ids and, for their labels, 12 R + 8 S P (P - 1), or
    with rows of classes (4 + row) R + 8 S P (P - 1). What a cache or `storage: host` changes: see
    `MiniBatchMethod`. A reshuffle: for M nodes that were not there M rows, as control 4 M + 8 P (P - 1).
    """

    name = "graphsaint"
    colour = "#56b4e9"
    on_device = True
    samples_targets = False  # a subgraph is drawn without targets
    Options = GraphSAINTOptions
    space: ClassVar[dict[str, Any]] = {"sampler": ["frontier", "rw", "edge"]}
    exact: ClassVar[dict[str, Any]] = {"size": -1, "normalise": False}
    unbiased: ClassVar[dict[str, Any]] = {"sampler": "node", "size": 25}
    metrics = (
        Metric.of_setup(
            "presampled", "subgraphs that were drawn before the training, to count how often nodes and edges "
            "are in one", heading="Subgraphs counted",
        ),
        Metric.of_setup("presample_s", COUNTING, "s", better="less", machine=True, heading="Counting"),
        Metric.of_setup("presample_threads", COUNTING, heading="Threads that count"),
    )  # fmt: skip

    def __init__(self, worker: Worker, options: GraphSAINTOptions) -> None:
        self._counting: dict[str, float | None] = {}
        self._pieces: NDArray[np.int32] | None = None
        if options.reshuffle:
            count = min(options.pieces * worker.world, worker.view.topology.num_nodes)
            self._pieces = clusters(worker.view.topology, count, 0, keep=worker.partition.view)
        self.size = options.size_on(worker.view.topology.num_nodes, worker.world)
        super().__init__(worker, options)

    @classmethod
    def clustering(cls, options: GraphSAINTOptions) -> PartitionSpec | None:
        """See `Method`."""
        return PartitionSpec(parts=options.pieces) if options.reshuffle else None

    @property
    def draws_rows(self) -> bool:
        """See `Method`."""
        return True

    def make_sampler(self, source: Source) -> Sampler:
        """See `MiniBatchMethod`."""
        worker = self.worker
        if self.options.scope == "local":
            inner = np.asarray(worker.partition.inner).astype(np.int64)
            return self._of_part(source, inner, worker.partition.view)
        keep = Path(worker.partition.meta["topology"])
        return self._subgraphs(source, source.topology, source.tables, keep, worker.world)

    def _of_part(self, source: Source, nodes: NDArray[np.int64], keep: Path | None) -> SubgraphSampler:
        """Return what draws from the part of the graph on the ascending `nodes`.

        Its counts are kept in the directory `keep`, if there is one.
        """
        part = Part.of(source.topology, nodes, source.tables)
        return self._subgraphs(source, part.topology, Tables(nodes.size), keep, self.worker.rank, part)

    def _subgraphs(
        self, source: Source, topology: Topology, tables: Tables, keep: Path | None, rank: int, part: Part | None = None
    ) -> SubgraphSampler:
        """Return what draws subgraphs of a graph, which is that of the `part` if there is one.

        `rank` is the counts' seed, that of the trial is not: trials on one graph share them.
        """
        options, size = self.options, self.size
        sampler: NodeSampler
        normaliser: Normaliser | None = None
        if options.sampler == "node" or not 0 <= size < topology.num_nodes:
            known = ImportanceSubgraphs(topology, source.propagation, tables, size)
            sampler, normaliser = known.sampler, known.normaliser
        else:
            sampler = make_node_sampler(options, topology, size)
        if options.clip > 1:
            sampler, normaliser = ClippedNodes(sampler, options.clip), None
        if not options.normalise:
            normaliser = PresentMean(topology)
        elif normaliser is None:
            normaliser = CountedChances(topology, self._counts(source, topology, sampler, tables, keep, rank))
        if source.device.type != "cpu":
            drawn = Subgraphs(topology, sampler, normaliser, tables)
            change = None if part is None else part.on_device(source.device)
            on_device = SubgraphsOnDevice(drawn, source.device, symmetric=options.transpose == "auto", change=change)
            return SubgraphSampler(on_device, source.depth)
        changes: list[Callable[[LayerSample], LayerSample]] = [] if part is None else [part]
        if options.transpose != "auto":  # forget that values are symmetric, or that the structure is
            symmetric = "structure" if options.transpose == "permuted" else "no"
            changes.append(partial(replace, symmetric=symmetric))
        return SubgraphSampler(Subgraphs(topology, sampler, normaliser, tables, changes), source.depth)

    def _counts(
        self, source: Source, topology: Topology, sampler: NodeSampler, tables: Tables, keep: Path | None, rank: int
    ) -> Counts:
        worker, options, nodes = self.worker, self.options, topology.num_nodes
        draws = math.ceil(options.coverage * nodes / (self.size if 0 < self.size < nodes else nodes))

        def make() -> Counts:
            return count(
                topology, sampler, tables, draws, rank, worker.job.threads,
                report=lambda done: worker.notify(f"counting subgraphs: {done} of {draws}"),
            )  # fmt: skip

        if keep is None:
            return make()
        named = options.model_dump(include={"sampler", "roots", "entered", "enlargement", "length", "burn", "clip"})
        named |= {"size": self.size, "frontier": options.frontier_of(self.size), "draws": draws, "rank": rank}
        if options.sampler == "node":
            named["norm"] = source.propagation.name  # its chances depend on the model's
        key = hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:16]
        with worker.meters.paused():  # later trials find the counts: as of partitions, no peak is measured
            counts = saved_counts(keep, key, make, recount=worker.job.attempt if options.recount else None)
        if counts.seconds is None:
            worker.found["counts"] = counts.earlier_s
        self._counting = {"presampled": draws, "presample_s": counts.seconds, "presample_threads": counts.threads}
        return counts

    def setup_metrics(self) -> dict[str, float | None]:
        """See `Method`: of the first counting."""
        return self._counting

    def batches(self, epoch: int) -> list[Batch]:
        """See `subgraph_batches`."""
        worker, options = self.worker, self.options
        total = worker.world
        if options.normalise:
            total = worker.train_total * (1 if options.scope == "local" else worker.world)
        return subgraph_batches(worker, epoch, self.size, total=total, steps=options.steps)

    def steps(self, epoch: int) -> Iterator[Step]:
        """See `MiniBatchMethod`."""
        every = self.options.reshuffle
        if every and epoch and epoch % every == 0:
            self._reshuffle(epoch)
        yield from super().steps(epoch)

    def restore(self, state: dict[str, Any], done: int) -> None:
        """See `Method`; parts, and what is kept of other parts' features, follow from the last reshuffle's epoch."""
        every = self.options.reshuffle
        if every and (last := (done - 1) // every * every):
            self._reshuffle(last)

    def _reshuffle(self, epoch: int) -> None:
        """Deal the clusters anew, fetch the features of nodes that were not there; every rank must call."""
        worker, pieces = self.worker, self._pieces
        assert pieces is not None
        order = common_order(worker, epoch, int(pieces.max()) + 1)
        nodes = np.flatnonzero(np.isin(pieces, order[worker.rank :: worker.world]))
        self.sampler = self._of_part(self.source, nodes, None)
        if isinstance(self.store, FeatureStore):
            self.store.fill(nodes)

    def fetch(self, drawn: Drawn, comm: Communicator) -> Loaded:
        """See `MiniBatchMethod`; without normalisation a rank's loss is a mean."""
        loaded = super().fetch(drawn, comm)
        if self.options.normalise:
            return loaded
        rows = loaded.loss.rows.numel()
        weights = loaded.inputs.new_full((rows,), 1 / max(rows, 1))
        return replace(loaded, loss=replace(loaded.loss, weights=weights))

    @classmethod
    def bytes_per_epoch(cls, options: GraphSAINTOptions, case: BytesCase) -> Bytes | None:
        """See `BytesCase.mini_batch`; a loss reads rows of other ranks. None with `reshuffle`."""
        return None if options.reshuffle else case.mini_batch(options, labels=True)

    @classmethod
    def option_warnings(cls, options: GraphSAINTOptions, case: MemoryCase) -> list[str]:
        """See `whole_subgraphs`; what a GPU leaves to the host."""
        warnings = whole_subgraphs(options.size, case.train.inner if options.scope == "local" else case.nodes)
        if case.cuda and (why := options.nodes_of_host):
            warnings.append(f"{why}: the host draws the nodes of subgraphs, one after the other; the GPU does the rest")
        return warnings + super().option_warnings(options, case)

    @classmethod
    def memory(cls, options: GraphSAINTOptions, case: MemoryCase) -> dict[str, int]:
        """See `MemoryCase.subgraphs`; what the counts of the whole graph take is page cache.

        On a GPU "probabilities" are these counts, or chances. "part" is the rank's own graph, "reshuffled features" are
        those of nodes that came from other parts.
        """
        size = options.size_on(case.nodes, case.parts)
        components = case.subgraphs(options, size, chances=options.sampler == "node")
        inner, edges = case.train.inner, case.train.edges - case.train.cut
        if case.cuda:
            graph = case if options.scope == "global" else replace(case, nodes=inner, edges=edges)
            components |= graph.drawn_on_device(graph.edges, options)
            counted = options.normalise and options.sampler != "node"
            components["probabilities"] = (4 * graph.edges + 8 * graph.nodes) if counted else 16 * graph.nodes
        if options.scope == "local":
            places = 0 if options.storage == "host" else 8 * (case.nodes - inner)  # of other parts' nodes
            entry = 4 + (4 if case.weighted else 0) + (4 if options.normalise else 0)
            components["part"] = 3 * 8 * inner + places if case.cuda else 8 * 4 * inner + entry * edges
        if options.reshuffle and options.storage == "sharded":
            row = case.model.widths[0][0] * case.itemsize
            components["reshuffled features"] = case.train.inner * row + 4 * case.nodes
        return components
