"""ExplanationGraph: a rank's nodes shrunk to one, linked to the remote nodes they depend on."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.graph import CSR, Block, Topology, View
from harness.runtime import FeatureStore
from harness.sampling import Tables, induce


def within_hops(topology: Topology, nodes: NDArray[np.int64], hops: int) -> NDArray[np.int64]:
    """Return `nodes` and all from which they are reached over at most `hops` edges, int64, ascending.

    These are the nodes whose features as many layers' outputs at `nodes` depend on. Takes time linear in the
    graph's nodes and the in-edges of those returned.

    Args:
        topology: the graph, by in-edges.
        nodes: int64, in any order, which may repeat.
        hops: at least 0.
    """
    found: NDArray[np.int64] = _within_hops(topology.indptr, topology.indices, nodes, hops)
    return found


@numba.njit(cache=True, nogil=True)
def _within_hops(indptr, indices, nodes, hops):  # type: ignore[no-untyped-def]
    """Breadth first: `queue` holds the nodes met in the order of their distance."""
    met = np.zeros(indptr.size - 1, np.bool_)
    queue = np.empty(met.size + 1, np.int64)  # one more: a node met before is written too, and overwritten
    end = 0
    for node in nodes:
        queue[end] = node
        end += not met[node]
        met[node] = True
    first = 0
    for _ in range(hops):
        last = end
        for k in range(first, last):
            for e in range(indptr[queue[k]], indptr[queue[k] + 1]):
                node = indices[e]
                queue[end] = node
                end += not met[node]
                met[node] = True
        first = last
    return np.flatnonzero(met)


CHUNK = 16384  # remote rows fetched at a time, so that no second matrix of them all is made

CPU = torch.device("cpu")

ENGINE = "numba"  # keeps to torch's number of threads also in a thread of its own, where dgl takes all cores


@dataclass(frozen=True, eq=False)
class ExplanationGraph:
    """What a rank explains its predictions on (DGS, section III-B), in the memory of the CPU.

    Row 0 of the star is v_G, all inner nodes in one; rows 1, 2, ... are the remote nodes within as many hops
    as count, each linked with v_G in both directions. The links to v_G count 1/R each, so that every row of
    the star has degree 1: SAGE sees the mean over R remote nodes, and what GCN and GAT see does not grow
    with R either. (By the star's plain degrees the symmetric normalisation of GCN would multiply that mean
    by sqrt(R/2), a layer at a time.) v_G's self loop is the models' own: each adds a destination's row to
    that of its neighbours, SAGE by weights of its own.

    Attributes:
        remote: int64 [R], ascending: nodes of the view.
        features: [1 + R, F] of the star's rows; v_G's are the mean of the local ones.
        local_features: [n_in, F], the store's own rows where those are on the CPU.
        local_block: the inner nodes and all edges between them, with full degrees; sums over neighbours are
            multiplied by the full degree over that of these edges, so that means are of what is there.
        blocks: of each layer, or hop of one: the star, but that the last one has no destination but v_G.
        multilabel: whether a node has any number of classes.
    """

    remote: NDArray[np.int64]
    features: Tensor
    local_features: Tensor
    local_block: Block
    blocks: list[Block]
    multilabel: bool

    @classmethod
    def build(cls, view: View, store: FeatureStore, *, hops: int, depth: int, dtype: torch.dtype) -> ExplanationGraph:
        """Make a rank's explanation graph; every rank must call.

        Args:
            view: the graph that is trained on.
            store: of its input features.
            hops: how far remote nodes may be.
            depth: the blocks that the model runs on (`GNN.depth`).
            dtype: of its weights.

        Traffic: what `store.gather` counts for each remote node, once, and 8 bytes a peer (control).
        """
        inner = np.asarray(view.partition.inner)
        remote = np.setdiff1d(within_hops(view.topology, inner, hops), inner, assume_unique=True)
        local = store.inner.to(CPU, dtype)
        features = torch.empty((1 + remote.size, local.shape[1]), dtype=dtype)
        features[0] = local.mean(0) if inner.size else 0
        _fetch(store, remote, features[1:])
        return cls(
            remote=remote,
            features=features,
            local_features=local,
            local_block=_local_block(view.topology, inner, store.tables, dtype),
            blocks=star(remote.size, depth, dtype),
            multilabel=view.labels.dim() > 1,
        )

    @property
    def nbytes(self) -> int:
        """Bytes of what it holds, in the memory of the CPU; the local features are left out."""
        held = {id(block): block for block in (self.local_block, *self.blocks)}
        return self.features.nbytes + sum(_block_bytes(block) for block in held.values())


def star(remote: int, depth: int, dtype: torch.dtype) -> list[Block]:
    """Return the blocks of a star of `remote` nodes around row 0; see `ExplanationGraph.blocks`."""
    spokes = torch.arange(1, 1 + remote, dtype=torch.int32)
    hub = torch.zeros(remote, dtype=torch.int32)
    ends = torch.cat([torch.zeros(1, dtype=torch.int64), remote + torch.arange(1 + remote)])
    scale = torch.ones(1 + remote, dtype=dtype)
    scale[0] = 1 / max(remote, 1)
    degree = torch.ones(1 + remote, dtype=dtype)

    def block(indptr: Tensor, indices: Tensor) -> Block:
        adjacency = CSR(indptr, indices, 1 + remote)
        return Block(adjacency, degree, dst_scale=scale[: adjacency.num_rows], engine=ENGINE)

    last = block(ends[:2], spokes)
    return [last] if depth == 1 else [*[block(ends, torch.cat([spokes, hub]))] * (depth - 1), last]


def _fetch(store: FeatureStore, nodes: NDArray[np.int64], out: Tensor) -> None:
    """Write the rows of `nodes` into `out`, in as many calls as the rank of the most nodes needs."""
    chunks = -(-nodes.size // CHUNK)
    for k in range(max(store.comm.exchange_counts([chunks] * store.comm.world))):
        rows = slice(k * CHUNK, (k + 1) * CHUNK)
        out[rows] = store.gather(nodes[rows])


def _local_block(topology: Topology, inner: NDArray[np.int64], tables: Tables, dtype: torch.dtype) -> Block:
    sample = induce(topology, inner, tables)
    weights = None if sample.values is None else sample.values.astype(np.float32)
    here = Topology(sample.indptr, sample.indices, weights).degree(np.arange(inner.size))
    scale = np.divide(topology.degree(inner), here, out=np.ones(inner.size), where=here > 0)
    return replace(sample, dst_scale=scale).block(topology, device=CPU, dtype=dtype, engine=ENGINE)


def _block_bytes(block: Block) -> int:
    adjacency = block.adjacency
    tensors = (adjacency.indptr, adjacency.indices, adjacency.values, block.degree, block.dst_scale)
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)
