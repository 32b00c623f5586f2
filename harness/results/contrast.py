"""Significance of a change: intervals from the scatter of runs and from the machine's possible drift.

`harness compare`, the report and claims judge with it. docs/design/compare.md says why the rules are as they are,
docs/error-rates.md how often they err.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple

import numpy as np

from harness.metrics import Metric
from harness.results.stats import CONFIDENCE, Values

Drift = Literal["none", "turns", "reference", "unknown"]
"""Treatment of the machine's drift: the values have none, interleaved pairs remove it ("turns"), the reference workload
does, or nothing does."""
DRIFT = math.log(1.1)  # that a machine may be slower or faster at one time than at another
FOLLOWS = 0.5  # a trial follows the reference workload's drift by 1 - this to 1 + this times
PLANNED = 0.03  # deviation of log(one run / another) that is assumed until repeats measure it
WILD = 0.6  # share of comparisons of alike cells in which one counts by its own scatter alone, 0.1 of a cell at most
POWER = 0.9  # chance that a planned number of runs shows a change
MOST = 100  # runs that are planned
# Of the 5 % that statements may err in, 1 is for what is approximate: pooled variances, trends, tails.
RISK = 1 - CONFIDENCE - 0.01
WORTH = 0.1  # the smallest change of a ratio that is worth knowing, unless one is named
WORTH_POINTS = 0.01  # the same of a score


class Run(NamedTuple):
    """A run's value of a metric, its start, and the reference workload's time before it; seconds, NaN: not known."""

    value: float
    started: float = math.nan
    reference: float = math.nan

    @classmethod
    def of(cls, value: float, started: object, reference: float | None) -> Run:
        """Take `started` and `reference_s` as a record has them."""
        seconds = datetime.fromisoformat(started).timestamp() if isinstance(started, str) else math.nan
        return cls(value, seconds, float(reference or math.nan))


@dataclass(frozen=True)
class Pairs:
    """Pairs of runs, alike but for what is compared.

    `sizes` [pairs]: log(B / A), or B - A. `started` [2, pairs]: when each A and B began, in seconds from any
    moment, NaN where not known. `references` [2, pairs]: logarithm of what the reference workload took before
    each, NaN where it was not measured. `middles` [pairs]: mean of log A and log B.
    """

    sizes: np.ndarray
    started: np.ndarray | None = None
    references: np.ndarray | None = None
    middles: np.ndarray | None = None

    @classmethod
    def of(
        cls, metric: Metric, values: np.ndarray, started: np.ndarray | None = None, references: np.ndarray | None = None
    ) -> Pairs:
        """Take a metric's values [2, pairs] of A and B, their starts, and the reference's seconds.

        Of ratios both are positive, or equal.
        """
        if metric.difference:
            return cls(values[1] - values[0])
        logs = np.log(np.where(values[0] == values[1], 1.0, values))
        if references is not None:  # a rate falls as times rise
            references = np.log(references) * (-1 if metric.better == "more" else 1)
        return cls(logs[1] - logs[0], started, references, logs.mean(axis=0))


@dataclass(frozen=True)
class Estimate:
    """The mean change of some pairs, with an interval that holds for all that are looked at together.

    `low`, `high`: None where nothing says how sure the change is; `pairs`: how many; `deviation`: of one pair, None if
    not known.
    """

    size: float
    low: float | None
    high: float | None
    pairs: int
    deviation: float | None
    drift: Drift

    @property
    def sure(self) -> bool:
        """Whether 0 is outside of the interval."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


@dataclass(frozen=True)
class _Level:
    """Sizes [pairs] free of drift as far as it is known, the variance of their mean that this adds with its degrees
    of freedom, and how far drift may still have moved the mean."""

    sizes: np.ndarray
    variance: float
    freedom: float
    bound: float
    drift: Drift


