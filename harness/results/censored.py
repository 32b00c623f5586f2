"""Times to a target of trials of which some never reach it: medians, shares, who is ahead, performance profiles.

A trial that does not reach the target within its budget is censored there: all that is known is that it takes longer.
Epochs to the score of exact training show who learns sooner than exact training can (`held_to_references`).
"""

from __future__ import annotations

import itertools
import json
import math
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic

import numpy as np
from scipy.stats import CensoredData, binomtest, ecdf

from harness.metrics import Metric
from harness.results.contrast import (
    FEW_METHODS,
    RISK,
    WORTH_POINTS,
    Contrast,
    Estimate,
    Name,
    Pairs,
    by_chance,
    doubt,
    mean_reach,
    reach,
    risks_of_pairs,
    shrunken,
    summed,
)
from harness.results.record import Record, is_baseline
from harness.results.stats import CONFIDENCE, Interval, Values, join_unique, mean

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

    def of(self, seeds: Collection[int]) -> Times:
        """The same of some of the seeds."""
        mine, yours = ({s: t for s, t in own.items() if s in seeds} for own in (self.reached, self.censored))
        return Times(mine, yours)

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
class Ahead(Generic[Name]):
    """Whether a method reaches a target sooner than another: has a smaller mean logarithm of the time over seeds.

    `sure`: with 95 % for all pairs of methods together; `least`: the factor that it then is ahead at least.
    """

    method: Name
    over: Name
    sure: bool
    least: float = 1.0


SEARCH_DOUBT = 1.5
"""By how much the variance of searches is taken for larger: a bootstrap of a dozen trials finds too little of it."""


@dataclass(frozen=True)
class Lead(Generic[Name]):
    """By how much a method reaches a target sooner than another: the mean of a factor's logarithm over seeds.

    `variances`: of the mean, with degrees of freedom: by seeds, and by another search of the settings; `censored`:
    whether trials of `method`, and of `over`, did not reach it.
    """

    method: Name
    over: Name
    size: float
    seeds: int
    variances: Sequence[tuple[float, float]]
    censored: tuple[bool, bool]

    @property
    def doubt(self) -> float:
        """The p-value of no lead; 1 if unknown."""
        return doubt(self.size, self.variances) if self.seeds > 1 and not self.censored[0] else 1.0

    def estimate(self, risk: float) -> Estimate:
        """Return it with its interval, open above where it is a lower bound; none where nothing says how sure it is."""
        low = high = None
        if self.seeds > 1 and not self.censored[0]:
            far = reach(self.variances, risk)
            low, high = self.size - far, math.inf if self.censored[1] else self.size + far
        deviation = math.sqrt(self.variances[0][0] * self.seeds) or None
        return Estimate(self.size, self.size, low, high, self.seeds, deviation, "none", risk)

    def ahead(self, risk: float) -> Ahead[Name]:
        """Return it judged at a risk."""
        found = self.estimate(risk)
        least = math.exp(found.low) if found.sure and found.low is not None else 1.0
        return Ahead(self.method, self.over, found.sure, least)


def judged(found: Sequence[Lead[Name]], risk: float = RISK) -> list[Ahead[Name]]:
    """Return leads judged together, so that all of them err with `risk` at most."""
    pairs, spreads = [(lead.method, lead.over) for lead in found], [math.sqrt(lead.variances[0][0]) for lead in found]
    risks = risks_of_pairs(pairs, [lead.doubt for lead in found], spreads, risk)
    return [lead.ahead(own) for lead, own in zip(found, risks, strict=True)]


def risk_of_look(number: int) -> float:
    """Return the risk of a look at the results after so many others, from 0; of all looks together it is `RISK`."""
    return RISK / ((number + 1) * (number + 2))


