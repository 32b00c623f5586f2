"""Normalisation of subgraphs whose chances are counted, and the plain mean of those that have none."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from harness.graph.induction import Induced
from harness.graph.prefetch import gather
from harness.graph.subgraph import as_graph, as_layer, missing_degree
from harness.graph.subgraph_counts import Counts
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
        counts, layer = self.counts, as_layer(nodes, as_graph(self.topology, found))
        together = np.maximum(gather(counts.edges, found.places), 1)
        values = (1.0 if layer.values is None else layer.values) / together
        times = np.maximum(counts.nodes[nodes], 1).astype(np.float64)
        return SubgraphBatch(replace(layer, values=values, dst_scale=times), counts.draws / times)


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
        graph = as_graph(self.topology, found)
        scale = missing_degree(self.topology, nodes, graph)
        return SubgraphBatch(replace(as_layer(nodes, graph), dst_scale=scale), None)
