"""Samplers of other libraries: DGL's and PyG's draw the batches, everything else is as for `graphsage`.

`plugins: harness_methods.peers` in a suite. They draw on the host, of the whole graph, which each rank copies.
"""

from __future__ import annotations

from abc import abstractmethod
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from harness import MiniBatchMethod, NodeBatchOptions, Sample, Sampler, Source, UserError, torch
from harness import numpy as np
from harness.plugin import DrawCounts, LayerSample, MemoryCase, Topology, per_layer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

_SEEDS = 1 << 31
Drawn = tuple["NDArray[np.int64]", "NDArray[np.int64]", "NDArray[np.int64]", "NDArray[np.int64]"]
"""The sources of a layer, the destinations first; for each destination where its edges begin; of each edge the row of
its source, and its place among the edges of the graph."""


class PeerOptions(NodeBatchOptions):
    """Options of others' neighbour sampling."""

    fanouts: DrawCounts = Field(
        10, description="neighbours drawn for a node, input layer first, or one number for all; -1: all of them"
    )


class PeerSampler(Sampler):
    """Draws with another library: `draw` returns what it drew, the rest is counted as `graphsage` counts it.

    Libraries draw by a seed of the process: one thread at a time draws.
    """

    def __init__(self, source: Source, fanouts: Sequence[int]) -> None:
        self.topology, self.fanouts, self._alone = source.topology, fanouts, Lock()
        self.indptr = torch.from_numpy(np.array(source.topology.indptr, np.int64))
        self.indices = torch.from_numpy(np.array(source.topology.indices, np.int64))

    @abstractmethod
    def draw(self, targets: torch.Tensor, seed: int) -> Iterator[Drawn]:
        """Yield what is drawn for each layer, the output layer first, given int64 [n] distinct nodes."""

    def sample(self, targets: NDArray[np.int64], seed: int) -> Sample:
        """See `Sampler`: k of a node's deg neighbours count deg / k each."""
        with self._alone:
            drawn = list(self.draw(torch.from_numpy(targets), seed % _SEEDS)) if targets.size else []
        layers = [_counted(self.topology, *each) for each in drawn] or [_empty() for _ in self.fanouts]
        return Sample(layers[::-1], targets.size)


def _counted(topology: Topology, sources: Any, indptr: Any, rows: Any, edges: Any) -> LayerSample:
    count, nodes = np.diff(indptr), sources[: indptr.size - 1]
    factor = (topology.indptr[nodes + 1] - topology.indptr[nodes]) / np.maximum(count, 1)
    values = None if topology.weights is None else np.asarray(topology.weights[edges], np.float64)
    return LayerSample(sources, indptr, rows.astype(np.int32), values, dst_scale=factor)


def _empty() -> LayerSample:
    none = np.zeros(0, np.int64)
    return LayerSample(none, np.zeros(1, np.int64), none.astype(np.int32))


class _DGLSampler(PeerSampler):
    """`dgl.dataloading.NeighborSampler`."""

    def __init__(self, source: Source, fanouts: Sequence[int]) -> None:
        super().__init__(source, fanouts)
        import dgl

        self._dgl, self._sampler = dgl, dgl.dataloading.NeighborSampler(list(fanouts))
        edges = torch.arange(self.indices.numel())
        self._graph = dgl.graph(("csc", (self.indptr, self.indices, edges)), num_nodes=source.topology.num_nodes)

    def draw(self, targets: torch.Tensor, seed: int) -> Iterator[Drawn]:
        """See `PeerSampler`."""
        self._dgl.seed(seed)
        for block in reversed(self._sampler.sample_blocks(self._graph, targets)[2]):
            indptr, rows, order = block.adj_tensors("csc")
            edges = block.edata[self._dgl.EID][order]
            yield tuple(each.numpy() for each in (block.srcdata[self._dgl.NID], indptr, rows, edges))


