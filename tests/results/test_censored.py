"""Times of which some are censored: against brute force, published numbers and made-up methods with known times."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from harness.results.censored import R_MAX, Ahead, Times, closed, compare, judged, leads, profiles
from harness.results.stats import derived_target
from tools.made_up import Curves, share_of


def times(values: list[float], budget: float = math.inf) -> Times:
    reached = {seed: value for seed, value in enumerate(values) if value <= budget}
    return Times(reached, {seed: budget for seed, value in enumerate(values) if value > budget})


def brute_survival(own: Times, at: float) -> float:
    """The product-limit estimate of the share that still is on its way after `at`, by its definition."""
    share = 1.0
    every = [*own.reached.values(), *own.censored.values()]
    for time in sorted(set(own.reached.values())):
        if time <= at:
            risk = sum(other >= time for other in every)
            share *= 1 - sum(other == time for other in own.reached.values()) / risk
    return share


def test_the_median_is_where_half_are_left() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        count = int(rng.integers(1, 12))
        values = rng.integers(1, 20, count).astype(float)
        budgets = rng.integers(5, 25, count).astype(float)
        own = Times(
            {i: v for i, (v, b) in enumerate(zip(values, budgets, strict=True)) if v <= b},
            {i: b for i, (v, b) in enumerate(zip(values, budgets, strict=True)) if v > b},
        )
        at = sorted(own.reached.values())
        first = next((t for t in at if brute_survival(own, t) <= 0.5 + 1e-12), None)
        found = own.median
        if first is None:
            assert found is None
        else:
            assert found is not None
            assert found.low <= found.centre <= found.high
            assert found.centre >= first
            if abs(brute_survival(own, first) - 0.5) > 1e-9:
                assert found.centre == first


def test_without_censoring_it_is_the_median() -> None:
    for count in (1, 3, 5, 9):
        values = list(np.random.default_rng(count).random(count) + 1)
        found = times(values).median
        assert found is not None
        assert found.centre == pytest.approx(np.median(values))
    assert times([3, 4, 5, 6, 7], budget=2).median is None
    half = times([1, 2, 9, 9], budget=5).median
    assert half is not None
    assert (half.centre, half.high) == (2, math.inf)


def test_the_share_has_wilsons_interval() -> None:
    own = times([1, 1, 1, 9, 9], budget=5)
    assert own.share.centre == 0.6
    z, p, n = scipy_stats.norm.ppf(0.975), 0.6, 5
    centre, reach = (p + z**2 / 2 / n), z * math.sqrt(p * (1 - p) / n + z**2 / 4 / n**2)
    assert (own.share.low, own.share.high) == pytest.approx(
        ((centre - reach) / (1 + z**2 / n), (centre + reach) / (1 + z**2 / n))
    )


def made_up(
    rng: np.random.Generator, typical: list[float], noise: float, budget: float, seeds: int = 5
) -> dict[str, Times]:
    """Methods with known typical times: seeds are good or bad for all of them, and each trial scatters."""
    of_seed = rng.normal(0, 0.2, seeds)
    return {
        f"m{i}": times(list(t * np.exp(of_seed + rng.normal(0, noise, seeds))), budget) for i, t in enumerate(typical)
    }


@pytest.mark.quick(1)
@pytest.mark.parametrize("methods", [2, 5, 14])
@pytest.mark.parametrize("budget", [math.inf, 1.3])
def test_equal_methods_are_told_apart_in_5_of_100_at_most(methods: int, budget: float) -> None:
    rng, runs = np.random.default_rng(methods), 400
    wrong = sum(any(pair.sure for pair in compare(made_up(rng, [1.0] * methods, 0.3, budget))) for _ in range(runs))
    assert scipy_stats.binomtest(wrong, runs, 0.05, alternative="greater").pvalue > 0.01, f"{wrong} of {runs}"


def unlike(rng: np.random.Generator, methods: int, seeds: int, apart: float = 0.0) -> dict[str, Times]:
    """Methods that scatter by 1 to 20 %, each slower than the one before by a factor of e to the power of `apart`."""
    noises = np.resize([0.01, 0.05, 0.2, 0.03, 0.1], methods)[:, None]
    logs = rng.normal(0, 0.2, seeds) + noises * rng.normal(0, 1, (methods, seeds)) + apart * np.arange(methods)[:, None]
    return {f"m{i:02}": times(own) for i, own in enumerate(np.exp(logs).tolist())}


@pytest.mark.slow
@pytest.mark.parametrize(("methods", "seeds"), [(5, 3), (18, 3), (9, 4)])
def test_equal_methods_that_scatter_unlike_are_told_apart_in_5_of_100_at_most(methods: int, seeds: int) -> None:
    rng, runs = np.random.default_rng(methods), 400
    wrong = sum(any(pair.sure for pair in compare(unlike(rng, methods, seeds))) for _ in range(runs))
    assert scipy_stats.binomtest(wrong, runs, 0.05, alternative="greater").pvalue > 0.01, f"{wrong} of {runs}"


def test_three_seeds_of_many_methods_tell_most_of_them_apart() -> None:
    """Of 18 methods, each 10 % slower than the one before: what one method scatters is known from all its pairs."""
    rng, runs, sure, wrong = np.random.default_rng(0), 30, 0, 0
    for _ in range(runs):
        found = compare(unlike(rng, 18, 3, apart=0.1))
        sure += sum(pair.sure for pair in found)
        wrong += any(pair.sure and pair.method > pair.over for pair in found)
    assert sure / runs > 0.4 * 18 * 17 / 2
    assert wrong <= 3


def test_a_methods_scatter_is_not_taken_for_smaller_than_it_is() -> None:
    """Of the errors of all pairs' means: what is said of them is their true size, or a little more."""
    rng, said, true = np.random.default_rng(0), [], []
    noises = dict(zip("abcdefgh", [0.01, 0.01, 0.05, 0.05, 0.05, 0.05, 0.2, 0.2], strict=True))
    for _ in range(200):
        of_seed = rng.normal(0, 0.3, 4)
        made = {name: times(list(np.exp(of_seed + rng.normal(0, noise, 4)))) for name, noise in noises.items()}
        for lead in leads(made):
            said.append(lead.variances[0][0] * 4)
            true.append(noises[lead.method] ** 2 + noises[lead.over] ** 2)
    ratios = np.array(said).reshape(200, -1).mean(axis=0).sum() / np.array(true).reshape(200, -1).mean(axis=0).sum()
    assert 0.9 < ratios < 1.4


