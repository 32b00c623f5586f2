"""What ranks of the tests of exact evaluations do: look at logits, at rows received, and at tensors held."""

from __future__ import annotations

import gc
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from harness.check.training import Case
from harness.runtime.comm import Communicator
from harness.runtime.evaluation import WholeBlock, evaluate, inference


def logits_in_pieces(rank: int, world: int, cases: list[Case], limits: list[float]) -> list[dict[str, Any]]:
    """Return of each case the weights, this rank's nodes, and for each limit logits, scores, pieces, bytes at once."""
    return [_in_pieces(case, rank, world, limits) for case in cases]


def _in_pieces(case: Case, rank: int, world: int, limits: list[float]) -> dict[str, Any]:
    worker = case.trainer(rank, world).worker
    model, view, comm = worker.model, worker.eval_view, worker.comm
    found = []
    exchange = Communicator.exchange_rows
    for limit in limits:
        received: list[int] = []

        def watched(
            self: Communicator, rows: Tensor, *args: Any, received: list[int] = received, **options: Any
        ) -> Tensor:
            out = exchange(self, rows, *args, **options)
            if options["purpose"] != "control":
                received.append(out.numel() * out.element_size())
            return out

        with mock.patch.object(Communicator, "exchange_rows", watched):
            scores = evaluate(model, view, comm, limit)
        with inference(model, comm):
            block = WholeBlock(comm, view.partition, model.widest_evaluated, limit)
            logits = model([block.at(layer) for layer in range(model.depth)], view.features, transform_first=True)
        found.append((logits.numpy(), scores, len(received) // model.depth, max(received, default=0)))
    weights = {name: value.detach().double().numpy() for name, value in model.named_parameters()}
    return {"weights": weights, "nodes": view.nodes[view.partition.inner], "found": found}


def held_tensors(rank: int, world: int, cases: list[Case]) -> list[list[int]]:
    """Return of each case the bytes of all tensors after the first epoch, its evaluation, the second and its one.

    Less those that were there before the case; then the most in the second evaluation.
    """
    return [_held(case, rank, world) for case in cases]


def _held(case: Case, rank: int, world: int) -> list[int]:
    before = tensor_bytes()
    trainer = case.trainer(rank, world)
    worker, found = trainer.worker, []
    limit, most = trainer.spec.evaluation_mib, [0]
    exchange = Communicator.exchange_rows

    def watched(self: Communicator, *args: Any, **options: Any) -> Tensor:
        most[0] = max(most[0], tensor_bytes())
        return exchange(self, *args, **options)

    for epoch in range(2):
        trainer.train_epoch(epoch)
        found.append(tensor_bytes() - before)
        with mock.patch.object(Communicator, "exchange_rows", watched):
            evaluate(worker.model, worker.eval_view, worker.comm, limit)
        found.append(tensor_bytes() - before)
    return [*found, most[0] - before]


def tensor_bytes() -> int:
    """Return the bytes of all tensors of this process, memory that several share counted once."""
    gc.collect()
    storages = {}
    for found in gc.get_objects():
        if type(found) in (torch.Tensor, torch.nn.Parameter):
            storage = found.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def sizes(rank: int, world: int, case: Case) -> dict[str, int]:
    """Return what of a rank's part tensors are as large as."""
    worker = case.trainer(rank, world).worker
    partition = worker.partition
    return {
        "inner": partition.num_inner,
        "boundary": partition.num_boundary,
        "edges": partition.num_edges,
        "train": int(worker.train_rows.numel()),
        "labelled": sum(len(rows) for rows in worker.view.rows.values()),
        "sent": int(np.asarray(partition.send_ptr)[-1]),
    }