class _PyGSampler(PeerSampler):
    """PyG's `NeighborSampler`, of `NeighborLoader`: a node that several layers read has one draw for all of them."""

    def __init__(self, source: Source, fanouts: Sequence[int]) -> None:
        super().__init__(source, fanouts)
        from torch_geometric.data import Data
        from torch_geometric.sampler import NeighborSampler

        edges = torch.stack([self.indices, torch.arange(len(self.indptr) - 1).repeat_interleave(self.indptr.diff())])
        data = Data(edge_index=edges, num_nodes=source.topology.num_nodes)
        self._sampler = NeighborSampler(data, num_neighbors=list(reversed(fanouts)), is_sorted=True)

    def draw(self, targets: torch.Tensor, seed: int) -> Iterator[Drawn]:
        """See `PeerSampler`."""
        from torch_geometric.sampler import NodeSamplerInput

        torch.manual_seed(seed)
        found = self._sampler.sample_from_nodes(NodeSamplerInput(None, targets))
        nodes, edges = (np.cumsum(each) for each in (found.num_sampled_nodes, found.num_sampled_edges))
        for hop in range(len(self.fanouts)):  # of the output layer all edges of the first hop
            kept = slice(int(edges[hop]))
            rows, columns, places = (each[kept].numpy() for each in (found.row, found.col, found.edge))
            order = np.argsort(columns, kind="stable")
            indptr = np.searchsorted(columns[order], np.arange(nodes[hop] + 1))
            yield found.node[: int(nodes[hop + 1])].numpy(), indptr, rows[order], places[order]


class _Peer(MiniBatchMethod[PeerOptions]):
    """Neighbour sampling as another library draws it; its loader's threads, and what it may prefetch, are ours."""

    Options = PeerOptions
    space: ClassVar[dict[str, Any]] = {"batch_size": [256, 512, 1024], "fanouts": [5, 10, 25]}
    exact: ClassVar[dict[str, Any]] = {"fanouts": -1, "batch_size": 0}
    unbiased: ClassVar[dict[str, Any]] = {"fanouts": 3, "batch_size": 8}
    drawn_by: ClassVar[type[PeerSampler]]
    package: ClassVar[str]

    def make_sampler(self, source: Source) -> Sampler:
        """See `MiniBatchMethod`."""
        try:
            return self.drawn_by(source, per_layer(self.options.fanouts, source.depth, "fanouts"))
        except ImportError as error:
            raise UserError(f"needs {self.package}, which cannot be imported: {error}", key=self.name) from error

    @classmethod
    def memory(cls, options: PeerOptions, case: MemoryCase) -> dict[str, int]:
        """See `MemoryCase.drawn`; the library has a copy of the graph, and a place for each edge."""
        copy = 8 * (case.nodes + 1) + 16 * case.edges
        return case.drawn(options, options.fanouts, "fanouts", each=True) | {"graph": copy}


class DGLNeighbor(_Peer):
    """DGL's neighbour sampling (`dgl.dataloading.NeighborSampler`, Wang et al. 2019), trained as `graphsage`.

    Each rank draws its targets from its own training nodes; of a node's deg neighbours k = `fanouts` are drawn without
    replacement and count deg/k: unbiased. Needs `dgl`. Bytes: see `MiniBatchMethod`.
    """

    name = "dgl-neighbor"
    colour = "#999933"
    drawn_by = _DGLSampler
    package = "dgl"


class PyGNeighbor(_Peer):
    """PyG's neighbour sampling (`torch_geometric`'s `NeighborLoader`, Fey and Lenssen 2019), trained as `graphsage`.

    As `dgl-neighbor`, but a node's neighbours are drawn once, when it is first reached, for all layers: correlated
    draws, unbiased for each layer's sum. Needs `torch_geometric`, and `pyg-lib` or `torch-sparse`. Bytes: see
    `MiniBatchMethod`.
    """

    name = "pyg-neighbor"
    colour = "#882255"
    drawn_by = _PyGSampler
    package = "torch_geometric with pyg-lib or torch-sparse"