def compare(
    times: Mapping[Name, Times], luck: Sequence[float] = (), looks: Sequence[Collection[int]] = ()
) -> list[Ahead[Name]]:
    """Compare every two methods (at a number of parts, say) of one workload, over common seeds; the sooner one first.

    With equal methods any is called ahead in 5 % of cases at most (`contrast.risks_of_pairs`). With `looks` that is
    done at each, with more and more seeds, of those methods that have them. What was sure at one look stays so: each
    has a share of the risk (`risk_of_look`), so that all err in 5 % together, at whichever a run stops.
    """
    known = [{name: part for name, own in times.items() if (part := own.of(seeds)).count} for seeds in looks]
    rounds = [(own, risk_of_look(i)) for i, own in enumerate(known)] or [(dict(times), RISK)]
    found: dict[frozenset[Name], Ahead[Name]] = {}
    for own, risk in rounds:
        for pair in judged(leads(own, luck), risk):
            key = frozenset((pair.method, pair.over))
            if key not in found or not found[key].sure:
                found[key] = pair
    return closed(list(found.values()))


def closed(found: Sequence[Ahead[Name]]) -> list[Ahead[Name]]:
    """Return pairs with what follows from them: if a is surely ahead of b, and b of c, then a is ahead of c.

    If all that is sure of the pairs is right then so is this: it adds nothing to how often they err.
    """
    least = {(pair.method, pair.over): pair.least for pair in found if pair.sure}
    names = dict.fromkeys(name for ends in least for name in ends)
    for middle, first, last in itertools.product(names, repeat=3):
        through = least.get((first, middle), 0.0) * least.get((middle, last), 0.0)
        if first != last and (last, first) not in least and through > least.get((first, last), 0.0):
            least[first, last] = through
    unsure = [pair for pair in found if not {(pair.method, pair.over), (pair.over, pair.method)} & least.keys()]
    return [Ahead(*ends, sure=True, least=bound) for ends, bound in least.items()] + unsure


def leads(times: Mapping[Name, Times], luck: Sequence[float] = ()) -> list[Lead[Name]]:
    """Return how far ahead of each other every two methods of one workload are, over the seeds that both have.

    Pairs of logarithms of one seed's times. A censored time counts as its budget, which is too short: a method's lead
    over one that is censored is thus never made larger. Which of two is ahead is never sure where the sooner one is
    censored itself, or fewer than two seeds say how much one trial differs from another. A pair's variance is the sum
    of both methods' (`_scatter`), or that of the pair where that is larger beyond chance or methods are few.

    `luck`: of methods whose settings were searched, by how much the logarithm of a method's time would differ with
    another such search (`TunedMethod.luck`); all are taken to have the same. Without it verdicts are of the settings,
    and with many methods one of them nearly always seems ahead that was only searched with more luck
    (docs/design/statistics.md).
    """
    searched = SEARCH_DOUBT * float(np.mean(np.square(luck))) if len(luck) else 0.0
    logs = {name: {s: math.log(t) for s, t in {**own.censored, **own.reached}.items()} for name, own in times.items()}
    scatter, found = _scatter(times, logs), list[Lead[Name]]()
    for one, other in itertools.combinations(times, 2):
        lead = np.array([late - logs[one][seed] for seed, late in logs[other].items() if seed in logs[one]])
        if not len(lead):
            continue
        first, last = (one, other) if lead.mean() >= 0 else (other, one)
        variance, freedom = float(lead.var(ddof=1)) if len(lead) > 1 else 0.0, len(lead) - 1.0
        if one in scatter and other in scatter and len(lead) > 1:
            both, degrees = summed([scatter[one], scatter[other]])
            if variance <= both * by_chance(freedom, degrees):
                variance, freedom = both, degrees
        spread = [(variance / len(lead), freedom), (2 * searched, math.inf)]
        missed = bool(times[first].censored), bool(times[last].censored)
        found.append(Lead(first, last, abs(float(lead.mean())), len(lead), spread, missed))
    return found


