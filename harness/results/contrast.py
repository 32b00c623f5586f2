"""Significance of a change: intervals from the scatter of runs and from the machine's possible drift.

`harness compare`, the report and claims judge with it. docs/design/statistics.md says why the rules are as they are,
docs/error-rates.md how often they err.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from harness.metrics import Metric
from harness.results.stats import CONFIDENCE, Values

Drift = Literal["none", "turns", "reference", "unknown"]
"""Treatment of the machine's drift: the values have none, interleaved pairs remove it ("turns"), the reference workload
does, or nothing does."""
DRIFT = math.log(1.1)  # that a machine may be slower or faster at one time than at another
FOLLOWS = 0.5  # a trial follows the reference workload's drift by 1 - this to 1 + this times
PLANNED = 0.03  # deviation of log(one run / another) that is assumed until repeats measure it
FEW_METHODS = 4  # besides the first: of fewer one that is wild would decide what is usual
FEW_CELLS = 6  # of fewer independent cells the usual variance is no distribution's, but the mean
UNLIKE = 0.05  # share of alike cells that would count by their own scatter alone
WILD = 2.0  # a method whose pairs scatter by so much more than all scatters unlike the others
GROSS = math.log(4)  # two single runs differ beyond this factor, unless runs scatter by a deviation of some 50 %
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

    `raw`: with the machine's drift; `low`, `high`: None where nothing says how sure the change is; `pairs`: how
    many; `deviation`: of one pair, None if not known; `risk`: of an interval that misses the truth.
    """

    size: float
    raw: float
    low: float | None
    high: float | None
    pairs: int
    deviation: float | None
    drift: Drift
    risk: float

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

    def __init__(self, cells: Sequence[Pairs], metric: Metric, most: float = math.inf) -> None:
        """Take cells of at least one pair each; `most`: degrees of freedom of all cells together, if they depend."""
        self.cells = cells
        self.exact = metric.exact  # one code gives one value: any change is a change
        self.drifts = metric.machine and not metric.difference
        self._levels = [_level(c, np.full(len(c.sizes), 1 / len(c.sizes)), self.drifts) for c in cells]
        squares, freedom = np.zeros(len(cells)), np.zeros(len(cells))
        for index, sizes in enumerate(level.sizes for level in self._levels):
            mean = float(sizes.mean())
            if sizes.any():  # what did not change at all shows nothing of the noise
                squares[index], freedom[index] = float(np.square(sizes - mean).sum()), len(sizes) - 1
            if metric.difference and freedom[index] and not np.ptp(sizes):
                squares[index] = freedom[index] * (mean / 2) ** 2  # few values: equal changes may hide the noise
        self._own = np.divide(squares, freedom, out=np.zeros(len(cells)), where=freedom > 0), freedom
        self._variances = shrunken(*self._own, most)

    def row(self, index: int, risk: float) -> Estimate:
        """Return the mean change of a cell; `risk`: of an interval that misses the truth."""
        level, raw = self._levels[index], float(self.cells[index].sizes.mean())
        mean, count = float(level.sizes.mean()), len(level.sizes)
        if self.exact or (count > 1 and not level.sizes.any()):
            return Estimate(mean, raw, mean, mean, count, 0.0, level.drift, risk)
        known, (own, freedom) = self._of_mean(index), self._own
        deviation = None
        if freedom.any():
            deviation = math.sqrt(self._variances[0][index] if known else own @ freedom / freedom.sum())
        return _estimate(mean, raw, known, level, deviation, risk, single=self.drifts and count == 1)

    def doubt(self, index: int) -> float:
        """Return the risk at which the interval of a cell would begin at 0, the p-value of no change; 1 if unknown."""
        level, known = self._levels[index], self._of_mean(index)
        if self.exact or not level.sizes.any():
            return float(not level.sizes.mean())
        if known is None:
            return 1.0
        return doubt(abs(float(level.sizes.mean())) - level.bound, [*known, (level.variance, level.freedom)])

    def spread(self, index: int) -> float:
        """Return the error of a cell's mean, 0 if unknown."""
        return math.sqrt(self._variances[0][index] / len(self.cells[index].sizes))

    def _of_mean(self, index: int) -> list[tuple[float, float]] | None:
        """Return the variance of a cell's mean with its degrees of freedom; None of one pair."""
        (variances, freedom), count = self._variances, len(self.cells[index].sizes)
        return [(float(variances[index]) / count, float(freedom[index]))] if self._own[1][index] else None

    def whole(self, risk: float) -> Estimate:
        """Return the mean of the cells' mean changes; where no cell has several pairs, their scatter decides."""
        parts = np.cumsum([len(cell.sizes) for cell in self.cells])[:-1]
        weights = np.concatenate([np.full(len(c.sizes), 1 / len(c.sizes) / len(self.cells)) for c in self.cells])
        level = _level(_joined(self.cells), weights, self.drifts, parts)
        means = np.array([sizes.mean() for sizes in np.split(level.sizes, parts)])
        mean, count, cells = float(means.mean()), len(weights), len(self.cells)
        raw = float(np.mean([cell.sizes.mean() for cell in self.cells]))
        if self.exact:
            return Estimate(mean, raw, mean, mean, count, 0.0, level.drift, risk)
        own, freedom = self._own
        changed = means[means != 0]
        if freedom.any():  # each cell by its own scatter: their sum needs no common variance
            each = zip(own, freedom, self.cells, strict=True)
            known = [(float(v) / len(c.sizes) / cells**2, float(f)) for v, f, c in each if f]
            deviation = math.sqrt(float(own @ freedom / freedom.sum()))
        elif len(changed) > 1:
            known = [(float(changed.var(ddof=1)) * len(changed) / cells**2, len(changed) - 1.0)]
            deviation = math.sqrt(known[0][0] * count)
        else:
            return _estimate(mean, raw, None, level, None, risk, single=self.drifts and count == 1)
        return _estimate(mean, raw, known, level, deviation, risk)


