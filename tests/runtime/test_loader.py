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
    pool: int = 0,
) -> Loader[int, int]:
    comm = Communicator(0, 1, CPU, Clock(CPU), Traffic())
    return Loader(comm, lambda batch, _: draw(batch), fetch, depth=depth, threads=threads, pool=pool)


@pytest.mark.parametrize(("depth", "pool"), [(0, 0), (1, 0), (2, 0), (10, 0), (0, 1), (0, 4), (0, 10)])
def test_batches_come_in_their_order(depth: int, pool: int) -> None:
    def draw(batch: Batch) -> int:
        time.sleep(0.005 * (batch.seed % 2 == 0))  # so that the second of two threads is done first
        return batch.seed

    fetched: list[int] = []

    def fetch(drawn: int, comm: Communicator) -> int:
        fetched.append(drawn)
        return 10 * drawn

    loading = loader(depth, draw, fetch, pool=pool)
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


def test_a_pool_is_filled_when_none_is_left_by_as_many_threads_as_there_are() -> None:
    """Draws meet in pairs: one thread alone would wait for ever. What is handed out is what is drawn."""
    drawn: list[int] = []
    handed: list[int] = []
    pair = threading.Barrier(2, timeout=10)

    def draw(batch: Batch) -> int:
        pair.wait()
        drawn.append(batch.seed)
        return batch.seed

    def hand_out(batch: Batch) -> Batch:
        handed.append(batch.seed)
        return batch

    loading = loader(0, draw, threads=2, pool=4)
    there = []
    for seed in loading.load(map(hand_out, BATCHES)):
        there.append((seed, len(handed), len(drawn)))
    assert there == [*((seed, 4, 4) for seed in range(4)), (4, 6, 6), (5, 6, 6)]
    loading.close()


def test_no_more_batches_of_a_pool_are_drawn_at_a_time_than_there_are_threads() -> None:
    lock, now, most = threading.Lock(), 0, 0

    def draw(batch: Batch) -> int:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.01)
        with lock:
            now -= 1
        return batch.seed

    loading = loader(0, draw, threads=2, pool=6)
    assert list(loading.load(BATCHES)) == list(range(6))
    assert most == 2
    loading.close()


def test_what_a_pool_takes_to_fill_is_sampling() -> None:
    """The trainer waits in its phase `sample`, the fetch of each is its own, and nothing goes on beside it."""
    clock = Clock(CPU)
    comm = Communicator(0, 1, CPU, clock, Traffic())

    def fetch(drawn: int, comm: Communicator) -> int:
        with comm.clock.phase("fetch"):
            time.sleep(0.02)
        return drawn

    def draw(batch: Batch, comm: Communicator) -> int:
        time.sleep(0.05)
        return batch.seed

    loading = Loader(comm, draw, fetch, depth=0, threads=2, pool=2)
    with clock.epoch() as timed:
        batches = loading.load(BATCHES[:2])
        for _ in range(2):
            with clock.phase("sample"):
                next(batches)
            time.sleep(0.03)
    assert timed.phases["sample"] >= 0.05
    assert timed.phases["fetch"] >= 0.04
    assert timed.phases["other"] >= 0.06
    assert sum(timed.phases.values()) == pytest.approx(timed.wall_s)
    assert clock.background == {}
    loading.close()


@pytest.mark.parametrize(("depth", "pool"), [(0, 0), (2, 0), (0, 1)])
def test_an_error_reaches_the_trainer(depth: int, pool: int) -> None:
    def draw(batch: Batch) -> int:
        if batch.seed == 1:
            raise ValueError("no such node")
        return batch.seed

    loading = loader(depth, draw, pool=pool)
    batches = loading.load(BATCHES)
    assert next(batches) == 0
    with pytest.raises(ValueError, match="no such node"):
        next(batches)
    loading.close()
