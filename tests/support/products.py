"""Sparse products of a trial, for tests of their order."""

from __future__ import annotations

from typing import Any
from unittest import mock

from torch import Tensor

from harness.check.training import Case, RankOutcome, train
from harness.graph.block import Block


def train_and_watch_widths(rank: int, world: int, cases: list[Case]) -> list[tuple[RankOutcome, list[int]]]:
    """Train and evaluate each case; returns also the widths of the training's sparse products, in order."""
    return [_watch(rank, world, case) for case in cases]


def _watch(rank: int, world: int, case: Case) -> tuple[RankOutcome, list[int]]:
    widths: list[int] = []

    def watched(name: str) -> Any:
        method = getattr(Block, name)

        def multiply(block: Block, x: Tensor) -> Tensor:
            widths.append(x.shape[1])
            product: Tensor = method(block, x)
            return product

        return mock.patch.object(Block, name, multiply)

    with watched("multiply"), watched("multiply_transposed"):
        return train(rank, world, [case])[0], widths
