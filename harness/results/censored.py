"""Times to a target of trials of which some never reach it: medians, shares, who is ahead, performance profiles.

A trial that does not reach the target within its budget is censored there: all that is known is that it takes longer.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import CensoredData, binomtest, ecdf

from harness.results.contrast import doubt, holm, shrunken
from harness.results.stats import CONFIDENCE, Interval

R_MAX = 4.0
"""Up to which factor a performance profile is integrated (AlgoPerf, Dahl et al., 2023, section 4.3)."""


@dataclass(frozen=True)
class Times:
    """The seconds that trials of one method took to a target, by seed; of those that did not reach it, their budget."""

    reached: Mapping[int, float]
    censored: Mapping[int, float]

    @property
    def count(self) -> int:
        """How many trials."""
        return len(self.reached) + len(self.censored)

    @property
    def of_one_budget(self) -> Times:
        """The same where all had one budget, in epochs say, so that one that is censored took longer than any other.

        Seconds of equal budgets differ with the machine: a trial that ended early without the target is not one of
        which nothing is known after that.
        """
        longest = max([*self.reached.values(), *self.censored.values()], default=0.0)
        return Times(self.reached, dict.fromkeys(self.censored, longest))

    @property
    def median(self) -> Interval | None:
        """The Kaplan-Meier median with its 95 % interval; None if half of the trials or more do not reach the target.

        The interval has the times at which a share of 1/2 of trials still on their way is possible (Brookmeyer and
        Crowley, Biometrics 1982; logarithms of logarithms); its upper end is infinite where that is never excluded.
        """
        if not self.reached:
            return None
        times = list(self.reached.values())
        left = ecdf(CensoredData(uncensored=times, right=list(self.censored.values()))).sf
        at, share = left.quantiles, left.probabilities
        under = np.flatnonzero(share <= 0.5)
        if not under.size:
            return None
        middle = float(at[under[0]])
        later = [time for time in times if time > middle]
        if math.isclose(share[under[0]], 0.5) and later:  # every time up to the next is a median
            middle = (middle + min(later)) / 2
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # where the share is 0 or 1 there is no interval
            bounds = left.confidence_interval(CONFIDENCE, method="log-log")
        too_late = np.nan_to_num(bounds.high.probabilities, nan=1.0) < 0.5
        possible = ~too_late & ~(np.nan_to_num(bounds.low.probabilities, nan=0.0) > 0.5)
        begin = float(at[possible][0]) if possible.any() else middle
        end = float(at[too_late][0]) if too_late.any() else math.inf
        return Interval(middle, min(begin, middle), max(end, middle))

    @property
    def share(self) -> Interval:
        """The share of trials that reach the target, with Wilson's 95 % interval."""
        found = binomtest(len(self.reached), self.count).proportion_ci(CONFIDENCE, method="wilson")
        return Interval(len(self.reached) / self.count, float(found.low), float(found.high))


@dataclass(frozen=True)
class Ahead:
    """Whether a method reaches a target sooner than another: by which factor at least on average over seeds.

    `factor`: of the other's time to its own, a lower bound where the other's trials are censored; `sure`: with 95 % for
    all pairs of methods together.
    """

    method: str
    over: str
    factor: float
    sure: bool


SEARCH_DOUBT = 1.5
"""By how much the variance of searches is taken for larger: a bootstrap of a dozen trials finds too little of it."""


def compare(times: Mapping[str, Times], luck: Sequence[float] = ()) -> list[Ahead]:
    """Compare every two methods of one workload, over the seeds that both have; the sooner one first.

    Pairs of logarithms of one seed's times, whose variances are moved towards each other (`contrast.shrunken`); with
    equal methods any is called ahead in 5 % of cases at most (`contrast.holm`). A censored time counts as its budget,
    which is too short: a method's lead over one that is censored is thus never made larger, and the usual variance is
    that of methods that always reach the target. Which of two is ahead is never sure where the sooner one is censored
    itself, or fewer than two seeds say how much one trial differs from another.

    `luck`: of methods whose settings were searched, by how much the logarithm of a method's time would differ with
    another such search (`TunedMethod.luck`); all are taken to have the same. Without it verdicts are of the settings,
    and with many methods one of them nearly always seems ahead that was only searched with more luck
    (docs/design/tuning.md).
    """
    searched = SEARCH_DOUBT * float(np.mean(np.square(luck))) if len(luck) else 0.0
    leads, whole = [], []
    for one, other in itertools.combinations(times, 2):
        mine, yours = ({**times[name].censored, **times[name].reached} for name in (one, other))
        if shared := [seed for seed in mine if seed in yours]:
            lead = np.log([yours[seed] / mine[seed] for seed in shared])
            leads.append((one, other, lead) if lead.mean() >= 0 else (other, one, -lead))
            whole.append(not times[one].censored and not times[other].censored)
    freedom = np.array([len(lead) - 1.0 for *_, lead in leads])
    own = np.array([lead.var(ddof=1) if len(lead) > 1 else 0.0 for *_, lead in leads])
    most = (len(times) - 1) * max(freedom, default=0.0)
    variances, degrees = shrunken(own, freedom, most, np.array(whole, dtype=bool))
    doubts = []
    for (first, _, lead), variance, degree in zip(leads, variances, degrees, strict=True):
        known = len(lead) > 1 and not times[first].censored
        both = [(float(variance) / len(lead), float(degree)), (2 * searched, math.inf)]
        doubts.append(doubt(float(lead.mean()), both) if known else 1.0)
    return [
        Ahead(first, other, math.exp(lead.mean()), own <= risk)
        for (first, other, lead), own, risk in zip(leads, doubts, holm(doubts), strict=True)
    ]


@dataclass(frozen=True)
class Profile:
    """A method's performance profile: the share of workloads on which it takes at most `tau` times the best's time.

    `taus`, `shares`: where it rises, and to what; `score`: its mean from 1 to `R_MAX`; `without`: the same without each
    workload.
    """

    taus: tuple[float, ...]
    shares: tuple[float, ...]
    score: float
    without: Mapping[str, float]


def profiles(medians: Mapping[str, Mapping[str, float | None]]) -> dict[str, Profile]:
    """Return the performance profile of each method (Dolan and More, 2002).

    `medians`: by method and workload, None where the target is not reached. A workload that nobody reaches the target
    of counts for nobody.
    """
    reached = {method: {name: t for name, t in own.items() if t is not None} for method, own in medians.items()}
    known = sorted({name for own in reached.values() for name in own})
    best = {name: min(own[name] for own in reached.values() if name in own) for name in known}

    def score(ratios: Sequence[float]) -> float:  # each workload counts by how far below `R_MAX` its ratio is
        return float(np.mean([(R_MAX - min(r, R_MAX)) / (R_MAX - 1) for r in ratios])) if ratios else math.nan

    found = {}
    for method, own in reached.items():
        ratios = {name: own[name] / best[name] if name in own else math.inf for name in known}
        finite = sorted(ratio for ratio in ratios.values() if ratio < math.inf)
        shares = tuple((i + 1) / len(known) for i in range(len(finite)))
        without = {name: score([r for other, r in ratios.items() if other != name]) for name in known}
        found[method] = Profile(tuple(finite), shares, score(list(ratios.values())), without)
    return found
