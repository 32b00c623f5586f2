from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from claims.made import claim, frame, trial
from scipy import stats as scipy_stats

from harness.claims import NO_RATIO, Verdict, evaluate
from harness.metrics import Metric
from harness.suite.schema import TrialConfig
from harness.suite.sections import Claim, NetworkSpec

Figures = list[tuple[TrialConfig, dict[str, Any]]]
WHOLE, SAMPLED = {"method": "whole"}, {"method": "sampled"}


def judged(one: Claim, figures: Figures, *, more: tuple[TrialConfig, ...] = ()) -> Verdict:
    [verdict] = evaluate([one], frame(figures), [*(t for t, _ in figures), *more])
    return verdict


def by_method(metric: str, **values: Any) -> Figures:
    """A value for each seed of each method."""
    return [(trial(name, seed), {metric: value}) for name, own in values.items() for seed, value in enumerate(own)]


def test_a_ratio_is_that_of_the_means_over_seeds_which_are_resampled_in_pairs() -> None:
    sampled = np.array([1.0, 5.0, 9.0])
    figures = by_method("bytes_feature", whole=2 * sampled, sampled=sampled)
    [row] = judged(claim("bytes_feature", {"at_least": 1.9}, WHOLE, over=SAMPLED), figures).rows
    assert row.value == pytest.approx(2.0)
    assert row.interval is not None
    # However much the seeds differ, every pair's ratio is 2.
    assert (row.interval.low, row.interval.high) == pytest.approx((2.0, 2.0))

    whole = np.array([4.0, 5.0, 6.0])
    figures = by_method("bytes_feature", whole=whole, sampled=sampled)
    verdict = judged(claim("bytes_feature", {"at_least": 0.9}, WHOLE, over=SAMPLED), figures)
    [row] = verdict.rows
    assert row.value == pytest.approx(whole.mean() / sampled.mean())
    assert (verdict.expected, verdict.measured[:6]) == ("at least 0.9 ×", "1.00 [")
    assert (verdict.state, row.sure, verdict.twin) == ("indicated", False, False)
    assert verdict.why == "not sure: the interval reaches past the bound"
    far = judged(claim("bytes_feature", {"at_least": 1e9}, WHOLE, over=SAMPLED), figures)
    assert (far.state, far.rows[0].sure, far.why) == ("fails", True, "")


def test_a_mean_has_students_interval() -> None:
    scores = np.random.default_rng(0).normal(0.9, 0.01, 12)
    verdict = judged(claim("best_val", {"at_least": 0.8}, WHOLE), by_method("best_val", whole=scores))
    low, high = scipy_stats.t.interval(0.96, 11, scores.mean(), scores.std(ddof=1) / math.sqrt(12))
    interval = verdict.rows[0].interval
    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx((low, high))


def test_an_interval_wider_than_the_scale_of_scores_is_not_shown() -> None:
    verdict = judged(claim("best_val", {"at_least": 0.3}, WHOLE), by_method("best_val", whole=[0.2, 0.46]))
    assert (verdict.measured, verdict.state) == ("33.00 %", "indicated")
    assert "2 runs scatter too much for an interval" in verdict.why
    close = judged(claim("best_val", {"at_least": 0.3}, WHOLE), by_method("best_val", whole=[0.32, 0.34]))
    assert close.measured.startswith("33.00 [")


def test_a_metric_is_a_quotient_of_sums_and_a_difference_is_in_points() -> None:
    figures: Figures = [
        (trial("whole"), {"time_sample_s": 1, "time_fetch_s": 2, "epoch_time_s": 12, "best_val": 0.9}),
        (trial("sampled"), {"time_sample_s": 2, "time_fetch_s": 4, "epoch_time_s": 8, "best_val": 0.88}),
    ]
    share = claim("time_sample_s + time_fetch_s / epoch_time_s", {"between": [0.2, 0.8]}, {"parts": 2})
    verdict = judged(share, figures)
    assert [row.value for row in verdict.rows] == [0.25, 0.75]
    assert [row.label for row in verdict.rows] == ["whole", "sampled"]
    assert (verdict.measured, verdict.state) == ("0.250 to 0.750 (2 of 2 as expected)", "indicated")
    by = claim("best_val", {"at_least": -0.01}, SAMPLED, over=WHOLE, by="difference")
    verdict = judged(by, figures)
    assert (verdict.measured, verdict.expected) == ("-2.00 points", "at least -1 points")
    assert verdict.state == "indicated against"


