"""Subgraphs for training: nodes are picked, all edges between them taken, and both weighed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from harness.graph.induction import Induced, induced
from harness.graph.layer_sample import LayerSample, Tables
from harness.graph.topology import Topology


class Picker(Protocol):
    """Picks the nodes of a subgraph. Threads may call at once; the nodes depend on the seed alone."""

    def pick(self, seed: int) -> NDArray[np.int64]:
        """Return distinct nodes, int64, ascending, by a seed in [0, 2^63)."""


@dataclass(frozen=True, eq=False)
class SubgraphBatch:
    """A drawn subgraph: a square `layer`, for all layers of a model.

    `weights`: float64 [n], what the losses of its nodes count; None: all the same.
    """

    layer: LayerSample
    weights: NDArray[np.float64] | None


class Normaliser(Protocol):
    """Says what the edges of a subgraph count, and the losses of its nodes."""

    @property
    def needs_places(self) -> bool:
        """Whether it asks of `induced` where in the graph a subgraph's edges are."""

    def weigh(self, nodes: NDArray[np.int64], found: Induced) -> SubgraphBatch:
        """Return the subgraph of the ascending `nodes`."""


class Subgraphs:
    """Draws subgraphs of a graph whose structure is symmetric.

    Args:
        topology: the graph.
        picker: of nodes.
        normaliser: of edges and losses.
        tables: of the graph's nodes.
    """

    def __init__(self, topology: Topology, picker: Picker, normaliser: Normaliser, tables: Tables) -> None:
        self.picker, self.normaliser = picker, normaliser
        self._topology, self._tables = topology, tables

    def sample(self, seed: int) -> SubgraphBatch:
        """Draw a subgraph by a seed in [0, 2^63); its nodes ascend. Threads may call at once."""
        nodes = self.picker.pick(seed)
        found = induced(self._topology, nodes, self._tables, places=self.normaliser.needs_places)
        return self.normaliser.weigh(nodes, found)


class ClippedPicker:
    """Drops nodes at random until their number is a multiple (JPDC section 6.2: "node clipping").

    Fewer nodes than one `multiple` stay as they are.
    """

    def __init__(self, picker: Picker, multiple: int) -> None:
        self._picker, self._multiple = picker, multiple

    def pick(self, seed: int) -> NDArray[np.int64]:
        """See `Picker`."""
        nodes = self._picker.pick(seed)
        extra = nodes.size % self._multiple
        if extra in (0, nodes.size):
            return nodes
        return np.delete(nodes, np.random.default_rng(seed).choice(nodes.size, extra, replace=False))
