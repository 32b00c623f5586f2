"""Comparisons of several methods: what unlike noises, and a wild one, do to each other's verdicts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats as scipy_stats

from harness.metrics import METRICS
from harness.results.contrast import RISK, WILD, Pairs, all_pairs, holm, risks_of_pairs, shrunken

SCORE, TIME = METRICS["test_at_best_val"], METRICS["epoch_time_s"]


def test_a_wild_method_does_not_blur_the_others() -> None:
    """Three paired differences of 2.1 to 2.8 points are sure, whatever a third method scatters by."""
    better, worse = np.array([0.80, 0.81, 0.79]), np.array([0.779, 0.785, 0.762])
    wild = np.array([0.30, 0.81, 0.55])
    pairs = {
        (a, b): Pairs.of(SCORE, np.stack([one, other]))
        for (a, one), (b, other) in itertools.combinations({"a": better, "b": worse, "w": wild}.items(), 2)
    }
    found = all_pairs(pairs, SCORE)["a", "b"]
    sizes = worse - better
    low, high = scipy_stats.t.interval(1 - found.risk, 2, sizes.mean(), scipy_stats.sem(sizes))
    assert (found.low, found.high) == pytest.approx((low, high))  # its own three differences alone
    assert found.sure
    assert not all_pairs(pairs, SCORE)["a", "w"].sure


@pytest.mark.parametrize("doubts", [[0.001, 0.5, 0.03], [0.012, 0.018, 0.04], [0.2], []])
def test_holm_rejects_as_its_definition_does(doubts: Sequence[float]) -> None:
    rejected, order = set(), sorted(range(len(doubts)), key=lambda i: doubts[i])
    for rank, index in enumerate(order):
        if doubts[index] > RISK / (len(doubts) - rank):
            break
        rejected.add(index)
    assert {i for i, risk in enumerate(holm(doubts)) if doubts[i] <= risk} == rejected


@pytest.mark.parametrize("spread", [0.0, 0.5, 2.0])
def test_shrunken_variances_are_nearer_to_the_truth(spread: float) -> None:
    """Of true variances that differ by a factor, estimates of 4 degrees of freedom are off more than shrunken ones."""
    rng = np.random.default_rng(3)
    true = np.exp(rng.normal(0, spread, 400))
    seen = true * rng.chisquare(4, 400) / 4
    moved, freedom = shrunken(seen, np.full(400, 4.0))
    errors = [float(np.mean(np.square(np.log(each / true)))) for each in (moved, seen)]
    assert errors[0] < errors[1] * (0.5 if spread < 1 else 1.0)
    assert freedom.min() >= 4
    assert np.median(moved) == pytest.approx(np.median(true), rel=0.3)


def test_few_cells_are_judged_by_their_own_scatter() -> None:
    seen, freedom = np.array([1.0, 100.0]), np.array([2.0, 2.0])
    assert [each.tolist() for each in shrunken(seen, freedom, most=4)] == [[1.0, 100.0], [2.0, 2.0]]
    assert [each.tolist() for each in shrunken(seen, freedom)] == [[50.5, 100.0], [4.0, 2.0]]


def test_a_method_20_percent_slower_is_excluded_next_to_a_wild_one() -> None:
    rng, noise, runs = np.random.default_rng(5), np.array([0.5, *[0.05] * 13]), 60
    excluded = 0
    for _ in range(runs):
        logs = noise[:, None] * rng.normal(0, 1, (14, 5))
        logs[-1] += math.log(1.2)
        pairs = {
            (i, j): Pairs.of(TIME, np.exp(logs[[i, j]]), np.array([[i, j]] * 5).T + 20.0 * np.arange(5))
            for i, j in itertools.combinations(range(14), 2)
        }
        excluded += any(found.sure and found.size > 0 for (_, j), found in all_pairs(pairs, TIME).items() if j == 13)
    assert excluded >= 0.9 * runs


def behind_by_definition(
    pairs: Sequence[tuple[int, int]], doubts: Sequence[float], spreads: Sequence[float], count: int
) -> set[int]:
    """Methods that are called behind the best whichever that is: a test of the whole risk for each that it may be."""

    def at_once(risk: float) -> set[int]:
        found = set[int]()
        for rank, index in enumerate(sorted(range(len(doubts)), key=lambda i: doubts[i])):
            if doubts[index] > risk / (len(doubts) - rank):
                break
            found.add(pairs[index][1])
        return found

    def wild(one: int) -> bool:
        own = [spread for pair, spread in zip(pairs, spreads, strict=True) if one in pair]
        return bool(np.median(own) > WILD * np.median(spreads))

    def behind(one: int) -> set[int]:
        """The methods that are called behind the best if that is `one`."""
        if wild(one):
            return at_once(RISK)
        to_one = {worse: p for (better, worse), p in zip(pairs, doubts, strict=True) if better == one}
        return at_once(RISK / 4) | {worse for worse, p in to_one.items() if p < 0.75 * RISK / (count - 1)}

    def may_be(one: int) -> bool:
        better = [p for (_, worse), p in zip(pairs, doubts, strict=True) if worse == one]
        return one not in at_once(RISK) if wild(one) else min(better, default=1.0) >= 0.75 * RISK / (count - 1)

    best = [one for one in range(count) if may_be(one)]
    return at_once(RISK / 4) | (set.intersection(*map(behind, best)) - set(best) if best else set())


@pytest.mark.quick(1)
@pytest.mark.parametrize("count", [4, 6, 9])
def test_who_is_behind_is_the_same_by_a_test_for_each_that_may_be_the_best(count: int) -> None:
    rng, called, wild_best = np.random.default_rng(count), 0, 0
    for draw in range(200):
        level = rng.choice([0, 1, 6], count)
        spread = np.where(rng.random(count) < 0.2, 20.0, 1.0)
        means = level + 0.3 * spread * rng.normal(0, 1, count)
        pairs, doubts, spreads = [], [], []
        for i, j in itertools.combinations(range(count), 2):
            pairs.append((i, j) if means[i] < means[j] else (j, i))
            spreads.append(0.3 * math.hypot(spread[i], spread[j]))
            doubts.append(2 * float(scipy_stats.norm.sf(abs(means[i] - means[j]) / spreads[-1])))
        risks = risks_of_pairs(pairs, doubts, spreads)
        found = {worse for (_, worse), p, risk in zip(pairs, doubts, risks, strict=True) if p < risk}
        assert found == behind_by_definition(pairs, doubts, spreads, count), f"draw {draw}"
        called += len(found)
        wild_best += bool(set(np.flatnonzero(spread > 1)) - found)
    assert called > 100
    assert wild_best > 50


@pytest.mark.slow
def test_a_winner_of_14_is_found_with_5_seeds_in_half_of_all_draws() -> None:
    """20 % ahead at a noise of 5 %; by all pairs at once in a third."""
    rng, runs, won = np.random.default_rng(6), 60, 0
    for _ in range(runs):
        logs = 0.05 * rng.normal(0, 1, (14, 5))
        logs[0] -= math.log(1.2)
        pairs = {
            (i, j): Pairs.of(TIME, np.exp(logs[[i, j]]), np.array([[i, j]] * 5).T + 20.0 * np.arange(5))
            for i, j in itertools.combinations(range(14), 2)
        }
        won += len({j for (_, j), found in all_pairs(pairs, TIME).items() if found.sure}) == 13
    assert won >= 0.45 * runs
