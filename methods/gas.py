"""GAS: METIS clusters as batches, whose neighbours' embeddings come from histories."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness import Bytes, BytesCase, Metric, Sample, Sampler, Source
from harness import numpy as np
from harness.plugin import BlockSize, DrawnLayer, MemoryCase, draw_neighbours, draw_on_device, upload

from .clustergcn import IMBALANCE, ClusterGCN, ClusterOptions, Induced
from .vrgcn import HistoryMethod

if TYPE_CHECKING:
    from numpy.typing import NDArray


class GAS(HistoryMethod[ClusterOptions], ClusterGCN):
    """Clusters with all their neighbours, whose embeddings come from histories (GNNAutoScale, Fey et al., ICML 2021).

    Batches, their order and their loss are those of `clustergcn`, but no edge is missing: every layer computes the rows
    of the batch's nodes from those nodes and all their neighbours. The first layer reads the input features of both.
    Every other layer reads, of the neighbours outside the batch (its halo), the rows that were computed when they were
    last in a batch, 0 before (pull); no gradient goes there. Behind the step the batch's own rows replace theirs
    (push). Histories are with the nodes' owners, and ranks that take a step together all pull before any of them
    pushes. With dropout a row keeps the mask of its time. In mixhop each hop is such a layer, and its history has rows
    of A^k H. The paper's regularisation of Lipschitz constants is left out, and so is its transfer of histories
    while layers compute.

    Biased, as histories are stale. Exact with one cluster, which one rank trains on, and with any where histories are
    up to date: with constant weights that of layer l is after l epochs.

    Bytes of an epoch of S steps, with R the remote nodes that its batches and halos have and B those of the batches
    alone (`stat_pushed_nodes`): R rows of features, and for each history R rows of its width (embedding), B of them
    pushed. As control 4 R + 8 S P (P - 1) for the features, 4 R + 16 S P (P - 1) for each history and, for labels,
    12 B + 8 S P (P - 1), or with rows of classes (4 + row) B + 8 S P (P - 1). What a cache changes: see
    `MiniBatchMethod`. Set-up: an all-reduce of 8 bytes a cluster (control).
    """

    name = "gas"
    colour = "#6611ff"
    Options = ClusterOptions
    metrics = (
        Metric.of_method(
            "pushed_nodes", "nodes of other ranks in batches, whose rows go to histories and whose labels are read"
        ),
    )

    @classmethod
    def remembered(cls, options: ClusterOptions, depth: int) -> Sequence[int]:
        """See `HistoryMethod`: all but the first, which reads features."""
        return range(1, depth)

    def make_sampler(self, source: Source) -> Sampler:
        """See `MiniBatchMethod`."""
        return WithHalo(source)

    @classmethod
    def bytes_per_epoch(cls, options: ClusterOptions, case: BytesCase) -> Bytes | None:
        """Return the bytes of the class's docstring; None with `storage: host`, where no metric counts remote nodes."""
        sent, (remote, pushed) = case.mini_batch(options), map(case.count, ("remote_nodes", "pushed_nodes"))
        if sent is None or options.storage == "host":
            return None
        peers, widths = 8 * case.pairs * case.steps, [width for width, _ in case.model.widths[1:]]
        labels = (4 + case.label_bytes) * pushed + peers
        control = sent["control"] + labels + (4 * remote + 2 * peers) * len(widths)
        return sent | {"embedding": remote * sum(widths) * case.itemsize, "control": control}

    @classmethod
    def memory(cls, options: ClusterOptions, case: MemoryCase) -> dict[str, int]:
        """Return the components of the largest batch with its halo, METIS' own memory left out, and the histories."""
        rows = math.floor(min(1.0, options.per_batch / options.clusters * IMBALANCE) * case.nodes)
        edges = case.edges_of(rows)
        block = BlockSize(rows, min(case.nodes, rows + edges), edges)
        components = case.mini_batch([block] * case.model.depth, options) | case.drawn_on_device(edges, options)
        read = dict.fromkeys(cls.remembered(options, case.model.depth), block.src)
        held = 0 if case.cuda else 8 * case.nodes
        return components | {"clusters": held, "histories": cls.histories_bytes(case, read)}


class WithHalo(Induced):
    """The targets, with all their neighbours behind them as sources, for every layer."""

    def sample(self, targets: NDArray[np.int64], seed: int) -> Sample:
        """See `Sampler`; nothing is drawn."""
        pushed = int(np.count_nonzero(~self.source.local[targets]))
        return Sample([self.layer(targets)] * self.source.depth, None, stats={"pushed_nodes": pushed})

    def layer(self, targets: NDArray[np.int64]) -> DrawnLayer:
        """See `Induced`."""
        if self.graph is not None:
            return draw_on_device(self.graph, upload(targets, self.source.device), -1, 0)
        return draw_neighbours(self.source.topology, targets, -1, 0, self.source.tables)
