"""How much more often a skewed sampler draws local nodes (Skewed Linear Weighted Sampling, section 4).

S are the destinations of a layer, q_j = sum_{i in S} A_ij^2 a candidate's weight, Q_L and Q_R the sums of q
over the n_L local and n_R remote candidates, Q = Q_L + Q_R, n = n_L + n_R, s the size of the sample. Where j
is drawn with p_j = s w_j / (alpha Q_L + Q_R), w_j = alpha q_j of a local and q_j of a remote one, the
variance of the aggregation is, for rows of norm 1 (Eq. 5: sum_j q_j (1/p_j - 1)),

    V(alpha) = (alpha Q_L + Q_R) (n_L / alpha + n_R) / s - Q                                         (Eq. 11)

and V(1) = (n / s - 1) Q without a skew (Eq. 9). Theorem 1 asks for V(alpha) <= D V(1), that is

    (alpha Q_L + Q_R) (n_L / alpha + n_R) <= M Q,    M = D (n - s) + s.

Equality is the quadratic. Its coefficient of Q_L alone, alpha n_R + n_L <= M, is Formula 12; that of Q_R,
n_L / alpha + n_R <= M, then holds too, so that it suffices whatever the Q are. That is why it also holds for
p_j = min(1, c w_j): what has p = 1 only changes the Q of an equal inequality.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

NEGLIGIBLE = 1e-100  # share of Q; a smaller Q_L would ask for an alpha beyond all bounds

SkewKind = Literal["formula", "quadratic", "fixed"]


@dataclass(frozen=True)
class Skew:
    """The rule for alpha, the factor of local candidates' weights.

    Attributes:
        kind: `formula` (Formula 12), `quadratic` (the largest root of the exact condition, not below the
            formula's) or `fixed`.
        distortion: D >= 1, how many times the bound of the variance may grow; 1 is the unskewed sampler.
        alpha: the constant of `fixed`, >= 1; None for the others.

    Raises:
        ValueError: an attribute is out of range, or `alpha` is missing or out of place.
    """

    kind: SkewKind = "formula"
    distortion: float = 1.0
    alpha: float | None = None

    def __post_init__(self) -> None:
        if not self.distortion >= 1:
            raise ValueError(f"a distortion is at least 1, not {self.distortion}")
        if (self.kind == "fixed") != (self.alpha is not None):
            raise ValueError("alpha is given where the skew is fixed, and only there")
        if self.alpha is not None and not self.alpha >= 1:
            raise ValueError(f"alpha is at least 1, not {self.alpha}")

    def alpha_of(self, n_local: int, n_remote: int, q_local: float, q_remote: float, size: int) -> float:
        """Return alpha >= 1; 1 where there is nothing to choose.

        That is: no local or no remote candidates, or a sample that takes all of them.

        Args:
            n_local: number of local candidates.
            n_remote: number of remote candidates.
            q_local: their sum of q before the skew.
            q_remote: that of the remote ones.
            size: s; -1 for all candidates.
        """
        spare = n_local + n_remote - size
        if n_local == 0 or n_remote == 0 or size < 0 or spare <= 0:
            return 1.0
        if self.alpha is not None:
            return self.alpha
        if self.distortion == 1:
            return 1.0  # of the quadratic too, which may have a second root of the same bound above it
        formula = 1 + (self.distortion - 1) * spare / n_remote  # = D + (D - 1) (n_L - s) / n_R
        total = q_local + q_remote
        if self.kind == "formula" or q_local <= NEGLIGIBLE * total:
            return formula
        most = self.distortion * spare + size
        return max(formula, _largest_root(n_local, n_remote, q_local / total, q_remote / total, most))


def _largest_root(n_local: int, n_remote: int, q_local: float, q_remote: float, most: float) -> float:
    """The larger alpha of (alpha Q_L + Q_R)(n_L / alpha + n_R) = M, with Q_L + Q_R = 1; one is below 1."""
    a, c = q_local * n_remote, q_remote * n_local
    b = q_local * n_local + q_remote * n_remote - most
    return (math.sqrt(max(0.0, b * b - 4 * a * c)) - b) / (2 * a)
