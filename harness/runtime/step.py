"""Step: what a method says of one optimizer step; the trainer does the rest."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from harness.graph.block import Block
from harness.models.gnn import Rows
from harness.runtime.exchange import Exchange


@dataclass(frozen=True)
class Loss:
    """Which destination rows the loss reads.

    Attributes:
        rows: int64, rows of the model's output.
        labels: their labels, int64 [len(rows)] or float [len(rows), C].
        total: rows of all ranks in this step: the loss is the sum over the rows divided by it.
        weights: None, or [len(rows)]: factors of the rows' losses.
    """

    rows: Tensor
    labels: Tensor
    total: int
    weights: Tensor | None = None


@dataclass(frozen=True)
class Step:
    """One forward pass, backward pass and update. Every rank yields equally many in an epoch.

    Attributes:
        blocks: one for each graph layer (in mixhop for each of its hops), input layer first.
        loss: what is learnt from.
        inputs: the features that the first layer reads (of a full-graph method those of the inner rows), or
            what gives them when read.
        exchange: turns a layer's inner rows into its source rows; None where the blocks need no other rows.
        narrow: exchange H W instead of H where that is fewer bytes.
        aggregated: the first layer's aggregated input features, if known already ([num_dst, F]).
        stats: figures of the method's own, recorded with the epoch (summed over its steps); read behind the
            step.
        around: what forward and backward pass happen in.
        nodes: of a mini-batch, the nodes (int64) that `inputs` are of.
    """

    blocks: list[Block]
    loss: Loss
    inputs: Rows
    exchange: Exchange | None = None
    narrow: bool = False
    aggregated: Rows | None = None
    stats: dict[str, Any] = field(default_factory=dict)
    around: Callable[[], AbstractContextManager[None]] = nullcontext
    nodes: NDArray[np.int64] | None = None
