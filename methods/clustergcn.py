"""Cluster-GCN: training on subgraphs of METIS clusters."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from harness import (
    Bytes,
    BytesCase,
    MemoryCase,
    MiniBatchMethod,
    MiniBatchOptions,
    Sample,
    Sampler,
    Source,
    UserError,
    Worker,
)
from harness.runtime import Batch, common_order, make_batches
from harness.sampling import clusters, induce

IMBALANCE = 1.03  # METIS: the largest cluster's nodes to the mean's


class ClusterOptions(MiniBatchOptions):
    """Options of clustered subgraphs."""

    clusters: int = Field(100, ge=1, description="METIS clusters of the whole training graph")
    per_batch: int = Field(5, ge=1, description="clusters of a rank's step")


class ClusterGCN(MiniBatchMethod[ClusterOptions]):
    """Subgraphs of METIS clusters (Cluster-GCN, Chiang et al., KDD 2019).

    METIS divides the whole training graph into `clusters`; they depend on neither the ranks nor the
    trial's seed. A cluster is trained by the rank that owns most of its nodes (the lowest of several). Each
    epoch the clusters are shuffled, and a rank takes `per_batch` of its own a step, with all edges between
    their nodes (section 3.2, stochastic multiple partitions); edges that leave them are missing, uncorrected,
    so the aggregation is biased, and degrees stay the full graph's (the paper normalises the batch anew). The
    loss is the mean over the training nodes of all ranks' batches. All ranks take the steps of the one with
    the most clusters; who has run out joins with an empty batch. Every training node is learnt from once an
    epoch. The paper's diagonal enhancement is left out. Exact with one cluster, which one rank trains on.

    Bytes of an epoch of S = max over ranks of ceil(its clusters / `per_batch`) steps, R nodes of which, over
    all clusters, belong to another rank than the one that trains them: R rows of features; as control
    4 R + 8 S P (P - 1) with their ids and, for their labels, 12 R + 8 S P (P - 1), or with rows of classes
    (4 + row) R + 8 S P (P - 1). What a cache or `storage: host` changes: see `MiniBatchMethod`. Set-up: an
    all-reduce of 8 bytes a cluster (control).
    """

    name = "clustergcn"
    colour = "#920000"
    Options = ClusterOptions
    exact: ClassVar[dict[str, Any]] = {"clusters": 1, "per_batch": 1}

    def __init__(self, worker: Worker, options: ClusterOptions) -> None:
        self._find_clusters(worker, options.clusters)  # before a cache is filled by an epoch's batches
        super().__init__(worker, options)

    def _find_clusters(self, worker: Worker, count: int) -> None:
        """Note the nodes of every cluster, who trains it, and its training nodes, of all ranks."""
        nodes = worker.view.topology.num_nodes
        if count > nodes:
            raise UserError(
                f"{count} clusters of a training graph of {nodes} nodes", key="clusters", fix=f"at most {nodes}"
            )
        cluster = clusters(worker.view.topology, count, 0, keep=worker.partition.view)
        votes = np.bincount(cluster.astype(np.int64) * worker.world + worker.view.owner, minlength=count * worker.world)
        self._owner = votes.reshape(count, worker.world).argmax(1)
        self._nodes = np.split(
            np.argsort(cluster, kind="stable"), np.cumsum(np.bincount(cluster, minlength=count))[:-1]
        )
        own = np.asarray(worker.partition.inner)[worker.train_rows.cpu().numpy()]
        train = torch.from_numpy(np.bincount(cluster[own], minlength=count)).to(worker.device)
        with worker.traffic.during("setup"):
            worker.comm.all_reduce(train, purpose="control")
        self._train: NDArray[np.int64] = train.cpu().numpy()

    def make_sampler(self, source: Source) -> Sampler:
        """See `MiniBatchMethod`."""
        return _Induced(source)

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

    @property
    def samples_targets(self) -> bool:
        """A subgraph holds whole clusters, whoever is asked for."""
        return False

    @classmethod
    def bytes_per_epoch(cls, options: ClusterOptions, case: BytesCase) -> Bytes | None:
        """See `BytesCase.mini_batch`; the loss of a subgraph reads rows of other ranks."""
        return case.mini_batch(options, labels=True)

    @classmethod
    def memory(cls, options: ClusterOptions, case: MemoryCase) -> dict[str, int]:
        """Return the components of the largest batch, METIS' own memory left out.

        "clusters" is the list of the nodes of each.
        """
        share = min(1.0, options.per_batch / options.clusters * (1 if case.least else IMBALANCE))
        blocks = case.subgraph_blocks(math.floor(share * case.nodes))
        return case.mini_batch(blocks, options) | {"clusters": 0 if case.cuda else 8 * case.nodes}


class _Induced:
    """The targets' own subgraph, for every layer."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def sample(self, targets: NDArray[np.int64], seed: int) -> Sample:
        """See `Sampler`; nothing is drawn."""
        layer = induce(self._source.topology, targets, self._source.tables)
        return Sample([layer] * self._source.depth, None)