def _scatter(times: Mapping[Name, Times], logs: Mapping[Name, Mapping[int, float]]) -> dict[Name, tuple[float, float]]:
    """Return the variance of the logarithm of each method's times, with its degrees of freedom, if methods are many.

    What the trials of a seed have in common is the median of all other methods, each by its distance from its mean:
    the scatter around that is a little larger than the method's own. These variances are moved towards each other
    (`contrast.shrunken`), the usual one being that of methods that always reach the target, with at most twice the
    degrees of freedom that a method has alone. A method of fewer than three seeds, or with too few others that have its
    seeds, is left out.
    """
    found = {}
    for name, mine in logs.items():
        others = [own for other, own in logs.items() if other != name and own.keys() >= mine.keys()]
        if len(mine) > 2 and len(others) >= FEW_METHODS:
            rows = np.array([[own[seed] for seed in mine] for own in (mine, *others)])
            rows -= rows.mean(axis=1, keepdims=True)
            found[name] = (rows[0] - np.median(rows[1:], axis=0)).var(ddof=1)
    freedom, whole = np.array([len(logs[name]) - 1.0 for name in found]), [not times[name].censored for name in found]
    most = (len(found) - 1) * freedom.max(initial=0.0)
    variances, degrees = shrunken(np.array(list(found.values())), freedom, most, np.array(whole, dtype=bool))
    degrees = np.minimum(degrees, 2 * freedom)
    return dict(zip(found, zip(variances.tolist(), degrees.tolist(), strict=True), strict=True))


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


CONVERGENCE = "convergence"
SEEDS = 3
"""Fewest seeds, of both sides, from which epochs to a score are compared: fewer show nothing of how they scatter."""
_HOW = {
    *("threads", "cores", "spmm", "products", "warmup", "checkpoint", "checksum_every", "evaluation_mib"),
    *("cuda_graphs", "eval_memory", "sampled_eval"),
}
"""Keys of train that say how it is computed or measured, not what is learnt."""
_KIND = ("method", "plugin", "partition", "network", "device", "timing")
# Evaluations are some epochs apart: where all seeds change alike, steps may hide the noise, as they do in scores.
_STEPPED = Metric("epochs_to_score", unit="fraction", better="more")
Curve = Mapping[int, float]  # validation score by epoch, from 1


@dataclass
class Held:
    """Trials of equal settings: of each method by seed, and of exact training, the reference, by seed.

    `batch`: of all ranks together, as text.
    """

    batch: str
    reference: dict[int, Record] = field(default_factory=dict)
    methods: dict[str, dict[int, Record]] = field(default_factory=dict)

    @property
    def unheld(self) -> str:
        """Data set, model, methods and batch, if methods have enough seeds and the reference has not; else ""."""
        some = [next(iter(own.values())).config for own in self.methods.values() if len(own) >= SEEDS]
        if not some or len(self.reference) >= SEEDS:
            return ""
        names = join_unique(config["method"]["name"] for config in some)
        return f"{some[0]['dataset']['name']}, {some[0]['model']['name']}: {names} ({self.batch})"


@dataclass(frozen=True)
class Soon:
    """Epochs to a score of a method and of exact training, by common seed: `sure`, that the method's are fewer."""

    level: float
    own: Sequence[int]
    reference: Sequence[int]
    sure: bool

    def __str__(self) -> str:
        first, last = (_mean_text(epochs) for epochs in (self.own, self.reference))
        return (
            f"reaches a validation score of {self.level:.4g} after {first} epochs, exact training (its reference) "
            f"after {last} (means of {len(self.own)} seeds each)"
        )


def _mean_text(epochs: Values) -> str:
    """Write the mean of numbers of epochs with its 95 % interval."""
    centre, reach = mean(epochs) or 0.0, mean_reach(epochs, 1 - CONFIDENCE) or 0.0
    return f"{centre:.3g} [{max(1.0, centre - reach):.3g}, {centre + reach:.3g}]"


