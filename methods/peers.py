"""Samplers of other libraries: DGL's or PyG's draws the batches, everything else is as for the methods of this tool.

`plugins: harness_methods.peers` in a suite. They draw on the host, of the whole graph, which each rank copies.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from harness import Bytes, BytesCase, MiniBatchMethod, NodeBatchOptions, Sample, Sampler, Source, UserError, torch
from harness import numpy as np
from harness.plugin import (
    Batch,
    DrawCounts,
    LayerSample,
    MemoryCase,
    MiniBatchOptions,
    Topology,
    per_layer,
    subgraph_batches,
)

from .clustergcn import ClusterGCN, ClusterOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_SEEDS = 1 << 31


@contextmanager
def needed(name: str) -> Iterator[None]:
    """Turn what cannot be imported within into a UserError of the method `name`."""
    try:
        yield
    except ImportError as error:
        raise UserError(f"needs what cannot be imported: {error}", key=name) from error


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Have torch draw by a seed within, and go on behind it as if nothing had been drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed % _SEEDS)
        yield


def as_pyg(topology: Topology, *, loops: bool = False) -> Any:
    """Return a graph as PyG's: `edge_place` of an edge is where it is in this graph, `own` of a node its number.

    `loops`: nodes without neighbours have one to themselves, of place -1. torch-sparse's walks, which otherwise read
    another node's neighbours there, then stay, and PyG's clusters may have no other edge.
    """
    from torch_geometric.data import Data

    degree = np.diff(topology.indptr)
    nodes, alone = np.arange(topology.num_nodes), np.flatnonzero(degree == 0) if loops else np.zeros(0, np.int64)
    into = np.concatenate([np.repeat(nodes, degree), alone])
    order = np.argsort(into, kind="stable")
    sources = np.concatenate([np.asarray(topology.indices, np.int64), alone])[order]
    place = np.concatenate([np.arange(topology.indices.size), np.full(alone.size, -1)])[order]
    edges, own, places = (torch.from_numpy(each) for each in (np.stack([sources, into[order]]), nodes, place))
    return Data(edge_index=edges, num_nodes=nodes.size, own=own, edge_place=places)


def as_layer(found: Any, topology: Topology, factors: torch.Tensor | None = None) -> LayerSample:
    """Return a subgraph of `as_pyg` as a layer; an edge counts its own weight times its factor."""
    sources, into = found.edge_index
    order = into.argsort(stable=True)
    order = order[found.edge_place[order] >= 0]
    values = None if topology.weights is None else np.asarray(topology.weights[found.edge_place[order]], np.float64)
    if factors is not None:
        values = factors[order].double().numpy() * (1.0 if values is None else values)
    indptr = np.searchsorted(into[order].numpy(), np.arange(len(found.own) + 1))
    return LayerSample(found.own.numpy(), indptr, sources[order].numpy().astype(np.int32), values)


class PeerOptions(NodeBatchOptions):
    """Options of others' neighbour sampling."""

    fanouts: DrawCounts = Field(
        10, description="neighbours drawn for a node, input layer first, or one number for all; -1: all of them"
    )


class PeerSampler(Sampler):
    """Draws with another library; it draws by a seed of the process, so that one thread at a time does."""

    def __init__(self, source: Source, fanouts: Sequence[int]) -> None:
        self._whole, self._fanouts, self._alone = source.topology, list(fanouts), Lock()

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

        whole = self._whole
        indptr, indices = (torch.from_numpy(np.array(each, np.int64)) for each in (whole.indptr, whole.indices))
        columns = ("csc", (indptr, indices, torch.arange(indices.numel())))
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
        from torch_geometric.sampler import NeighborSampler, NodeSamplerInput

        if not (typing.WITH_PYG_LIB or typing.WITH_TORCH_SPARSE):
            raise ImportError("torch_geometric draws with pyg-lib or torch-sparse, neither of which is here")

        graph, self._input = as_pyg(self._whole), NodeSamplerInput
        self._sampler = NeighborSampler(graph, self._fanouts[::-1], is_sorted=True)

    def drawn(self, targets: torch.Tensor, seed: int) -> Iterator[tuple[NDArray[Any], ...]]:
        """See `PeerSampler`."""
        with seeded(seed):
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
        with needed(self.name):
            return self.drawn_by(source, per_layer(self.options.fanouts, source.depth, "fanouts"))

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


class PyGCluster(ClusterGCN):
    """PyG's Cluster-GCN (`ClusterData` and `ClusterLoader`, Fey and Lenssen 2019), trained as `clustergcn`.

    Clusters and their order are those of `clustergcn`, and so are bytes and exactness; PyG's loader puts a batch's
    clusters together and finds the edges between them. Needs `torch_geometric`.
    """

    name = "pyg-cluster"
    colour = "#aa4499"
    Options = ClusterOptions

    @classmethod
    def device_draws(cls, options: ClusterOptions) -> bool:
        """See `MiniBatchMethod`: PyG draws on the host."""
        return False

    def make_sampler(self, source: Source) -> Sampler:
        """See `MiniBatchMethod`."""
        cluster = np.empty(source.topology.num_nodes, np.int64)
        for number, nodes in enumerate(self._nodes):
            cluster[nodes] = number
        with needed(self.name):
            return OfClusters(source, cluster, len(self._nodes))