def test_methods_are_ranked_right_and_a_verdict_is_hardly_ever_wrong() -> None:
    """Seven methods, each 1.6 times as slow as the one before; the last two mostly or never reach the target."""
    rng, runs, typical = np.random.default_rng(1), 100, [1.6**i for i in range(7)]
    ranked = wrong = called = 0
    for _ in range(runs):
        found = made_up(rng, typical, 0.1, budget=9.0)
        medians = {name: own.median for name, own in found.items()}
        order = sorted(medians, key=lambda name: medians[name].centre if medians[name] else math.inf)  # type: ignore[union-attr]
        ranked += order[:5] == [f"m{i}" for i in range(5)]
        pairs = compare(found)
        wrong += any(pair.sure and pair.method > pair.over for pair in pairs)
        called += any(pair.sure and (pair.method, pair.over) == ("m0", "m1") for pair in pairs)
    assert ranked >= 95
    assert wrong <= 5
    assert called >= 95, "a difference of 1.6 times at a noise of 10 % was not seen"


def test_a_lead_over_who_never_arrives_is_at_least_the_budget() -> None:
    fast, never, late = (
        times([1.0, 1.1, 0.9, 1.05, 1.0]),
        times([99.0] * 5, budget=20),
        times([5.0] * 4 + [99], budget=20),
    )
    made = {"fast": fast, "never": never, "late": late}
    found = {(p.method, p.over): p for p in compare(made)}
    assert found["fast", "never"].sure
    assert 18 < next(math.exp(p.size) for p in leads(made) if (p.method, p.over) == ("fast", "never")) < 21
    logs = [math.log(20 / t) for t in (1.0, 1.1, 0.9, 1.05, 1.0)]
    t, standard_error = (
        scipy_stats.t.ppf(1 - 0.04 / 3 / 2, 4),
        scipy_stats.sem(logs),
    )  # the first of three in Holm's order
    assert found["fast", "never"].least == pytest.approx(math.exp(np.mean(logs) - t * standard_error))
    assert not found["late", "never"].sure, "who is censored cannot be ahead for sure"
    assert [pair.sure for pair in compare({"a": times([1.0]), "b": times([50.0])})] == [False], "of one seed each"


