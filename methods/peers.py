"""Samplers of other libraries: DGL's draws the batches, everything else is as for `graphsage`.

`plugins: harness_methods.peers` in a suite. It draws on the host, of the whole graph, which each rank copies.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from harness import MiniBatchMethod, NodeBatchOptions, Sample, Sampler, Source, UserError, torch
from harness import numpy as np
from harness.plugin import DrawCounts, LayerSample, MemoryCase, Topology, per_layer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_SEEDS = 1 << 31


class PeerOptions(NodeBatchOptions):
    """Options of others' neighbour sampling."""

    fanouts: DrawCounts = Field(
        10, description="neighbours drawn for a node, input layer first, or one number for all; -1: all of them"
    )


class DGLSampler(Sampler):
    """`dgl.dataloading.NeighborSampler`; it draws by a seed of the process, so that one thread at a time does."""

    def __init__(self, topology: Topology, fanouts: Sequence[int]) -> None:
        import dgl

        indptr, indices = (torch.from_numpy(np.array(a, np.int64)) for a in (topology.indptr, topology.indices))
        columns = ("csc", (indptr, indices, torch.arange(indices.numel())))
        self._graph = dgl.graph(columns, num_nodes=topology.num_nodes)
        self._dgl, self._drawn, self._alone = dgl, dgl.dataloading.NeighborSampler(list(fanouts)), Lock()
        self._topology, self._depth = topology, len(fanouts)

    def sample(self, targets: NDArray[np.int64], seed: int) -> Sample:
        """See `Sampler`: k of a node's deg neighbours count deg / k each."""
        if not targets.size:
            none = np.zeros(0, np.int64)
            return Sample([LayerSample(none, np.zeros(1, np.int64), none.astype(np.int32))] * self._depth, 0)
        with self._alone:
            self._dgl.seed(seed % _SEEDS)
            blocks = self._drawn.sample_blocks(self._graph, torch.from_numpy(targets))[2]
        return Sample([self._layer(block) for block in blocks], targets.size)

    def _layer(self, block: Any) -> LayerSample:
        indptr, rows, order = block.adj_tensors("csc")
        edges, sources = block.edata[self._dgl.EID][order].numpy(), block.srcdata[self._dgl.NID].numpy()
        pointers, nodes, whole = indptr.numpy(), sources[: indptr.numel() - 1], self._topology
        factor = (whole.indptr[nodes + 1] - whole.indptr[nodes]) / np.maximum(np.diff(pointers), 1)
        values = None if whole.weights is None else np.asarray(whole.weights[edges], np.float64)
        return LayerSample(sources, pointers, rows.numpy().astype(np.int32), values, dst_scale=factor)


class DGLNeighbor(MiniBatchMethod[PeerOptions]):
    """DGL's neighbour sampling (`dgl.dataloading.NeighborSampler`, Wang et al. 2019), trained as `graphsage`.

    Each rank draws its targets from its own training nodes; of a node's deg neighbours k = `fanouts` are drawn without
    replacement and count deg/k: unbiased. Needs `dgl`. Bytes: see `MiniBatchMethod`.
    """

    name = "dgl-neighbor"
    colour = "#999933"
    Options = PeerOptions
    space: ClassVar[dict[str, Any]] = {"batch_size": [256, 512, 1024], "fanouts": [5, 10, 25]}
    exact: ClassVar[dict[str, Any]] = {"fanouts": -1, "batch_size": 0}
    unbiased: ClassVar[dict[str, Any]] = {"fanouts": 3, "batch_size": 8}

    def make_sampler(self, source: Source) -> Sampler:
        """See `MiniBatchMethod`."""
        try:
            return DGLSampler(source.topology, per_layer(self.options.fanouts, source.depth, "fanouts"))
        except ImportError as error:
            raise UserError(f"needs dgl, which cannot be imported: {error}", key=self.name) from error

    @classmethod
    def memory(cls, options: PeerOptions, case: MemoryCase) -> dict[str, int]:
        """See `MemoryCase.drawn`; DGL has a copy of the graph, and a place for each edge."""
        copy = 8 * (case.nodes + 1) + 16 * case.edges
        return case.drawn(options, options.fanouts, "fanouts", each=True) | {"graph": copy}
