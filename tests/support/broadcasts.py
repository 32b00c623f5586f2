"""What ranks of the tests of row-block broadcasts do, and graphs for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from harness_methods.cagnet import CAGNET, BroadcastBlock, Mesh
from support.wire import CPU, communicator

from harness import Step
from harness.check.graphs import OnDisk, random_graph
from harness.check.training import Case
from harness.data.graph import GraphData
from harness.data.prepared import open_graph
from harness.graph.block import Propagation
from harness.graph.partition import View


def directed_graph(seed: int, nodes: int = 60, *, degree: float = 5, weighted: bool = False) -> GraphData:
    """Return `random_graph` with edges, and weights, that differ from those of the other direction."""
    rng = np.random.default_rng(seed)
    dense = rng.random((nodes, nodes)) < degree / nodes
    np.fill_diagonal(dense, False)
    return replace(
        random_graph(seed, nodes),
        indptr=np.concatenate([[0], np.cumsum(dense.sum(1))]).astype(np.int64),
        indices=np.nonzero(dense)[1].astype(np.int32),
        weights=rng.uniform(0.1, 2, dense.sum()).astype(np.float32) if weighted else None,
    )


def aggregated(
    rank: int, world: int, data: OnDisk, cases: list[tuple[int, Propagation]], rows: list[torch.Tensor]
) -> list[list[np.ndarray]]:
    """Aggregate the first of `rows` [N, width], and take the second back, for each (replication, norm).

    Returns this rank's group's nodes and its rows of both results.
    """
    comm = communicator(rank, world)
    graph = open_graph(data.graph)
    views = [
        View(graph, data.parts.train, peer, engine="auto", device=CPU, dtype=torch.float64) for peer in range(world)
    ]
    sizes = [view.partition.num_inner for view in views]
    found = []
    for replication, norm in cases:
        mesh = Mesh(comm, sizes, replication)
        partitions = [views[peer].partition for peer in mesh.group]
        block = BroadcastBlock(mesh, partitions, views[rank].local_row, engine="auto")
        nodes = np.concatenate([partition.inner for partition in partitions])
        h = rows[0][nodes].requires_grad_()
        out = block.at(1).aggregate(h, norm)
        (gradient,) = torch.autograd.grad(out, h, rows[1][nodes])
        found.append([nodes, out.detach().numpy(), gradient.numpy()])
    return found


def broadcasts(rank: int, world: int) -> dict[str, object]:
    """Broadcast 3 rows from rank 1 to all, and no rows, in an aligned epoch."""
    comm = communicator(rank, world)
    rows = torch.full((3, 2), float(rank))
    members = range(world)
    with comm.clock.epoch(aligned=True) as timed:
        comm.broadcast(rows, 1, members, purpose="embedding", layer=2, direction="forward")
        empty = comm.broadcast(torch.empty(0, 2), 0, members, purpose="feature")
        alone = comm.broadcast(torch.ones(1, 2), rank, [rank], purpose="feature")
    return {
        "rows": rows.tolist(),
        "empty": tuple(empty.shape),
        "alone": alone.tolist(),
        "barriers": timed.barriers,
        "traffic": {
            (row["purpose"], row["layer"], row["direction"], row["peer"]): (row["sent_bytes"], row["received_bytes"])
            for row in comm.traffic.rows()
        },
    }


class Unalike(CAGNET):
    """CAGNET whose copies draw dropout masks of their own."""

    def steps(self, epoch: int) -> Iterator[Step]:
        yield from (step for step in super().steps(epoch) if torch.manual_seed(self.worker.rank))


def group_bits(rank: int, world: int, cases: list[Case]) -> list[list[bytes]]:
    """Train each case; returns of each epoch the bits of layer 0's output, the logits and their gradients."""
    found = []
    for case in cases:
        trainer = case.trainer(rank, world)
        worker = trainer.worker
        trainer, seen = trainer, list[bytes]()

        def keep(module: object, inputs: object, out: torch.Tensor, seen: list[bytes] = seen) -> None:
            seen.append(out.detach().numpy().tobytes())
            out.register_hook(lambda grad: seen.append(grad.numpy().tobytes()))

        worker.model.graph_layers[0].register_forward_hook(keep)
        worker.model.register_forward_hook(keep)
        for epoch in range(case.train.epochs):
            trainer.train_epoch(epoch)
        found.append(seen)
    return found


def sampled_products(
    rank: int, world: int, cases: list[Case], epochs: int, tensors: list[torch.Tensor]
) -> list[list[list[np.ndarray]]]:
    """Aggregate, take back, and attend over the block of each epoch of each case; a method is CAGNET at a rate below 1.

    `tensors`: rows [N, width] to aggregate and to take back, then what a block attends with: rows z, a_src, a_dst, and
    rows to take back. Returns this rank's group's nodes, the nodes that this rank broadcasts, and its rows of the four
    results.
    """
    found = []
    for case in cases:
        trainer = case.trainer(rank, world)
        worker, epochs_found = trainer.worker, []
        for epoch in range(epochs):
            (step,) = trainer.method.steps(epoch)
            block = step.blocks[0]
            views = [worker.open_view(worker.job.train_view, peer) for peer in block.mesh.group]
            nodes = np.concatenate([view.partition.inner for view in views])
            sent = worker.partition.inner[block.sent[rank].rows.numpy()]
            assert step.stats == {"broadcast_rows": sent.size}
            h, z = (tensors[k][nodes].requires_grad_() for k in (0, 2))
            out = block.aggregate(h, worker.model.propagation)
            (back,) = torch.autograd.grad(out, h, tensors[1][nodes])
            attended = block.attend(z, *tensors[3:5])
            (attended_back,) = torch.autograd.grad(attended, z, tensors[5][nodes])
            results = [t.detach().numpy() for t in (out, back, attended, attended_back)]
            epochs_found.append([nodes, sent, *results])
        found.append(epochs_found)
    return found
