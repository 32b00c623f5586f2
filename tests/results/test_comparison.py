"""Comparing results: false alarms and planted changes of made-up runs, of which the truth is known."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from scipy import stats as scipy_stats

from harness.cli.compare import DRIFTS, drift_lines
from harness.errors import UserError
from harness.metrics import Metric, as_declared, find_metric
from harness.results.comparison import (
    Compared,
    Pair,
    busier,
    compare,
    differences,
    group_seeds,
    metric_of,
    pair,
    value_of,
)
from harness.results.record import Record


@pytest.fixture
def make(make_record):
    def make_trial(
        cell: int, seed: int = 0, minute: float = 0, reference: float | None = None, **result: float
    ) -> Record:
        config = {"seed": seed, "method": {"name": "full", "options": {"cell": cell}}, "device": "cpu"}
        record = make_record(
            f"{cell:06d}{seed:06d}",
            label=f"cell {cell} seed={seed}",
            config=config,
            started=(datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=minute)).isoformat(),
            environment={"reference_s": reference} if reference else {},
            result=result,
        )
        return record

    return make_trial


def test_seeds_are_grouped_by_what_their_data_contain(make) -> None:
    """Seed 0 ran before and after its data changed, seed 1 only after: its configuration does not say so."""
    said = [(0, None, "v1"), (0, "v2.p", "v2"), (1, None, "v2")]
    trials = []
    for seed, data, graph in said:
        record = make(0, seed)
        now = {
            "dataset": {"fingerprint": graph},
            "partition_fingerprint": "p",
            "config": record.config | {"data": data},
        }
        trials.append(record.model_copy(update=now))
    cells = group_seeds([Pair(trial, trial) for trial in trials])
    assert [[pair.after for pair in cell] for cell in cells] == [trials[:1], trials[1:]]


def suites(
    make,
    rng: np.random.Generator,
    slower: Sequence[float],
    seeds: int,
    *,
    noise: float = 0.02,
    drift: float = 0.0,
    turns: bool = True,
    reference: bool = False,
) -> list[Pair]:
    """Two runs of a suite: every run is off by `noise`, the machine by `drift` in its second half; B is `slower`."""
    pairs, total = [], len(slower) * seeds
    for cell, factor in enumerate(slower):
        for seed in range(seeds):
            place, sides = cell * seeds + seed, []
            for side, own in enumerate((1.0, factor)):
                minute = 2 * place + side if turns else place + side * total
                moved = math.exp(drift * (minute >= total))
                seconds = 0.1 * (cell + 1) * own * moved * math.exp(rng.normal(0, noise))
                measured = moved * math.exp(rng.normal(0, 0.005)) if reference else None
                sides.append(make(cell, seed, minute, measured, epoch_time_s=seconds))
            pairs.append(Pair(*sides))
    return pairs


def whole(pairs: list[Pair]) -> Compared:
    found = compare(pairs, find_metric("epoch_time_s"))[1]
    assert found is not None
    return found


def test_a_code_against_itself_is_silent(make) -> None:
    rng = np.random.default_rng(0)
    alarms = 0
    for _ in range(30):
        rows, all_of_them = compare(suites(make, rng, [1.0] * 4, 2), find_metric("epoch_time_s"))
        assert all_of_them is not None
        alarms += any(row.verdict != "cannot tell" for row in (*rows, all_of_them))
        assert all_of_them.interval is not None
    assert alarms <= 3


def test_a_planted_slowdown_is_found_whichever_way(make) -> None:
    rng = np.random.default_rng(1)
    for _ in range(6):
        pairs = suites(make, rng, [1.1] * 4, 3)
        assert whole(pairs).verdict == "slower"
        assert whole(pairs).worse
        turned = whole([Pair(p.after, p.before) for p in pairs])
        assert (turned.verdict, turned.worse) == ("faster", False)


def test_one_slow_trial_of_many_is_named(make) -> None:
    rows, _ = compare(suites(make, np.random.default_rng(2), [1, 1, 1.3, 1, 1], 3), find_metric("epoch_time_s"))
    assert [row.verdict for row in rows] == [*["cannot tell"] * 2, "slower", *["cannot tell"] * 2]
    assert rows[2].interval is not None
    assert 1.1 < rows[2].interval.low < 1.3 < rows[2].interval.high < 1.5
    assert rows[2].trials == 3


def test_the_shown_interval_is_the_one_of_the_verdict(make) -> None:
    """For one trial of three seeds Student's; of four trials each is wider."""
    rng = np.random.default_rng(5)
    pairs = suites(make, rng, [1.05] * 4, 3)
    first = [p for p in pairs if p.label == "cell 0"]
    logs = [math.log(value_of(p.after, "epoch_time_s") / value_of(p.before, "epoch_time_s")) for p in first]
    [alone], same = compare(first, Metric("epoch_time_s", unit="s", better="less"))  # without drift
    assert alone == same
    assert alone.interval is not None
    low, high = scipy_stats.t.interval(0.96, 2, np.mean(logs), scipy_stats.sem(logs))
    assert (alone.interval.low, alone.interval.high) == pytest.approx((math.exp(low), math.exp(high)))
    rows, together = compare(pairs, find_metric("epoch_time_s"))
    assert together is not None
    for found in (*rows, together):
        assert found.interval is not None
        assert (found.verdict != "cannot tell") == (not found.interval.has(1.0))


