"""Collective order: collectives of several threads are started in one order on all ranks, whoever is slow.

NCCL is not at hand: gloo takes its place behind torch's names, with one process group for all threads as there.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from support.ranks import run_ranks

from harness.check.graphs import TinyGraphs
from harness.check.training import Case, RankOutcome, outcome
from harness.deferred import dist
from harness.models.layer import ModelSpec
from harness.runtime.batches import Background
from harness.runtime.clock import Clock
from harness.runtime.comm import CollectiveOrder, Communicator, OrderedWork, Traffic
from harness.runtime.run_config import TrainSpec

CPU = torch.device("cpu")
COLLECTIVES = ("all_to_all_single", "all_reduce", "broadcast", "barrier")
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "pipegcn": ("pipegcn", {"staleness": 2}),
    "psc-gcn": ("psc-gcn", {"rate": 0.5, "cache": "inclusion", "refresh": 1}),
    "graphsage": ("graphsage", {"fanouts": 3, "batch_size": 4, "prefetch": 3, "cache": "degree"}),
    "graphsage asking": ("graphsage", {"fanouts": 3, "batch_size": 4, "topology": "owner", "prefetch": 2}),
    "clustergcn": ("clustergcn", {"clusters": 8, "per_batch": 2, "prefetch": 1}),
}


@contextmanager
def as_by_nccl(started: list[str], before: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Have communicators take the backend for nccl, and note each collective when it is started."""

    def noted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            sizes = [tuple(each.shape) for each in arguments if isinstance(each, torch.Tensor)]
            started.append(f"{name} of {sizes[:1]}" if name == "all_reduce" else name)
            result = real(*arguments, **named)
            before()
            return result

        return call

    real = {name: getattr(dist, name) for name in COLLECTIVES}
    with patch.multiple(dist, get_backend=lambda *_: "nccl", **{name: noted(name, real[name]) for name in COLLECTIVES}):
        yield


def trained(rank: int, world: int, case: Case) -> tuple[list[str], RankOutcome, RankOutcome]:
    """Train by gloo's own groups, and then as by nccl, each rank resting at places of its own."""
    by_gloo, started, rng = outcome(case.trainer(rank, world)), list[str](), random.Random(rank)
    with as_by_nccl(started, lambda: time.sleep(rng.choice([0, 0, 0.01 * rank]))):
        as_nccl = outcome(case.trainer(rank, world))
    return started, by_gloo, as_nccl


@pytest.mark.quick(1)
@pytest.mark.parametrize("timing", ["plain", "breakdown"])
@pytest.mark.parametrize("name", METHODS)
def test_every_rank_starts_the_same_collectives_in_the_same_order(name: str, timing: Any, tmp_path: Path) -> None:
    graph = TinyGraphs(tmp_path).get("transductive", 2).stored
    model, spec = ModelSpec(name="sage", layers=2, hidden=6), TrainSpec(epochs=3, precision="float64", threads=1)
    ranks = run_ranks(trained, 2, Case(graph, *METHODS[name], model, spec, timing=timing))
    orders = [started for started, _, _ in ranks]
    assert orders[0] == orders[1]
    assert "all_to_all_single" in orders[0]
    for _, by_gloo, as_nccl in ranks:
        assert [row["loss"] for row in as_nccl.rows] == [row["loss"] for row in by_gloo.rows]
        assert as_nccl.scores == by_gloo.scores
        assert as_nccl.traffic == by_gloo.traffic


def order_of(*, slow: str, turns: bool) -> list[str]:
    """Return the order in which a rank starts a transfer beside it and an all-reduce of its own; `slow` comes late."""
    started, first = list[str](), threading.Event()

    def start(name: str) -> Callable[..., None]:
        def call(*_: Any, **__: Any) -> None:
            started.append(name)
            first.set()

        return call

    collectives = {"all_to_all_single": start("transfer"), "all_reduce": start("reduce")}
    untaken = nullcontext() if turns else patch.object(CollectiveOrder, "take", lambda *_: None)
    with patch.multiple(dist, get_backend=lambda *_: "nccl", **collectives), untaken:
        comm = Communicator(0, 2, CPU, Clock(CPU), Traffic())
        background = Background(comm)

        def work(aside: Communicator) -> None:
            if slow == "transfer":
                first.wait(0.2)
            aside.exchange_rows(torch.zeros(2, 1), [1, 1], [1, 1], purpose="feature")

        pending = background.run(work)
        pending.admit()
        if slow == "reduce":
            first.wait(5)
        comm.all_reduce(torch.zeros(1), purpose="model")
        pending.wait()
        background.close()
    return started


def test_a_slow_transfer_keeps_its_place() -> None:
    assert order_of(slow="transfer", turns=True) == order_of(slow="reduce", turns=True) == ["transfer", "reduce"]


def test_without_turns_ranks_would_disagree() -> None:
    assert order_of(slow="transfer", turns=False) != order_of(slow="reduce", turns=False)


def test_turns_are_taken_in_the_order_of_admission() -> None:
    turns, works, seen = CollectiveOrder(), [OrderedWork() for _ in range(3)], list[int]()

    def work(number: int) -> None:
        turns.take(works[number])
        seen.append(number)
        turns.end(works[number])

    threads = [threading.Thread(target=work, args=(number,)) for number in (2, 0, 1)]
    for thread in threads:
        thread.start()
    for turn in works:
        turns.admit(turn)
    turns.take(None)  # the trainer's comes behind all of them
    assert seen == [0, 1, 2]
    for thread in threads:
        thread.join(5)


def test_a_work_that_failed_holds_nobody_up() -> None:
    turns, turn = CollectiveOrder(), OrderedWork()
    turns.end(turn)
    turns.admit(turn)
    turns.take(None)
