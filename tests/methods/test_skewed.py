"""Alpha, and the bounds of the variance that it comes from (Skewed Linear Weighted Sampling, section 4).

Rows of norm 1 and unbiased draws: the variance is V = sum_j q_j (1/p_j - 1) (Eq. 5). n candidates, Q = sum q,
w_j = alpha q_j of local and q_j of remote ones, W = alpha Q_L + Q_R, pi_j = w_j / W.

p_j = s pi_j, where no p reaches 1: V = sum_j q_j W / (s w_j) - Q = W (n_L / alpha + n_R) / s - Q, which is
nQ/s - Q at alpha = 1. The bounds of Eq. 11 and 9, less Q, are attained.

p_j = min(1, c w_j) with sum p = s (`inclusion`): c >= s / W, so V <= W (n_L / alpha + n_R) / s always. Less
Q: those of p = 1 have w_j >= t = 1/c, and the others give V = t B_2 - Q_2, where B sums b_j = q_j / w_j, and
1 and 2 mark the two groups. W B / s - Q grows with a w_j of group 1 at the rate B / s - b_j; with all of them
at t, W = st and it is t B - t B_1 - Q_2 = V. So it is a bound where B / s >= b_j: always for alpha = 1 (all
b = 1, B = n >= s), and for a skew where n_L / alpha + n_R >= s. Else remote nodes of p = 1 may make it
negative. Theorem 1, V <= D (n/s - 1) Q at Formula 12's alpha, needs no such
condition (`harness_methods.skewed`).

p_j = 1 - (1 - pi_j)^s (Eq. 8, s draws with replacement): (1 - pi)^-s >= 1 + s pi, so 1/p - 1 <= 1 / (s pi),
and V is at most nQ/s (Eq. 9) and W (n_L / alpha + n_R) / s (Eq. 11). It is above these less Q, as p <= s pi.
"""

from __future__ import annotations

import numpy as np
import pytest
from harness_methods.ladies import LADIESOptions
from harness_methods.skewed import Skew, SkewedOptions, SkewKind
from pydantic import ValidationError
from support.layerwise import LayerwiseCase

from harness.check.graphs import random_graph
from harness.graph.csr import Topology
from harness.sampling.layer_kernels import inclusion
from harness.sampling.layerwise import Estimator

NEAR = 1 + 1e-9


class Candidates:
    """Random q of local and remote candidates, and a size below their number."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.q = rng.lognormal(0, rng.choice([0, 0.3, 2, 4]), rng.integers(2, 200))
        self.local = rng.random(self.q.size) < rng.choice([0.1, 0.5, 0.9])
        self.local[:2] = True, False
        self.size = int(rng.integers(1, self.q.size))
        self.distortion = float(rng.choice([1.5, 4, 16]))

    def alpha(self, kind: SkewKind, distortion: float) -> float:
        local, remote = self.q[self.local], self.q[~self.local]
        skew = Skew(kind, distortion)
        return skew.alpha_of(local.size, remote.size, float(local.sum()), float(remote.sum()), self.size)

    def weights(self, alpha: float) -> np.ndarray:
        return self.q * np.where(self.local, alpha, 1)

    def bound(self, alpha: float) -> float:
        """Eq. 11 as the paper has it: without - Q."""
        spread = self.local.sum() / alpha + (~self.local).sum()
        return float(self.weights(alpha).sum() * spread / self.size)

    def variance(self, p: np.ndarray) -> float:
        return float(np.sum(self.q * (1 / p - 1)))


CASES = [Candidates(seed) for seed in range(300)]


def test_poisson_is_within_the_bounds() -> None:
    clipped = 0
    for case in CASES:
        total = case.q.sum()
        for alpha in (1.0, case.alpha("formula", case.distortion), case.alpha("quadratic", case.distortion)):
            p = inclusion(case.weights(alpha), case.size)
            variance, bound = case.variance(p), case.bound(alpha)
            assert variance <= bound * NEAR
            if case.local.sum() / alpha + (~case.local).sum() >= case.size:
                assert variance <= bound - total + 1e-9 * bound
            if (p < 1).all():
                assert variance == pytest.approx(bound - total, rel=1e-6, abs=1e-9 * total)
            clipped += (p == 1).any()
        plain = case.variance(inclusion(case.q, case.size))
        assert plain <= (case.q.size / case.size - 1) * total * NEAR
    assert 100 < clipped < 800


def test_theorem_1_holds_for_poisson() -> None:
    """At Formula 12's alpha the variance is at most D times the bound of the unskewed one."""
    tight = 0.0
    for case in CASES:
        most = case.distortion * (case.q.size / case.size - 1) * case.q.sum()
        p = inclusion(case.weights(case.alpha("formula", case.distortion)), case.size)
        assert case.variance(p) <= most * NEAR
        tight = max(tight, case.variance(p) / most)
    assert tight > 0.8


def test_less_q_bounds_no_skew_whose_remote_nodes_are_certain() -> None:
    """Two draws; n_L / alpha + n_R < s, and a remote node has nearly all the weight."""
    case = Candidates(0)
    case.q, case.local = np.array([1.0, 1.0, 1000.0]), np.array([True, True, False])
    case.size = 2
    variance = case.variance(inclusion(case.weights(4), 2))
    assert case.bound(4) - case.q.sum() < 0 < variance <= case.bound(4)


