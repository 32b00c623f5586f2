"""Normalisation of subgraphs whose chances are counted, and the plain mean of those that have none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numba
import numpy as np
from numpy.typing import NDArray

from harness.graph.induction import Induced
from harness.graph.layer_sample import LayerSample
from harness.graph.subgraph_counts import Counts, fetch_ahead
from harness.graph.subgraph_sampling import SubgraphBatch
from harness.graph.topology import Topology


@dataclass(frozen=True, eq=False)
class CountedChances:
    """Weighs by chances that were counted (GraphSAINT, Zeng et al., ICLR 2020, section 3.2).

    An edge j -> i of a subgraph counts w_ij / alpha_ij, alpha_ij = C_ij / C_i: for a destination i that is in
    it, the sum has the full aggregation as its expectation, but for the error of the counts. The loss of
    node i counts 1 / lambda_i, lambda_i = C_i / C: the sum of losses, were the logits exact, has the sum
    over all nodes as its expectation. What no counted subgraph had, and one has now, counts as if one had had
    it: its chance is small, and not known better.

    The layer's values are w_ij / C_ij, symmetric where the weights are; C_i is its `dst_scale`.

    Args:
        topology: the graph; its structure is symmetric, and its columns ascend.
        counts: of subgraphs that are drawn as those that are weighed.
    """

    topology: Topology
    counts: Counts

    @property
    def needs_places(self) -> bool:
        """See `Normaliser`."""
        return True

    def weigh(self, nodes: NDArray[np.int64], found: Induced) -> SubgraphBatch:
        """See `Normaliser`."""
        weights, counts = self.topology.weights, self.counts
        assert found.places is not None
        if weights is None:
            values = _inverse(counts.edges, found.places)
        else:
            values = _weighted_inverse(counts.edges, found.places, weights)
        times = np.maximum(counts.nodes[nodes], 1).astype(np.float64)
        layer = LayerSample(
            nodes, found.indptr, found.columns, values, dst_scale=times, symmetric=_symmetry(self.topology)
        )
        return SubgraphBatch(layer, counts.draws / times)


@dataclass(frozen=True, eq=False)
class PresentMean:
    """Weighs nothing by chances: a node's aggregation is the mean of those neighbours that are there.

    The sum over them is scaled by deg_i / (its degree within the subgraph), degrees being sums of weights
    where edges have any: divided by deg_i, the full graph's, it is a mean. Biased towards nodes that are
    drawn often, and so is the loss, in which all nodes count alike. With all nodes in the subgraph nothing
    is scaled.

    Args:
        topology: the graph; its structure is symmetric, and its columns ascend.
    """

    topology: Topology

    @property
    def needs_places(self) -> bool:
        """See `Normaliser`."""
        return self.topology.weights is not None

    def weigh(self, nodes: NDArray[np.int64], found: Induced) -> SubgraphBatch:
        """See `Normaliser`."""
        weights = self.topology.weights
        if weights is None:
            values, there = None, np.diff(found.indptr).astype(np.float64)
        else:
            assert found.places is not None
            values, there = _weighted(found.indptr, found.places, weights)
        scale = np.divide(self.topology.degree(nodes), there, out=np.ones(nodes.size), where=there > 0)
        layer = LayerSample(
            nodes, found.indptr, found.columns, values, dst_scale=scale, symmetric=_symmetry(self.topology)
        )
        return SubgraphBatch(layer, None)


def _symmetry(topology: Topology) -> Literal["structure", "values"]:
    return "values" if topology.weights is None else "structure"


@numba.njit(cache=True, nogil=True)
def _inverse(counts, places):  # type: ignore[no-untyped-def]
    values = np.empty(places.size)
    for k in range(places.size):
        fetch_ahead(counts, places, k)
        values[k] = 1.0 / max(counts[places[k]], 1)
    return values


@numba.njit(cache=True, nogil=True)
def _weighted_inverse(counts, places, weights):  # type: ignore[no-untyped-def]
    values = np.empty(places.size)
    for k in range(places.size):
        fetch_ahead(counts, places, k)
        fetch_ahead(weights, places, k)
        values[k] = weights[places[k]] / np.float64(max(counts[places[k]], 1))
    return values


@numba.njit(cache=True, nogil=True)
def _weighted(indptr, places, weights):  # type: ignore[no-untyped-def]
    """Return the weights at the places, float64, and their sums by row."""
    values, sums = np.empty(places.size), np.zeros(indptr.size - 1)
    for row in range(indptr.size - 1):
        for k in range(indptr[row], indptr[row + 1]):
            fetch_ahead(weights, places, k)
            values[k] = weights[places[k]]
            sums[row] += values[k]
    return values, sums