def test_one_run_of_each_cannot_tell_however_much_it_changed(make) -> None:
    [row], all_of_them = compare(suites(make, np.random.default_rng(3), [3.0], 1), find_metric("epoch_time_s"))
    assert row == all_of_them
    assert (row.verdict, row.interval, row.worse) == ("cannot tell", None, False)
    assert row.needs == "3 more interleaved runs would detect a gap of 10 %"
    [row], _ = compare(suites(make, np.random.default_rng(3), [3.0], 1), find_metric("epoch_time_s"), 0.03)
    assert row.needs == "13 more interleaved runs would detect a gap of 3 %"


def test_one_run_of_each_is_enough_where_no_scatter_explains_the_change(make) -> None:
    [row], _ = compare(suites(make, np.random.default_rng(3), [11.0], 1), find_metric("epoch_time_s"))
    assert (row.verdict, row.worse) == ("slower", True)
    assert row.interval is not None
    assert 1 < row.interval.low < 11 / 4


def test_a_wild_reference_corrects_nothing(make) -> None:
    """It scattered threefold within one study, and made 3.35 times of 6.85."""
    rng = np.random.default_rng(9)
    pairs = suites(make, rng, [3.35], 5, turns=False, reference=True)
    for each in pairs:
        for side in (each.before, each.after):
            side.environment["reference_s"] = 0.005 * math.exp(rng.uniform(0, math.log(3.3)))
    found = whole(pairs)
    assert (found.verdict, found.drift, found.change) == ("slower", "unknown", found.raw)
    assert found.change == pytest.approx(3.35, rel=0.05)


def test_several_trials_of_one_run_tell_together_and_none_by_itself(make) -> None:
    rows, all_of_them = compare(suites(make, np.random.default_rng(4), [1.3] * 6, 1), find_metric("epoch_time_s"))
    assert {row.verdict for row in rows} == {"cannot tell"}
    assert all_of_them is not None
    assert all_of_them.verdict == "slower"


def test_what_is_needed_follows_from_the_scatter_seen(make) -> None:
    def needs(noise: float) -> str:
        return whole(suites(make, np.random.default_rng(6), [1.0], 3, noise=noise)).needs

    assert needs(0.001) == "the gap is less than 10 %"
    assert re.fullmatch(r"\d+ more interleaved runs? would detect a gap of 10 %", needs(0.05))
    assert re.fullmatch(r"\d+ more interleaved runs? would detect a gap of \d{3} %", needs(1.0))  # as much as was seen


def test_a_drift_between_the_sides_is_not_called(make) -> None:
    """The machine is 9 % slower while B runs: sides in blocks allow for it, the reference shows it, turns spread it."""

    def found(**how: bool) -> Compared:
        return whole(suites(make, np.random.default_rng(7), [1.0] * 3, 4, noise=0.002, drift=0.09, **how))

    noisy = suites(make, np.random.default_rng(7), [1.0] * 3, 4, noise=0.01, drift=0.09, turns=False, reference=True)
    blocks, turns, known = found(turns=False), found(), whole(noisy)
    assert [each.verdict for each in (blocks, turns, known)] == ["cannot tell"] * 3
    assert [each.drift for each in (blocks, turns, known)] == ["unknown", "turns", "reference"]
    assert blocks.change == blocks.raw == pytest.approx(1.09, abs=0.01)
    assert known.change == pytest.approx(1.0, abs=0.01)
    assert known.raw == pytest.approx(1.09, abs=0.01)
    assert found(turns=False, reference=True).drift == "unknown"  # the reference scatters more than the trials
    twice = whole(suites(make, np.random.default_rng(7), [2.0] * 3, 4, turns=False))
    assert (twice.verdict, twice.drift) == ("slower", "unknown")  # no drift explains that
    slow = suites(make, np.random.default_rng(8), [1.1] * 3, 4, noise=0.005, drift=0.09, turns=False, reference=True)
    assert whole(slow).verdict == "slower"


