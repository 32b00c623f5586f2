"""Partition-local training: what is not exchanged at all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

from pydantic import model_validator

from harness import Bytes, BytesCase, FullGraphMethod, FullGraphOptions, Step, Worker
from harness import numpy as np
from harness.plugin import Block, MemoryCase, sums_of_rows


class LocalOptions(FullGraphOptions):
    """Options of partition-local training: none of its own."""

    @model_validator(mode="after")
    def _exchanges_nothing(self) -> Self:
        for option in ("precompute", "codec", "feedback"):
            if getattr(self, option) != type(self).model_fields[option].default:
                raise ValueError(f"{option}: local exchanges no rows: leave it out")
        return self


class Local(FullGraphMethod[LocalOptions]):
    """Each rank trains on its own part alone: no row is exchanged, the lower bound of bytes.

    Edges between parts are left out, and aggregations are divided by the degrees within the part; `bns-gcn` with rate 0
    has the whole graph's. Evaluations are those of every method, on the whole graph with all edges. With one part it is
    full-graph training; with more it claims neither that nor to be unbiased. Bytes: none but the gradients' sum.
    """

    name = "local"
    colour = "#555555"
    Options = LocalOptions
    recurring = True

    def __init__(self, worker: Worker, options: LocalOptions) -> None:
        super().__init__(worker, options)
        self._block = within_part(worker)  # here, because a device counts the edges, and the host waits for that

    def steps(self, epoch: int) -> Iterator[Step]:
        """Yield one step on the edges within the part."""
        yield self.step_on(self._block, None)

    @classmethod
    def memory(cls, options: LocalOptions, case: MemoryCase) -> dict[str, int]:
        """Return the components of a part without a boundary; evaluations find its edges."""
        return case.full_graph(kept=0, **options.for_memory)

    @classmethod
    def bytes_per_epoch(cls, options: LocalOptions, case: BytesCase) -> Bytes:
        """Return no bytes."""
        return {}


def within_part(worker: Worker) -> Block:
    """Return the block of the edges between a rank's inner nodes, with their degrees in the part."""
    inside = worker.partition.block(np.arange(0)).adjacency
    degree = inside.indptr.diff() if inside.values is None else sums_of_rows(inside.indptr, inside.values)
    return Block(inside, degree.to(worker.dtype), engine=worker.partition.engine)
