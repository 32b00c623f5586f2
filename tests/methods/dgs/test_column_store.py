from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.ranks import run_ranks
from support.stores import Asked, Sharded, gather_columns

from harness.runtime.row_plan import take

NODES, WIDTH, ITEM = 50, 9, 4
CALLS = 12


def sharded(world: int) -> Sharded:
    rng = np.random.default_rng(world)
    owner = rng.integers(0, world, NODES).astype(np.int32)
    return Sharded(rng.normal(size=(NODES, WIDTH)).astype(np.float32), owner)


def changing(world: int) -> list[list[Asked]]:
    """Calls whose columns differ between ranks, stay, change, are none or all; and ids that can be received
    in place, repeat, or are missing."""
    rng = np.random.default_rng(5)
    kept = [np.sort(rng.permutation(WIDTH)[: 2 + 3 * r]) for r in range(world)]
    calls = []
    for k in range(CALLS):
        ids = [rng.integers(0, NODES, [0, 30, 90][(k + r) % 3]) for r in range(world)]
        if k % 4 == 0:
            ids = [np.arange(NODES)] * world
        columns: list[NDArray[np.int64] | None] = [None if (k + r) % 5 == 0 else kept[r].copy() for r in range(world)]
        if k == 0:
            columns = [None] * world
        if k == 6:
            kept[0] = np.sort(rng.permutation(WIDTH)[:2])  # as many others
        if k == 8:
            kept = [np.arange(WIDTH), *(np.array([r], np.int64) for r in range(1, world))]
            kept[-1] = np.empty(0, np.int64)
        calls.append([Asked(ids[r], columns[r]) for r in range(world)])
    return calls


def expected(data: Sharded, asked: Asked, rank: int) -> NDArray[np.float32]:
    rows = data.rows[asked.ids].copy()
    if asked.columns is not None:
        remote = np.flatnonzero(data.owner[asked.ids] != rank)
        rows[np.ix_(remote, np.setdiff1d(np.arange(WIDTH), asked.columns))] = 0
    return rows


@pytest.mark.quick(1)
@pytest.mark.parametrize(("world", "cache", "aside"), [(1, True, False), (2, False, True), (3, True, False)])
def test_every_rank_reads_its_own_columns_and_tells_them_when_they_change(world: int, cache: bool, aside: bool) -> None:
    data, calls = sharded(world), changing(world)
    rng = np.random.default_rng(3)
    cached = [rng.permutation(NODES)[: 20 if cache else 0] for _ in range(world)]
    by_rank = run_ranks(gather_columns, world, data, calls, cached, aside=aside)
    told: list[NDArray[np.int64] | None] = [None] * world
    news = 0
    for k, call in enumerate(calls):
        wanted = [set(call[r].ids[data.owner[call[r].ids] != r]) - set(cached[r]) for r in range(world)]
        for r, asked in enumerate(call):
            got, columns = by_rank[r][k], asked.columns
            assert np.array_equal(got.rows, expected(data, asked, r)), (k, r)
            new = columns is not None and (told[r] is None or not np.array_equal(told[r], columns))
            news += new
            told[r] = columns if new else told[r]
            size = columns.size if new and columns is not None else 0
            assert got.control == (world - 1) * (8 + 4 * size) + 4 * len(wanted[r]), (k, r)
            widths = [WIDTH if c.columns is None else c.columns.size for c in call]
            sent = sum(w * sum(data.owner[i] == r for i in wanted[p]) for p, w in enumerate(widths) if p != r)
            assert got.feature == sent * ITEM, (k, r)
    assert news >= 2 * world + 1


def test_a_column_that_is_not_there_is_refused() -> None:
    rows = torch.zeros(4, 3)
    for at, columns in ([0, 4], [1]), ([0], [3]), ([0], [-1]):
        with pytest.raises(IndexError, match="an index is not in"):
            take(rows, torch.tensor(at), torch.tensor(columns))
