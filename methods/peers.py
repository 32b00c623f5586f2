"""Samplers of other libraries: DGL's or PyG's draws the batches, everything else is as for `graphsage`.

`plugins: harness_methods.peers` in a suite. They draw on the host, of the whole graph, which each rank copies.
"""

from __future__ import annotations

from abc import abstractmethod
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from harness import MiniBatchMethod, NodeBatchOptions, Sample, Sampler, Source, UserError, torch
from harness import numpy as np
from harness.plugin import DrawCounts, LayerSample, MemoryCase, per_layer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

_SEEDS = 1 << 31


class PeerOptions(NodeBatchOptions):
    """Options of others' neighbour sampling."""

    fanouts: DrawCounts = Field(
        10, description="neighbours drawn for a node, input layer first, or one number for all; -1: all of them"
    )


class PeerSampler(Sampler):
    """Draws with another library; it draws by a seed of the process, so that one thread at a time does."""

    def __init__(self, source: Source, fanouts: Sequence[int]) -> None:
        self._whole, self._fanouts, self._alone = source.topology, list(fanouts), Lock()
        self._indptr, self._indices = (
            torch.from_numpy(np.array(each, np.int64)) for each in (self._whole.indptr, self._whole.indices)
        )

    @abstractmethod
    def drawn(self, targets: torch.Tensor, seed: int) -> Iterator[tuple[NDArray[Any], ...]]:
        """Yield what is drawn for each layer, the output layer first.

        Sources, the destinations first; where each destination's edges begin and end; of each edge the row of its
        source, and its place among the edges of the graph. `targets`: int64 [n], distinct.
        """

    def sample(self, targets: NDArray[np.int64], seed: int) -> Sample:
        """See `Sampler`: k of a node's deg neighbours count deg / k each."""
        if not targets.size:
            none = np.zeros(0, np.int64)
            return Sample([LayerSample(none, np.zeros(1, np.int64), none.astype(np.int32))] * len(self._fanouts), 0)
        with self._alone:
            layers = [self._layer(*each) for each in self.drawn(torch.from_numpy(targets), seed % _SEEDS)]
        return Sample(layers[::-1], targets.size)

    def _layer(self, sources: Any, pointers: Any, rows: Any, edges: Any) -> LayerSample:
        nodes, whole = sources[: pointers.size - 1], self._whole
        factor = (whole.indptr[nodes + 1] - whole.indptr[nodes]) / np.maximum(np.diff(pointers), 1)
        values = None if whole.weights is None else np.asarray(whole.weights[edges], np.float64)
        return LayerSample(sources, pointers, rows.astype(np.int32), values, dst_scale=factor)


class DGLSampler(PeerSampler):
    """`dgl.dataloading.NeighborSampler`."""

    def __init__(self, source: Source, fanouts: Sequence[int]) -> None:
        super().__init__(source, fanouts)
        import dgl

        columns = ("csc", (self._indptr, self._indices, torch.arange(self._indices.numel())))
        self._graph = dgl.graph(columns, num_nodes=self._whole.num_nodes)
        self._dgl, self._blocks = dgl, dgl.dataloading.NeighborSampler(self._fanouts).sample_blocks

    def drawn(self, targets: torch.Tensor, seed: int) -> Iterator[tuple[NDArray[Any], ...]]:
        """See `PeerSampler`."""
        self._dgl.seed(seed)
        for block in reversed(self._blocks(self._graph, targets)[2]):
            indptr, rows, order = block.adj_tensors("csc")
            edges = block.edata[self._dgl.EID][order]
            yield tuple(each.numpy() for each in (block.srcdata[self._dgl.NID], indptr, rows, edges))


class PyGSampler(PeerSampler):
    """`torch_geometric.sampler.NeighborSampler`, that of `NeighborLoader`; a layer has the edges that can reach it."""

    def __init__(self, source: Source, fanouts: Sequence[int]) -> None:
        super().__init__(source, fanouts)
        from torch_geometric import typing
        from torch_geometric.data import Data
        from torch_geometric.sampler import NeighborSampler, NodeSamplerInput

        if not (typing.WITH_PYG_LIB or typing.WITH_TORCH_SPARSE):
            raise ImportError("torch_geometric draws with pyg-lib or torch-sparse, neither of which is here")

        into = torch.arange(self._whole.num_nodes).repeat_interleave(self._indptr.diff())
        graph = Data(edge_index=torch.stack([self._indices, into]), num_nodes=self._whole.num_nodes)
        self._sampler, self._input = NeighborSampler(graph, self._fanouts[::-1], is_sorted=True), NodeSamplerInput

    def drawn(self, targets: torch.Tensor, seed: int) -> Iterator[tuple[NDArray[Any], ...]]:
        """See `PeerSampler`."""
        torch.manual_seed(seed)
        found = self._sampler.sample_from_nodes(self._input(None, targets))
        order = found.col.argsort(stable=True)  # by destination, which are numbered as they are reached
        of_edges = found.row[order], found.col[order], found.edge[order]
        sources, rows, into, edges = (each.numpy() for each in (found.node, *of_edges))
        count = targets.numel()
        for _ in self._fanouts:
            end = np.searchsorted(into, count)
            indptr = np.searchsorted(into[:end], np.arange(count + 1))
            count = max(count, rows[:end].max(initial=-1) + 1)
            yield sources[:count], indptr, rows[:end], edges[:end]


class _Peer(MiniBatchMethod[PeerOptions]):
    """Neighbour sampling as another library draws it."""

    Options = PeerOptions
    space: ClassVar[dict[str, Any]] = {"batch_size": [256, 512, 1024], "fanouts": [5, 10, 25]}
    exact: ClassVar[dict[str, Any]] = {"fanouts": -1, "batch_size": 0}
    unbiased: ClassVar[dict[str, Any]] = {"fanouts": 3, "batch_size": 8}
    drawn_by: ClassVar[type[PeerSampler]]

    def make_sampler(self, source: Source) -> Sampler:
        """See `MiniBatchMethod`."""
        try:
            return self.drawn_by(source, per_layer(self.options.fanouts, source.depth, "fanouts"))
        except ImportError as error:
            raise UserError(f"needs what cannot be imported: {error}", key=self.name) from error

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
    drawn_by = DGLSampler


class PyGNeighbor(_Peer):
    """PyG's neighbour sampling (`NeighborLoader`, Fey and Lenssen 2019), trained as `graphsage`.

    As `dgl-neighbor`, but a node's neighbours are drawn once, when it is first reached, for all layers that read it.
    Needs `torch_geometric` with `pyg-lib` or `torch-sparse`. Bytes: see `MiniBatchMethod`.
    """

    name = "pyg-neighbor"
    colour = "#882255"
    drawn_by = PyGSampler
