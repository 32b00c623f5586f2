"""A method of a user's own in a file that a suite names; it imports only what is public."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from pydantic import Field

from harness import Method, MethodOptions, Step, SyncExchange


class AlternatingOptions(MethodOptions):
    every: int = Field(2, ge=1, description="epochs between exchanges")


class Alternating(Method[AlternatingOptions]):
    """Full-graph training that looks beyond its part only every so many epochs."""

    name = "alternating"
    family = "full-graph"
    Options = AlternatingOptions

    def steps(self, epoch: int) -> Iterator[Step]:
        worker = self.worker
        partition, looks = worker.partition, epoch % self.options.every == 0
        kept = np.arange(partition.num_boundary if looks else 0)
        yield Step(
            blocks=[partition.block(kept)] * worker.model.depth,
            inputs=worker.features.inner,
            exchange=SyncExchange(worker.comm, partition.full_halo) if looks else None,
            loss=worker.train_loss,
            stats={"kept_boundary": kept.size},
        )
