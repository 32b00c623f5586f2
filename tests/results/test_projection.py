"""Projection: closed forms worked out by hand, on made-up records."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from harness.errors import UserError
from harness.results.projection import (
    OFF,
    HostLink,
    base_of,
    checked,
    compare_counterparts,
    counterparts,
    parse_link,
    project,
    shares_cores,
    why_not,
)

FRAMED = 1514 / 1448
EPOCHS = 4


def channel(peer: int, sent: int, received: int, calls: int = 1, **keys: Any) -> dict[str, Any]:
    """A row of a rank's traffic; bytes and calls are given for one epoch."""
    row = {"scope": "epoch", "purpose": "feature", "layer": 0, "direction": "forward", "peer": peer}
    counts = {"sent_bytes": sent, "received_bytes": received, "calls": calls}
    return row | {key: value * EPOCHS for key, value in counts.items()} | keys


def reduction(share: int) -> dict[str, Any]:
    return channel(-1, share, share, purpose="model", layer=-1, direction="none")


@pytest.fixture
def measured(make_record):
    """Make a record of ranks with these rows; rank 1 computes 0.5 s of its epoch of 0.6 s, rank 0 less."""

    def make(*traffic: list[dict[str, Any]], network: Any = None, epoch: float = 0.6, **result: Any):
        config = {
            "partition": {"parts": len(traffic)},
            "method": {"name": "full"},
            "network": network,
            "timing": "plain",
        }
        phases = [{"forward": 0.1, "backward": 0.1, "comm": 0.35, "reduce": 0.05} for _ in traffic]
        phases[1] = {"sample": 0.1, "forward": 0.2, "other": 0.2, "comm": 0.07, "wait": 0.0, "reduce": 0.03}
        figures = {"epochs": EPOCHS, "epoch_time_s": epoch, "rank_phases": phases}
        ranks = [{"rank": i, "traffic": rows} for i, rows in enumerate(traffic)]
        return make_record(config=config, result=figures | result, ranks=ranks)

    return make


def wire_only(record, rate: float, latency: float = 0.0, hosted: int = 1):
    """Project without what sockets cost."""
    return project(record, HostLink(rate, latency, hosted, sockets=False))


def test_two_ranks_by_hand(measured) -> None:
    """Rank 0 sends 3 MB and receives 1 MB in two calls: 3 MB at 8 Mbit/s; the all-reduce is 2 MB each way."""
    record = measured(
        [channel(1, 3_000_000, 1_000_000, calls=2), reduction(2_000_000)],
        [channel(0, 1_000_000, 3_000_000, calls=2), reduction(2_000_000)],
    )
    found = wire_only(record, 8e6, 0.01)
    assert found.compute_s == pytest.approx(0.5)
    assert found.exchange_s == pytest.approx(3 + 2 * 0.01)
    assert found.reduce_s == pytest.approx(2 + 2 * 1 * 0.01)
    assert found.overlapped_s == 0
    assert found.epoch_time_s == pytest.approx(5.54)
    assert found.communication == pytest.approx(5.04 / 5.54)


def test_seconds_that_cores_worked_are_asked_for(measured) -> None:
    """They are not scaled to the epoch, and nothing is waited for; phases are, unless ranks shared cores."""
    rows = [channel(1, 1_000_000, 0)], [channel(0, 0, 1_000_000)]
    record = measured(*rows, rank_cpu=[{"forward": 0.2, "wait": 3.0}, {"forward": 0.3, "comm": 0.1, "wait": 3.0}])
    found = project(record, HostLink(8e6, sockets=False), worked=True)
    assert (found.compute_s, found.wait_s, found.exchange_s) == pytest.approx((0.3, 0, 1))
    assert wire_only(record, 8e6).compute_s == pytest.approx(0.5)


def test_swaps_stay_on_their_host(measured) -> None:
    swap = channel(-1, 10_000_000, 10_000_000, calls=50, purpose="swap")
    rows = [channel(1, 3_000_000, 0), reduction(2_000_000)], [channel(0, 0, 3_000_000), reduction(2_000_000)]
    assert wire_only(measured(*([*own, swap] for own in rows)), 8e6, 0.01) == wire_only(measured(*rows), 8e6, 0.01)


def test_exchanges_are_steps_one_after_another(measured) -> None:
    """What is sent in one direction of training and received in the other does not share the wire's time."""
    there = [channel(1, 5_000_000, 0), channel(1, 0, 2_000_000, direction="backward")]
    back = [channel(0, 0, 5_000_000), channel(0, 2_000_000, 0, direction="backward")]
    assert wire_only(measured(there, back), 8e6).exchange_s == pytest.approx(5 + 2)
    assert wire_only(measured(there[:1], back[:1]), 8e6).exchange_s == pytest.approx(5)