def shrunken(
    variances: np.ndarray, freedom: np.ndarray, most: float = math.inf, fitted: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the variances [cells] moved towards each other, with the degrees of freedom that they then have.

    Empirical Bayes as of Smyth, Statistical Applications in Genetics 3(1), 2004: the true variances are draws of a
    scaled inverse chi-square distribution, which counts as an estimate with degrees of freedom of its own. It is
    fitted by the median and the lowest fifth, so that a few wild cells do not widen it (as Phipson et al., Annals of
    Applied Statistics 10(2), 2016), to those `fitted` [cells]. A cell that is larger beyond chance counts alone. The
    common part never has more than the square of a cell's own degrees of freedom, since two or three values do not show
    that a cell is wild, nor more than these times a sixth of the independent cells; few have none, see `_pooled`.
    `freedom` [cells]: 0 where nothing is known; `most`: the sum of those of independent cells, if cells depend on each
    other, as pairs of methods do.
    """
    from scipy import special  # takes a while to import

    known = (freedom > 0) & (variances > 0)
    mine = known if fitted is None else known & fitted
    several = min(float(mine.sum()), most / max(float(freedom.max(initial=0)), 1.0))
    if several < (FEW_METHODS if math.isfinite(most) else FEW_CELLS):
        return (variances, freedom) if math.isfinite(most) else _pooled(variances, freedom)
    logs, own = np.log(variances[mine]), freedom[mine]

    def quantile(prior: float, share: float) -> np.ndarray:
        """Return a quantile of the logarithm of F, an own variance over the common one."""
        found: np.ndarray = np.log(special.fdtri(own, prior, share))
        return found

    low, high = math.log(0.05), math.log(1e4)
    spread = float(np.median(logs) - np.quantile(logs, 0.2))
    for _ in range(30):
        prior = math.exp((low + high) / 2)
        wide = float(np.mean(quantile(prior, 0.5) - quantile(prior, 0.2))) < spread
        low, high = (low, math.log(prior)) if wide else (math.log(prior), high)
    usual = math.exp(float(np.median(logs - quantile(prior, 0.5))))
    common = np.minimum(prior, freedom * np.minimum(freedom, several / 6))
    both = np.maximum(common + freedom, 1e-9)
    unlike = known & (variances > usual * by_chance(freedom, common))
    moved = np.where(unlike, variances, (common * usual + freedom * variances) / both)
    return moved, np.where(unlike, freedom, both)


def by_chance(freedom: np.ndarray | float, others: np.ndarray | float, share: float = UNLIKE) -> np.ndarray:
    """Return how many times another estimate of one variance an estimate is, but for a share of cases."""
    from scipy import special

    found: np.ndarray = special.fdtri(np.maximum(freedom, 1), np.maximum(others, 0.5), 1 - share)
    return found


def _pooled(variances: np.ndarray, freedom: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean variance of few cells, or a cell's own where it is larger: alone where that is beyond chance."""
    known, whole = freedom > 0, float(freedom.sum())
    if not whole:
        return variances, freedom
    squares = variances * freedom
    others = np.maximum(whole - freedom, 1e-9)
    limit = by_chance(freedom, others, 2 * UNLIKE)
    unlike = (variances > limit * (squares.sum() - squares) / others) | (freedom == whole)
    moved = np.where(unlike | ~known, variances, np.maximum(variances, squares.sum() / whole))
    return moved, np.where(unlike | ~known, freedom, whole)


def doubt(size: float, variances: Sequence[tuple[float, float]]) -> float:
    """Return the p-value of a mean so far from 0, of independent variances with their degrees of freedom."""
    from scipy import special

    total, freedom = summed(variances)
    if size <= 0 or not total:
        return float(size <= 0)
    return 2 * float(special.stdtr(freedom, -size / math.sqrt(total)))


def _estimate(
    mean: float,
    raw: float,
    variances: Sequence[tuple[float, float]] | None,
    level: _Level,
    deviation: float | None,
    risk: float,
    *,
    single: bool = False,
) -> Estimate:
    """Return a mean with its interval; `variances`: of the mean, with degrees of freedom; `single`: of one run each."""
    far = None
    if variances is not None:
        far = reach([*variances, (level.variance, level.freedom)], risk) + level.bound
    elif single and abs(mean) > GROSS + level.bound:
        far = GROSS + level.bound
    low, high = (None, None) if far is None else (mean - far, mean + far)
    return Estimate(mean, raw, low, high, len(level.sizes), deviation, level.drift, risk)


def reach(variances: Sequence[tuple[float, float]], risk: float) -> float:
    """Return how far the interval of a mean reaches, of independent variances with their degrees of freedom."""
    from scipy import special

    total, freedom = summed(variances)
    return float(special.stdtrit(freedom, 1 - risk / 2)) * math.sqrt(total) if total else 0.0


def summed(variances: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the sum of independent variances, and its degrees of freedom (Satterthwaite)."""
    known = [(v, f) for v, f in variances if v > 0]
    total = sum(v for v, _ in known)
    return total, total**2 / max(sum(v**2 / f for v, f in known), 1e-300) if known else 1.0


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
    if known := _by_reference(cell, weights, parts):
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


def _by_reference(cell: Pairs, weights: np.ndarray, parts: Sequence[int] | np.ndarray) -> _Level | None:
    """Divide times by the reference's; None unless each side has several measurements that scatter less than trials.

    Runs that share a measurement share its error, which their scatter does not show: it is added, as the measurements
    of a side scatter.
    """
    sizes, references, middles = cell.sizes, cell.references, cell.middles
    if references is None or middles is None or not np.isfinite(references).all():
        return None
    squares, freedom, shares = 0.0, 0, 0.0
    for side in references:
        values, which = np.unique(side, return_inverse=True)
        if len(values) < 2:
            return None
        squares += float(np.square(values - values.mean()).sum())
        freedom += len(values) - 1
        shares += float(np.square(np.bincount(which, weights)).sum())
    ends = [part - part.mean() for side in (-0.5, 0.5) for part in np.split(middles + side * sizes, parts)]
    left = 2 * (len(sizes) - len(parts) - 1)
    if left < 1 or squares / freedom >= float(np.square(np.concatenate(ends)).sum()) / left:
        return None
    moved = references[1] - references[0]
    bound = FOLLOWS * abs(float(weights @ moved))
    return _Level(sizes - moved, squares / freedom * shares, float(freedom), bound, "reference")


Name = TypeVar("Name", bound=Hashable)


def every_two(pairs: Mapping[tuple[Name, Name], Pairs], metric: Metric) -> Contrast:
    """Return the changes between every two of several methods, in the order of `pairs`, to be judged together."""
    names = {name for pair in pairs for name in pair}
    most = (len(names) - 1) * max((len(own.sizes) - 1 for own in pairs.values()), default=0)
    return Contrast(list(pairs.values()), metric, most)


def all_pairs(pairs: Mapping[tuple[Name, Name], Pairs], metric: Metric) -> dict[tuple[Name, Name], Estimate]:
    """Return how every two of several methods differ, the second as B and the first as A.

    With equal methods any pair is sure with a probability of `RISK` at most (`risks_of_pairs`): those that are surely
    behind any other are not the best, and the rest contain it.
    """
    contrast, names = every_two(pairs, metric), list(pairs)
    worse = [metric.worse(contrast.row(index, RISK).size) for index in range(len(names))]
    ordered = [(one, other) if second else (other, one) for (one, other), second in zip(names, worse, strict=True)]
    indices = range(len(names))
    risks = risks_of_pairs(ordered, [contrast.doubt(i) for i in indices], [contrast.spread(i) for i in indices])
    return {name: contrast.row(index, risks[index]) for index, name in enumerate(names)}


def risks_of_pairs(
    pairs: Sequence[tuple[Name, Name]], doubts: Sequence[float], spreads: Sequence[float], whole: float = RISK
) -> list[float]:
    """Return the risk at which each pair of methods is judged, the better first: all err with `whole` at most.

    One of the methods is the best. Whichever it is, only its pairs with the others matter, of which there are as many
    as others (Edwards and Hsu, Journal of the American Statistical Association 78, 1983); what may be the best stays,
    and what is surely behind each that stays is behind the best. A quarter of the risk is for all pairs at once (Holm,
    Scandinavian Journal of Statistics 6(2), 1979). Nothing is surely behind a method that scatters much more than
    others: if that is the best, all pairs at once have the whole risk. `doubts`, `spreads` [pairs]: p-values, and
    errors of the means. Of three methods and fewer every two are as few.
    """
    others = len({name for pair in pairs for name in pair}) - 1
    every = holm(doubts, whole)
    if others <= 2:
        return every
    behind: dict[Name, set[Name]] = {name: set() for pair in pairs for name in pair}
    anything, share, usual = set[Name](), 0.75 * whole / others, WILD * float(np.median(spreads))
    own = {name: [s for pair, s in zip(pairs, spreads, strict=True) if name in pair] for name in behind}
    wild = {name for name, found in own.items() if np.median(found) > usual}
    for (better, worse), each, risk in zip(pairs, doubts, every, strict=True):
        if each < risk:
            anything.add(worse)
        if each < (risk if worse in wild else share):
            behind[worse].add(better)
    best = {name for name, ahead in behind.items() if not ahead}
    all_at_once, known = best & wild, best - wild

    def judged(better: Name, worse: Name, least: float, risk: float) -> float:
        if worse in best or not known <= behind[worse] or (all_at_once and worse not in anything):
            return least
        return max(least, min(share, risk) if all_at_once else share) if better in known else least

    least = holm(doubts, whole / 4)
    return [judged(*pair, low, high) for pair, low, high in zip(pairs, least, every, strict=True)]


def holm(doubts: Sequence[float], whole: float = RISK) -> list[float]:
    """Return the risk at which each of several p-values is judged, so that all together err with `whole` at most."""
    risks, left, decided = [0.0] * len(doubts), len(doubts), False
    for index in sorted(range(len(doubts)), key=doubts.__getitem__):
        risks[index] = whole / left
        decided = decided or doubts[index] > risks[index]
        left -= not decided
    return risks


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
    return reach([(float(np.var(own, ddof=1)) / len(own), len(own) - 1) for own in samples], risk)


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
    found: Estimate, metric: Metric, worth: float | None = None, *, unit: str = "run", epochs: float = 0.0
) -> str:
    """Return the number of runs that would detect a change of `worth`, as text, where `found` is not significant.

    `worth`: of a ratio 0.1 for 10 %, of scores in fractions. `unit`: what is repeated on each side; `epochs`: variance
    of a pair that its epochs show. Where no repeats show how runs scatter, times are planned with `PLANNED`.
    """
    difference = metric.difference
    least = (worth or WORTH_POINTS) if difference else math.log1p(worth or WORTH)

    def amount(size: float) -> str:
        points = f"{100 * size:.3g}"
        return f"{points} point{'s' * (points != '1')}" if difference else f"{100 * math.expm1(size):.3g} %"

    if found.low is not None and found.high is not None and max(-found.low, found.high) < least:
        return f"the gap is less than {amount(least)}"
    deviation = found.deviation or (None if difference else math.sqrt(PLANNED**2 + epochs))
    if deviation is None:
        return f"at least 2 more {unit}s of each side are needed"
    enough = runs_to_see(least, deviation, found.risk)
    if found.drift == "unknown":  # one pair can be the first of several interleaved ones
        count = str(enough) if enough else f"more than {MOST}"
        if enough and found.pairs == 1:
            count = f"{enough - 1} more"
        return f"{count} interleaved {unit}s would detect a gap of {amount(least)}"
    for size in (least, abs(found.size)):
        enough = runs_to_see(size, deviation, found.risk)
        if enough is not None and enough > found.pairs:
            more = enough - found.pairs
            return f"{more} more interleaved {unit}{'s' * (more > 1)} would detect a gap of {amount(size)}"
    return f"more than {MOST} {unit}s of each side are needed"