@pytest.mark.parametrize(
    ("direction", "tolerance", "values", "state"),
    [
        ("increasing", 0.0, (1.0, 2.0, 3.0), "indicated"),
        ("increasing", 0.0, (1.0, 2.0, 1.9), "indicated against"),
        ("increasing", 0.1, (1.0, 2.0, 1.9), "indicated"),
        ("decreasing", 0.1, (1.0, 1.09, 0.5), "indicated"),
        ("decreasing", 0.1, (1.0, 1.11, 0.5), "indicated against"),
        ("increasing", 0.1, (-1.0, -1.05, -1.0), "indicated"),
        ("increasing", 0.0, (1.0, math.nan, 3.0), "not measured"),
        ("decreasing", 0.0, (1.0, 2.0, math.nan), "indicated against"),
    ],
)
def test_an_order_holds_step_by_step(direction: str, tolerance: float, values: Any, state: str) -> None:
    items = [{"rate": rate} for rate in (0.1, 0.2, 0.3)]
    figures: Figures = [
        (trial("sampled", rate=item["rate"]), {"stat_kept": value}) for item, value in zip(items, values, strict=True)
    ]
    expect = {"order": items, "direction": direction, "tolerance": tolerance}
    verdict = judged(claim("stat_kept", expect, SAMPLED), figures)
    assert verdict.state == state
    sign = " < " if direction == "increasing" else " > "
    assert verdict.expected.startswith(sign.join(("rate=0.1", "rate=0.2", "rate=0.3")))


def test_an_order_through_zero_is_not_said_to_lack_seeds() -> None:
    order = {"order": [{"parts": 2}, {"parts": 4}], "direction": "increasing"}
    one = claim("stat_kept", order, WHOLE)

    def why(seeds: int) -> str:
        sizes = [(trial("whole", s, parts=p), {"stat_kept": p - 2.0}) for p in (2, 4) for s in range(seeds)]
        return judged(one, sizes).why

    assert "one seed" in why(1)
    assert why(3) == NO_RATIO


def test_what_was_not_run_or_failed_is_said_and_the_rest_counts() -> None:
    figures: Figures = [
        (trial("whole", parts=2), {"epoch_time_s": 2.0}),
        (trial("sampled", parts=2), {"epoch_time_s": 1.0}),
        (trial("whole", parts=4), {"epoch_time_s": 2.0, "status": "oom", "reason": "rank 1 killed"}),
        (trial("sampled", parts=4), {"epoch_time_s": 1.0}),
        (trial("whole", parts=8), {"epoch_time_s": 2.0}),
        (trial("sampled", parts=8), {"epoch_time_s": None}),
    ]
    one = claim("epoch_time_s", {"at_least": 1.5}, WHOLE, over=SAMPLED)
    planned = (trial("whole", parts=16), trial("sampled", parts=16))
    verdict = judged(one, figures, more=planned)
    assert [(row.label, row.state, row.why) for row in verdict.rows] == [
        ("parts=2", "indicated", ""),
        ("parts=4", "not measured", "whole: oom: rank 1 killed"),
        ("parts=8", "not measured", "sampled: has no epoch_time_s"),
        ("parts=16", "not measured", "not run"),
    ]
    assert verdict.state == "indicated"
    lacking = "whole: oom: rank 1 killed, sampled: has no epoch_time_s, not run"
    assert verdict.why == f"not sure: one seed; 3 of 4 not measured: {lacking}"
    nothing = evaluate([one], frame(figures).iloc[:0], [t for t, _ in figures])[0]
    assert (nothing.state, nothing.measured, nothing.why) == ("not measured", "", "not run")


def test_rows_on_several_networks_are_named_by_them_and_a_missed_target_is_said() -> None:
    links = (None, NetworkSpec.model_validate({"rate": "1gbit"}))
    figures: Figures = [
        (
            trial(name).model_copy(update={"network": link}),
            {"time_to_target_s": None if name == "sampled" and link else 2.0},
        )
        for link in links
        for name in ("whole", "sampled")
    ]
    rows = judged(claim("time_to_target_s", {"at_most": 1}, WHOLE, over=SAMPLED), figures).rows
    assert [(row.label, row.why) for row in rows] == [("none", ""), ("1gbit", "sampled: does not reach the target")]


def test_trials_without_a_partner_leave_the_others_their_verdict() -> None:
    figures = by_method("epoch_time_s", whole=[2.0], sampled=[1.0])
    figures.append((trial("whole", parts=4), {"epoch_time_s": 9.0}))
    verdict = judged(claim("epoch_time_s", {"at_least": 1.5}, WHOLE, over=SAMPLED), figures)
    assert [row.state for row in verdict.rows] == ["indicated", "not measured"]
    assert "with no trial of the suite" in verdict.rows[1].why
    verdict = judged(claim("epoch_time_s", {"at_least": 1.5}, WHOLE, over={"method": "other"}), figures)
    assert (verdict.state, verdict.why) == ("not measured", "over: selects no trial of the suite")


