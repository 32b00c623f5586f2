"""Loader: the same batches in the same order at every depth; what goes wrong ahead is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch

from harness.runtime.batches import Batch, Loader
from harness.runtime.clock import Clock
from harness.runtime.comm import Communicator, Traffic

CPU = torch.device("cpu")
BATCHES = [Batch(seed, np.arange(2), 2, common=0) for seed in range(6)]


def loader(
    depth: int,
    draw: Callable[[Batch], int],
    fetch: Callable[[int, Communicator], int] = lambda drawn, comm: drawn,
    threads: int = 2,
) -> Loader[int, int]:
    comm = Communicator(0, 1, CPU, Clock(CPU), Traffic())
    return Loader(comm, draw, fetch, depth=depth, threads=threads)


@pytest.mark.parametrize("depth", [0, 1, 2, 10])
def test_batches_come_in_their_order(depth: int) -> None:
    def draw(batch: Batch) -> int:
        time.sleep(0.005 * (batch.seed % 2 == 0))  # so that the second of two threads is done first
        return batch.seed

    fetched: list[int] = []

    def fetch(drawn: int, comm: Communicator) -> int:
        fetched.append(drawn)
        return 10 * drawn

    loading = loader(depth, draw, fetch)
    assert list(loading.load(BATCHES)) == [10 * batch.seed for batch in BATCHES]
    assert list(loading.load(BATCHES[:1])) == [0]
    assert fetched == [*range(6), 0]
    loading.close()


def test_as_many_batches_are_ahead_as_asked_for() -> None:
    started: list[int] = []
    third = threading.Event()

    def draw(batch: Batch) -> int:
        started.append(batch.seed)
        if batch.seed == 2:
            third.set()
        return batch.seed

    loading = loader(2, draw)
    batches = loading.load(BATCHES)
    next(batches)
    assert third.wait(10)
    loading.synchronize()
    assert sorted(started) == [0, 1, 2]
    loading.close()


@pytest.mark.parametrize("depth", [0, 2])
def test_an_error_reaches_the_trainer(depth: int) -> None:
    def draw(batch: Batch) -> int:
        if batch.seed == 1:
            raise ValueError("no such node")
        return batch.seed

    loading = loader(depth, draw)
    batches = loading.load(BATCHES)
    assert next(batches) == 0
    with pytest.raises(ValueError, match="no such node"):
        next(batches)
    loading.close()
