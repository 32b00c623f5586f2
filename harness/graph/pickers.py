"""The samplers of subgraphs by name."""

from __future__ import annotations

from typing import Literal

from harness.graph.edge_picker import EdgePicker
from harness.graph.forest_fire import ForestFirePicker
from harness.graph.frontier import FrontierPicker
from harness.graph.subgraph_sampling import Picker
from harness.graph.topology import Topology
from harness.graph.walks import MultiWalkPicker, WalkPicker

PickerName = Literal["frontier", "rw", "mrw", "edge", "forest-fire"]


def make_picker(
    name: PickerName,
    topology: Topology,
    size: int,
    *,
    frontier: int = 1000,
    enlargement: float = 3.0,
    length: int = 3,
    burn: float = 0.7,
) -> Picker:
    """Return what picks the nodes of subgraphs.

    Args:
        name: `rw` makes size // (length + 1) walks, `edge` draws size // 2 edges, at least 1; the others go
            on until there are `size` nodes, where so many can be reached.
        topology: the graph.
        size: nodes of a subgraph, the same budget for all.
        frontier: nodes from which `frontier` and `mrw` go on at a time.
        enlargement: of `frontier`'s Dashboard.
        length: steps of a walk of `rw`.
        burn: chance of `forest-fire` to burn one more neighbour.
    """
    if name == "frontier":
        return FrontierPicker(topology, size, frontier=frontier, enlargement=enlargement)
    if name == "rw":
        return WalkPicker(topology, size, length=length)
    if name == "mrw":
        return MultiWalkPicker(topology, size, walkers=frontier)
    if name == "edge":
        return EdgePicker(topology, size)
    return ForestFirePicker(topology, size, burn=burn)
