"""What ranks of the tests of exact evaluations do: look at logits, rows received, tensors held."""

from __future__ import annotations

import gc
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from support.fake_device import in_place_of_cuda, memory, register
from torch import Tensor

from harness.check.training import Case
from harness.runtime.comm import Communicator
from harness.runtime.counters import THRESHOLD, trim_heap
from harness.runtime.evaluation import ChunkedEvaluation, WholeBlock, evaluate, evaluate_in_chunks, inference


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
        "edges": partition.meta["table"][partition.rank]["edges"],
        "train": int(worker.train_rows.numel()),
        "labelled": sum(len(rows) for rows in worker.view.rows.values()),
        "sent": int(np.asarray(partition.send_ptr)[-1]),
    }


def in_strips(
    rank: int, world: int, cases: list[Case], limits: list[float]
) -> list[list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], dict[str, Any], dict[str, Any], int, int]]]:
    """Return for each case and limit logits and scores of `evaluate` and in strips, and how many strips and tiles."""
    found = []
    for case in cases:
        worker = case.trainer(rank, world).worker
        model, view, comm, own = worker.model, worker.eval_view, worker.comm, []
        with inference(model, comm):
            block = WholeBlock(comm, view.partition, model.widest_evaluated, 64)
            whole = model([block.at(layer) for layer in range(model.depth)], view.features(), transform_first=True)
        for limit in limits:
            with inference(model, comm):
                strips = ChunkedEvaluation(model, view, comm, limit)
                chunks = list(strips.logits())
                logits = torch.cat([rows for _, rows in chunks])
                assert [chunk.stop for chunk, _ in chunks[:-1]] == [chunk.start for chunk, _ in chunks[1:]]
                filed = ChunkedEvaluation(model, view, comm, limit, view.partition.view)
                assert torch.equal(torch.cat([rows for _, rows in filed.logits()]), logits)
            scores = evaluate(model, view, comm), evaluate_in_chunks(model, view, comm, limit)
            own.append((whole.numpy(), logits.numpy(), *scores, len(chunks), len(strips._tiles.firsts)))
        found.append(own)
    return found


def most_of_process(rank: int, world: int, case: Case) -> tuple[list[int], list[dict[str, float | None]]]:
    """Return the most bytes of this process's own memory in an evaluation, bounded and whole, beyond those before."""
    found, scores = [], []
    for bound in (case.train.eval_memory, None):  # a whole one leaves a heap full of holes
        spec = case.train.model_copy(update={"eval_memory": bound})
        trainer = replace(case, train=spec).trainer(rank, world)
        trainer.worker.view.scored_labels()
        assert trainer.worker.features is not None  # what training holds is there before
        trainer.scores()
        gc.collect()
        trim_heap()
        before, most, ended = own_memory(), [0], threading.Event()

        def watch(most: list[int] = most, ended: threading.Event = ended) -> None:
            while not ended.wait(5e-4):
                most[0] = max(most[0], own_memory())

        thread = threading.Thread(target=watch)
        thread.start()
        with mock.patch.dict(os.environ, {THRESHOLD: str(32 << 20)}):  # as a rank of a trial has it
            scores.append(trainer.scores())
        ended.set()
        thread.join()
        found.append(most[0] - before)
        del trainer
    return found, scores


def own_memory() -> int:
    """Return the resident bytes of this process that no file has."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def most_on_device(
    rank: int, world: int, case: Case, limit: float
) -> tuple[dict[str, int], dict[str, dict[str, float | None]]]:
    """Return the most bytes of the fake device in an evaluation, beyond those before; what stays; and the scores."""
    register()
    scores, most = {"cpu": case.trainer(rank, world).scores()}, {}
    with in_place_of_cuda() as device:
        trainer = replace(case, device="cuda", train=case.train.model_copy(update={"evaluation_mib": limit})).trainer(
            rank, world
        )
        worker = trainer.worker
        assert worker.device == device
        worker.view.scored_labels()
        for name, work in (
            ("strips", trainer.scores),
            ("whole", lambda: evaluate(worker.model, worker.eval_view, worker.comm, limit)),
        ):
            gc.collect()
            before, seen, adopt = memory.bytes(), [0], type(memory).adopt

            def watched(self: Any, host: Any, seen: list[int] = seen, adopt: Any = adopt) -> Any:
                storage = adopt(self, host)
                seen[0] = max(seen[0], memory.bytes())
                return storage

            with mock.patch.object(type(memory), "adopt", watched):
                scores[name] = work()
            gc.collect()
            most[name], most[f"after {name}"] = seen[0] - before, memory.bytes() - before
    return most, scores
