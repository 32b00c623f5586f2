"""Source: a view as samplers see it, and what they draw from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from harness.graph.block import Norm
from harness.graph.layer_sample import LayerSample, Tables
from harness.graph.topology import Topology
from harness.runtime.view import View


class Source:
    """A view's whole graph, and which of its nodes are this rank's.

    Attributes:
        view: the view.
        topology: its graph, memory-mapped.
        tables: for kernels that number nodes.
        norm: the model's weighting of edges.
        depth: the blocks that the model runs on (`GNN.depth`).
    """

    def __init__(self, view: View, *, norm: Norm, depth: int) -> None:
        self.view, self.norm, self.depth = view, norm, depth
        self.topology: Topology = view.topology
        self.tables = Tables(self.topology.num_nodes)

    @cached_property
    def local(self) -> NDArray[np.bool_]:
        """Which nodes [N] are this rank's."""
        local: NDArray[np.bool_] = np.asarray(self.view.owner) == self.view.partition.rank
        return local


@dataclass(frozen=True, eq=False)
class Sample:
    """What is drawn for a batch.

    Attributes:
        layers: one for each graph layer, input layer first; the first one's sources are the nodes whose
            features are read.
        targets: the first so many output rows are training nodes of this rank, and the loss reads them.
            None: the loss reads all training nodes among the output rows, whoever owns them.
        weights: None, or float64 [output rows], factors of the rows' losses.
        stats: figures of the sampler's own, summed over an epoch's steps.
    """

    layers: Sequence[LayerSample]
    targets: int | None
    weights: NDArray[np.float64] | None = None
    stats: dict[str, float] = field(default_factory=dict)


class Sampler(Protocol):
    """Draws blocks. Threads may call it at the same time; what is drawn depends on the arguments alone."""

    def sample(self, targets: NDArray[np.int64], seed: int) -> Sample:
        """Draw for the distinct nodes `targets` (int64, perhaps none) by a non-negative int64 `seed`."""
