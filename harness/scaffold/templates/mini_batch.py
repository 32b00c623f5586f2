"""new-method: a mini-batch method to start from."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from harness import MiniBatchMethod, NodeBatchOptions, Sample, Sampler, Source
from harness.plugin import batch_seed, draw_neighbours


class NewMethodOptions(NodeBatchOptions):
    """Options of new-method; a suite gives them as `new-method: {fanout: 5}`."""

    fanout: int = Field(10, ge=-1, description="neighbours drawn for a node in each layer; -1: all of them")


class NewMethod(MiniBatchMethod[NewMethodOptions]):
    """Draws so many neighbours of each node, in every layer alike.

    The first line is what `harness list methods` shows. Say below it how the method works and where it is
    from. What it sends is said by `MiniBatchMethod`: the features of remote nodes, and their ids.
    """

    name = "new-method"
    Options = NewMethodOptions
    # What it claims and `harness check` holds it to; without, or None: no claim. At the options `exact` it is
    # full-graph training; at `unbiased` it samples, and the mean of its aggregations is the full aggregation.
    exact: ClassVar[dict[str, Any] | None] = {"fanout": -1, "batch_size": 0}
    unbiased: ClassVar[dict[str, Any] | None] = {"fanout": 3, "batch_size": 8}

    def make_sampler(self, source: Source) -> Sampler:
        """Return what draws the batches; `source` is the graph that is trained on, or evaluated."""
        return NewMethodSampler(source, self.options.fanout)


class NewMethodSampler:
    """Draws the layers of a batch; what is drawn depends on the arguments of `sample` alone."""

    def __init__(self, source: Source, fanout: int) -> None:
        self.source, self.fanout = source, fanout

    def sample(self, targets: NDArray[np.int64], seed: int) -> Sample:
        """Return a layer for each of the model's, input layer first; threads may call it at the same time."""
        source, layers, nodes = self.source, [], targets
        for depth in range(source.depth):  # from the targets down to the input features
            # The method is here: which neighbours are drawn, and what their edges count.
            layer = draw_neighbours(source.topology, nodes, self.fanout, batch_seed(seed, 0, 0, depth), source.tables)
            layers.append(layer)
            nodes = layer.sources
        return Sample(layers[::-1], targets.size)
