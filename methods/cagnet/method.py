"""CAGNET: row-block broadcasts, 1-D and 1.5-D."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field

from harness import Bytes, BytesCase, FullGraphMethod, FullGraphOptions, Loss, MemoryCase, Step, Worker
from harness.graph import View
from harness.models import BlockSize
from harness.runtime import PartSize

from .broadcast import Mesh, broadcast_block, rank_groups


class CAGNETOptions(FullGraphOptions):
    """Options of CAGNET."""

    replication: int = Field(
        1, ge=1, description="copies c of each row of H (1: 1-D, more: 1.5-D); must divide the number of parts"
    )


class CAGNET(FullGraphMethod[CAGNETOptions]):
    """Full-graph training by broadcasts of whole row blocks (CAGNET, Tripathy et al., SC 2020).

    Exact. In every layer every rank's H is broadcast in turn and multiplied in, whoever needs which rows (the
    paper's 1-D algorithm, section IV; a baseline of BNS-GCN, section 4); one foreign block is in memory at a
    time. With c = `replication` > 1 (the 1.5-D algorithm) c consecutive ranks hold copies of their c
    partitions' rows, fetched once before the first epoch; the j-th of each group broadcasts its own
    partition's rows to the j-th of the other groups, and a group adds up what its ranks have. (The paper's
    rank broadcasts all rows of some groups instead: as many bytes, but c^2 must divide P.) All else a group's
    ranks do alike: they draw the same dropout masks, and each of them counts 1/c in the loss.

    Bytes of a layer that sends width d, over all ranks, of N nodes: forward
    (P/c - 1 + 2 (c - 1)) N d * itemsize, of which 2 (c - 1) N d are the groups' sums; backward, for all
    layers but the first, (P/c - 1 + c - 1) N d * itemsize. d is the input width; with `narrow`, where that is
    fewer bytes, the output width, in the first layer backward too. Set-up with c > 1: (c - 1) N F * itemsize
    for the features, and as much again with `precompute`, after which the first layer sends nothing.

    With gat, whose weights depend on H W of every row, that is sent, `narrow` or not: w = heads * head width
    values a row. Its backward pass, in the first layer too, needs those rows again, which are sent again
    rather than kept. Forward (P/c - 1) N w + 2 (c - 1) N (w + 2 heads), backward (P/c - 1) N (2 w + heads) +
    (c - 1) N (w + 3 heads), times itemsize.
    """

    name = "cagnet"
    colour = "#882e72"
    Options = CAGNETOptions
    exact: ClassVar[dict[str, Any]] = {}

    def __init__(self, worker: Worker, options: CAGNETOptions) -> None:
        rank_groups(options.replication, worker.world)  # a user's mistake is told before anything is sent
        super().__init__(worker, options)
        sizes = [row["inner"] for row in worker.partition.meta["table"][: worker.world]]
        job = worker.job
        mesh = Mesh(worker.comm, sizes, options.replication)
        spmm, device = job.config.train.spmm, worker.device
        views = [
            worker.view
            if rank == worker.rank
            else View(worker.graph, job.train_view, rank, engine=spmm, device=device, dtype=worker.dtype)
            for rank in mesh.group
        ]
        block = broadcast_block(
            mesh, [view.partition for view in views], worker.view.local_row, engine=spmm, device=device
        )
        self._blocks = [block.at(layer) for layer in range(worker.model.depth)]
        self._loss = _loss(views, options.replication * worker.train_total)
        with worker.traffic.during("setup"):
            self._inputs = mesh.spread(worker.features.inner)
            if self.aggregated is not None:
                self.aggregated = mesh.spread(self.aggregated)

    def steps(self, epoch: int) -> Iterator[Step]:
        """Yield one step on the rows of this rank's group."""
        self._draw_alike(epoch)
        yield Step(
            blocks=list(self._blocks),
            inputs=self._inputs,
            loss=self._loss,
            narrow=self.options.narrow,
            aggregated=self.aggregated,
        )

    @classmethod
    def memory(cls, options: CAGNETOptions, case: MemoryCase) -> dict[str, int]:
        """Return the components: c times the rank's inner rows, one foreign block for the boundary.

        Other partitions are taken to be as large as this one. "adjacency" has the rank's edges twice, since
        the columns of each partition are a matrix of their own and evaluations need the whole.
        """
        copies, part = options.replication, case.train
        groups = len(rank_groups(copies, case.parts))
        foreign = part.inner if groups > 1 else 0
        # Without entries the layers are reckoned as A H first, then W, which is how they are computed.
        rows = PartSize(copies * part.inner, foreign, 0, 0)
        components = replace(case, train=rows, train_nodes=copies * case.train_nodes).full_graph(
            precompute=options.precompute, narrow=options.narrow
        )
        own = part.inner * case.model.widths[0][0] * case.itemsize
        pointers = 8 * (groups - 1) * (rows.inner + 1)
        return components | {
            "input features": components["input features"] + (own if copies > 1 else 0),
            "adjacency": case.matrices(part.block, transposed=False)
            + case.matrices(BlockSize(rows.inner, groups * part.inner, part.edges))
            + pointers,
        }

    @classmethod
    def bytes_per_epoch(cls, options: CAGNETOptions, case: BytesCase) -> Bytes:
        """Return the bytes of the class's docstring: `columns` P/c - 1, `copies` c - 1."""
        copies = options.replication - 1
        columns = case.parts // options.replication - 1
        if not case.model.attends:
            return case.boundary_rows(
                (columns + 2 * copies) * case.nodes, backward=(columns + copies) * case.nodes,
                precompute=options.precompute, narrow=options.narrow,
            )  # fmt: skip
        sent, heads = {"feature": 0, "embedding": 0, "gradient": 0}, case.model.spec.heads
        for block in range(case.model.depth):
            width = case.model.layer_of(block)[0].transformed
            rows = 2 * columns * width + 2 * copies * (width + 2 * heads)
            back = columns * (width + heads) + copies * (width + 3 * heads)
            sent["embedding" if block else "feature"] += rows * case.nodes * case.itemsize
            sent["gradient"] += back * case.nodes * case.itemsize
        return sent

    def _draw_alike(self, epoch: int) -> None:
        """Have the ranks of a group draw the same random numbers in this epoch."""
        copies = self.options.replication
        if copies > 1:
            key = (self.worker.job.config.seed, self.worker.rank // copies, epoch)
            torch.manual_seed(int(np.random.SeedSequence(key).generate_state(1)[0]))


def _loss(views: list[View], total: int) -> Loss:
    """Return the loss over the training rows of all `views`, whose rows follow each other."""
    rows, start = [], 0
    for view in views:
        rows.append(view.rows["train"] + start)
        start += view.partition.num_inner
    labels = torch.cat([view.labels[view.rows["train"]] for view in views])
    return Loss(torch.cat(rows), labels, total)
