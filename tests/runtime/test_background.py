from __future__ import annotations

import pytest
from support.ranks import run_ranks
from support.wire import beside, broken_background

STEPS, SIZE = 4, 1000


@pytest.mark.parametrize("world", [2, 3])
def test_transfers_beside_the_trainer_arrive_in_order_and_are_counted_apart(world: int) -> None:
    results = run_ranks(beside, world, STEPS, SIZE)
    for result in results:
        assert result["received"] == [[100.0 * step + q for q in range(world)] for step in range(STEPS)]
        rows = [row for row in result["rows"] if row["overlapped"] and row["purpose"] != "control"]
        last = [row for row in result["rows"] if row["purpose"] == "control"]
        assert {row["scope"] for row in last} == {"epoch"}
        assert sum(row["sent_bytes"] for row in last) == (world - 1) * SIZE * 4 * 4
        assert sum(row["sent_bytes"] for row in rows) == STEPS * (world - 1) * SIZE * 4 * 4
        assert {row["layer"] for row in rows} == set(range(STEPS))
        assert all(row["purpose"] == "feature" for row in result["rows"] if not row["overlapped"])


def test_a_group_of_one_moves_nothing() -> None:
    [result] = run_ranks(beside, 1, STEPS, SIZE)
    assert result["received"] == [[100.0 * step] for step in range(STEPS)]
    assert result["rows"] == []
    assert result["busy"] == pytest.approx(result["comm"], abs=0.05)


def test_a_failed_transfer_is_raised_where_it_is_waited_for() -> None:
    assert run_ranks(broken_background, 2) == ["RuntimeError"] * 2