def four(measured):
    """Bytes from rank to rank (MB), row sends to column: 0-1-2-3; and an all-reduce share of 3 MB."""
    matrix = [[0, 4, 1, 0], [2, 0, 0, 3], [1, 1, 0, 5], [0, 2, 7, 0]]
    return measured(
        *[
            [channel(q, matrix[r][q] * 10**6, matrix[q][r] * 10**6) for q in range(4) if q != r]
            + [reduction(3_000_000)]
            for r in range(4)
        ]
    )


def test_four_ranks_the_busiest_link_decides(measured) -> None:
    """Sent: 5, 5, 7, 9 MB; received: 3, 7, 8, 8 MB. Three messages of a rank travel at once."""
    found = wire_only(four(measured), 8e6, 0.01)
    assert found.exchange_s == pytest.approx(9 + 0.01)
    assert found.reduce_s == pytest.approx(3 + 6 * 0.01)


def test_ranks_of_a_host_share_its_link_and_do_not_use_it_among_themselves(measured) -> None:
    """Hosts {0, 1} and {2, 3}: the first sends 1 + 3 MB and gets 1 + 1 + 2; the ring is as before."""
    found = wire_only(four(measured), 8e6, 0.01, hosted=2)
    assert found.exchange_s == pytest.approx(4 + 0.01)
    assert found.reduce_s == pytest.approx(3 + 6 * 0.01)
    alone = wire_only(four(measured), 8e6, 0.01, hosted=4)
    assert (alone.exchange_s, alone.reduce_s) == (0, 0)


def test_overlapped_exchanges_hide_behind_the_rest(measured) -> None:
    record = measured(
        [channel(1, 3_000_000, 3_000_000, overlapped=True), reduction(1_000_000)],
        [channel(0, 3_000_000, 3_000_000, overlapped=True), reduction(1_000_000)],
    )
    slow, fast = wire_only(record, 8e6), wire_only(record, 8e7)
    assert (slow.exchange_s, slow.overlapped_s) == (0, pytest.approx(3))
    assert slow.epoch_time_s == pytest.approx(max(0.5 + 1, 3))
    assert fast.epoch_time_s == pytest.approx(max(0.5 + 0.1, 0.3))


def test_an_infinite_network_leaves_compute_alone(measured) -> None:
    found = wire_only(four(measured), math.inf)
    assert (found.epoch_time_s, found.communication) == (pytest.approx(0.5), 0)


def test_sockets_cost_headers_and_what_software_took(measured) -> None:
    """Rank 1 computes most: its 0.07 s and 0.03 s of comm and reduce are the least they can take."""
    rows = [channel(1, 1448, 1448), reduction(0)], [channel(0, 1448, 1448), reduction(0)]
    found = project(measured(*rows), HostLink(8 * 1514))
    assert (found.exchange_s, found.reduce_s) == (pytest.approx(1), pytest.approx(0.03))
    unlimited = project(measured(*rows), HostLink(math.inf))
    assert unlimited.epoch_time_s == pytest.approx(0.6)  # the trial itself
    assert unlimited.exchange_s == pytest.approx(0.07)


def crowded(measured, threads: int = 1, **result: Any):
    """Two ranks on one core: wall time twice the CPU seconds and more."""
    busy = {"forward": 0.2, "backward": 0.05, "comm": 0.03, "wait": 0.01}
    cpu = [{"forward": 0.1, "backward": 0.1, "comm": 0.02}, busy]
    rows = [[channel(peer, 1448, 1448), reduction(0)] for peer in (1, 0)]
    found = measured(*rows, epoch=1.4, **{"rank_cpu": cpu, **result})
    where = {"usable_cores": 1, "threads": threads}
    return found.model_copy(update={"environment": where, "config": found.config | {"seed": 1}})


def test_ranks_that_share_cores_compute_their_cpu_seconds(measured) -> None:
    """Rank 1 has 0.25 s of compute and 0.03 s for what it sends; its waits are for the core and do not count."""
    record = crowded(measured)
    assert shares_cores(record)
    found = project(record, HostLink(8 * 1514))
    assert (found.compute_s, found.wait_s, found.exchange_s) == (pytest.approx(0.25), 0, pytest.approx(1))
    assert project(record, HostLink(math.inf)).epoch_time_s == pytest.approx(0.25 + 0.03)
    apart = record.model_copy(update={"environment": {"usable_cores": 2, "threads": 1}})
    assert not shares_cores(apart)
    assert project(apart, HostLink(math.inf)).epoch_time_s == pytest.approx(1.4)


def test_shared_cores_without_cpu_seconds_or_with_threads_are_not_projected(measured) -> None:
    assert why_not(crowded(measured, rank_cpu=None)) == "shares cores among its ranks and has no CPU seconds by phase"
    assert why_not(crowded(measured, threads=2)) == "shares cores among ranks of several threads"