class Contrast:
    """Changes of several cells that are judged together."""

    def __init__(self, cells: Sequence[Pairs], metric: Metric, *, common: bool = False) -> None:
        """Take cells of at least one pair each; `common`: all have one side in common."""
        self.cells, self.common = cells, common
        self.exact = metric.exact  # one code gives one value: any change is a change
        self.drifts = metric.machine and not metric.difference
        self._levels = [_level(c, np.full(len(c.sizes), 1 / len(c.sizes)), self.drifts) for c in cells]
        # Sum of squares and degrees of freedom of each cell about its mean; none of what did not change at all.
        self._squares: list[tuple[float, int]] = []
        for sizes in (level.sizes for level in self._levels):
            mean, freedom = float(sizes.mean()), len(sizes) - 1
            squares = float(np.square(sizes - mean).sum())
            if metric.difference and freedom and not np.ptp(sizes):  # few values: equal changes may hide the noise
                squares = freedom * (mean / 2) ** 2
            self._squares.append((squares, freedom if sizes.any() else 0))
        self._pool = sum(s for s, freedom in self._squares if freedom), float(sum(f for _, f in self._squares))

    def row(self, index: int, risk: float) -> Estimate:
        """Return the mean change of a cell; `risk`: of an interval that misses the truth."""
        level, count = self._levels[index], len(self._levels[index].sizes)
        if self.exact or (count > 1 and not level.sizes.any()):
            mean = float(level.sizes.mean())
            return Estimate(mean, mean, mean, count, 0.0, level.drift)
        pooled = self._variance(index)
        known = [(pooled[0] / count, pooled[1])] if pooled and self._squares[index][1] else None
        return _estimate(known, level, math.sqrt(pooled[0]) if pooled else None, risk)

    def whole(self, risk: float) -> Estimate:
        """Return the mean of the cells' mean changes; where no cell has several pairs, their scatter decides."""
        parts = np.cumsum([len(cell.sizes) for cell in self.cells])[:-1]
        weights = np.concatenate([np.full(len(c.sizes), 1 / len(c.sizes) / len(self.cells)) for c in self.cells])
        level = _level(_joined(self.cells), weights, self.drifts, parts)
        means = np.array([sizes.mean() for sizes in np.split(level.sizes, parts)])
        mean, count = float(means.mean()), len(weights)
        if self.exact:
            return Estimate(mean, mean, mean, count, 0.0, level.drift)
        variances = self._over_cells(means)
        deviation = math.sqrt(self._pool[0] / self._pool[1]) if self._pool[1] else None
        if variances is not None and deviation is None:
            deviation = math.sqrt(variances[0][0] * count)
        return _estimate(variances, level, deviation, risk, mean)

    def _variance(self, index: int) -> tuple[float, float] | None:
        """Return the variance of a pair of a cell, with its degrees of freedom; None if nothing is known.

        That of all cells, or the cell's own where it is larger: one run that is far off is then never sure by the
        calm of others. Where it is larger beyond chance, it counts with its own degrees of freedom.
        """
        from scipy import special

        squares, freedom = self._pool
        own, mine = self._squares[index]
        if not freedom:
            return None
        others = freedom - mine
        if mine and others:
            usual = (squares - own) / others
            if own / mine > usual * float(special.fdtri(mine, others, 1 - WILD / max(6, len(self.cells)))):
                return own / mine, mine
        if self.common and len(self.cells) > 1:  # their scatter has that of the common side in common
            freedom /= 1 + (len(self.cells) - 1) / 4
        return max(squares / self._pool[1], own / mine if mine else 0.0), freedom

    def _over_cells(self, means: np.ndarray) -> list[tuple[float, float]] | None:
        """Return the variance of the mean over cells in independent parts, each with its degrees of freedom."""
        count = len(self.cells)
        changed = means[means != 0]
        if not self._pool[1]:
            if len(changed) < 2:
                return None
            return [(float(changed.var(ddof=1)) * len(changed) / count**2, len(changed) - 1.0)]
        alike, parts = 0.0, []
        for index, cell in enumerate(self.cells):
            found = self._variance(index)
            if found is None or not cell.sizes.any():
                continue
            share = found[0] / len(cell.sizes) / count**2
            if found[1] == self._pool[1]:
                alike += share
            else:
                parts.append((share, found[1]))
        return [*parts, (alike, self._pool[1])]


