from __future__ import annotations

import sys

import pytest
from support.ranks import run_ranks
from support.wire import large_all_reduce, large_exchange, late_rank, odd_exchanges

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the kernel's /proc/net/dev")
HEADERS = 64 * 1024  # what rendezvous, acknowledgements and TCP/IP headers may add besides 3 %


def agree(results: list[dict[str, int]]) -> bool:
    """Whether the counted bytes are within 3 % and headers of what the kernel saw."""
    counted = sum(r["counted"] for r in results)
    kernel = max(r["kernel"] for r in results)
    return counted <= kernel <= counted * 1.03 + HEADERS


@pytest.mark.alone
@linux
@pytest.mark.parametrize("world", [2, 3])
def test_counted_exchange_is_what_the_kernel_saw(world: int) -> None:
    # Other programs use loopback too: one undisturbed run of five is proof.
    tries = [run_ranks(large_exchange, world, 50_000, 64) for _ in range(1)]
    for _ in range(4):
        if agree(tries[-1]):
            break
        tries.append(run_ranks(large_exchange, world, 50_000, 64))
    assert tries[-1][0]["counted"] == 50_000 * 64 * 4 * (world - 1)
    assert agree(tries[-1]), tries


@pytest.mark.alone
@linux
def test_counted_all_reduce_is_what_the_kernel_saw() -> None:
    tries = [run_ranks(large_all_reduce, 2, 4_000_000) for _ in range(1)]
    for _ in range(4):
        if agree(tries[-1]):
            break
        tries.append(run_ranks(large_all_reduce, 2, 4_000_000))
    assert sum(r["counted"] for r in tries[-1]) == 2 * 4_000_000 * 4
    assert agree(tries[-1]), tries


def test_uneven_exchanges_arrive_in_rank_order_and_are_counted_by_peer() -> None:
    results = run_ranks(odd_exchanges, 3)
    for rank, result in enumerate(results):
        assert result["wanted"] == [(q + 1) * rank for q in range(3)]
        # Peer q sends (q + 1) * rank values, after those for the ranks before.
        want = [100 * q + sum((q + 1) * p for p in range(rank)) + k for q in range(3) for k in range((q + 1) * rank)]
        assert result["received"] == want
        assert result["gathered"] == [[0, 0], [1, 10], [2, 20]]
        assert result["empty"] == (0, 3)
        sent = {q: (rank + 1) * q * 8 for q in range(3) if q != rank}
        rows = {r["peer"]: r for r in result["rows"] if r["purpose"] == "embedding"}
        assert {q: rows[q]["sent_bytes"] for q in rows} == {q: sent[q] for q in rows}
        assert result["sent"]["embedding"] == sum(sent.values())
        assert result["sent"]["control"] == 2 * 8 + 2 * 16
        assert result["sent"]["gradient"] == 0


@pytest.mark.alone
@pytest.mark.parametrize("aligned", [True, False])
def test_waiting_for_a_late_rank_is_told_from_transfer_by_barriers(aligned: bool) -> None:
    early, late = run_ranks(late_rank, 2, 0.4, aligned=aligned)
    waited = "wait" if aligned else "comm"
    assert 0.3 < early[waited] < 1
    assert late["wait"] < 0.2
    assert early["comm" if aligned else "wait"] < 0.2
    assert [r["barriers"] for r in (early, late)] == ([2, 2] if aligned else [0, 0])
    for phases in (early, late):
        named = sum(v for k, v in phases.items() if k not in ("barriers", "wall"))
        assert named == pytest.approx(phases["wall"], rel=0.02)
