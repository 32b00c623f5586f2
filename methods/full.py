"""Vanilla partition parallelism."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from harness import Bytes, BytesCase, FullGraphMethod, FullGraphOptions, Step
from harness import numpy as np


class Full(FullGraphMethod[FullGraphOptions]):
    """Full-graph training: every boundary row is exchanged in every layer (vanilla partition parallelism).

    Exact. Bytes an epoch: forward sum_i |B_i| * dim_l * itemsize for each layer l with input width dim_l,
    backward the same for every layer but the first. In mixhop a layer is as many exchanges as its order, all
    of its input width.
    """

    name = "full"
    colour = "#222222"
    exact: ClassVar[dict[str, Any]] = {}
    baseline: ClassVar[dict[str, Any]] = {}
    recurring = True
    overlaps = True

    def steps(self, epoch: int) -> Iterator[Step]:
        """Yield one step: the full block in every layer, every boundary row exchanged."""
        partition = self.worker.partition
        yield self.synchronous(np.arange(partition.num_boundary), None, partition.full_halo)

    @classmethod
    def bytes_per_epoch(cls, options: FullGraphOptions, case: BytesCase) -> Bytes:
        """See `BytesCase.boundary_rows`."""
        return case.boundary_rows(case.boundary, **options.for_costs)
