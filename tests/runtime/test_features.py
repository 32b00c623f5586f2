from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.ranks import run_ranks
from support.stores import Gathered, Sharded, gather_each, put_and_read, put_twice
from support.wire import communicator

from harness.runtime.features import HostStore

NODES, WIDTH, ITEM = 60, 5, 4
COLUMNS = np.array([3, 0])


def sharded(world: int, owners: int | None = None) -> Sharded:
    """Random rows; with fewer `owners` than ranks the last rank has no nodes."""
    rng = np.random.default_rng(world)
    owner = rng.integers(0, owners or world, NODES).astype(np.int32)
    return Sharded(rng.normal(size=(NODES, WIDTH)).astype(np.float32), owner)


def asks(data: Sharded, world: int) -> list[list[NDArray[np.int64]]]:
    """Ids for each rank: mixed, repeated, none on some rank, own only, remote only, and what is in order."""
    rng = np.random.default_rng(7)
    own = [np.flatnonzero(data.owner == r) for r in range(world)]
    other = [np.flatnonzero(data.owner != r) for r in range(world)]
    by_owner = [np.concatenate([own[r], *(own[p] for p in range(world) if p != r)]) for r in range(world)]
    return [
        [rng.permutation(NODES)[:40] for _ in range(world)],
        [rng.integers(0, NODES, 200) for _ in range(world)],
        [np.repeat(rng.integers(0, NODES, 3), 4) if r == 1 else np.empty(0, np.int64) for r in range(world)],
        own,
        [rng.permutation(ids) for ids in other],
        by_owner,  # remote rows can be received in place
        [np.empty(0, np.int64)] * world,
    ]


def expected(data: Sharded, ids: NDArray[np.int64], rank: int, columns: bool) -> NDArray[np.float32]:
    rows = data.rows[ids].copy()
    if columns:
        dropped = np.setdiff1d(np.arange(WIDTH), COLUMNS)
        rows[np.ix_(data.owner[ids] != rank, dropped)] = 0
    return rows


def check(
    data: Sharded,
    world: int,
    by_rank: list[list[Gathered]],
    asked: list[list[NDArray[np.int64]]],
    cached: list[NDArray[np.int64]],
    columns: bool,
    files: bool = False,
) -> None:
    """Values, figures, and bytes by the closed form: what peers want of a rank is what it sends."""
    width = len(COLUMNS) if columns else WIDTH
    for k, ask in enumerate(asked):
        wanted = [set(ask[r]) - set(np.flatnonzero(data.owner == r)) for r in range(world)]
        fetched = [wanted[r] - set(cached[r]) for r in range(world)]
        for r in range(world):
            got = by_rank[r][1 + k]
            assert np.array_equal(got.rows, expected(data, ask[r], r, columns)), (k, r)
            sent = sum(data.owner[i] == r for p in range(world) for i in fetched[p])
            assert got.control == 8 * (world - 1) + 4 * len(fetched[r]), (k, r)
            assert got.feature == sent * width * ITEM, (k, r)
            described = {
                "input_nodes": len(ask[r]),
                "remote_nodes": len(wanted[r]),
                "cached_nodes": len(wanted[r]) - len(fetched[r]),
            }
            if files:  # once for the rank itself, and once for all its peers
                own = set(np.flatnonzero(data.owner == r)) - set(cached[r])
                described["disk_nodes"] = len(own & set(ask[r])) + len(own & set().union(*fetched))
                assert got.disk == described["disk_nodes"] * WIDTH * ITEM
            assert got.described == described, (k, r)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("world", "owners", "columns", "cache", "aside", "files"),
    [
        (2, None, False, False, False, False),
        (3, None, False, True, True, False),
        (3, 2, True, True, False, False),  # the last rank owns nothing
        (3, 2, False, False, False, True),
        (3, None, True, True, True, True),
    ],
)
def test_any_ids_give_their_rows_and_each_remote_node_costs_one_id_and_one_row(
    world: int, owners: int | None, columns: bool, cache: bool, aside: bool, files: bool, tmp_path: Path
) -> None:
    data = sharded(world, owners)
    asked = asks(data, world)
    rng = np.random.default_rng(3)
    # Own nodes are among them: they are not asked for.
    cached = [rng.permutation(NODES)[: 30 if cache else 0] for _ in range(world)]
    folder, chosen = tmp_path if files else None, COLUMNS if columns else None
    by_rank = run_ranks(gather_each, world, data, asked, chosen, cached, aside=aside, folder=folder)
    check(data, world, by_rank, asked, cached, columns, files)
    for r in range(world):
        filled = [set(cached[p]) - set(np.flatnonzero(data.owner == p)) for p in range(world)]
        assert by_rank[r][0].control == 8 * (world - 1) + 4 * len(filled[r])
        sent = sum(data.owner[i] == r for p in range(world) for i in filled[p])
        assert by_rank[r][0].feature == sent * WIDTH * ITEM


