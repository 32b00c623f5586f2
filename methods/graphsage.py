"""GraphSAGE: uniform neighbour sampling with mini-batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from harness import (
    BlockSize,
    Loss,
    MemoryCase,
    Method,
    MethodOptions,
    Step,
    mini_batch_memory,
    sample_neighbours,
)
from harness.errors import UserError


class SAGEOptions(MethodOptions):
    """Options of neighbour sampling."""

    fanouts: int | list[int] = Field(
        10,
        description="neighbours drawn for a node, input layer first, or one number for all; -1: all of them",
    )
    batch_size: int = Field(1024, ge=0, description="targets a step and rank; 0: all its training nodes")


class GraphSAGE(Method[SAGEOptions]):
    """Uniform neighbour sampling in mini-batches, remote features fetched (Hamilton et al., NeurIPS 2017).

    Each rank draws its targets from its own training nodes; of a node's deg neighbours `fan-out` are drawn
    without replacement and count deg/k, so the aggregation is unbiased. All layers' nodes are found first,
    then the input features are fetched from their owners. Ranks take equally many steps; a rank that has no
    targets left joins with an empty batch. Exact with all neighbours and all training nodes in one batch.
    Bytes: for each remote input node 4 (control) and F values (feature), and 8 a peer and step (control).
    """

    name = "graphsage"
    family = "mini-batch"
    Options = SAGEOptions
    exact: ClassVar[dict[str, Any]] = {"fanouts": -1, "batch_size": 0}

    def steps(self, epoch: int) -> Iterator[Step]:
        """Yield one step for each batch of targets."""
        worker = self.worker
        sizes = self._batch_sizes()
        rows = worker.rng.permutation(worker.train_rows.cpu().numpy())
        for batch in range(max(-(-n // b) for n, b in zip(worker.train_counts, sizes, strict=True))):
            size = sizes[worker.rank]
            total = sum(
                min(b, max(0, n - batch * b)) for n, b in zip(worker.train_counts, sizes, strict=True)
            )
            yield self._step(rows[batch * size : (batch + 1) * size], total)

    @classmethod
    def memory(cls, options: SAGEOptions, case: MemoryCase) -> dict[str, int]:
        """Return the components of the largest batch.

        Of a layer's nodes only bounds are known: at most what is drawn, and never more than the graph has; at
        least the targets (whose draws may all coincide).
        """
        rows = min(options.batch_size or case.train_nodes, case.train_nodes)
        blocks = []
        for fanout in reversed(_fanouts(options, case.model.depth)):
            entries = case.edges if fanout < 0 else min(rows * fanout, case.edges)
            drawn = 0 if case.least else entries
            blocks.append(BlockSize(rows, max(rows, min(case.nodes, rows + drawn)), drawn))
            rows = blocks[-1].src
        return mini_batch_memory(case, blocks[::-1])

    def _batch_sizes(self) -> list[int]:
        return [self.options.batch_size or max(n, 1) for n in self.worker.train_counts]

    def _step(self, rows: NDArray[np.int64], total: int) -> Step:
        worker = self.worker
        blocks, nodes = [], np.asarray(worker.partition.inner[rows])
        for fanout in reversed(_fanouts(self.options, worker.model.depth)):
            block, nodes = sample_neighbours(
                worker.view.topology, nodes, fanout, rng=worker.rng, device=worker.device, dtype=worker.dtype,
                engine=worker.job.config.train.spmm,
            )  # fmt: skip
            blocks.append(block)
        chosen = worker.train_rows.new_tensor(rows)
        targets = worker.train_rows.new_tensor(np.arange(rows.size))
        return Step(
            blocks=blocks[::-1],
            inputs=nodes,
            loss=Loss(targets, worker.view.labels[chosen], total),
            stats={"input_nodes": nodes.size},
        )


def _fanouts(options: SAGEOptions, depth: int) -> list[int]:
    fanouts = options.fanouts
    if isinstance(fanouts, int):
        return [fanouts] * depth
    if len(fanouts) != depth:
        raise UserError(
            f"{len(fanouts)} fan-outs for {depth} graph layers", key="fanouts", fix="give one a layer"
        )
    return fanouts