def _estimate(
    variances: Sequence[tuple[float, float]] | None,
    level: _Level,
    deviation: float | None,
    risk: float,
    mean: float | None = None,
) -> Estimate:
    """Return a mean (that of the level) with its interval; `variances`: of the mean, with degrees of freedom."""
    mean, count = float(level.sizes.mean()) if mean is None else mean, len(level.sizes)
    if variances is None:
        return Estimate(mean, None, None, count, deviation, level.drift)
    reach = _reach([*variances, (level.variance, level.freedom)], risk) + level.bound
    return Estimate(mean, mean - reach, mean + reach, count, deviation, level.drift)


def _reach(variances: Sequence[tuple[float, float]], risk: float) -> float:
    """Return how far the interval of a mean reaches, of independent variances with their degrees of freedom."""
    from scipy import special  # takes a while to import

    known = [(v, f) for v, f in variances if v > 0]
    if not known:
        return 0.0
    total = sum(v for v, _ in known)
    freedom = total**2 / sum(v**2 / f for v, f in known)  # Satterthwaite
    return float(special.stdtrit(freedom, 1 - risk / 2)) * math.sqrt(total)


def _joined(cells: Sequence[Pairs]) -> Pairs:
    def joined(name: str) -> np.ndarray | None:
        parts = [getattr(cell, name) for cell in cells]
        return None if any(part is None for part in parts) else np.concatenate(parts, axis=-1)

    sizes = np.concatenate([cell.sizes for cell in cells])
    return Pairs(sizes, joined("started"), joined("references"), joined("middles"))


def _level(cell: Pairs, weights: np.ndarray, drifts: bool, parts: Sequence[int] | np.ndarray = ()) -> _Level:
    """Take the machine's drift out of pairs; `weights` [pairs]: of each in the mean; `parts`: where cells begin."""
    if not drifts:
        return _Level(cell.sizes, 0.0, 1.0, 0.0, "none")
    crossing, gap = _interleaving(cell.started, weights)
    if len(weights) > 1 and crossing <= weights.max() * (1 + 1e-9):
        return _without_trend(cell, weights, parts) or _Level(cell.sizes, 0.0, 1.0, DRIFT * gap, "turns")
    if cell.references is not None and (known := _by_reference(cell.sizes, cell.references, weights)):
        return known
    return _Level(cell.sizes, 0.0, 1.0, DRIFT * max(crossing, gap), "unknown")


def _interleaving(started: np.ndarray | None, weights: np.ndarray) -> tuple[float, float]:
    """Return how far the sides were from being interleaved: (share of A done before B, mean lag of B), 0 to 1.

    The first is the largest distance of the distributions of their start times, by which a step of the drift can
    move the mean; the second the mean time from A to its B over the whole span, by which a steady one does.
    """
    if started is None or not np.isfinite(started).all():
        return 1.0, 1.0
    times, signed = started.ravel(), np.concatenate([weights, -weights])
    order = np.argsort(times, kind="stable")
    ended = np.append(np.diff(times[order]) > 0, True)
    crossing = float(np.abs(np.cumsum(signed[order])[ended]).max())
    span = float(np.ptp(times))
    return crossing, abs(float(weights @ (started[1] - started[0]))) / span if span else 0.0


def _without_trend(cell: Pairs, weights: np.ndarray, parts: Sequence[int] | np.ndarray) -> _Level | None:
    """Remove a steady drift from interleaved sides: where A is always first, it makes each B longer.

    The trend is that of the pairs' middles within their cells. None where too few pairs show it.
    """
    freedom = len(weights) - len(parts) - 2
    if freedom < 1 or cell.middles is None or cell.started is None:
        return None
    times = np.concatenate([part - part.mean() for part in np.split(cell.started.mean(axis=0), parts)])
    spread = float(np.square(times).sum())
    if not spread:
        return None
    middles = np.concatenate([part - part.mean() for part in np.split(cell.middles, parts)])
    slope = float(times @ middles) / spread
    left = float(np.square(middles - slope * times).sum()) / freedom
    lags = cell.started[1] - cell.started[0]
    return _Level(cell.sizes - slope * lags, left / spread * float(weights @ lags) ** 2, float(freedom), 0.0, "turns")