def test_a_metric_of_a_plugin_that_is_not_here() -> None:
    figures = by_method("epoch_time_s", whole=[2.0], sampled=[1.0])
    for metric in ("goodness", "goodness / epoch_time_s"):
        verdict = judged(claim(metric, {"at_least": 1.5}, WHOLE), figures)
        assert (verdict.state, verdict.why) == ("not measured", "'goodness' is no metric of a trial")
        verdict = judged(claim(metric, {"at_least": 1.5}, WHOLE, over=SAMPLED), figures)
        assert (verdict.state, verdict.why) == ("not measured", "'goodness' is no metric of a trial")


def test_only_seeds_that_both_sides_have_are_compared() -> None:
    figures = by_method("best_val", whole=[0.5, 0.7, 0.9], sampled=[0.4, 0.6])
    one = claim("best_val", {"at_most": 0}, SAMPLED, over=WHOLE, by="difference")
    verdict = judged(one, figures, more=(trial("sampled", 2),))
    assert verdict.rows[0].values == pytest.approx((0.5, 0.6))
    assert "2 of 3 seeds count; of the others: not run, 2 runs scatter too much" in verdict.why
    named = claim("best_val", {"at_least": 0}, {"seed": 2}, over={"method": "sampled", "seed": [0, 1]}, by="difference")
    assert judged(named, figures).rows[0].values == pytest.approx((0.9, 0.5))


def test_one_seed_indicates_and_several_decide() -> None:
    """The 23 % of wrong verdicts of one seed: none is without a doubt."""
    one = claim("best_val", {"at_least": 0.9}, WHOLE)
    for value, state in ((0.93, "indicated"), (0.87, "indicated against")):
        verdict = judged(one, by_method("best_val", whole=[value]))
        assert (verdict.state, verdict.why, verdict.rows[0].sure) == (state, "not sure: one seed", None)
    assert judged(one, by_method("best_val", whole=[0.93, 0.931, 0.929])).state == "holds"
    assert judged(one, by_method("best_val", whole=[0.87, 0.871, 0.869])).state == "fails"
    assert judged(one, by_method("best_val", whole=[0.93, 0.89, 0.99])).state == "indicated"
    # of one code exact numbers are what they are
    sent = claim("bytes_feature", {"at_most": 0.5}, SAMPLED, over=WHOLE)
    assert judged(sent, by_method("bytes_feature", whole=[10.0], sampled=[4.0])).state == "holds"
    assert judged(sent, by_method("bytes_feature", whole=[10.0], sampled=[6.0])).state == "fails"


STARTED = "2026-01-01T00:00:00+00:00"


def test_runs_of_one_seed_count_for_times_and_not_for_scores() -> None:
    """Scores of one seed are the same bits each time."""
    figures = [
        (trial(name), {"epoch_time_s": seconds + noise, "best_val": score, "repeat": repeat, "started": STARTED})
        for name, seconds, score in (("whole", 2.0, 0.8), ("sampled", 1.0, 0.9))
        for repeat, noise in enumerate((0.0, 0.01, -0.01, 0.02))
    ]
    time = claim("epoch_time_s", {"at_least": 1.8}, WHOLE, over=SAMPLED)
    assert judged(time, figures).state == "holds"
    by_seed = [figures[0], figures[2], *figures[5:]]  # whole's 0 and 2, sampled's 1 to 3: one is a pair
    assert judged(time, by_seed).why == "not sure: one seed"
    for bound, state in ((2.05, "indicated"), (2.5, "holds")):  # the machine may be 10 % slower at another time
        assert judged(claim("epoch_time_s", {"at_most": bound}, WHOLE), figures).state == state
    score = claim("best_val", {"at_most": 0}, WHOLE, over=SAMPLED, by="difference")
    assert (judged(score, figures).state, judged(score, figures).why) == ("indicated", "not sure: one seed")


def test_independent_seeds_have_the_interval_of_welch() -> None:
    scores = {"whole": [0.5, 0.7, 0.9, 0.86], "sampled": [0.4, 0.6, 0.41]}
    figures = by_method("best_val", **scores)
    named = claim(
        "best_val", {"at_least": -1}, {"method": "whole", "seed": [2, 3]}, over={"method": "sampled", "seed": [0, 1]},
        by="difference",
    )  # fmt: skip
    [row] = judged(named, figures).rows
    test = scipy_stats.ttest_ind(scores["whole"][2:], scores["sampled"][:2], equal_var=False)
    ends = test.confidence_interval(0.96)
    assert row.interval is not None
    assert (row.interval.low, row.interval.high) == pytest.approx((ends.low, ends.high))


