"""Made-up runs of which the truth is known, and what the tool says of them; `tools.error_rates` counts errors."""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import numpy as np

from harness.claims import State, decide, worst
from harness.claims.measured import Measured, Sureness, against
from harness.metrics import METRICS, Formula
from harness.results.censored import Times, compare
from harness.results.contrast import RISK, Contrast, Pairs, Run, all_pairs, share_of_risk
from harness.results.record_store import seeds_at_looks
from harness.results.stats import derived_target, time_to_score
from harness.results.tuned import TunedMethod, TuningTrial
from harness.tune.study import Curve, Tried, choose

Made = TypeVar("Made")
Order = Literal["in turns", "A B B A", "suite by suite", "blocks"]
Drifts = Literal["none", "between", "within"]
EPOCHS, SCATTER = 20, 0.02  # epochs of a run, and how far they scatter about its mean
TIME, SCORE = METRICS["epoch_time_s"], METRICS["test_at_best_val"]
REFERENCE = 0.01  # noise of the reference workload


@dataclass(frozen=True)
class Runs:
    """What is made up: two sides of `cells` configurations with `repeats` seeds each.

    `noise`: deviation of log(a run's time) from run to run, of all cells or of each; `heavy`: of Student's t with 3
    degrees of freedom in place of the normal distribution; `drift`: the range of the machine's; `lag`: autocorrelation
    of epochs.
    """

    cells: int = 1
    repeats: int = 5
    noise: float | tuple[float, ...] = 0.03
    heavy: bool = False
    order: Order = "in turns"
    drift: Drifts = "none"
    reference: bool = False
    lag: float = 0.5
    change: float = 0.0  # log(B / A)
    most: float = math.log(1.1)

    def draw(self, count: int) -> Iterator[list[Pairs]]:
        """Yield the cells of `count` comparisons."""
        rng = np.random.default_rng(zlib.crc32(repr(self).encode()))
        shape = (count, 2, self.cells, self.repeats)
        values = self._noise(rng, shape) + self._epochs(rng, shape)
        values[:, 1] += self.change
        starts = self._starts()
        drift = self._drift(rng, count, starts)
        values += drift
        references = drift + rng.normal(0, REFERENCE, shape) if self.reference else np.full(shape, np.nan)
        for one, measured in zip(np.exp(values), np.exp(references), strict=True):
            yield [Pairs.of(TIME, one[:, c], starts[:, c], measured[:, c]) for c in range(self.cells)]

    def _noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        draws = rng.standard_t(3, shape) / math.sqrt(3) if self.heavy else rng.normal(0, 1, shape)
        return np.reshape(self.noise, (-1, 1)) * draws

    def _epochs(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Return the median of each run's epochs, which resemble the one before."""
        state = rng.normal(0, SCATTER, shape)
        epochs = [state]
        for _ in range(EPOCHS - 1):
            state = self.lag * state + math.sqrt(1 - self.lag**2) * rng.normal(0, SCATTER, shape)
            epochs.append(state)
        return np.median(epochs, axis=0)

    def _starts(self) -> np.ndarray:
        """Return when each run began [2, cells, repeats], one after the other."""
        side, cell, repeat = np.indices((2, self.cells, self.repeats))
        keys = {
            "in turns": (side, cell, repeat),
            "A B B A": ((side + cell + repeat) % 2, cell, repeat),
            "suite by suite": (cell, side, repeat),
            "blocks": (repeat, cell, side),
        }[self.order]
        ranks = np.lexsort([key.ravel() for key in keys])
        starts = np.empty(len(ranks))
        starts[ranks] = np.arange(len(ranks))
        return starts.reshape(side.shape)

    def _drift(self, rng: np.random.Generator, count: int, starts: np.ndarray) -> np.ndarray:
        """Return what each run's log time is off by [count, 2, cells, repeats], a range of 10 % at most."""
        steps = starts.size
        moment = np.arange(steps) / max(1, steps - 1)
        sign = rng.choice([-1, 1], (count, 1))
        if self.drift == "none":
            course = np.zeros((count, steps))
        elif self.drift == "between":
            course = sign * (moment > 0.5)
        else:
            sudden = moment > rng.random((count, 1))
            walk = np.cumsum(rng.normal(0, 1, (count, steps)), axis=1)
            walk /= np.maximum(np.ptp(walk, axis=1, keepdims=True), 1e-9)
            kind = rng.integers(3, size=(count, 1))
            course = np.choose(kind, [sign * sudden, sign * moment, walk])
        return self.most * course[:, starts.astype(int)]


def called(pairs: list[Pairs]) -> bool:
    """Return whether `harness compare` would call any trial, or all together, different."""
    contrast = Contrast(pairs, TIME)
    share = share_of_risk(len(pairs))
    if any(contrast.row(i, share).sure for i in range(len(pairs))):
        return True
    return len(pairs) > 1 and contrast.whole(RISK / 2).sure


def compared(runs: Runs, count: int) -> float:
    """Return the share of comparisons that call anything."""
    return sum(map(called, runs.draw(count))) / count


@dataclass(frozen=True)
class Methods:
    """Methods that are compared by their times or scores, `seeds` of each; the first is better by `lead`.

    `noise`: of all, or of each in turn; `of_seed`: deviation of an effect that all methods' runs of a seed have;
    `outlier`: by how much one run is off; `behind`: by how much the last is behind all others; `target`: times are
    those to a target.
    """

    count: int
    seeds: int
    noise: float | tuple[float, ...] = 0.05
    heavy: bool = False
    score: bool = False
    order: Literal["method by method", "seed by seed"] = "seed by seed"
    drift: float = 0.0
    lead: float = 0.0
    of_seed: float = 0.0
    outlier: float = 0.0
    behind: float = 0.0
    target: bool = field(default=False, repr=False)  # the same draws

    def _compared(self, rng: np.random.Generator) -> Iterator[tuple[int, int, float]]:
        """Draw all runs, and yield which methods the report would call behind which, and by how much at least."""
        shape = (self.count, self.seeds)
        draws = rng.standard_t(3, shape) / math.sqrt(3) if self.heavy else rng.normal(0, 1, shape)
        values = np.resize(self.noise, self.count)[:, None] * draws + self.of_seed * rng.normal(0, 1, self.seeds)
        values[0] -= self.lead
        values[-1] += self.behind
        values[rng.integers(self.count), rng.integers(self.seeds)] += self.outlier
        if self.target:
            times = {i: Times(dict(enumerate(own)), {}) for i, own in enumerate(np.exp(values).tolist())}
            yield from ((pair.over, pair.method, math.log(pair.least)) for pair in compare(times) if pair.sure)
            return
        method, seed = np.indices(shape)
        starts = seed * self.count + method if self.order == "seed by seed" else method * self.seeds + seed
        values += self.drift * rng.choice([-1, 1]) * (starts > rng.random() * starts.size)
        values = 0.9 - values / 10 if self.score else np.exp(values)
        metric, unknown = SCORE if self.score else TIME, np.full((2, self.seeds), np.nan)
        means = values.mean(axis=1) * (-1 if self.score else 1)
        pairs = {
            (i, j): Pairs.of(metric, values[[i, j]], starts[[i, j]].astype(float), unknown)
            for i, j in itertools.combinations(np.argsort(means).tolist(), 2)
        }
        found = all_pairs(pairs, metric)
        for (i, j), each in found.items():
            if each.sure and each.low is not None and each.high is not None and metric.worse(each.size):
                yield j, i, min(abs(each.low), abs(each.high))

    def won(self, rng: np.random.Generator) -> bool:
        """Draw all runs, and return whether the report would name a winner without doubt."""
        return len({one for one, *_ in self._compared(rng)}) == self.count - 1

    def told_apart(self, rng: np.random.Generator) -> bool:
        """Draw all runs, and return whether the report would call any method behind another."""
        return any(True for _ in self._compared(rng))

    def last_excluded(self, rng: np.random.Generator) -> bool:
        """Draw all runs, and return whether the last method would be excluded from the set that has the best."""
        return self.count - 1 in {one for one, *_ in self._compared(rng)}

    def overstated(self, rng: np.random.Generator) -> bool:
        """Draw all times, and return whether any method would be called farther behind another than it is."""
        true = {0: -self.lead, self.count - 1: self.behind}
        return any(least > true.get(one, 0.0) - true.get(other, 0.0) for one, other, least in self._compared(rng))


def share_of(made: Made, count: int, what: Callable[[Made, np.random.Generator], bool]) -> float:
    """Return in which share of `count` draws something is so, drawn by a seed that follows from what is made up."""
    rng = np.random.default_rng(zlib.crc32(repr(made).encode()))
    return sum(what(made, rng) for _ in range(count)) / count


@dataclass(frozen=True)
class Claims:
    """A claim of which the truth lies `beyond` the bound, 0 for on it; a score's mean, or a ratio of two methods'."""

    seeds: int
    ratio: bool = False
    rows: int = 1
    noise: float = 0.03
    order: Literal["method by method", "seed by seed"] = "seed by seed"
    drift: float = 0.0
    beyond: float = 0.0

    def state(self, rng: np.random.Generator) -> State:
        """Draw all runs [rows, methods, seeds], and return what the claim's verdict would be."""
        row, method, seed = np.indices((self.rows, 1 + self.ratio, self.seeds))
        last = (method, seed) if self.order == "method by method" else (seed, method)
        starts = np.empty(row.size)
        starts[np.lexsort([key.ravel() for key in (*last[::-1], row)])] = np.arange(row.size)
        values = rng.normal(0, self.noise, row.shape) + self.beyond * (method == 0)
        values += self.drift * rng.choice([-1, 1]) * (starts.reshape(row.shape) > rng.random() * row.size)
        values = 0.1 * np.exp(values) if self.ratio else 0.9 + values
        sureness = Sureness.of(Formula(((TIME if self.ratio else SCORE).name,)), (), self.rows)
        return worst(self._row(sureness, *each) for each in zip(values, starts.reshape(row.shape), strict=True))

    def _row(self, sureness: Sureness, values: np.ndarray, starts: np.ndarray) -> State:
        of, *over = (
            Measured({(seed, 0): Run(*run) for seed, run in enumerate(zip(v.tolist(), s.tolist(), strict=True))})
            for v, s in zip(values, starts, strict=True)
        )
        interval = sureness.against(of, over[0], "ratio") if over else sureness.interval(of)
        value = against(of, over[0], "ratio") if over else of.value
        assert value is not None
        return decide(interval.centre if interval else value, interval, 1.0 if over else 0.9, math.inf)[0]


def decided(claims: Claims, count: int, states: tuple[State, ...] = ("holds", "fails")) -> float:
    """Return the share of verdicts that are one of `states`."""
    return share_of(claims, count, lambda made, rng: made.state(rng) in states)


@dataclass(frozen=True)
class Searches:
    """Methods whose settings are searched, `draws` in each of `studies`, and trained again with 5 seeds.

    A setting that is off by x in a key (-1 to 1, drawn) takes `sharp` |x|, or with `round` `sharp` x^2, longer: in the
    logarithm of time, over `keys` added. `lead`: by how much longer all methods but the first take at their best, one
    after the other with `each`.
    """

    count: int
    studies: int = 1
    draws: int = 14
    keys: int = 1
    sharp: float = 1.0
    round: bool = True
    noise: float = 0.1
    lead: float = 0.0
    each: bool = False

    def draw(self, rng: np.random.Generator) -> tuple[dict[str, Times], list[float]]:
        """Search and train again; return the final times, and what is known of the searches' luck."""
        of_seed = rng.normal(0, 0.1, SEEDS)
        finals, luck = {}, []
        for method in range(self.count):
            best = self.lead * (method if self.each else min(method, 1))
            off = rng.uniform(-1, 1, (self.studies, self.draws, self.keys))
            true = best + self.sharp * (off**2 if self.round else abs(off)).sum(axis=2)
            seen = np.exp(true + rng.normal(0, self.noise, true.shape))
            tried = [
                [Tried(i, f"{study}-{i}", {"x": 0}, Curve((t,), (1.0,), t)) for i, t in enumerate(own.tolist())]
                for study, own in enumerate(seen)
            ]
            chosen = choose(tried, "time_to_target", 1.0, None)
            assert chosen is not None
            took = np.exp(true[chosen.study, chosen.tried.number] + of_seed + rng.normal(0, self.noise, SEEDS))
            finals[f"m{method}"] = Times(dict(enumerate(took.tolist())), {})
            kept = TunedMethod(
                dataset="", method="", target=1.0, chosen=chosen.tried.trial, study=chosen.study,
                tried=tuple(
                    TuningTrial(study=study, number=each.number, trial=each.trial, point=each.point,
                                best_val=1.0, target_s=t, trained_s=t, wall_s=t)
                    for study, own in enumerate(tried) for each in own
                    if each.curve is not None and (t := each.curve.trained_s)
                ),
            )  # fmt: skip
            luck.append(kept.luck("time_to_target") or 0.0)
        return finals, luck

    def told_apart(self, rng: np.random.Generator) -> bool:
        """Return whether any two methods would be told apart."""
        return any(pair.sure for pair in compare(*self.draw(rng)))

    def ahead(self, rng: np.random.Generator) -> bool:
        """Return whether the first would be surely ahead of the second."""
        return any(pair.sure and (pair.method, pair.over) == ("m0", "m1") for pair in compare(*self.draw(rng)))

    def ranked(self, rng: np.random.Generator) -> bool:
        """Return whether the medians are in the order of the methods, and no verdict is against it."""
        finals, luck = self.draw(rng)
        medians = [own.median.centre for own in finals.values() if own.median]
        wrong = any(pair.sure and pair.method > pair.over for pair in compare(finals, luck))
        return medians == sorted(medians) and not wrong


SEEDS = 5


@dataclass(frozen=True)
class Curves:
    """Methods that learn alike, with the target that follows from the scores of the first, or of the best.

    `plateau`: deviation of what a run comes to, `wiggle`: of an evaluation; both of a score. `noise`: deviation of the
    logarithm of a run's epoch time, and of the epochs in which it learns.
    """

    count: int
    seeds: int
    plateau: float = 0.002
    wiggle: float = 0.002
    noise: float = 0.05
    of_best: bool = False

    def distinguished(self, rng: np.random.Generator) -> bool:
        """Return whether any two methods would be distinguished by their times to the derived target."""
        shape, epochs = (self.count, self.seeds), np.arange(1, 101)
        top, pace, seconds = (rng.normal(0, s, shape) for s in (self.plateau, self.noise, self.noise))
        rises = np.exp(-epochs / (12 * np.exp(pace))[..., None])
        scores = 0.95 + top[..., None] - 0.6 * rises + rng.normal(0, self.wiggle, (*shape, len(epochs)))
        scores[..., ::2] = np.nan  # evaluated every second epoch
        best = np.nanmax(scores, axis=2)
        target = derived_target(best[best.mean(axis=1).argmax() if self.of_best else 0])
        finals = {}
        for method in range(self.count):
            took = [[t] * len(epochs) for t in np.exp(seconds[method]).tolist()]
            at = [time_to_score(t, own, target) for t, own in zip(took, scores[method], strict=True)]
            reached = {seed: t for seed, t in enumerate(at) if t is not None}
            finals[f"m{method}"] = Times(reached, {s: sum(t) for s, t in enumerate(took) if s not in reached})
        return any(pair.sure for pair in compare(finals))


@dataclass(frozen=True)
class Rounds:
    """Rounds of fresh seeds (`--until decided`) of methods with these mean times, until one may still be the fastest.

    `first`: seeds of each method in the first round; `most`: in the last; `noise`: deviation of a time's logarithm, and
    of what all methods' times of a seed have in common; `one_by_one`: a round has one seed, in place of the tool's.
    """

    means: tuple[float, ...]
    first: int = 5
    most: int = 33
    noise: float = 0.1
    one_by_one: bool = False

    def behind(self, rng: np.random.Generator) -> set[int]:
        """Return which methods were called behind another."""
        logs = rng.normal(0, self.noise, (len(self.means), self.most)) + rng.normal(0, self.noise, self.most)
        seconds = np.array(self.means)[:, None] * np.exp(logs)
        counts = itertools.count(self.first) if self.one_by_one else seeds_at_looks(self.first)
        looks, behind = list[range](), set[int]()
        times = {method: Times({}, {}) for method in range(len(self.means))}
        for count in itertools.takewhile(self.most.__ge__, counts):
            for method in times.keys() - behind:
                times[method] = Times(dict(enumerate(seconds[method, :count].tolist())), {})
            looks.append(range(count))
            behind = {pair.over for pair in compare(times, looks=looks) if pair.sure}
            if len(behind) == len(times) - 1:
                break
        return behind

    def wrong(self, rng: np.random.Generator) -> bool:
        """Return whether the fastest, or any that is as fast, is called behind another."""
        return any(self.means[method] == min(self.means) for method in self.behind(rng))

    def decided(self, rng: np.random.Generator) -> bool:
        """Return whether one method is left."""
        return len(self.behind(rng)) == len(self.means) - 1