def test_who_is_ahead_of_one_is_ahead_of_all_that_it_is_ahead_of() -> None:
    names = "abcd"
    known = {("a", "b"): 1.5, ("b", "c"): 2.0, ("c", "d"): 3.0, ("a", "c"): 1.2, ("a", "d"): None, ("d", "b"): None}
    found = closed([Ahead(*ends, least is not None, least or 1.0) for ends, least in known.items()])
    least = {(pair.method, pair.over): pair.least for pair in found}
    assert least == {("a", "b"): 1.5, ("b", "c"): 2, ("c", "d"): 3, ("a", "c"): 3, ("b", "d"): 6, ("a", "d"): 9}
    assert all(pair.sure for pair in found)
    assert {pair.method for pair in found} | {pair.over for pair in found} == set(names)
    unknown = closed([Ahead("a", "b", True, 1.5), Ahead("a", "c", False), Ahead("b", "c", False)])
    assert [pair.sure for pair in unknown] == [True, False, False]


def test_a_method_of_few_seeds_is_behind_the_first_by_way_of_another() -> None:
    rng = np.random.default_rng(0)

    def drawn(mean: float, noise: float, count: int) -> Times:
        return Times({seed: mean * math.exp(rng.normal(0, noise)) for seed in range(count)}, {})

    made = {"first": drawn(2.0, 0.8, 24), "second": drawn(4.0, 0.05, 24), "late": drawn(4.6, 0.05, 3)}
    assert not {(p.method, p.over) for p in judged(leads(made)) if p.sure} >= {("first", "late")}
    assert {(p.method, p.over) for p in compare(made) if p.sure} >= {("first", "second"), ("first", "late")}


def test_profiles_are_their_definition() -> None:
    rng = np.random.default_rng(3)
    medians = {
        f"m{m}": {f"w{w}": None if rng.random() < 0.2 else float(rng.uniform(1, 8)) for w in range(5)} for m in range(4)
    }
    found = profiles(medians)
    workloads = [f"w{w}" for w in range(5)]
    best = {w: min((own[w] for own in medians.values() if own[w]), default=None) for w in workloads}
    known = [w for w in workloads if best[w]]
    grid = np.linspace(1, R_MAX, 200_001)
    for name, own in medians.items():

        def rho(tau: np.ndarray, among: list[str], own: dict[str, float | None] = own) -> np.ndarray:
            ratios = [own[w] / best[w] if own[w] else math.inf for w in among]  # type: ignore[operator]
            return np.mean([ratio <= tau for ratio in ratios], axis=0)

        profile = found[name]
        assert profile.score == pytest.approx(rho(grid, known).mean(), abs=1e-4)
        for workload in known:
            rest = [w for w in known if w != workload]
            assert profile.without[workload] == pytest.approx(rho(grid, rest).mean(), abs=1e-4)
        for tau, share in zip(profile.taus, profile.shares, strict=True):
            assert share == pytest.approx(float(rho(np.array([tau * (1 + 1e-12)]), known)[0]), abs=1 / len(known))
    assert list(itertools.chain(profiles({}).values())) == []


def test_of_one_budget_who_does_not_arrive_is_the_last() -> None:
    """Two of five arrive; that the others were stopped a little earlier does not make it a half."""
    own = Times({0: 1.7, 1: 2.5}, {2: 1.6, 3: 1.65, 4: 1.68})
    assert own.median is not None
    assert own.of_one_budget.median is None
    most = Times({0: 1.0, 1: 1.2, 2: 1.4}, {3: 0.9, 4: 1.1}).of_one_budget
    assert (most.reached, most.censored) == ({0: 1.0, 1: 1.2, 2: 1.4}, {3: 1.4, 4: 1.4})
    assert most.median is not None
    assert most.median.centre == 1.4


def test_a_derived_target_is_a_point_below_the_mean_of_the_best() -> None:
    assert derived_target([0.98, 0.97]) == 0.965
    assert derived_target([0.9827]) == 0.972  # down to 0.1 point
    assert derived_target([0.97]) == 0.96  # as a float 0.97 - 0.01 is less


@pytest.mark.parametrize("of_best", [False, True])
def test_a_derived_target_parts_no_equal_methods(of_best: bool) -> None:
    """In 5 % of draws at most: what one method's luck adds to the target, all have to reach."""
    assert share_of(Curves(3, 5, plateau=0.005, of_best=of_best), 150, Curves.distinguished) <= 0.05