def test_alone_nothing_is_sent() -> None:
    data = sharded(1)
    asked = [*asks(data, 1)[:2], [np.empty(0, np.int64)]]
    [results] = run_ranks(gather_each, 1, data, asked, COLUMNS, [np.arange(4)], aside=False)
    for ask, got in zip(asked, results[1:], strict=True):
        assert np.array_equal(got.rows, data.rows[ask[0]])
        assert got.control == got.feature == got.described["remote_nodes"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("as_tensors", [False, True])
def test_the_highest_rank_that_puts_a_row_wins_whoever_owns_it(as_tensors: bool) -> None:
    world, data = 3, sharded(3, 2)
    rng = np.random.default_rng(1)
    puts = [
        [rng.permutation(NODES)[:35] for _ in range(world)],
        [np.arange(NODES) for _ in range(world)],
        [rng.permutation(NODES)[:20] if r else np.empty(0, np.int64) for r in range(world)],
        [np.flatnonzero(data.owner == r) for r in range(world)],
    ]
    want = data.rows.copy()
    results = run_ranks(put_and_read, world, data, puts, as_tensors)
    for k, put in enumerate(puts):
        for r in range(world):
            want[put[r]] = (100 * k + r + put[r] / 1024)[:, None]
        for r in range(world):
            states, sent = results[r]
            assert np.array_equal(states[k], want), (k, r)
            remote = int((data.owner[put[r]] != r).sum())
            assert sent[k]["control"] == 8 * (world - 1) + 4 * remote
            assert sent[k]["embedding"] == remote * WIDTH * ITEM
            assert sent[k]["feature"] == 0


def test_a_remote_node_put_twice_is_refused() -> None:
    assert run_ranks(put_twice, 2, sharded(2)) == ["a node is put twice"] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_host_storage_copies_every_row_it_is_asked_for_and_counts_it_as_swap(dtype: torch.dtype) -> None:
    comm, rng = communicator(0, 1), np.random.default_rng(0)
    features = rng.normal(size=(2 * NODES, WIDTH)).astype(np.float32)
    nodes = rng.permutation(2 * NODES)[:NODES]
    store = HostStore(comm, features, nodes, dtype=dtype)
    ids = rng.integers(0, NODES, 90)
    rows, figures = store.read(ids)
    assert np.array_equal(rows.numpy(), features[nodes[ids]])
    assert store.gather(ids).dtype == dtype
    some = store.gather(ids, torch.from_numpy(COLUMNS)).numpy()
    assert np.array_equal(some[:, COLUMNS], features[nodes[ids]][:, COLUMNS])
    assert not np.delete(some, COLUMNS, 1).any()
    assert store.gather(ids[:0]).shape == (0, WIDTH)
    assert figures == {"input_nodes": 90, "remote_nodes": 0, "cached_nodes": 0}
    [row] = comm.traffic.rows()
    assert (row["purpose"], row["layer"], row["direction"], row["peer"]) == ("swap", 0, "none", -1)
    assert (row["sent_bytes"], row["received_bytes"]) == (0, 90 * (2 * WIDTH + 2) * dtype.itemsize)


@pytest.mark.parametrize("columns", [None, COLUMNS])
def test_rows_of_host_storage_that_the_device_keeps_are_not_copied(columns: np.ndarray | None) -> None:
    comm, rng = communicator(0, 1), np.random.default_rng(1)
    features = rng.normal(size=(2 * NODES, WIDTH)).astype(np.float32)
    nodes, kept = rng.permutation(2 * NODES)[:NODES], rng.permutation(NODES)[: NODES // 2]
    plain, store = (HostStore(comm, features, nodes, dtype=torch.float32) for _ in range(2))
    store.fill(kept)
    some = None if columns is None else torch.from_numpy(columns)
    width = WIDTH if columns is None else columns.size
    for ids in (rng.integers(0, NODES, 90), kept[:5], np.setdiff1d(np.arange(NODES), kept), kept[:0]):
        before = comm.traffic.rows()[0]["received_bytes"]
        rows, figures = store.read(ids, some)
        found = int(np.isin(ids, kept).sum())
        assert figures == {"input_nodes": ids.size, "remote_nodes": 0, "cached_nodes": found}
        assert comm.traffic.rows()[0]["received_bytes"] - before == 4 * width * (ids.size - found)
        assert torch.equal(rows, plain.gather(ids, some))