class OfClusters(Sampler):
    """The nodes of whole clusters, as PyG's `ClusterLoader` puts them together."""

    def __init__(self, source: Source, cluster: NDArray[np.int64], count: int) -> None:
        from torch_geometric.loader import ClusterData, ClusterLoader

        class Known(ClusterData):  # type: ignore[misc]
            """Clusters that are known."""

            def _metis(self, edge_index: torch.Tensor, num_nodes: int) -> torch.Tensor:
                return torch.from_numpy(cluster)

        self._source, self._cluster = source, cluster
        data = Known(as_pyg(source.topology, loops=True), count, log=False, sparse_format="csc")
        self._loader = ClusterLoader(data)

    def sample(self, targets: NDArray[np.int64], seed: int) -> Sample:
        """See `Sampler`; nothing is drawn. `targets` are all nodes of some clusters, one after the other."""
        of_targets, topology = self._cluster[targets], self._source.topology
        chosen = of_targets[np.flatnonzero(np.diff(of_targets, prepend=-1))]
        if not chosen.size:
            layer = LayerSample(targets, np.zeros(1, np.int64), np.zeros(0, np.int32))
        else:
            layer = as_layer(self._loader.collate_fn(chosen.tolist()), topology)
        return Sample([layer] * self._source.depth, None)


class PyGSaintOptions(MiniBatchOptions):
    """Options of PyG's random walks."""

    roots: int = Field(2000, ge=1, description="random walks of a subgraph")
    length: int = Field(2, ge=1, description="steps of a walk")
    coverage: int = Field(
        50, ge=1, repr=False, description="subgraphs that are drawn to count: so many times the graph's nodes"
    )

    @property
    def size(self) -> int:
        """The nodes of a subgraph at most."""
        return self.roots * (self.length + 1)


class PyGSaint(MiniBatchMethod[PyGSaintOptions]):
    """PyG's random-walk subgraphs (`GraphSAINTRandomWalkSampler`, Fey and Lenssen 2019), trained as `graphsaint`.

    Each rank draws subgraphs of the whole graph; PyG counts `coverage` N nodes of subgraphs first, and weighs edges by
    C_u / C_uv, u the source (the paper's is C_v, of the destination), and losses by C / C_v. Needs `torch_geometric`
    with `torch-sparse`. Steps of an epoch and bytes: as `graphsaint`.
    """

    name = "pyg-saint"
    colour = "#661100"
    samples_targets = False
    Options = PyGSaintOptions
    space: ClassVar[dict[str, Any]] = {"roots": [500, 1000, 2000], "length": [2, 3]}

    @property
    def draws_rows(self) -> bool:
        """See `Method`."""
        return True

    def make_sampler(self, source: Source) -> Sampler:
        """See `MiniBatchMethod`."""
        with needed(self.name), self.worker.meters.paused():
            return _Walks(source, self.options)

    def batches(self, epoch: int) -> list[Batch]:
        """See `subgraph_batches`."""
        return subgraph_batches(self.worker, epoch, self.options.size)

    @classmethod
    def bytes_per_epoch(cls, options: PyGSaintOptions, case: BytesCase) -> Bytes | None:
        """See `BytesCase.mini_batch`; a loss reads rows of other ranks."""
        return case.mini_batch(options, labels=True)

    @classmethod
    def memory(cls, options: PyGSaintOptions, case: MemoryCase) -> dict[str, int]:
        """See `MemoryCase.subgraphs`; PyG has the edges three times, and a number for each edge and node."""
        copy = 8 * (6 * case.edges + 2 * case.nodes) + 4 * (case.edges + case.nodes)
        return case.subgraphs(options, options.size, chances=False) | {"graph": copy}


class _Walks(Sampler):
    """PyG's subgraphs; it draws by torch's generator, so that one thread at a time does."""

    def __init__(self, source: Source, options: PyGSaintOptions) -> None:
        from torch_geometric.loader import GraphSAINTRandomWalkSampler

        self._source, self._alone = source, Lock()
        steps = math.ceil(source.topology.num_nodes / options.size)
        with seeded(0):
            self._loader = GraphSAINTRandomWalkSampler(
                as_pyg(source.topology, loops=True), options.roots, options.length, steps, options.coverage, log=False
            )

    def sample(self, targets: NDArray[np.int64], seed: int) -> Sample:
        """See `Sampler`; there are no targets."""
        topology = self._source.topology
        with self._alone, seeded(seed):
            found = self._loader.collate_fn([self._loader[0]])
        layer = as_layer(found, topology, found.edge_norm)
        weights = found.node_norm.double().numpy() * topology.num_nodes
        return Sample([layer] * self._source.depth, None, weights)
