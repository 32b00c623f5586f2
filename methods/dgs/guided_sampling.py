"""What DGS samples: guided neighbours, and the graph that explanations are learnt on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from harness import LayerSample, Sample, Source, numba, torch
from harness import numpy as np
from harness.graph import CSR, Block, Topology, View, stream
from harness.runtime import FeatureStore
from harness.sampling import (
    Tables,
    induce,
    missing_degree,
    number_sources,
    sample_layers,
    systematic,
    take,
    target_rows,
    write_inclusion,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor


def within_hops(topology: Topology, nodes: NDArray[np.int64], hops: int) -> NDArray[np.int64]:
    """Return `nodes` and all from which they are reached over at most `hops` (>= 0) edges, int64, ascending.

    These are the nodes whose features as many layers' outputs at `nodes` (int64, in any order, which may repeat; of
    a topology whose rows are with several ranks this rank's own) depend on. Takes time linear in the graph's nodes
    and the in-edges of those returned.
    """
    met = np.zeros(topology.num_nodes, np.bool_)
    met[nodes] = True
    fresh = np.flatnonzero(met)
    for hop in range(hops):
        found, rows = topology.rows(fresh, own=hop == 0)
        fresh = _reached(found.indptr, found.indices, rows, met)
    return np.flatnonzero(met)


@numba.njit(cache=True, nogil=True)
def _reached(indptr, indices, rows, met):  # type: ignore[no-untyped-def]
    """Return the neighbours in `rows` that were not met yet, int64; they are then."""
    fresh = np.empty(met.size + 1, np.int64)  # one more: a node met before is written too, and overwritten
    end = 0
    for row in rows:
        for e in range(indptr[row], indptr[row + 1]):
            node = indices[e]
            fresh[end] = node
            end += not met[node]
            met[node] = True
    return fresh[:end].copy()


CHUNK = 16384  # remote rows fetched at a time, so that no second matrix of them all is made

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

    `local_block` has the inner nodes and all edges between them, with full degrees; sums over neighbours are multiplied
    by the full degree over that of these edges, so that means are of what is there.
    """

    remote: NDArray[np.int64]  # [R], ascending: nodes of the view
    features: Tensor  # [1 + R, F] of the star's rows; v_G's are the mean of the local ones
    local_features: Tensor  # [n_in, F], the store's own rows where those are on the CPU
    local_block: Block
    blocks: list[Block]  # of each layer, or hop of one: the star, but that the last one has no destination but v_G
    multilabel: bool  # whether a node has any number of classes

    @classmethod
    def build(
        cls, view: View, topology: Topology, store: FeatureStore, *, hops: int, depth: int, dtype: torch.dtype
    ) -> ExplanationGraph:
        """Make a rank's explanation graph, of the view that is trained on and its topology; every rank must call.

        Remote nodes may be `hops` away; the model has weights of `dtype` and runs on `depth` blocks (`GNN.depth`).
        Traffic: what `store.gather` counts for each remote node, once, and 8 bytes a peer (control); what the
        topology's `rows` cost, hop by hop.
        """
        inner = np.asarray(view.partition.inner)
        remote = np.setdiff1d(within_hops(topology, inner, hops), inner, assume_unique=True)
        local = store.inner.to("cpu", dtype)
        features = torch.empty((1 + remote.size, local.shape[1]), dtype=dtype)
        features[0] = local.mean(0) if inner.size else 0
        chunks = -(-remote.size // CHUNK)
        for k in range(max(store.comm.exchange_counts([chunks] * store.comm.world))):  # as many calls on all ranks
            rows = slice(k * CHUNK, (k + 1) * CHUNK)
            features[1:][rows] = store.gather(remote[rows])
        block = _local_block(topology, inner, store.tables, dtype)
        return cls(
            remote=remote, features=features, local_features=local, local_block=block,
            blocks=star(remote.size, depth, dtype), multilabel=view.labels.dim() > 1,
        )  # fmt: skip

    @property
    def nbytes(self) -> int:
        """Bytes of what it holds, in the memory of the CPU; the local features are left out."""
        held = {id(block): block for block in (self.local_block, *self.blocks)}.values()
        matrices = [array for b in held for array in (b.adjacency.indptr, b.adjacency.indices, b.adjacency.values)]
        scales = [array for b in held for array in (b.degree, b.dst_scale)]
        return sum(array.nbytes for array in (self.features, *matrices, *scales) if array is not None)


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


def _local_block(topology: Topology, inner: NDArray[np.int64], tables: Tables, dtype: torch.dtype) -> Block:
    sample = induce(topology, inner, tables)
    weights = None if sample.values is None else sample.values.astype(np.float32)
    scale = missing_degree(topology, inner, Topology(sample.indptr, sample.indices, weights))
    return replace(sample, dst_scale=scale).block(topology, device=torch.device("cpu"), dtype=dtype, engine=ENGINE)


@dataclass(frozen=True, eq=False)
class GuidedSampler:
    """Draws at most so many in-neighbours of every node, remote ones by their importance.

    The sampling of DGS (section III-C, "Module Plug-in"). Neighbour j of target i weighs |w_ij| if it is local,
    |w_ij| importance_j if it is remote. k = min(fanout, neighbours of positive weight) are drawn, without
    replacement: p_ij = min(1, c_i weight), sum_j p_ij = k. Of the sum, remote neighbours have r and local ones l. The
    deviation moves min(deviation k, l) of it from the local to the remote ones, never more than makes all remote ones
    certain; then p is proportional to weight, up to 1, among each of the two. How it is drawn: see `draw_neighbours`,
    as for what a draw depends on and for layers' seeds. Time grows with the targets' degrees.

    By default drawn neighbours are averaged: they count w_ij, and their sum is multiplied by the sum of
    |w_ij| over all neighbours over that over the drawn ones (deg/k without edge weights). This is biased
    towards what is drawn often. Unbiased: neighbour j counts w_ij / p_ij; the deviation then leaves local
    neighbours at least half of l, since what is never drawn cannot be counted. Where everything of positive
    weight is drawn, and that is all neighbours, both are the full sum.
    """

    source: Source  # the view, which says what is local
    fanouts: Sequence[int]  # neighbours of a node, input layer first; -1: all
    importance: NDArray[np.float32]  # [N], finite and not negative; that of local nodes is not read. 0: never drawn
    deviation: float = 0.0  # share of k, in [0, 1]
    unbiased: bool = False  # what drawn neighbours count

    def sample(self, targets: NDArray[np.int64], seed: int) -> Sample:
        """See `Sampler`."""
        return sample_layers(self.draw, targets, self.fanouts, seed)

    def draw(self, targets: NDArray[np.int64], fanout: int, seed: int, *, own: bool = False) -> LayerSample:
        """Draw for a layer; the sources are the targets, then the other drawn nodes in the order of first sight.

        `own`: see `Topology.rows`. Other ranks are asked for whole rows: they do not know the importance.

        ValueError if a weight of a neighbour is negative or not finite.
        """
        found, rows = self.source.topology.rows(targets, own=own)
        graph, guide = (found.indptr, found.indices, found.weights), (self.source.local, self.importance)
        most = 0.5 if self.unbiased else 1.0
        pointers, entries, chances, scale = _guided(
            *graph, *guide, rows, targets, fanout, seed, float(self.deviation), most
        )
        values: NDArray[np.float64] | None = None
        if found.weights is not None:
            values = take(found.weights, entries, np.empty(entries.size))
        if self.unbiased:
            values = (1.0 if values is None else values) / chances
        sources, columns = number_sources(found, targets, entries, self.source.tables)
        return LayerSample(sources, pointers, columns, values, None if self.unbiased else scale)


@numba.njit(cache=True, nogil=True)
def _guided(  # type: ignore[no-untyped-def]
    indptr, indices, edge_weights, local, importance, rows, targets, fanout, seed, deviation, most
):
    """Pointers by target, the entries drawn, their chances, and the ratio of |w| by target."""
    starts, degrees, pointers, largest = target_rows(indptr, rows, fanout)
    entries, chances = np.empty(pointers[-1] + 1, np.int64), np.empty(pointers[-1])
    scale = np.ones(targets.size)
    # Of one dimension each: numba knows no row of a matrix as contiguous.
    weight_of, remote_of, chance_of = np.empty(largest), np.empty(largest), np.empty(largest)
    spare_of = np.empty(largest)
    at = 0
    for i in range(targets.size):
        start, degree = starts[i], degrees[i]
        weight, remote = weight_of[:degree], remote_of[:degree]
        chance, spare = chance_of[:degree], spare_of[:degree]
        edges = None if edge_weights is None else edge_weights[start : start + degree]
        _look_up(indices[start : start + degree], local, importance, weight, remote)
        total = _weigh(edges, weight, remote)
        write_inclusion(weight, degree if fanout < 0 else fanout, chance)
        if deviation > 0:
            _move(weight, remote, deviation, most, chance, spare)
        picks = entries[at:]
        count = systematic(chance, stream(seed, targets[i]), spare, picks)
        drawn = 0.0
        for k in range(count):
            place = np.uint64(picks[k])
            drawn += 1.0 if edges is None else abs(np.float64(edges[place]))
            chances[at + k] = chance[place]
            picks[k] += start
        if count > 0:
            scale[i] = total / drawn
        at += count
        pointers[i + 1] = at
    return pointers, entries[:at].copy(), chances[:at].copy(), scale


# By itself: loads from all over the graph, which then wait for nothing.
@numba.njit(cache=True, nogil=True)
def _look_up(nodes, local, importance, weight, remote):  # type: ignore[no-untyped-def]
    """Write neighbours' importance into `weight`, and 1 or 0 into `remote`."""
    for k in range(nodes.size):
        node = np.uint64(nodes[k])
        weight[k] = importance[node]
        remote[k] = not local[node]


@numba.njit(cache=True, nogil=True)
def _weigh(edges, weight, remote):  # type: ignore[no-untyped-def]
    """Make `weight` the weights of neighbours, `remote` 0 where that is 0, and return the sum of |w|."""
    valid, total = True, 0.0
    for k in range(weight.size):
        edge = 1.0 if edges is None else abs(np.float64(edges[k]))
        w, is_remote = weight[k], remote[k]
        w = edge * (w if is_remote > 0 else 1.0)
        weight[k] = w
        remote[k] = is_remote if w > 0 else 0.0
        valid &= (w >= 0) & (w < np.inf)
        if edges is not None:
            total += edge
    if not valid:
        raise ValueError("weights of neighbours are finite and not negative")
    return np.float64(weight.size) if edges is None else total


@numba.njit(cache=True, nogil=True)
def _move(weight, remote, deviation, most, chance, spare):  # type: ignore[no-untyped-def]
    """Move `deviation` of the sum of `chance`, at most `most` of the local ones' sum, to the remote ones.

    `weight` and `spare` are overwritten.
    """
    near, far, number = _sums(chance, remote)
    raised = min(far + min(deviation * (near + far), most * near), number)
    if raised <= far:
        return
    for k in range(weight.size):
        spare[k] = weight[k] * remote[k]
        weight[k] -= spare[k]
    write_inclusion(spare, raised, remote)
    write_inclusion(weight, max(near - (raised - far), 0.0), chance)
    for k in range(chance.size):
        chance[k] += remote[k]


# Sums in any order, so that the loop runs in vectors.
@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "nsz"})
def _sums(chance, remote):  # type: ignore[no-untyped-def]
    """Sums of local and of remote chances, and the number of these."""
    near, far, number = 0.0, 0.0, 0.0
    for k in range(chance.size):
        near += chance[k] * (1 - remote[k])
        far += chance[k] * remote[k]
        number += remote[k]
    return near, far, number