def test_references_of_other_cores_tell_nothing(make) -> None:
    pairs = suites(make, np.random.default_rng(7), [1.0] * 3, 4, drift=0.09, turns=False, reference=True)
    assert whole(pairs).drift == "reference"
    for each in pairs:
        each.before.environment["reference_cores"] = 4
    assert whole(pairs).drift == "unknown"


def test_throughput_is_epoch_time_the_other_way_round(make) -> None:
    """Also where the machine's drift is taken out of both."""
    pairs = suites(make, np.random.default_rng(4), [2.0] * 3, 3, drift=0.09, turns=False, reference=True)
    both = []
    for each in pairs:
        sides = []
        for trial in (each.before, each.after):
            rate = 1 / trial.result["epoch_time_s"]
            record = trial.model_copy(update={"result": trial.result | {"throughput_epochs_s": rate}})
            sides.append(record)
        both.append(Pair(*sides))
    time, (_, rate) = whole(pairs), compare(both, find_metric("throughput_epochs_s"))
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
    assert one.needs == "at least 2 more seeds of each side are needed"
    several = of("best_val", [0.9, 0.91, 0.92], [0.8, 0.812, 0.818])
    assert (several.verdict, several.worse, several.change) == ("worse", True, pytest.approx(-0.1))
    assert of("best_val", [0.9, 0.91], [0.92, 0.89]).verdict == "cannot tell"
    assert of("best_val", [0.9, 0.8], [0.91, 0.81]).verdict == "cannot tell"  # of steps of a hundredth


def test_repeats_of_a_seed_are_no_seeds(make) -> None:
    """Their scores are the same bits; their times are not."""
    pairs = [Pair(make(0, best_val=0.9), make(0, best_val=0.8)) for _ in range(5)]
    [row], _ = compare(pairs, find_metric("best_val"))
    assert (row.verdict, row.interval) == ("cannot tell", None)
    peaks = [Pair(make(0, peak_memory_bytes=1e9), make(0, peak_memory_bytes=1e9 + 1e6 * i)) for i in range(1, 5)]
    [row], _ = compare(peaks, find_metric("peak_memory_bytes"))
    assert (row.verdict, row.interval, row.trials) == ("cannot tell", None, 4)
    assert "seeds" in row.needs


def test_a_row_of_all_repeats_is_not_called_by_one(make_record) -> None:
    trial = make_record(label="full repeat=1 seed=0", config={"seed": 0, "repeat": 1})
    assert Pair(trial, trial).label == "full"


def test_each_kind_of_drift_has_its_line() -> None:
    assert drift_lines([], "turns") == drift_lines(["turns"] * 3, "turns") == [DRIFTS["turns"]]
    assert drift_lines(["none"] * 2, "none") == []
    several = drift_lines(["turns", "turns", "unknown"], "unknown")
    assert several == [f"all 3 and 1 of 3 trials: {DRIFTS['unknown']}", f"2 of 3 trials: {DRIFTS['turns']}"]
    assert drift_lines(["unknown"] * 2, "reference")[1].startswith("each trial: runs of A and B do not alternate")


def test_a_score_of_one_seed_that_changed_in_one_of_several_cells_is_not_called(make) -> None:
    """That the others have the same bits says nothing of how far this one's seeds scatter."""
    pairs = [Pair(make(cell, best_val=0.9), make(cell, best_val=0.9 - 0.2 * (cell == 1))) for cell in range(5)]
    rows, all_of_them = compare(pairs, find_metric("best_val"))
    assert [row.verdict for row in rows] == ["same", "cannot tell", "same", "same", "same"]
    assert all_of_them is not None
    assert all_of_them.verdict == "cannot tell"


def test_without_the_figure_there_is_nothing_to_compare(make) -> None:
    assert compare([Pair(make(0), make(0))], find_metric("best_val")) == ([], None)
    with pytest.raises(UserError, match="did you mean 'epoch_time_s'"):
        find_metric("epoch_times")
    with pytest.raises(UserError, match="no metric"):
        find_metric("method")


@pytest.mark.parametrize(
    ("column", "before", "after", "verdict", "worse"),
    [
        ("bytes_swap", 0.0, 5.0, "more", True),
        ("bytes_swap", 5.0, 0.0, "less", False),
        ("time_to_target_s", 5.0, None, "no value now", True),
        ("time_to_target_s", None, 5.0, "no value before", False),
        ("best_val", 0.9, None, "no value now", True),
        ("best_val", None, 0.9, "no value before", False),
        ("epochs", 5.0, None, "no value now", False),
    ],
)
def test_what_no_ratio_shows_is_a_row_of_its_own(
    make, column: str, before: float | None, after: float | None, verdict: str, worse: bool
) -> None:
    """The largest of changes: from nothing, and to nothing. They are no part of the mean of the others."""

    def pair_of(seed: int, one: float | None, two: float | None) -> Pair:
        sides = ({} if value is None else {column: value} for value in (one, two))
        return Pair(*(make(0, seed, **side) for side in sides))

    metric = find_metric(column)
    [row], together = compare([pair_of(0, before, after)], metric)
    assert together is None
    assert (row.verdict, row.worse, row.numeric, row.trials, row.interval) == (verdict, worse, False, 1, None)
    others = [pair_of(seed, 1.0, 1.0) for seed in (1, 2, 3)]
    rows, together = compare(others, metric)
    found, whole_of_others = compare([pair_of(0, before, after), *others], metric)
    assert (found[:-1], whole_of_others, repr(found[-1])) == (rows, together, repr(row))  # NaN is not equal to NaN
    assert compare([pair_of(0, None, None)], metric) == ([], None)


