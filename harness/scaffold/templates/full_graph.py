"""new-method: a full-graph method to start from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from harness import Bytes, BytesCase, FullGraphMethod, FullGraphOptions, Step, SyncExchange
from harness.plugin import announce


class NewMethodOptions(FullGraphOptions):
    """Options of new-method; a suite gives them as `new-method: {rate: 0.5}`."""

    rate: float = Field(0.5, gt=0, le=1, description="share of the boundary nodes kept in an epoch")


class NewMethod(FullGraphMethod[NewMethodOptions]):
    """Keeps a random share of the boundary nodes, new each epoch.

    The first line is what `harness list methods` shows. Say below it how the method works, where it is from,
    and what it sends: the rows of the kept nodes, and as control 4 bytes for each and 8 for each peer.
    """

    name = "new-method"
    Options = NewMethodOptions
    # What it claims and `harness check` holds it to; without, or None: no claim. At the options `exact` it is
    # full-graph training; at `unbiased` it samples, and the mean of its aggregations is the full aggregation.
    exact: ClassVar[dict[str, Any] | None] = {"rate": 1.0}
    unbiased: ClassVar[dict[str, Any] | None] = {"rate": 0.3}

    def steps(self, epoch: int) -> Iterator[Step]:
        """Yield one step for each update of the weights; every rank must yield equally many."""
        worker, partition = self.worker, self.worker.partition
        # The method is here: which boundary nodes are read, and what their edges count. Random numbers come
        # from worker.rng, bytes go through worker.comm: both are then counted and repeatable.
        kept = np.flatnonzero(worker.rng.random(partition.num_boundary) < self.options.rate)
        scale = worker.features.inner.new_full((kept.size,), 1 / self.options.rate)
        yield Step(
            blocks=[partition.block(kept, scale)] * worker.model.depth,
            inputs=worker.features.inner,
            exchange=SyncExchange(worker.comm, announce(worker.comm, partition, kept)),
            loss=worker.train_loss,
            transform_first=self.options.transform_before_exchange,
            aggregated=self.aggregated,
            stats={"kept_boundary": kept.size},
        )

    @classmethod
    def bytes_per_epoch(cls, options: NewMethodOptions, case: BytesCase) -> Bytes:
        """Return the bytes that all ranks send in an epoch, by purpose; leave it out to make no claim."""
        kept = case.count("kept_boundary")
        rows = case.boundary_rows(
            kept, precompute=options.precompute, transform_first=options.transform_before_exchange
        )
        return rows | {"control": 4 * kept + 8 * case.pairs}
