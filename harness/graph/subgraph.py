"""Subgraphs: induced on given nodes, on nodes drawn independently, and the clusters that METIS finds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numba
import numpy as np
from numpy.typing import NDArray

from harness.data.partitioning import partition_nodes
from harness.data.spec import PartitionSpec
from harness.data.store import atomic_directory, locked
from harness.graph.block import Norm
from harness.graph.layer_front import Scaled
from harness.graph.layer_kernels import global_weights
from harness.graph.layer_sample import LayerSample, Tables
from harness.graph.poisson import inclusion
from harness.graph.random import next_u64, stream, uniform
from harness.graph.skew import Skew
from harness.graph.topology import Topology


def induce(
    topology: Topology,
    nodes: NDArray[np.int64],
    tables: Tables,
    *,
    inverse: NDArray[np.float64] | None = None,
) -> LayerSample:
    """Return all edges between `nodes`, which are the destinations and the sources, in their order.

    Takes time linear in the sum of the nodes' degrees.

    Args:
        topology: the graph.
        nodes: int64 [n], distinct.
        tables: of the graph's nodes.
        inverse: None, or float64 [n], what the edges from each node count, e.g. 1/p of its draw; an edge's
            own weight multiplies it.

    Raises:
        ValueError: a node is given twice.
    """
    weights = topology.weights
    with tables.borrow() as table:
        indptr, columns, places, _ = _induce(
            topology.indptr, topology.indices, nodes, table, weights is not None
        )
    values = None if weights is None else weights[places].astype(np.float64)
    if inverse is not None:
        values = inverse[columns] if values is None else values * inverse[columns]
    return LayerSample(nodes, indptr, columns, values)


@dataclass(frozen=True, eq=False)
class SubgraphBatch:
    """A drawn subgraph: a square `layer`, for all layers of a model, and `weights` 1/p_i, float64 [n]."""

    layer: LayerSample
    weights: NDArray[np.float64]


class NodeSampler:
    """Draws nodes independently, and induces (GraphSAINT, Zeng et al., ICLR 2020, section 3.4).

    Node j is drawn with p_j = min(1, c q_j), q_j = sum_i A_ij^2 over all nodes i of the graph, self loops
    left out; c is such that `size` nodes are expected. In the paper `size` are drawn with replacement, and
    chances are estimated from draws; here they are exact. Nodes that no edge starts from have the
    smallest positive q, so that every node is seen.

    An edge j -> i of a subgraph counts w_ij / p_j: for a destination i that is in it, the sum has the full
    aggregation as its expectation. A node's loss counts 1/p_i: the sum of losses, were the logits
    exact, has the sum over all nodes as its expectation.

    Args:
        topology: the graph; all of its nodes are candidates.
        norm: the model's weighting of edges.
        tables: of the graph's nodes.
        size: nodes expected in a subgraph; -1, or as many as there are candidates: all of them.
        local: bool [N], nodes whose features are here; what `skew` and `local_only` speak of.
        skew: multiplies the q of local nodes by alpha.
        local_only: remote nodes are no candidates, and edges from them are missing (biased).

    Raises:
        ValueError: `skew` or `local_only` without `local`.

    Attributes:
        probabilities: float64 [N], p.
        alpha: what q of local nodes was multiplied with; 1 without `skew`.
    """

    def __init__(
        self,
        topology: Topology,
        norm: Norm,
        tables: Tables,
        size: int,
        *,
        local: NDArray[np.bool_] | None = None,
        skew: Skew | None = None,
        local_only: bool = False,
    ) -> None:
        self._topology, self._tables = topology, tables
        self.alpha, weights = 1.0, _importance(topology, norm)
        if local_only:
            weights[~_known(local)] = 0
        if skew is not None:
            self.alpha = _skewed(weights, _known(local), skew, size)
        self.probabilities = inclusion(weights, size if size >= 0 else weights.size)

    def sample(self, seed: int) -> SubgraphBatch:
        """Draw a subgraph by the non-negative int64 `seed`; its nodes ascend. Threads may call at once."""
        nodes = _draw(self.probabilities, seed)
        inverse = 1 / self.probabilities[nodes]
        return SubgraphBatch(induce(self._topology, nodes, self._tables, inverse=inverse), inverse)


def clusters(topology: Topology, count: int, seed: int, *, keep: Path | None = None) -> NDArray[np.int32]:
    """Return the cluster of each node, int32 [N] with values 0..count-1, none of them empty.

    METIS cuts as few edges as it finds between clusters of equally many nodes (within 3 %), whatever the
    edges' weights; the same for an equal seed. It may take minutes, and several times the graph's memory.

    Args:
        topology: the graph.
        count: of clusters; 1 needs no METIS.
        seed: of METIS.
        keep: None, or a directory of the graph's own: whoever asks first puts the clusters there, others
            wait, and all map the one copy.

    Raises:
        UserError: more clusters than nodes.
    """
    if keep is None:
        spec = PartitionSpec(parts=count, objective="cut", seed=seed)
        return partition_nodes(topology.indptr, topology.indices, spec)
    target = keep / f"clusters-{count}-{seed}"
    with locked(target):
        if not target.exists():
            with atomic_directory(target) as work:
                np.save(work / "clusters.npy", clusters(topology, count, seed))
    found: NDArray[np.int32] = np.load(target / "clusters.npy", mmap_mode="r")
    return found


def _importance(topology: Topology, norm: Norm) -> NDArray[np.float64]:
    """q_j = sum_i A_ij^2, float64 [N]; the smallest positive one where it is 0."""
    graph = Scaled.of(topology, norm, None)
    squares: NDArray[np.float64] = global_weights(
        topology.indptr, topology.indices, *graph.weights, graph.left, *graph.right
    )
    positive = squares[squares > 0]
    squares[squares == 0] = positive.min() if positive.size else 1.0
    return squares


def _known(local: NDArray[np.bool_] | None) -> NDArray[np.bool_]:
    if local is None:
        raise ValueError("to skew or to leave out remote nodes needs to know which are local")
    return local


def _skewed(weights: NDArray[np.float64], local: NDArray[np.bool_], skew: Skew, size: int) -> float:
    """Multiply the weights of local candidates by alpha, in place; return alpha."""
    own, remote = weights[local], weights[~local]
    alpha = skew.alpha_of(
        own.size, int(np.count_nonzero(remote)), float(own.sum()), float(remote.sum()), size
    )
    weights[local] *= alpha
    return alpha


@numba.njit(cache=True, nogil=True)
def _draw(probabilities, seed):  # type: ignore[no-untyped-def]
    """Return the nodes drawn, int64, ascending: a uniform number for each is below its probability."""
    nodes = np.empty(probabilities.size + 1, np.int64)
    state = stream(seed, 0)
    at = 0
    for j in range(probabilities.size):
        state, value = next_u64(state)
        nodes[at] = j  # kept by moving on: a branch would be guessed wrong for every node drawn
        at += uniform(value) < probabilities[j]
    return nodes[:at].copy()


@numba.njit(cache=True, nogil=True)
def _induce(indptr, indices, nodes, table, with_places):  # type: ignore[no-untyped-def]
    """Return the subgraph's `indptr`, columns, with `with_places` where in `indices` they are, and a number.

    What takes time is to wait for rows that no cache has: each is touched while the one before is looked up.
    """
    entries = 0
    for k in range(nodes.size):
        if table[nodes[k]] >= 0:
            raise ValueError("a node of a subgraph is given twice")
        table[nodes[k]] = k
        entries += indptr[nodes[k] + 1] - indptr[nodes[k]]
    pointers = np.empty(nodes.size + 1, np.int64)
    columns = np.empty(entries + 1, np.int32)  # one more: what is not kept is written too, and overwritten
    places = np.empty(entries + 1 if with_places else 0, np.int64)
    at = np.uint64(0)  # unsigned: numba asks of a signed index whether it counts from the end
    touched = 0
    pointers[0] = 0
    for k in range(nodes.size):
        touched += _touch(indptr, indices, nodes[min(k + 1, nodes.size - 1)])
        for e in range(np.uint64(indptr[nodes[k]]), np.uint64(indptr[nodes[k] + 1])):
            column = table[np.uint32(indices[e])]
            columns[at] = column
            if with_places:
                places[at] = e
            at += np.uint64(column >= 0)
        pointers[k + 1] = at
    for k in range(nodes.size):
        table[nodes[k]] = -1
    return pointers, columns[:at].copy(), places[: at if with_places else 0].copy(), touched


@numba.njit(cache=True, nogil=True)
def _touch(indptr, indices, row):  # type: ignore[no-untyped-def]
    """Read an entry of every cache line of a row; their sum, or the compiler would leave the reads out."""
    touched = 0
    for e in range(np.uint64(indptr[row]), np.uint64(indptr[row + 1]), np.uint64(16)):
        touched += indices[e]
    return touched