def _by_reference(sizes: np.ndarray, references: np.ndarray, weights: np.ndarray) -> _Level | None:
    """Divide times by the reference's; None unless each side has several measurements of it.

    Runs that share a measurement share its error, which their scatter does not show: it is added, as the measurements
    of a side scatter.
    """
    if not np.isfinite(references).all():
        return None
    squares, freedom, shares = 0.0, 0, 0.0
    for side in references:
        values, which = np.unique(side, return_inverse=True)
        if len(values) < 2:
            return None
        squares += float(np.square(values - values.mean()).sum())
        freedom += len(values) - 1
        shares += float(np.square(np.bincount(which, weights)).sum())
    moved = references[1] - references[0]
    bound = FOLLOWS * abs(float(weights @ moved))
    return _Level(sizes - moved, squares / freedom * shares, float(freedom), bound, "reference")


def against_best(pairs: Sequence[Pairs], metric: Metric, others: int) -> tuple[list[Estimate], float]:
    """Return how far others are from the best, each as B with the best as A, and the risk of each interval.

    `others`: how many there are, those without a pair included. The risk of all of them together is `RISK` for
    whichever is the best (Bonferroni, in place of Hsu's constants for comparisons with the best: The American
    Statistician 38(2), 1984): it is so surely if all are surely worse.
    """
    contrast, risk = Contrast(pairs, metric, common=True), RISK / max(1, others)
    return [contrast.row(i, risk) for i in range(len(pairs))], risk


def share_of_risk(cells: int) -> float:
    """Return the risk of the interval of each of several cells, where half of the whole is for all together."""
    return RISK / 2 / cells if cells > 1 else RISK


def mean_reach(values: Values, risk: float, less: Values | None = None) -> float | None:
    """Return how far Student's interval of a mean reaches to each side; None of fewer than two values.

    `less`: of the difference from the mean of an independent sample (Welch).
    """
    samples = [values] if less is None else [values, less]
    if min(map(len, samples)) < 2:
        return None
    return _reach([(float(np.var(own, ddof=1)) / len(own), len(own) - 1) for own in samples], risk)


def runs_to_see(change: float, deviation: float, risk: float) -> int | None:
    """Return how many pairs show a change with a chance of 90 %; None if it takes more than 100.

    `change`: as of `Pairs.sizes`; `deviation`: of one pair; `risk`: of the interval.
    """
    from scipy import special

    counts = np.arange(2, MOST + 1)
    quantiles = special.stdtrit(counts - 1, 1 - risk / 2)
    chances = 1 - special.nctdtr(counts - 1, abs(change) * np.sqrt(counts) / deviation, quantiles)
    (enough,) = np.nonzero(chances >= POWER)
    return int(counts[enough[0]]) if len(enough) else None


def needed(
    found: Estimate, metric: Metric, risk: float, worth: float | None = None, *, unit: str = "run", epochs: float = 0.0
) -> str:
    """Return the number of runs that would detect a change of `worth`, as text, where `found` is not significant.

    `worth`: of a ratio 0.1 for 10 %, of scores in fractions. `unit`: what is repeated on each side; `epochs`: variance
    of a pair that its epochs show. Where no repeats show how runs scatter, times are planned with `PLANNED`.
    """
    difference = metric.difference
    least = (worth or WORTH_POINTS) if difference else math.log1p(worth or WORTH)

    def amount(size: float) -> str:
        return f"{100 * size:.3g} points" if difference else f"{100 * math.expm1(size):.3g} %"

    if found.low is not None and found.high is not None and max(-found.low, found.high) < least:
        return f"the gap is less than {amount(least)}"
    deviation = found.deviation or (None if difference else math.sqrt(PLANNED**2 + epochs))
    if deviation is None:
        return f"at least 2 more {unit}s of each side are needed"
    enough = runs_to_see(least, deviation, risk)
    if found.drift == "unknown":  # one pair can be the first of several interleaved ones
        count = str(enough) if enough else f"more than {MOST}"
        if enough and found.pairs == 1:
            count = f"{enough - 1} more"
        return f"{count} interleaved {unit}s would detect a gap of {amount(least)}"
    for size in (least, abs(found.size)):
        enough = runs_to_see(size, deviation, risk)
        if enough is not None and enough > found.pairs:
            more = enough - found.pairs
            return f"{more} more interleaved {unit}{'s' * (more > 1)} would detect a gap of {amount(size)}"
    return f"more than {MOST} {unit}s of each side are needed"
