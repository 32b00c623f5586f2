"""Two sets of results held against each other, trial by trial: by how much they differ, and how sure that is.

Epochs of one run tell less than they seem to: another run of the same code is off by more than they say, each
trial by itself and all of them together. Both are counted in; docs/design/compare.md says what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from harness.metrics import Metric
from harness.results.pairs import Pair, group_seeds
from harness.results.stats import CONFIDENCE, Interval, paired_test, ratio_interval

SAME, UNSURE = "same", "cannot tell"
PRIOR = 8  # degrees of freedom that the deviation measured beforehand counts as
WILD = 4  # times its variance from which on it says nothing of this machine
NORMAL = 1.96


@dataclass(frozen=True)
class Compared:
    """One trial, all its seeds together, or all trials, before and after.

    `before`, `after`: means of the figure over trials, in its unit; `change`: after / before (their geometric
    mean), or after - before, with its 95 % interval (None where nothing says how sure it is); `verdict`: a
    word of the metric, "same" or "cannot tell"; `worse`: whether it is one for the worse; `p`: of the paired
    t-test over the trials.
    """

    label: str
    trials: int
    before: float
    after: float
    change: float
    interval: Interval | None
    verdict: str
    worse: bool
    p: float | None


@dataclass(frozen=True)
class _Change:
    """A pair's figures; `size`: log(after / before), or after - before; `error`: its own, as epochs tell."""

    pair: Pair
    before: float
    after: float
    size: float
    error: float


@dataclass(frozen=True)
class _Noise:
    """Variance of a pair's change from run to run, beside what epochs tell; `freedom`: degrees of freedom."""

    variance: float
    freedom: float


def compare(pairs: Sequence[Pair], metric: Metric) -> tuple[list[Compared], Compared | None]:
    """Compare pairs of trials by a metric.

    Returns:
        What each trial shows, its seeds together, and what all show together (None of no pair that has the
        figure). Verdicts allow for how many there are: of comparisons of a code with itself at most 5 %
        should find anything at all, half of them in the verdict over all and half in those of the trials.
    """
    cells = [found for cell in group_seeds(pairs) if (found := [c for p in cell if (c := _change(p, metric))])]
    if not cells:
        return [], None
    noise = _noise(cells, metric)
    risk = 1 - CONFIDENCE
    each = risk / 2 / len(cells) if len(cells) > 1 else risk
    means = [float(np.mean([change.size for change in cell])) for cell in cells]
    own = [_own_variance(cell, noise) for cell in cells]
    rows = [
        _judged(metric, cell, mean, variance, noise, each)
        for cell, mean, variance in zip(cells, means, own, strict=True)
    ]
    together = None if noise is None else sum(v for v in own if v is not None) / len(cells) ** 2
    everything = [change for cell in cells for change in cell]
    return rows, _judged(metric, everything, float(np.mean(means)), together, noise, max(each, risk / 2))


def _change(pair: Pair, metric: Metric) -> _Change | None:
    """Return by how much a pair differs; None if one lacks the figure or a ratio cannot be taken."""
    before, after = pair.before.figure(metric.name), pair.after.figure(metric.name)
    if before is None or after is None:
        return None
    if metric.difference:
        return _Change(pair, before, after, after - before, 0.0)
    if before == after:
        size = 0.0
    elif before > 0 and after > 0:
        size = math.log(after / before)
    else:
        return None
    return _Change(pair, before, after, size, _epochs_error(pair) if metric.by_epoch else 0.0)


def _epochs_error(pair: Pair) -> float:
    """Return the standard error of log(ratio of median epoch times) that the epochs tell; 0 without them."""
    ratio = ratio_interval(pair.after.epoch_times(), pair.before.epoch_times(), paired=False)
    return 0.0 if ratio is None or not ratio.low > 0 else math.log(ratio.high / ratio.low) / (2 * NORMAL)


def _noise(cells: Sequence[Sequence[_Change]], metric: Metric) -> _Noise | None:
    """Return how far changes scatter that should be equal: over seeds, else robustly over all trials.

    What was measured beforehand counts as `PRIOR` degrees of freedom of it (as in a moderated t-test, Smyth,
    Stat. Appl. Genet. Mol. Biol. 3, 2004), so that two seeds that agree by chance make nothing sure; where
    these scatter more, they count alone; where far more, with their own freedom. None if nothing is known.
    """
    explained = float(np.mean([change.error**2 for cell in cells for change in cell]))
    freedom: float = sum(len(cell) - 1 for cell in cells)
    if freedom:
        squares = sum(float(np.var([c.size for c in cell])) * len(cell) for cell in cells)
        scatter = squares / freedom
    elif metric.exact:
        return _Noise(0.0, math.inf)
    else:
        sizes = np.array([cell[0].size for cell in cells])
        scatter = (1.4826 * float(np.median(np.abs(sizes - np.median(sizes))))) ** 2
        freedom = (len(cells) - 1) / 2  # the median deviation has less than half the mean square's
    beyond = max(0.0, scatter - explained)
    if metric.rerun is None:
        return _Noise(beyond, freedom) if freedom else None
    both = (PRIOR * metric.rerun**2 + freedom * beyond) / (PRIOR + freedom)
    if beyond > both and beyond > WILD * metric.rerun**2:
        return _Noise(beyond, max(freedom, 1.0))
    return _Noise(max(both, beyond), PRIOR + freedom)


def _own_variance(cell: Sequence[_Change], noise: _Noise | None) -> float | None:
    """Return the variance of the mean change of a trial's seeds, without drift."""
    if noise is None:
        return None
    return (noise.variance + float(np.mean([change.error**2 for change in cell]))) / len(cell)


def _judged(
    metric: Metric, changes: Sequence[_Change], mean: float, variance: float | None, noise: _Noise | None, risk: float
) -> Compared:
    """Return what pairs show together; `variance`: of their mean change, `risk`: of a verdict on nothing."""
    label = changes[0].pair.label
    before, after = ([getattr(c, side) for c in changes] for side in ("before", "after"))

    def shown(size: float) -> float:
        return size if metric.difference else math.exp(size)

    interval, sure = None, False
    if variance is not None and noise is not None:
        error = math.sqrt(variance + metric.drift**2)
        reach = error * _quantile(noise.freedom, 1 - CONFIDENCE)
        interval = Interval(shown(mean), shown(mean - reach), shown(mean + reach))
        sure = abs(mean) > error * _quantile(noise.freedom, risk)
    same = all(change.size == 0 for change in changes)
    return Compared(
        label,
        len(changes),
        float(np.mean(before)),
        float(np.mean(after)),
        shown(mean),
        interval,
        SAME if same else metric.word(mean) if sure else UNSURE,
        sure and metric.worse(mean),
        paired_test(after, before),
    )


def _quantile(freedom: float, beyond: float) -> float:
    """Return Student's quantile that a share `beyond` lies outside of, both sides together."""
    if math.isinf(freedom):
        return float(special.ndtri(1 - beyond / 2))
    return float(special.stdtrit(freedom, 1 - beyond / 2))
