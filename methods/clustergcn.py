"""Cluster-GCN: training on subgraphs of METIS clusters."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from harness import Bytes, BytesCase, MiniBatchMethod, Sample, Sampler, Source, UserError, Worker
from harness import numpy as np
from harness.plugin import (
    Batch,
    Block,
    DrawnLayer,
    GraphOnDevice,
    LayerSample,
    MemoryCase,
    MiniBatchOptions,
    PartitionSpec,
    Tables,
    Topology,
    clusters,
    common_order,
    induce,
    induce_on_device,
    induced,
    later,
    make_batches,
    upload,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

IMBALANCE = 1.03  # METIS: the largest cluster's nodes to the mean's


class ClusterOptions(MiniBatchOptions):
    """Options of batches of clusters."""

    clusters: int = Field(50, ge=1, description="clusters of the whole training graph, of all ranks together")
    per_batch: int = Field(5, ge=1, description="clusters of a rank's step")
    clustered_by: Literal["metis", "kaminpar", "coarsened", "stream"] = later(
        "metis", "the partitioner that finds clusters; the others take less memory"
    )

    @property
    def own_degrees(self) -> bool:
        """Whether a batch has the degrees of its own subgraph."""
        return False

    @property
    def of_whole_graph(self) -> bool:
        """Whether batches are of the whole graph, and have its degrees: what a GPU induces."""
        return not (self.stays_in_part or self.own_degrees)

    def clusters_of(self, ranks: int) -> int:
        """Return how many clusters each rank's part is divided into, by scope `local`."""
        return math.ceil(self.clusters / ranks)


class SubgraphOptions(ClusterOptions):
    """Options of clustered subgraphs."""

    scope: Literal["global", "local"] = later(
        "global", "cluster the whole graph, or each rank its own part, which then exchanges nothing but gradients"
    )
    degrees: Literal["graph", "batch"] = later(
        "graph", "degrees that aggregations are divided by: the whole graph's, or those within the batch"
    )

    @model_validator(mode="after")
    def _local_reads_no_other(self) -> Self:
        if self.cache != "none" and self.scope == "local":
            raise ValueError("cache: scope 'local' reads no remote node; leave cache at 'none'")
        return self

    @property
    def stays_in_part(self) -> bool:
        """See `MiniBatchOptions`."""
        return self.scope == "local"

    @property
    def own_degrees(self) -> bool:
        """See `ClusterOptions`."""
        return self.degrees == "batch"