def test_trials_pair_by_id_or_by_all_that_does_not_set_the_sides_apart(make_record) -> None:
    def trial(name: str, method: dict, parts: int, rate: str = "none") -> Record:
        config = {"method": method, "partition": {"parts": parts}, "network": rate, "seed": 0}
        return make_record(name, config=config, label=f"{name} {parts}")

    full, bns = {"name": "full"}, {"name": "bns-gcn", "options": {"rate": 0.1}}
    before = [trial("a1", full, 1), trial("a2", full, 2)]
    same = pair(before, [trial("a2", full, 2), trial("a3", full, 3)])
    assert [(p.before.trial, p.after.trial) for p in same.pairs] == [("a2", "a2")]
    assert [t.trial for t in (*same.only_before, *same.only_after)] == ["a1", "a3"]
    other = pair(before, [trial("b2", bns, 2), trial("b1", bns, 1)])
    assert {(p.before.trial, p.after.trial) for p in other.pairs} == {("a1", "b1"), ("a2", "b2")}
    assert other.apart == ("method.name", "method.options.rate")
    both = [trial("b1", bns, 1), trial("b2", {"name": "bns-gcn", "options": {"rate": 0.5}}, 1)]
    with pytest.raises(UserError, match="'b1 1' and 'b2 1' differ in method"):
        pair(before, both)
    with pytest.raises(UserError, match="no trial is on both sides"):
        pair([trial("a1", full, 1, "1gbit")], [trial("b1", full, 1), trial("b2", bns, 1, "1gbit")])


def test_what_methods_set_themselves_does_not_part_them(make_record) -> None:
    """Each has its own rate on each data set, of which one is the other's: trials of one data set pair all the same."""

    def trial(name: str, method: str, dataset: str, lr: float) -> Record:
        config = {"method": {"name": method}, "dataset": {"name": dataset}, "train": {"lr": lr}, "seed": 0}
        config |= {"shared": {"train.lr": 0.01}} if lr != 0.01 else {}
        return make_record(name, config=config, label=name)

    before = [trial("a1", "full", "x", 0.1), trial("a2", "full", "y", 0.2)]
    found = pair(before, [trial("b1", "bns-gcn", "x", 0.2), trial("b2", "bns-gcn", "y", 0.01)])
    assert {(p.before.trial, p.after.trial) for p in found.pairs} == {("a1", "b1"), ("a2", "b2")}
    assert found.apart == ("method.name",)
    with pytest.raises(UserError, match="'b1' and 'b3' differ in method"):
        pair(before, [trial("b1", "bns-gcn", "x", 0.2), trial("b3", "bns-gcn", "x", 0.3)])


def test_environments_are_told_apart_by_what_they_mean(make_record) -> None:
    base = {"cpu": "A", "logical_cores": 2, "commit": "1" * 40, "packages": {"torch": "2.13.0"}, "memory_bytes": 2**34}

    def pairs(**other: object) -> list[Pair]:
        records: list[Record] = [make_record(environment=base), make_record(environment=base | other)]
        before, after = records
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
    found = pair([old], [new])
    assert [(p.before.trial, p.after.trial) for p in found.pairs] == [("a" * 12, "b" * 12)]
    assert found.apart == ("device",)
    other = make_record("c" * 12, config={**old.config, "timing": "wall"})
    assert pair([old], [other]).apart == ("timing",)


def test_a_metric_that_a_method_declares_is_compared(make_record) -> None:
    """Its record says what it is: exact, and that less is better."""
    chunks = Metric.of_method("chunks", "chunks drawn", "B", better="less", exact=True)
    records = [
        make_record(declared={"metrics": as_declared([chunks])}, result={"stats": {"chunks": count}})
        for count in (100.0, 150.0)
    ]
    before, after = records
    [row], _ = compare([Pair(before, after)], metric_of("stat_chunks", [before, after]))
    assert (row.verdict, row.worse, row.change) == ("more", True, pytest.approx(1.5))