def test_draws_with_replacement_are_within_the_bounds_of_the_paper() -> None:
    for case in CASES:
        for alpha in (1.0, case.alpha("formula", case.distortion)):
            pi = case.weights(alpha) / case.weights(alpha).sum()
            p = -np.expm1(case.size * np.log1p(-pi))
            assert case.bound(alpha) - case.q.sum() - 1e-9 * case.bound(alpha) <= case.variance(p)
            assert case.variance(p) <= case.bound(alpha) * NEAR
        assert case.bound(1) == pytest.approx(case.q.size / case.size * case.q.sum())


def test_the_quadratic_uses_up_the_bound_and_the_formula_keeps_it() -> None:
    for case in CASES:
        total, distortion = case.q.sum(), case.distortion
        most = distortion * (case.bound(1) - total)
        quadratic, formula = case.alpha("quadratic", distortion), case.alpha("formula", distortion)
        assert case.bound(quadratic) - total == pytest.approx(most, rel=1e-9, abs=1e-12 * case.bound(quadratic))
        assert case.bound(quadratic * 1.01) - total > most
        assert case.bound(formula) - total <= most * NEAR
        assert quadratic >= formula >= 1


def test_formula_12() -> None:
    assert Skew("formula", 4.0).alpha_of(3000, 1000, 1.0, 1.0, 512) == pytest.approx(4 + 3 * 2488 / 1000)
    assert Skew("formula", 8.0).alpha_of(100, 1000, 1.0, 1.0, 512) == pytest.approx(8 + 7 * -412 / 1000)


@pytest.mark.parametrize("kind", ["formula", "quadratic"])
def test_monotone(kind: SkewKind) -> None:
    """Rises with D and, for the same n and Q, with n_L / n_R; falls with s."""

    def alpha(distortion: float, local: int, size: int) -> float:
        return Skew(kind, distortion).alpha_of(local, 1000 - local, 2.0, 3.0, size)

    for values in (
        [alpha(distortion, 500, 200) for distortion in (1, 1.01, 2, 4, 8, 16)],
        [alpha(4, local, 200) for local in (1, 10, 300, 600, 900, 999)],
        [alpha(4, 500, size) for size in (999, 700, 400, 100, 1)],
    ):
        assert (np.diff(values) > 0).all()
        assert min(values) >= 1


@pytest.mark.parametrize("skew", [Skew("formula", 8), Skew("quadratic", 8), Skew("fixed", alpha=8)])
def test_one_where_there_is_nothing_to_choose(skew: Skew) -> None:
    assert skew.alpha_of(10, 10, 1.0, 1.0, 5) > 1
    for local, remote, size in [(10, 0, 5), (0, 10, 5), (10, 10, 20), (10, 10, 99), (10, 10, -1), (0, 0, 0)]:
        assert skew.alpha_of(local, remote, float(local), float(remote), size) == 1


def test_d_of_one_is_the_unskewed_sampler() -> None:
    for kind in ("formula", "quadratic"):
        assert Skew(kind, 1).alpha_of(30, 10, 1.0, 50.0, 5) == 1


def test_a_side_without_weight() -> None:
    for q_local, q_remote in [(0.0, 1.0), (1.0, 0.0), (1e-300, 1.0), (0.0, 0.0)]:
        alpha = Skew("quadratic", 4).alpha_of(30, 10, q_local, q_remote, 5)
        assert alpha == pytest.approx(4 + 3 * 25 / 10)


@pytest.mark.parametrize(
    "options", [("formula", 0.5), ("formula", float("nan")), ("formula", 2, 3), ("fixed", 2), ("fixed", 1, 0.5)]
)
def test_options_out_of_range(options: tuple[SkewKind, float]) -> None:
    with pytest.raises(ValidationError, match=r"greater than or equal to 1|finite number|belongs to skew 'fixed'"):
        SkewedOptions(**dict(zip(("skew", "distortion", "alpha"), options, strict=False)))


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["ladies", "poisson"])
def test_remote_nodes_are_those_of_the_rule(estimator: Estimator) -> None:
    """Means over 200 batches, five standard errors allowed; without replacement no batch has more nodes or fewer."""
    graph, batches = random_graph(5, 2000, degree=8), 200
    case = LayerwiseCase(Topology(graph.indptr, graph.indices), np.arange(2000), parts=4, layers=3, size=64)
    for distortion in (1, 4, 16):
        mine, rule = (
            np.array([read(number, distortion, estimator) for number in range(batches)], float)
            for read in (case.sampled, case.simulated)
        )
        if estimator == "ladies":
            assert set(mine[:, 0]) == set(rule[:, 0]) == {64}
        error = (mine.std(0) ** 2 + rule.std(0) ** 2) ** 0.5 / batches**0.5
        assert (abs(mine.mean(0) - rule.mean(0)) <= 5 * error).all(), distortion


def test_draws_without_replacement_are_the_default_of_layers_and_not_of_subgraphs() -> None:
    assert (SkewedOptions().estimator, LADIESOptions().estimator) == ("ladies", "ladies")
    assert SkewedOptions(base="saint").estimator == "poisson"
    with pytest.raises(ValidationError, match="base 'saint' has 'poisson' only"):
        SkewedOptions(base="saint", estimator="ladies")
