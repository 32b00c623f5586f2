"""Scaling: predictions of more parts, worked out by hand on made-up records."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.scaled import EPOCHS, computed

from harness.errors import UserError
from harness.results.projection import HostLink
from harness.results.record import Record
from harness.results.scaling import DESIGN, Machines, Shape, alike, held_out, key_of, scaled, sure
from harness.suite.schema import TrialConfig

WIRE = HostLink(8e6, sockets=False)  # a byte a microsecond
Make = Callable[..., Record]


@pytest.fixture
def record(make_record: Make) -> Make:
    """Make a trial whose ranks compute these seconds; see `computed`."""

    def make(computes: list[float], sent: int = 0, reduced: int = 0, **more: Any) -> Record:
        made = computed(computes, sent, reduced, more.pop("boundary", 0))
        made["result"]["stats"] = more.pop("stats", {})
        config = {
            "dataset": {"name": "sbm"},
            "model": {"name": "sage", "layers": 2},
            "partition": {"parts": len(computes), "method": "metis"},
            "method": {"name": more.pop("method", "full")},
            "train": {"epochs": EPOCHS, "threads": 1},
            "seed": more.pop("seed", 0),
            "device": "cpu",
        }
        trial = TrialConfig.model_validate(config)
        return make_record(trial=trial.id, config=trial.model_dump(mode="json"), **made, **more)

    return make


def test_machines_are_read_or_refused() -> None:
    found = Machines.parse("16xcore/8,10gbit")
    assert (found.ranks, found.each, found.link.bits_s) == (16, 8, 1e10)
    assert Machines.parse("4xcore,nvlink").each == 1
    assert found.memory is None
    assert (Machines.parse("16xcore/8,10gbit,64GB").memory, Machines.parse("2xcore,1gbit,1.5GiB").memory) == (
        64 * 10**9, 3 * 2**29,
    )  # fmt: skip
    assert str(found) == "16 ranks on 2 hosts at 10 Gbit/s"
    wrong = ("4xcore,1gbit,", "4xcore,1gbit,64", "4xcore,1gbit,64GB,2")
    for text in (*wrong, "16xcore", "16,10gbit", "1xcore,1gbit", "16xcore/3,1gbit", "0xcore,1gbit", "4xH100,1gbit"):
        with pytest.raises(UserError, match=r"--on: .*such as 16xcore,10gbit"):
            Machines.parse(text)
    with pytest.raises(UserError, match="unknown network 'fast'"):
        Machines.parse("4xcore,fast")


MACHINES = "ranks: 16\nranks_per_host: 8\nnetwork: 25gbit\nlatency_us: 20\nmemory: 64GB\ncore_speed: 1.5\nprice: 3.2\n"


def test_machines_of_a_file(tmp_path: Path, record: Make) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(MACHINES)
    found = Machines.parse(str(file))
    assert (found.ranks, found.each, found.memory, found.speed, found.price) == (16, 8, 64 * 10**9, 1.5, 3.2)
    assert (found.link.bits_s, found.link.latency_s) == (25e9, pytest.approx(20e-6))
    assert str(found) == "16 ranks on 2 hosts at 25 Gbit/s, cores 1.5 times as fast as here"
    file.write_text("ranks: 4\nnetwork: nvlink\n")
    assert Machines.parse(str(file)) == Machines.parse("4xcore,nvlink")
    known = {2: [record([4.0, 4.0], sent=100, boundary=100)]}
    slow, fast = (scaled(known, Machines(4, 1, WIRE, speed=speed), Shape({2: 100, 4: 100})) for speed in (1.0, 2.0))
    assert fast.compute_s == slow.compute_s / 2
    assert fast.exchange_s == slow.exchange_s


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (MACHINES + "gpus: 8\n", r"cluster.yaml:8: gpus: unknown key"),
        ("network: 1gbit\n", r"cluster.yaml: ranks: missing \(add `ranks: ...`\)"),
        (MACHINES.replace("16", "one"), r"cluster.yaml:1: ranks: bad value 'one': must be"),
        (MACHINES.replace("host: 8", "host: 3"), r"cluster.yaml:2: ranks_per_host: 16 ranks cannot be shared"),
        (MACHINES.replace("25gbit", "fast"), r"cluster.yaml: network: unknown network 'fast'"),
        (MACHINES.replace("1.5", "0"), r"cluster.yaml:6: core_speed: bad value 0: must be greater than 0"),
        ("- 3\n", r"cluster.yaml: .*must be a section"),
        ("ranks: [", r"cluster.yaml:1: "),
        (None, r"cluster.yaml: --on: No such file"),
    ],
)
def test_a_file_of_machines_that_is_wrong_is_refused(tmp_path: Path, text: str | None, said: str) -> None:
    file = tmp_path / "cluster.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UserError, match=said):
        Machines.parse(str(file))


def test_compute_is_a_line_in_the_rows_that_come_and_shared(record: Make) -> None:
    """One part computes 8 s; 100 boundary rows cost 2 s more, so that 300 cost 6: 14 s of four ranks."""
    known = {1: [record([8.0])], 2: [record([6.0, 4.0], sent=1_000_000, boundary=100)]}
    found = scaled(known, Machines(4, 1, WIRE), Shape({2: 100, 4: 300}))
    assert found.compute_s == pytest.approx(14 / 4 * 6 / 5)  # the busiest has 6 / 5 of the mean
    even = scaled(known, Machines(4, 1, WIRE), Shape({2: 100, 4: 300}, excess=1.0))
    assert even.compute_s == pytest.approx(14 / 4)
    # 50 rows a rank take a second, so that 75 take 1.5.
    assert found.exchange_s == pytest.approx(1.5)


def test_without_a_trial_in_one_part_rows_cost_no_compute(record: Make) -> None:
    known = {2: [record([5.0, 5.0], boundary=100)]}
    assert scaled(known, Machines(4, 1, WIRE), Shape({2: 100, 4: 300})).compute_s == pytest.approx(2.5)


@pytest.mark.parametrize(("rows", "total"), [(300, 6.0), (350, 5.0), (1000, 5.0)])
def test_edges_that_are_left_out_save_half_of_the_compute_at_most(record: Make, rows: int, total: float) -> None:
    """One part computes 12 s, two with 100 boundary nodes 10 s: 200 more save 4 s."""
    known = {1: [record([12.0])], 2: [record([5.0, 5.0], boundary=100)]}
    found = scaled(known, Machines(4, 1, WIRE), Shape({2: 100, 4: rows}))
    assert found.compute_s == pytest.approx(total / 4)


def test_ranks_of_a_host_share_its_link_and_use_none_among_themselves(record: Make) -> None:
    known = {2: [record([1.0, 1.0], sent=1_000_000, reduced=1_000_000, boundary=100)]}
    shape = Shape({2: 100, 4: 200})
    alone, pairs, together = (scaled(known, Machines(4, each, WIRE), shape) for each in (1, 2, 4))
    assert alone.exchange_s == pytest.approx(1.0)
    assert pairs.exchange_s == pytest.approx(2 * 2 / 3)  # two ranks' rows, two thirds of which leave the host
    assert together.exchange_s == 0
    # A ring sends 2 (P - 1) / P of the weights: half as much again in four parts as in two.
    assert (alone.reduce_s, pairs.reduce_s, together.reduce_s) == pytest.approx((1.5, 1.5, 0))


def test_batches_grow_with_the_cut(record: Make) -> None:
    """Of 100 inputs 36 are remote at a cut of a fifth: two hops that stay, 0.8 squared; at two fifths 64 are."""
    stats = {"remote_nodes": 36.0, "input_nodes": 100.0}
    table = [{"part": "total", "edges": 50, "edges_cut": 10, "boundary": 7}]
    known = {2: [record([1.0, 1.0], 1_000_000, 1_000_000, stats=stats, partition=table)]}
    there = [{"part": 0, "edges": 9}, {"part": "total", "edges": 50, "edges_cut": 20, "boundary": 8}]
    shape = Shape.of(known, 4, there, published=99, sent=99)
    assert shape == Shape({2: 0.2, 4: 0.4})
    found = scaled(known, Machines(4, 1, WIRE), shape)
    assert found.exchange_s == pytest.approx(64 / 4 / (36 / 2))
    assert found.reduce_s == pytest.approx(1.5 / 2)  # of half as many steps
    # All of them are remote already, or none.
    for remote in (100.0, 0.0):
        known = {2: [record([1.0, 1.0], sent=1_000_000, stats=stats | {"remote_nodes": remote}, partition=table)]}
        assert scaled(known, Machines(4, 1, WIRE), shape).exchange_s == pytest.approx(0.5 if remote else 1.0)


def test_the_shape_is_of_the_partition_else_as_published_else_of_trials(record: Make) -> None:
    table = [{"part": "total", "edges": 50, "edges_cut": 10, "boundary": 7}]
    known = {1: [record([1.0])], 2: [record([1.0, 1.0], sent=500, reduced=40, partition=table)]}
    rows = [{"part": 0, "edges": 1}, {"part": 1, "edges": 3}, {"part": "total", "edges": 4, "boundary": 8}]
    assert Shape.of(known, 4, rows, published=9) == Shape({1: 0, 2: 7, 4: 8}, {2: 1000}, 1.5)
    assert Shape.of(known, 4, (), published=9) == Shape({1: 0, 2: 7, 4: 9}, {2: 1000})
    # In four parts an all-reduce sends three times as much.
    assert Shape.of(known, 4, (), sent=5240) == Shape({1: 0, 2: 7}, {2: 1000, 4: 5000})


def test_bytes_of_a_closed_form_go_before_rows(record: Make) -> None:
    known = {2: [record([1.0, 1.0], sent=1_000_000, boundary=100)]}
    shape = Shape({2: 100, 4: 300}, {2: 2_000_000, 4: 10_000_000})
    assert scaled(known, Machines(4, 1, WIRE), shape).exchange_s == pytest.approx(2.5)


def test_an_unknown_boundary_is_on_the_line_of_those_before() -> None:
    assert Shape({2: 100, 4: 300}).at(4) == 300
    assert Shape({1: 0, 2: 100, 4: 300}).at(8) == pytest.approx(900)
    assert Shape({2: 100, 4: 300, 8: 600}).at(16) == pytest.approx(1200)
    with pytest.raises(UserError, match=r"8 parts are not known \(run harness partition DATASET --parts 8"):
        Shape({1: 0, 2: 100}).at(8)


def test_trials_are_grouped_by_all_but_parts_seed_and_network(record: Make) -> None:
    records = [record([1.0]), record([1.0, 1.0]), record([1.0, 1.0], seed=1), record([1.0] * 2, method="pipegcn")]
    records.append(record([1.0] * 4, status="timeout"))
    full, pipelined = alike(records).values()
    assert {parts: len(own) for parts, own in full.items()} == {1: 1, 2: 2}
    assert list(pipelined) == [2]
    trial = TrialConfig.model_validate(records[0].config)
    other = trial.model_copy(update={"partition": trial.partition.model_copy(update={"parts": 8}), "seed": 5})
    assert key_of(trial) == key_of(other)


def test_what_was_not_run_cannot_be_scaled(record: Make) -> None:
    for known in ({}, {1: [record([1.0])]}, {8: [record([1.0] * 8)]}):
        with pytest.raises(UserError, match="no trial in 2 to 4 parts ran here"):
            scaled(known, Machines(4, 1, WIRE), Shape({2: 1, 4: 2}))


def test_predictions_are_held_against_trials_in_more_parts(record: Make) -> None:
    """Of 14 / 4 s that were predicted 4 were measured, and 2.8: 14 and 25 % off."""
    known = {1: [record([8.0])], 2: [record([5.0, 5.0], boundary=100, partition=[{"part": "total", "boundary": 100}])]}
    tables = [{"part": "total", "boundary": 300}]
    slower = known | {4: [record([4.0] * 4, boundary=300, partition=tables)]}
    faster = known | {4: [record([2.8] * 4, boundary=300, partition=tables)]}
    found = held_out([slower, faster, known], WIRE)
    assert [each.error for each in found] == pytest.approx([14 / 16 - 1, 14 / 11.2 - 1])
    off = sure(found)
    assert (off.median, off.error) == pytest.approx(((16 / 14 + 14 / 11.2) / 2 - 1, 0.25))
    assert str(off) == "off by 20 % in the median and 25 % at most, in 2 cases of this suite"
    assert sure([]) is DESIGN
    assert math.isclose(off.factor, 1.25)