def equal_settings(records: Iterable[Record]) -> list[Held]:
    """Group trials that ended well by data set, model, training and batch: what a method's convergence may depend on.

    The reference of full-graph methods is their baseline, at any number of parts, since it is exact; of mini-batch
    methods their baseline in one process with all neighbours. A baseline from a plugin is none. Trials of a search, and
    repeats, are left out, and what commands trained.
    """
    found: dict[str, Held] = {}
    keys = {"dataset", "model", "train", "partition", "method"}
    whole = [each for each in records if keys <= each.config.keys() and each.declared.get("family") != "external"]
    for record in sorted(whole, key=lambda each: (each.config["partition"]["parts"], each.started)):
        config = record.config
        if record.status != "ok" or config.get("tuning") or config.get("repeat"):
            continue
        train = {key: value for key, value in config["train"].items() if key not in _HOW}
        if not train.get("stop_at_target"):
            train.pop("target", None)
        settings = config["dataset"], record.dataset.get("fingerprint"), config["model"], train
        exact, batches = _is_reference(record), _batches(record)
        for batch in batches if exact else batches[:1]:
            key = json.dumps([*settings, batch], sort_keys=True, default=str)
            held = found.setdefault(key, Held(batch))
            kind = json.dumps([config.get(name) for name in _KIND], sort_keys=True, default=str)
            own = held.reference if exact else held.methods.setdefault(kind, {})
            own.setdefault(int(config["seed"]), record)
    return list(found.values())


def _batches(record: Record) -> list[str]:
    """Return how many targets a step has, as it was asked for; of mini-batches how many steps an epoch has, too."""
    options, steps = record.config["method"].get("options") or {}, record.result.get("steps")
    if record.declared.get("family") != "mini-batch" or options.get("batch_size") == 0:
        return ["all training nodes a step"]
    asked = options.get("batch_size")
    targets = [f"{asked * record.config['partition']['parts']} targets a step"] if isinstance(asked, int) else []
    return [*targets, f"{steps or 0:.0f} steps an epoch"]


def _is_reference(record: Record) -> bool:
    config, declared = record.config, record.declared
    options, family = config["method"].get("options") or {}, str(declared.get("family"))
    if config.get("plugin") or not is_baseline(declared, options, family):
        return False
    fanouts = options.get("fanouts")
    whole = config["partition"]["parts"] == 1 and {*(fanouts if isinstance(fanouts, list) else [fanouts])} == {-1}
    return family == "full-graph" or whole


def held_to_references(groups: Sequence[Held], curve_of: Callable[[Record], Curve]) -> list[tuple[list[Record], Soon]]:
    """Compare the epochs in which methods reach the score of exact training with those that it takes; by method.

    The score is 1 point below the least of what the reference's seeds reach. Logarithms of ratios seed by seed are
    judged as in `Contrast`, one-sided; that any of all methods that learn as exact training does is called sooner has a
    chance of 5 % at most (Bonferroni). A method with a trial that does not reach the score is not sooner.
    """
    found: list[tuple[list[Record], Soon]] = []
    judged: list[tuple[Contrast, int, list[Record], float, list[int], list[int]]] = []
    compared = 0
    for held in groups:
        curves = {seed: curve for seed, record in held.reference.items() if (curve := curve_of(record))}
        rivals = [own for own in held.methods.values() if len(own.keys() & curves.keys()) >= SEEDS]
        if not rivals:
            continue
        compared += len(rivals)
        level = min(max(curve.values()) for curve in curves.values()) - WORTH_POINTS
        pairs, rows = list[Pairs](), list[tuple[list[Record], float, list[int], list[int]]]()
        for trials in rivals:
            own = {seed: _reached(curve_of(trials[seed]), level) for seed in trials.keys() & curves.keys()}
            if all(own.values()):
                taken = [[_reached(curves[seed], level) for seed in own], list(own.values())]
                values = np.array(taken, dtype=float)
                pairs.append(Pairs(np.log(values[1] / values[0])))
                rows.append((list(trials.values()), level, *values.astype(int).tolist()))
        contrast = Contrast(pairs, _STEPPED, most=sum(len(own.sizes) - 1 for own in pairs))
        judged += [(contrast, i, *row) for i, row in enumerate(rows)]
    for contrast, i, records, level, reference, own_epochs in judged:
        estimate = contrast.row(i, 2 * RISK / compared)
        found.append((records, Soon(level, own_epochs, reference, estimate.sure and estimate.size < 0)))
    return found


def _reached(curve: Curve, level: float) -> int | None:
    return next((epoch for epoch, score in sorted(curve.items()) if score >= level), None)
