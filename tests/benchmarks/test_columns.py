"""Columns of a fetch, 85 % of 602 features of 20,000 rows: taken by the owner, written by the reader.

Each in turn (A B) with what it is measured by: all columns of the same rows, taken or written likewise; for
values lost, a copy of the rows. CPU time of the one thread. Run with `-s` to see the figures.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from harness.models.functional import drop_values
from harness.runtime.row_plan import RowPlan, take

ROWS, ALL_ROWS, WIDTH, RATE = 20_000, 60_000, 602, 0.85
WARMUP, TURNS = 2, 15

Work = Callable[[], object]


def works() -> dict[str, tuple[Work, Work]]:
    """Return each piece of work on columns, and the same on whole rows."""
    rng = np.random.default_rng(0)
    inner = torch.from_numpy(rng.standard_normal((ALL_ROWS, WIDTH), np.float32))
    columns = torch.from_numpy(np.sort(rng.choice(WIDTH, round(RATE * WIDTH), replace=False)))
    # The first rows are another rank's, in no order; the others are this one's.
    nodes = rng.permutation(ALL_ROWS)
    owner, row = np.zeros(ALL_ROWS, np.int32), np.arange(ALL_ROWS, dtype=np.int32)
    owner[rng.permutation(ALL_ROWS)[:ROWS]] = 1
    nothing, table = np.empty(0, np.int32), np.full(ALL_ROWS, -1, np.int32)
    plan = RowPlan.of(nodes, owner, row, nothing, table, rank=0, world=2)
    at, result = torch.from_numpy(plan.asked), torch.zeros(ALL_ROWS, WIDTH)
    some, whole = take(inner, at, columns), take(inner, at, None)
    copy = torch.zeros_like(whole)
    return {
        "take": (lambda: take(inner, at, columns), lambda: take(inner, at, None)),
        "write": (lambda: plan.spread(some, result, columns), lambda: plan.spread(whole, result, None)),
        "lose": (lambda: drop_values(copy, 0.2, 1), lambda: copy.copy_(whole)),
    }


@pytest.mark.parametrize("name", ["take", "write", "lose"])
def test_beside_whole_rows(benchmark: Any, name: str) -> None:
    columns, rows = works()[name]

    def turn() -> tuple[float, float]:
        return timed(columns), timed(rows)

    turns = benchmark.pedantic(lambda: [turn() for _ in range(WARMUP + TURNS)], rounds=1)
    ours, theirs = 1e3 * np.median(turns[WARMUP:], axis=0)
    print(f"\n{name}: {ours:.1f} ms, whole rows {theirs:.1f} ms")


def timed(work: Work) -> float:
    start = time.thread_time()
    work()
    return time.thread_time() - start