def test_how_far_projections_are_off(measured) -> None:
    """Of counterparts the worst; without any, and of shared cores, what the design's checks found."""
    rate = {"rate": "12.112mbit", "latency": "0", "ranks_per_host": 1}
    rows = [[channel(peer, 1448_000, 1448_000)] for peer in (1, 0)]
    alone = measured(*rows)
    assert checked([alone]).error == OFF["plain"]
    assert checked([crowded(measured)]).error == OFF["shared"]
    slow = measured(*rows, network=rate, epoch=1.6)  # 0.5 s and a second of wire, 0.03 s for the all-reduce
    found = checked([alone, slow])
    assert (found.error, found.where) == (pytest.approx(1.53 / 1.6 - 1), "on 12.112 Mbit/s")
    assert found.factor == pytest.approx(1.6 / 1.53)
    assert checked([alone, slow, crowded(measured)]).error == OFF["shared"]
    on_one_core = slow.model_copy(update={"environment": {"usable_cores": 1, "threads": 1}})
    assert compare_counterparts([alone, on_one_core], alone) == []


def test_phases_are_scaled_to_the_headline(measured) -> None:
    found = wire_only(measured([], [], epoch=1.2), math.inf)
    assert found.compute_s == pytest.approx(1.0)


def test_a_told_wait_stays_and_is_no_communication(measured) -> None:
    phases = [{"forward": 0.1, "wait": 0.4, "comm": 0.1}, {"forward": 0.4, "wait": 0.1, "comm": 0.1}]
    found = wire_only(measured([], [], rank_phases=phases), math.inf)
    assert (found.compute_s, found.wait_s) == (pytest.approx(0.4), pytest.approx(0.1))
    assert (found.epoch_time_s, found.communication) == (pytest.approx(0.5), 0)


def test_the_wire_of_a_shaped_base_is_taken_off(measured) -> None:
    """0.04 s of the 0.07 s were its own wire: 500 segments at 151.4 Mbit/s."""
    rows = [[channel(peer, 1448 * 500, 1448 * 500)] for peer in (1, 0)]
    base = measured(*rows, network={"rate": "151.4mbit", "latency": "0", "ranks_per_host": 1})
    assert project(base, HostLink(math.inf)).exchange_s == pytest.approx(0.07 - 0.04)
    assert project(base, HostLink(151.4e6)).exchange_s == pytest.approx(0.04)


def test_monotone_in_rate_and_latency(measured) -> None:
    record = four(measured)
    rates, latencies = [1e6, 1e7, 1e8, 1e9, 1e12, math.inf], [0.0, 1e-6, 1e-3, 1.0]
    for sockets, hosted in itertools.product((True, False), (1, 2, 3, 4)):
        times = [
            [project(record, HostLink(rate, latency, hosted, sockets)).epoch_time_s for rate in rates]
            for latency in latencies
        ]
        for row in times:
            assert row == sorted(row, reverse=True)
        for column in zip(*times, strict=True):
            assert list(column) == sorted(column)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"status": "oom"}, "ended as oom"),
        ({"ranks": [{"rank": 0, "traffic": []}]}, "has one rank"),
        ({"result": {"epochs": 4}}, "has no epoch time"),
        ({"result": {"epochs": 4, "epoch_time_s": 1.0, "rank_phases": [{}, {}]}}, "has no phases"),
        ({"ranks": [{"rank": 0}, {"rank": 1}]}, "has no bytes by peer"),
    ],
)
def test_what_cannot_be_projected(measured, change: dict[str, Any], reason: str) -> None:
    record = measured([], []).model_copy(update=change)
    assert why_not(record) == reason
    with pytest.raises(UserError, match=reason):
        project(record, HostLink(1e9))


def test_twins_and_their_error(measured) -> None:
    rows = [[channel(peer, 1448_000, 1448_000)] for peer in (1, 0)]
    rate = {"rate": "1gbit", "latency": "0", "ranks_per_host": 1}
    loopback, slow, lone = (
        measured(*rows),
        measured(*rows, network={**rate, "rate": "12.112mbit"}, epoch=2.0),
        measured(*rows, network=rate).model_copy(update={"config": {"method": {"name": "other"}}}),
    )
    groups = counterparts([slow, loopback, lone])
    assert sorted(map(len, groups)) == [1, 2]
    assert base_of(groups[0]) is loopback
    assert base_of(groups[0], "12.112mbit") is slow
    [found] = compare_counterparts(groups[0], loopback)
    assert found.projection.epoch_time_s == pytest.approx(0.5 + 1 + 0.03)
    assert found.error == pytest.approx(1.53 / 2 - 1)


def test_links_by_name() -> None:
    assert parse_link("10gbit", "--network").bits_s == 1e10
    nvlink = parse_link("nvlink", "--network")
    assert (nvlink.bits_s, nvlink.sockets) == (3.6e12, False)  # 450 GB/s each way
    for wrong in ("nvlnk", "0bit", "10"):
        with pytest.raises(UserError, match=f"^--network: .*'{wrong}'"):
            parse_link(wrong, "--network")