class ClusterGCN(MiniBatchMethod[ClusterOptions]):
    """Subgraphs of METIS clusters (Cluster-GCN, Chiang et al., KDD 2019).

    METIS divides the whole training graph into `clusters`; they depend on neither the ranks nor the
    trial's seed. A cluster is trained by the rank that owns most of its nodes (the lowest of several). Each
    epoch the clusters are shuffled, and a rank takes `per_batch` of its own a step, with all edges between
    their nodes (section 3.2, stochastic multiple partitions); edges that leave them are missing, uncorrected,
    so the aggregation is biased, and degrees stay the full graph's, unless `degrees: batch`, which the paper and
    DGL's example have: the batch is normalised as a graph of its own. The
    loss is the mean over the training nodes of all ranks' batches. All ranks take the steps of the one with
    the most clusters; who has run out joins with an empty batch. Every training node is learnt from once an
    epoch. The paper's diagonal enhancement is left out. Exact with one cluster, which one rank trains on.

    `scope: local` is the ClusterGCN of DGS (Wan et al., ICNP 2022, section V): each rank trains on its own part
    alone, which METIS divides into ceil(`clusters` / P), and only weights' gradients are exchanged. Edges
    between parts are missing like those between clusters. No row is remote, and `feature_rate` is of all rows.

    Bytes of an epoch of S = max over ranks of ceil(its clusters / `per_batch`) steps, R nodes of which, over
    all clusters, belong to another rank than the one that trains them: R rows of features; as control
    4 R + 8 S P (P - 1) with their ids and, for their labels, 12 R + 8 S P (P - 1), or with rows of classes
    (4 + row) R + 8 S P (P - 1). What a cache or `storage: host` changes: see `MiniBatchMethod`. Scope local: none.
    Set-up: an all-reduce of 8 bytes a cluster (control).
    """

    name = "clustergcn"
    colour = "#920000"
    within_nodes = ("clusters",)
    samples_targets = False  # a subgraph holds whole clusters, whatever the targets
    Options: ClassVar[type[ClusterOptions]] = SubgraphOptions
    space: ClassVar[dict[str, Any]] = {"clusters": [50, 100, 200], "per_batch": [2, 5, 10]}
    exact: ClassVar[dict[str, Any]] = {"clusters": 1, "per_batch": 1}

    def __init__(self, worker: Worker, options: ClusterOptions) -> None:
        self.options = options
        self._find_clusters(worker, options.clusters)  # before a cache is filled by an epoch's batches
        super().__init__(worker, options)

    def _find_clusters(self, worker: Worker, count: int) -> None:
        """Note who trains each cluster, its training nodes, of all ranks, and its nodes if it may be this rank's."""
        nodes = worker.view.topology.num_nodes
        if count > nodes and count == ClusterOptions.model_fields["clusters"].default:
            count = nodes  # nobody asked for so many
        if count > nodes:
            raise UserError(
                f"{count} clusters of a training graph of {nodes} nodes", key="clusters", fix=f"at most {nodes}"
            )
        members, cluster = (
            self._clusters_of_part(worker) if self.options.stays_in_part else self._clusters_of_graph(worker, count)
        )
        count = self._owner.size
        order, sizes = np.argsort(cluster, kind="stable"), np.bincount(cluster, minlength=count)
        self._nodes = np.split(members[order], np.cumsum(sizes)[:-1])
        learnt = cluster[np.searchsorted(members, worker.view.split_nodes("train"))]
        train = upload(np.bincount(learnt, minlength=count), worker.device)
        with worker.traffic.during("setup"):
            worker.comm.all_reduce(train, purpose="control")
        self._train: NDArray[np.int64] = train.cpu().numpy()

    def _clusters_of_graph(self, worker: Worker, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return all nodes, ascending, and the cluster of each."""
        with worker.meters.paused():  # later trials find the clusters: as of partitions, no peak is measured
            by = self.options.clustered_by
            found = clusters(worker.view.topology, count, 0, keep=worker.partition.view, method=by)
        cluster = found.astype(np.int64)
        votes = np.bincount(cluster * worker.world + worker.view.owner, minlength=count * worker.world)
        self._owner = votes.reshape(count, worker.world).argmax(1)
        return np.arange(cluster.size), cluster

    def _clusters_of_part(self, worker: Worker) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the rank's own nodes, ascending, and the cluster of each: rank r's are from r ceil(clusters / P) on.

        A part of fewer nodes leaves some of its clusters empty.
        """
        inner, topology = np.asarray(worker.partition.inner).astype(np.int64), worker.view.topology
        count = self.options.clusters_of(worker.world)
        self._owner = np.repeat(np.arange(worker.world), count)
        if not inner.size:
            return inner, inner
        found = induced(topology, inner, Tables(topology.num_nodes))
        part, keep = Topology(found.indptr, found.columns), worker.partition.view / f"rank{worker.rank}"
        with worker.meters.paused():
            own = clusters(part, min(count, inner.size), 0, keep=keep, method=self.options.clustered_by)
        return inner, own + np.int64(worker.rank * count)

    @classmethod
    def clustering(cls, options: ClusterOptions) -> PartitionSpec | None:
        """See `Method`; a part of scope `local` takes less."""
        return None if options.stays_in_part else PartitionSpec(parts=options.clusters, method=options.clustered_by)

    @classmethod
    def device_draws(cls, options: ClusterOptions) -> bool:
        """See `MiniBatchMethod`: subgraphs of the whole graph, with its degrees."""
        return options.of_whole_graph

    def make_sampler(self, source: Source) -> Sampler:
        """See `MiniBatchMethod`."""
        return _InducedOwn(source, self.worker) if self.options.stays_in_part else Induced(source)

    def blocks(self, sample: Sample, source: Source) -> list[Block]:
        """See `MiniBatchMethod`."""
        if not self.options.own_degrees:
            return super().blocks(sample, source)
        worker, layer = self.worker, sample.layers[0]
        assert isinstance(layer, LayerSample)
        weights = None if layer.values is None else layer.values.astype(np.float32)
        graph = Topology(layer.indptr, layer.indices, weights)
        engine, alone = worker.job.config.train.spmm, replace(layer, sources=np.arange(layer.sources.size))
        return [alone.block(graph, device=worker.device, dtype=worker.dtype, engine=engine)] * source.depth

    def batches(self, epoch: int) -> list[Batch]:
        """See `MiniBatchMethod`; a batch's targets are the nodes of its clusters."""
        groups = self._groups(epoch)
        nothing = np.empty(0, np.int64)
        targets = [np.concatenate([nothing, *(self._nodes[c] for c in group)]) for group in groups[self.worker.rank]]
        totals = [int(self._train[np.concatenate(step)].sum()) for step in zip(*groups, strict=True)]
        return make_batches(self.worker, epoch, targets, totals)

    def _groups(self, epoch: int) -> list[list[NDArray[np.int64]]]:
        """Return each rank's clusters (int64) by step, `per_batch` at most; as many steps for all, if empty ones.

        The order is one of all clusters, that every rank knows; of its own each rank takes the next.
        """
        worker, size = self.worker, self.options.per_batch
        order = common_order(worker, epoch, self._owner.size)
        own = [order[self._owner[order] == rank] for rank in range(worker.world)]
        steps = max(math.ceil(mine.size / size) for mine in own)
        return [[mine[step * size : (step + 1) * size] for step in range(steps)] for mine in own]

    @classmethod
    def bytes_per_epoch(cls, options: ClusterOptions, case: BytesCase) -> Bytes | None:
        """See `BytesCase.mini_batch`; the loss of a subgraph reads rows of other ranks. Scope local: none."""
        return case.mini_batch(options, labels=True)

    @classmethod
    def memory(cls, options: ClusterOptions, case: MemoryCase) -> dict[str, int]:
        """Return the components of the largest batch, METIS' own memory left out.

        "clusters" is the list of the nodes of each.
        """
        local, train = options.stays_in_part, case.train
        count = options.clusters_of(case.parts) if local else options.clusters
        graph = replace(case, nodes=train.inner, edges=train.edges - train.cut) if local else case
        share = min(1.0, options.per_batch / count * IMBALANCE)
        blocks = graph.subgraph_blocks(math.floor(share * graph.nodes))
        # Scope local keeps besides which nodes of the graph it learns from, a byte each.
        held = 8 * graph.nodes + (case.nodes if local else 0)
        components = case.mini_batch(blocks, options) | {"clusters": 0 if case.cuda else held}
        read = min(case.edges, math.floor(share * case.edges))
        return components | (case.drawn_on_device(read, options) if options.of_whole_graph else {})


class Induced:
    """The targets' own subgraph, for every layer."""

    def __init__(self, source: Source) -> None:
        self.source = source
        on_host = source.device.type == "cpu"
        self.graph = None if on_host else GraphOnDevice.of(source.topology, source.device)

    def sample(self, targets: NDArray[np.int64], seed: int) -> Sample:
        """See `Sampler`; nothing is drawn."""
        return Sample([self.layer(targets)] * self.source.depth, None)

    def layer(self, targets: NDArray[np.int64]) -> DrawnLayer:
        """Return the layer of the distinct nodes `targets`, which is the same for all."""
        if self.graph is not None:
            return induce_on_device(self.graph, targets)
        return induce(self.source.topology, targets, self.source.tables)


class _InducedOwn(Induced):
    """The subgraph of targets that are the rank's own; the training nodes come first."""

    def __init__(self, source: Source, worker: Worker) -> None:
        super().__init__(source)
        self._learnt = np.zeros(source.topology.num_nodes, bool)
        self._learnt[worker.view.split_nodes("train")] = True

    def sample(self, targets: NDArray[np.int64], seed: int) -> Sample:
        """See `Sampler`; labels of training nodes that come first need not be asked for."""
        learnt = self._learnt[targets]
        ordered = np.concatenate([targets[learnt], targets[~learnt]])
        return replace(super().sample(ordered, seed), targets=int(learnt.sum()))
