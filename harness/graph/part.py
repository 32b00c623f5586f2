"""Part: the graph that some nodes of a graph make, with numbers of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from harness.graph.induction import Induced, induced
from harness.graph.layer_sample import Tables
from harness.graph.subgraph import as_graph, missing_degree
from harness.graph.subgraph_sampling import Normaliser, SubgraphBatch
from harness.graph.topology import Topology


@dataclass(frozen=True, eq=False)
class Part:
    """All edges between some nodes of a graph.

    Attributes:
        topology: the part's own graph.
        tables: of its nodes.
        nodes: int64 [part's N], ascending: what they are in the whole graph.
        missing: float64 [part's N], a node's degree in the whole graph / that in the part; 1 where it has
            none here.
    """

    topology: Topology
    tables: Tables
    nodes: NDArray[np.int64]
    missing: NDArray[np.float64]

    @classmethod
    def of(cls, whole: Topology, nodes: NDArray[np.int64], tables: Tables) -> Part:
        """Return the part on the distinct, ascending `nodes`; `tables` are those of the whole graph.

        Takes time linear in the sum of the nodes' degrees.
        """
        found = induced(whole, nodes, tables, places=whole.weights is not None)
        own = as_graph(whole, found)
        return cls(own, Tables(nodes.size), nodes, missing_degree(whole, nodes, own))


@dataclass(frozen=True, eq=False)
class InPart:
    """Weighs a part's subgraphs by another normaliser, and says of what nodes of the whole graph they are.

    What edges to other parts would count goes to those within the part, in proportion.
    """

    part: Part
    normaliser: Normaliser

    @property
    def needs_places(self) -> bool:
        """See `Normaliser`."""
        return self.normaliser.needs_places

    def weigh(self, nodes: NDArray[np.int64], found: Induced) -> SubgraphBatch:
        """See `Normaliser`; `nodes` are the part's, those of the layer the whole graph's."""
        batch, missing = self.normaliser.weigh(nodes, found), self.part.missing[nodes]
        scale = batch.layer.dst_scale
        layer = replace(
            batch.layer,
            sources=self.part.nodes[nodes],
            dst_scale=missing if scale is None else scale * missing,
        )
        return replace(batch, layer=layer)
