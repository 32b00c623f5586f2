from __future__ import annotations

import numpy as np
import pytest
import torch

from harness.runtime.row_plan import RowPlan, RowPlanOnDevice

NODES = 60


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("which", ["mixed", "own", "others", "none"])
def test_it_is_the_plan_of_the_host(world: int, cached: bool, which: str) -> None:
    rng = np.random.default_rng(world)
    owner, row = rng.integers(0, world, NODES).astype(np.int32), rng.permutation(NODES).astype(np.int32)
    remote = np.flatnonzero(owner != world - 1)
    slot = np.full(NODES, -1, np.int32)
    slot[remote[::3]] = np.arange(remote[::3].size)
    chosen = {"mixed": np.ones(NODES, bool), "own": owner == world - 1, "others": owner != world - 1}
    nodes = rng.permutation(np.flatnonzero(chosen.get(which, np.zeros(NODES, bool))))[:40]
    nothing, table = np.empty(0, np.int32), np.full(NODES, -1, np.int32)
    want = RowPlan.of(nodes, owner, row, slot if cached else nothing, table, rank=world - 1, world=world)
    place = torch.from_numpy(slot) if cached else None
    given = torch.from_numpy(nodes), torch.from_numpy(owner), torch.from_numpy(row)
    found = RowPlanOnDevice.of(*given, place, rank=world - 1, world=world)
    assert found.counts == want.counts
    assert found.owned == np.count_nonzero(owner[nodes] == world - 1)
    for name in ("own", "asked", "asked_at", "cached", "cached_at"):
        tensor, array = getattr(found, name), getattr(want, name)
        assert str(tensor.dtype) == f"torch.{array.dtype}"
        np.testing.assert_array_equal(tensor.numpy(), array)


@pytest.mark.parametrize("columns", [None, torch.tensor([1, 3])])
def test_rows_come_to_their_places(columns: torch.Tensor | None) -> None:
    values = torch.rand(4, 5)
    owner, row = torch.tensor([0, 1, 0, 1]).int(), torch.tensor([0, 0, 1, 1]).int()
    slot = torch.tensor([-1, 0, -1, -1]).int()
    plan = RowPlanOnDevice.of(torch.tensor([3, 0, 1]), owner, row, slot, rank=0, world=2)
    result = torch.full((3, 5), torch.nan)
    plan.copy_own(values[[0, 2]], result)
    received = values[[3]] if columns is None else values[[3]][:, columns]
    plan.spread(received, result, columns)
    plan.copy_cached(values[[1]], result, columns)
    want = values[[3, 0, 1]]
    if columns is not None:
        want[[0, 2]] = torch.zeros(2, 5).index_copy(1, columns, want[[0, 2]][:, columns])
    assert torch.equal(result, want)
