"""Batches: one pass over all training nodes an epoch, equally many steps on all ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.runtime.batches import Batch, node_batches, subgraph_batches

COUNTS = [7, 0, 12]


def worker(rank: int, seed: int = 0) -> Any:
    """Return a rank whose inner nodes are 100 rank, 100 rank + 1, ..., every second one a training node."""
    return SimpleNamespace(
        rank=rank,
        world=len(COUNTS),
        job=SimpleNamespace(config=SimpleNamespace(seed=seed)),
        train_counts=COUNTS,
        train_total=sum(COUNTS),
        view=SimpleNamespace(
            topology=SimpleNamespace(num_nodes=1000),
            split_nodes={"train": 100 * rank + 2 * np.arange(COUNTS[rank])}.__getitem__,
        ),
    )


def targets(batches: list[Batch]) -> list[int]:
    return [int(node) for batch in batches for node in batch.targets]


@pytest.mark.parametrize(("size", "steps"), [(5, 3), (12, 1), (100, 1), (0, 1)])
def test_an_epoch_is_one_pass_with_equal_steps(size: int, steps: int) -> None:
    ranks = [node_batches(worker(rank), 0, size) for rank in range(3)]
    assert [len(batches) for batches in ranks] == [steps] * 3
    for rank, batches in enumerate(ranks):
        assert sorted(targets(batches)) == [100 * rank + 2 * i for i in range(COUNTS[rank])]
        assert all(len(batch.targets) <= (size or 12) for batch in batches)
    for together in zip(*ranks, strict=True):
        assert {batch.total for batch in together} == {sum(len(batch.targets) for batch in together)}


def test_order_and_seeds_are_those_of_seed_rank_epoch_and_batch() -> None:
    first = node_batches(worker(2), 0, 5)
    assert targets(first) == targets(node_batches(worker(2), 0, 5))
    assert targets(first) != targets(node_batches(worker(2), 1, 5))
    assert targets(first) != targets(node_batches(worker(2, seed=1), 0, 5))
    seeds = {batch.seed for rank in range(3) for epoch in range(4) for batch in node_batches(worker(rank), epoch, 5)}
    assert len(seeds) == 3 * 4 * 3
    assert min(seeds) >= 0


@pytest.mark.parametrize(("size", "steps"), [(1000, 1), (100, 4), (333, 2), (334, 1), (-1, 1), (5000, 1)])
def test_subgraphs_have_as_many_nodes_as_the_graph(size: int, steps: int) -> None:
    batches = subgraph_batches(worker(0), 0, size)
    assert len(batches) == steps
    assert {batch.total for batch in batches} == {3 * sum(COUNTS)}
