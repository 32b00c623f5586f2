"""Comparing results: false alarms and planted changes of made-up runs, of which the truth is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from harness.errors import UserError
from harness.metrics import Metric, as_declared, find_metric
from harness.results.compare import Compared, Pair, Trial, busier, compare, differences, metric_of, pair
from harness.results.record import Record

EPOCHS = 30


class MadeUp(Trial):
    """A trial whose epochs are drawn, not read."""

    def epoch_times(self) -> np.ndarray:
        return np.asarray(self.record.ranks[0]["times"])


@pytest.fixture
def make(make_record):
    def make_trial(cell: int, seed: int = 0, times: Sequence[float] = (), **result: float) -> MadeUp:
        config = {"seed": seed, "method": {"name": "full", "options": {"cell": cell}}, "device": "cpu"}
        record = make_record(
            f"{cell:06d}{seed:06d}",
            label=f"cell {cell} seed={seed}",
            config=config,
            result=result | ({"epoch_time_s": float(np.median(times))} if len(times) else {}),
            ranks=[{"times": list(times)}],
        )
        return MadeUp(record, Path("nowhere"))

    return make_trial


def suites(make, rng: np.random.Generator, slower: Sequence[float], seeds: int, *, rerun: float = 0.02) -> list[Pair]:
    """Two runs of a suite: epochs scatter by 5 %, every run by `rerun`, the machine by 1 %; B is `slower`."""
    drift = rng.normal(0, 0.01, 2)
    pairs = []
    for cell, factor in enumerate(slower):
        for seed in range(seeds):
            own = math.log(0.1 * (cell + 1)) + drift + rng.normal(0, rerun, 2) + [0, math.log(factor)]
            before, after = (rng.lognormal(mean, 0.05, EPOCHS) for mean in own)
            pairs.append(Pair(make(cell, seed, before), make(cell, seed, after)))
    return pairs


def whole(pairs: list[Pair]) -> Compared:
    found = compare(pairs, find_metric("epoch_time_s"))[1]
    assert found is not None
    return found


def test_a_code_against_itself_is_silent(make) -> None:
    """Reruns scatter more than epochs tell: epochs alone would call one trial in three."""
    rng = np.random.default_rng(0)
    alarms = 0
    for _ in range(30):
        rows, all_of_them = compare(suites(make, rng, [1.0] * 4, 1), find_metric("epoch_time_s"))
        assert all_of_them is not None
        alarms += any(row.verdict != "cannot tell" for row in (*rows, all_of_them))
        assert all_of_them.interval is not None
    assert alarms <= 1


def test_a_planted_slowdown_is_found_whichever_way(make) -> None:
    rng = np.random.default_rng(1)
    for _ in range(6):
        pairs = suites(make, rng, [1.1] * 4, 2)
        assert whole(pairs).verdict == "slower"
        assert whole(pairs).worse
        turned = whole([Pair(p.after, p.before) for p in pairs])
        assert (turned.verdict, turned.worse) == ("faster", False)


def test_one_slow_trial_of_many_is_named(make) -> None:
    rows, _ = compare(suites(make, np.random.default_rng(2), [1, 1, 1.3, 1, 1], 3), find_metric("epoch_time_s"))
    assert [row.verdict for row in rows] == [*["cannot tell"] * 2, "slower", *["cannot tell"] * 2]
    assert rows[2].interval is not None
    assert 1.15 < rows[2].interval.low < 1.3 < rows[2].interval.high < 1.5
    assert rows[2].trials == 3
    assert rows[2].p is not None
    assert rows[2].p < 0.05


def test_seeds_that_scatter_make_an_interval_wide(make) -> None:
    rng = np.random.default_rng(3)
    calm, wild = (whole(suites(make, rng, [1.0] * 3, 4, rerun=rerun)) for rerun in (0.01, 0.3))
    widths = [math.log(found.interval.high / found.interval.low) for found in (calm, wild) if found.interval]
    assert widths[1] > 2 * 1.96 * 0.3 * math.sqrt(2 / 12) * 0.8  # a standard error of 12 pairs of runs
    assert widths[0] < 0.1


def test_throughput_is_epoch_time_the_other_way_round(make) -> None:
    pairs = []
    for i, times in enumerate(np.random.default_rng(4).lognormal(0, 0.05, (3, EPOCHS))):
        rate = 1 / np.median(times)
        before = make(i, 0, times, throughput_epochs_s=rate)
        pairs.append(Pair(before, make(i, 0, 2 * times, throughput_epochs_s=rate / 2)))
    time, (_, rate) = whole(pairs), compare(pairs, find_metric("throughput_epochs_s"))
    assert rate is not None
    assert (rate.verdict, rate.worse, time.verdict) == ("slower", True, "slower")
    assert rate.change == pytest.approx(1 / time.change)


def test_bytes_are_exact_and_scores_need_seeds(make) -> None:
    def of(column: str, before: Sequence[float], after: Sequence[float]) -> Compared:
        pairs = [
            Pair(make(0, seed, **{column: a}), make(0, seed, **{column: b}))
            for seed, (a, b) in enumerate(zip(before, after, strict=True))
        ]
        [row], _ = compare(pairs, find_metric(column))
        return row

    assert of("bytes_feature", [100], [100]).verdict == "same"
    assert of("bytes_feature", [0], [0]).verdict == "same"
    more = of("bytes_feature", [1000], [1001])
    assert (more.verdict, more.worse, more.change) == ("more", True, pytest.approx(1.001))
    one = of("best_val", [0.9], [0.8])
    assert (one.verdict, one.interval, one.worse) == ("cannot tell", None, False)
    several = of("best_val", [0.9, 0.91, 0.92], [0.8, 0.812, 0.818])
    assert (several.verdict, several.worse, several.change) == ("worse", True, pytest.approx(-0.1))
    assert of("best_val", [0.9, 0.91], [0.92, 0.89]).verdict == "cannot tell"


def test_without_the_figure_there_is_nothing_to_compare(make) -> None:
    assert compare([Pair(make(0), make(0))], find_metric("best_val")) == ([], None)
    infinite = Pair(make(0, bytes_swap=0.0), make(0, bytes_swap=5.0))
    assert compare([infinite], find_metric("bytes_swap")) == ([], None)
    with pytest.raises(UserError, match="did you mean 'epoch_time_s'"):
        find_metric("epoch_times")
    with pytest.raises(UserError, match="no metric"):
        find_metric("method")


def test_trials_pair_by_id_or_by_all_that_does_not_set_the_sides_apart(make_record) -> None:
    def trial(name: str, method: dict, parts: int, rate: str = "none") -> Trial:
        config = {"method": method, "partition": {"parts": parts}, "network": rate, "seed": 0}
        return Trial(make_record(name, config=config, label=f"{name} {parts}"), Path("r") / name)

    full, bns = {"name": "full"}, {"name": "bns-gcn", "options": {"rate": 0.1}}
    before = [trial("a1", full, 1), trial("a2", full, 2)]
    same = pair(before, [trial("a2", full, 2), trial("a3", full, 3)])
    assert [(p.before.record.trial, p.after.record.trial) for p in same.pairs] == [("a2", "a2")]
    assert [t.record.trial for t in (*same.only_before, *same.only_after)] == ["a1", "a3"]
    other = pair(before, [trial("b2", bns, 2), trial("b1", bns, 1)])
    assert {(p.before.record.trial, p.after.record.trial) for p in other.pairs} == {("a1", "b1"), ("a2", "b2")}
    assert other.apart == ("method.name", "method.options.rate")
    both = [trial("b1", bns, 1), trial("b2", {"name": "bns-gcn", "options": {"rate": 0.5}}, 1)]
    with pytest.raises(UserError, match="'b1 1' and 'b2 1' differ in method"):
        pair(before, both)
    with pytest.raises(UserError, match="no trial is on both sides"):
        pair([trial("a1", full, 1, "1gbit")], [trial("b1", full, 1), trial("b2", bns, 1, "1gbit")])


def test_environments_are_told_apart_by_what_they_mean(make_record) -> None:
    base = {"cpu": "A", "logical_cores": 2, "commit": "1" * 40, "packages": {"torch": "2.13.0"}, "memory_bytes": 2**34}

    def pairs(**other: object) -> list[Pair]:
        records: list[Record] = [make_record(environment=base), make_record(environment=base | other)]
        before, after = (Trial(record, Path("r")) for record in records)
        return [Pair(before, after)]

    assert differences(pairs()) == differences(pairs(memory_bytes=2**34 - 10_000_000))
    commit = differences(pairs(commit="2" * 40))
    assert (commit.code, commit.software, commit.hardware) == (("commit: 1111111111 -> 2222222222",), (), ())
    assert differences(pairs(packages={"torch": "2.14.0"})).software == ("torch: 2.13.0 -> 2.14.0",)
    assert differences(pairs(cpu="B", logical_cores=None)).hardware == ("cpu: A -> B", "logical_cores: 2 -> unknown")


def test_a_busy_machine_is_noticed(make) -> None:
    def pairs(*shares: tuple[float, float]) -> list[Pair]:
        return [Pair(make(0, cpu_utilisation=a), make(0, cpu_utilisation=b)) for a, b in shares]

    assert busier(pairs((0.8, 0.85), (0.9, 0.85), (0.9, 0.1))) is None
    assert busier([Pair(make(0), make(0))]) is None
    told = busier(pairs((0.8, 0.4), (0.9, 0.5), (0.9, 0.45)))
    assert told is not None
    assert told.startswith("a rank used 0.90 cores in A, 0.45 in B")


def test_old_and_new_records_pair(make_record) -> None:
    """A record from before `timing`, and one of another id that has it at its default."""
    old = make_record("a" * 12)
    new = make_record("b" * 12, config={**old.config, "timing": "plain", "traffic": "count", "device": "cuda"})
    found = pair([Trial(old, Path("a"))], [Trial(new, Path("b"))])
    assert [(p.before.record.trial, p.after.record.trial) for p in found.pairs] == [("a" * 12, "b" * 12)]
    assert found.apart == ("device",)
    other = make_record("c" * 12, config={**old.config, "timing": "wall"})
    assert pair([Trial(old, Path("a"))], [Trial(other, Path("c"))]).apart == ("timing",)


def test_a_metric_that_a_method_declares_is_compared(make_record) -> None:
    """Its record says what it is: exact, and that less is better."""
    chunks = Metric.of_method("chunks", "chunks drawn", "B", better="less", exact=True)
    records = [
        make_record(declared={"metrics": as_declared([chunks])}, result={"stats": {"chunks": count}})
        for count in (100.0, 150.0)
    ]
    before, after = (Trial(record, Path("nowhere")) for record in records)
    [row], _ = compare([Pair(before, after)], metric_of("stat_chunks", [before, after]))
    assert (row.verdict, row.worse, row.change) == ("more", True, pytest.approx(1.5))