def test_several_rows_have_wider_intervals() -> None:
    scores = [0.93, 0.931, 0.929]
    figures: Figures = [
        (trial("whole", seed, parts=p), {"best_val": s}) for p in (2, 4) for seed, s in enumerate(scores)
    ]
    one = claim("best_val", {"at_least": 0.9}, WHOLE)
    [alone], both = judged(one, figures[:3]).rows, judged(one, figures).rows
    assert alone.interval is not None
    assert both[0].interval is not None
    assert both[0].interval.low < alone.interval.low


@pytest.mark.parametrize(
    ("order", "reference", "state"),
    [("turns", False, "holds"), ("blocks", False, "indicated"), ("blocks", True, "holds")],
)
def test_a_drift_of_the_machine_may_be_what_a_ratio_shows(order: str, reference: bool, state: str) -> None:
    """Sampled is 8 % faster; the machine does not drift, as its reference tells."""
    figures: Figures = []
    for seed, noise in enumerate([0.0, 0.003, -0.003, 0.002]):
        for side, (name, seconds) in enumerate((("whole", 1.08), ("sampled", 1.0))):
            minute = 2 * seed + side if order == "turns" else seed + 4 * side
            own = {"epoch_time_s": seconds * (1 + noise * side), "started": f"2026-01-01T00:{minute:02d}:00+00:00"}
            figures.append((trial(name, seed), own | ({"reference_s": 0.1 + 1e-5 * minute} if reference else {})))
    one = claim("epoch_time_s", {"at_least": 1.05}, WHOLE, over=SAMPLED)
    assert judged(one, figures).state == state


def test_twins_are_told_by_their_name_and_by_their_records() -> None:
    one = claim("best_val", {"at_least": 0}, WHOLE)
    assert judged(one, [(trial("whole", dataset="twin"), {"best_val": 0.5})]).twin
    assert judged(one, [(trial("whole"), {"best_val": 0.5, "origin": "twin"})]).twin
    assert not judged(one, [(trial("whole"), {"best_val": 0.5, "origin": "generated"})]).twin
    [planned] = evaluate([one], frame([]), [trial("whole", dataset="twin")])
    assert (planned.twin, planned.state) == (True, "not measured")


def test_values_that_miss_a_bound_by_little_do_not_read_like_it() -> None:
    for value, state, shown in ((1.5996, "fails", "1.5996 ×"), (1.6, "holds", "1.60 ×")):
        figures = by_method("bytes_feature", whole=[value], sampled=[1.0])
        verdict = judged(claim("bytes_feature", {"at_least": 1.6}, WHOLE, over=SAMPLED), figures)
        assert (verdict.state, verdict.measured) == (state, shown)
    nothing = judged(
        claim("bytes_feature", {"at_least": 1.6}, WHOLE, over=SAMPLED),
        by_method("bytes_feature", whole=[1.0], sampled=[0.0]),
    )
    assert (nothing.state, nothing.why) == ("not measured", "what it is compared with is 0")


def test_a_claim_on_a_metric_that_a_method_declares() -> None:
    """Its unit is what the method says: of a step's metric, and of one of the set-up."""
    sampled, whole = trial("sampled"), trial("whole")
    figures = [
        (sampled, {"stat_chunks": 3 * 2**20, "fill_s": 0.004}),
        (whole, {"stat_chunks": 6 * 2**20, "fill_s": 0.5}),
    ]
    declared = [Metric.of_method("chunks", "chunks drawn", "B"), Metric.of_setup("fill_s", "to fill the cache", "s")]
    claims = [
        claim("stat_chunks", {"at_most": 4 * 2**20}, {"method": "sampled"}),
        claim("fill_s", {"at_most": 0.01}, {"method": "sampled"}),
        claim("stat_chunks", {"between": (0.4, 0.6)}, {"method": "sampled"}, over={"method": "whole"}),
    ]
    verdicts = evaluate(claims, frame(figures), [sampled, whole], declared)
    assert [verdict.state for verdict in verdicts] == ["indicated"] * 3
    assert [verdict.measured for verdict in verdicts] == ["3.00 MiB", "4.00 ms", "0.500 ×"]
    assert [verdict.expected for verdict in verdicts] == ["at most 4 MiB", "at most 10 ms", "between 0.4 and 0.6 ×"]
