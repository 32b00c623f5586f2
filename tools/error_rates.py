"""Write the page of how often statements err, counted on made-up runs of which the truth is known.

python -m tools.error_rates [docs/error-rates.md]

The code is that of `harness compare`, the report and `harness check-claims`. Draws are seeded: the same code gives the
same page.
"""

from __future__ import annotations

import itertools
import math
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from harness.claims import State, decide, worst
from harness.claims.measured import Measured, Sureness, against
from harness.metrics import METRICS, Formula
from harness.results.censored import Times, compare
from harness.results.contrast import RISK, Contrast, Pairs, Run, all_pairs, share_of_risk
from harness.results.stats import derived_target, time_to_score
from harness.results.tuned import TunedMethod, TuningTrial
from harness.tune.study import Curve, Tried, choose
from tools.reference import table

Rate = Callable[[], float]
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
    `outlier`: by how much one run is off; `behind`: by how much the last is behind all others.
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

    def _compared(self, rng: np.random.Generator) -> Iterator[tuple[int, int, float]]:
        """Draw all runs, and yield which methods the report would call behind which, and by how much at least."""
        shape = (self.count, self.seeds)
        draws = rng.standard_t(3, shape) / math.sqrt(3) if self.heavy else rng.normal(0, 1, shape)
        values = np.resize(self.noise, self.count)[:, None] * draws + self.of_seed * rng.normal(0, 1, self.seeds)
        values[0] -= self.lead
        values[-1] += self.behind
        values[rng.integers(self.count), rng.integers(self.seeds)] += self.outlier
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


def _share(made: object, count: int, happens: Callable[[np.random.Generator], bool]) -> float:
    """Return in which share of `count` draws something happens, drawn by a seed that follows from what is made up."""
    rng = np.random.default_rng(zlib.crc32(repr(made).encode()))
    return sum(happens(rng) for _ in range(count)) / count


def won(methods: Methods, count: int, what: Callable[[Methods, np.random.Generator], bool] = Methods.won) -> float:
    """Return the share of reports that name a winner without doubt, or say something else."""
    return _share(methods, count, lambda rng: what(methods, rng))


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
    return _share(claims, count, lambda rng: claims.state(rng) in states)


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


def searched(searches: Searches, count: int, what: Callable[[Searches, np.random.Generator], bool]) -> float:
    """Return in which share of searches something is so."""
    return _share(searches, count, lambda rng: what(searches, rng))


def derived(curves: Curves, count: int) -> float:
    """Return the share of draws in which methods that learn alike are distinguished."""
    return _share(curves, count, curves.distinguished)


@dataclass(frozen=True)
class Table:
    """Rates, yet to be counted, with what they are of; `false`: they are to be 5 % at most."""

    title: str
    note: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Rate, ...]], ...]
    false: bool = True


MANY, SOME, FEW = 1000, 500, 300  # draws of a rate: of cheap ones, of others, and of many cells


def tables() -> Iterator[Table]:
    """Yield what the page shows."""
    yield from _compare()
    yield from _winners()
    yield from _claims()
    yield from _searches()
    yield from _targets()


def _table(
    title: str, note: str, head: str, ways: Iterable[str], rows: Iterable[tuple[str, Iterable[Rate]]], **how: bool
) -> Table:
    return Table(title, note, (head, *ways), tuple((name, tuple(rates)) for name, rates in rows), **how)


def _compare() -> Iterator[Table]:
    usual = Runs(cells=4, repeats=3)
    orders = {
        "in turns": usual,
        "in turns, drift": replace(usual, drift="within"),
        "suite by suite, drift": replace(usual, order="suite by suite", drift="within"),
        "one side after the other": replace(usual, order="blocks"),
        "the same, drift between": replace(usual, order="blocks", drift="between"),
        "the same, with reference": replace(usual, order="blocks", drift="between", reference=True),
    }
    noises: dict[str, tuple[float | tuple[float, ...], bool]] = {
        "1 %": (0.01, False),
        "5 %": (0.05, False),
        "20 %": (0.2, False),
        "10 %, heavy tails": (0.1, True),
        "1, 3, 10 and 20 %, a trial each": ((0.01, 0.03, 0.1, 0.2), False),
    }
    rows = (
        (name, [partial(compared, replace(way, noise=noise, heavy=heavy), SOME) for way in orders.values()])
        for name, (noise, heavy) in noises.items()
    )
    note = "4 trials of 3 seeds; the machine drifts by 10 % where it does."
    yield _table("A code compared with itself, by noise", note, "noise from run to run", orders, rows)

    drifting = {
        "in turns, drift": Runs(noise=0.1, drift="within"),
        "one side after the other, drift between": Runs(noise=0.1, order="blocks", drift="between"),
    }
    rows = (
        (
            f"{n} of {k}",
            [partial(compared, replace(w, cells=n, repeats=k), FEW if n > 4 else SOME) for w in drifting.values()],
        )
        for n in (1, 4, 14)
        for k in (1, 2, 5, 10)
    )
    note = "Noise of 10 %, the machine drifts by 10 %."
    yield _table("A code compared with itself, by trials and seeds", note, "trials of seeds", drifting, rows)

    rows = (
        (f"{lag:g}", [partial(compared, Runs(repeats=n, lag=lag, noise=0.01), MANY) for n in (2, 5)])
        for lag in (0, 0.5, 0.9)
    )
    note = "One trial in turns, noise of 1 % beside that of 20 epochs of 2 % each."
    heads = "2 repeats", "5 repeats"
    yield _table("The same, by autocorrelation of epochs", note, "autocorrelation", heads, rows)

    slower = Runs(change=math.log(1.1))
    ways = {
        "A B A B": slower,
        "A B B A": replace(slower, order="A B B A"),
        "A B A B, drift": replace(slower, drift="within"),
        "one side after the other, with reference": replace(slower, order="blocks", reference=True),
        "one side after the other": replace(slower, order="blocks"),
    }
    rows = (
        (
            f"{100 * noise:g} %, {n}",
            [partial(compared, replace(w, noise=noise, repeats=n), MANY) for w in ways.values()],
        )
        for noise, n in ((0.01, 3), (0.03, 1), (0.03, 3), (0.03, 5), (0.03, 10), (0.1, 5), (0.1, 10))
    )
    yield _table("A slowdown of 10 % is found", "One trial.", "noise, repeats", ways, rows, false=False)


def _winners() -> Iterator[Table]:
    ways = {
        "times": Methods(2, 2),
        "times, heavy tails": Methods(2, 2, heavy=True),
        "times, method by method, drift": Methods(2, 2, order="method by method", drift=math.log(1.1)),
        "scores": Methods(2, 2, score=True),
    }
    apart = Methods.told_apart
    rows = (
        (
            f"{count} with {seeds}",
            [partial(won, replace(way, count=count, seeds=seeds), FEW, apart) for way in ways.values()],
        )
        for count in (2, 4, 8, 14)
        for seeds in (1, 2, 3, 10)
    )
    note = "Noise of 5 %; no method is better than another."
    yield _table("A method is called behind an equal one", note, "methods with seeds", ways, rows)
    unlike = {
        "one with 10 times the noise": Methods(14, 5, noise=(0.5, *[0.05] * 13)),
        "noises of 1, 3, 5, 10 and 20 %": Methods(14, 5, noise=(0.01, 0.03, 0.05, 0.1, 0.2)),
        "seeds that share an effect of 20 %": Methods(14, 5, of_seed=0.2),
        "one run that takes e times as long": Methods(14, 5, outlier=1.0),
    }
    rows = (
        (f"{n} with {k}", [partial(won, replace(way, count=n, seeds=k), FEW, apart) for way in unlike.values()])
        for n in (3, 5, 14)
        for k in (1, 2, 3, 5, 10)
    )
    note = "Noise of 5 % but where another is named, seed by seed; no method is better than another."
    yield _table("The same, of unlike methods", note, "methods with seeds", unlike, rows)
    ahead = {"noise of 5 %": Methods(14, 5), **unlike}
    rows = (
        (
            f"{n} with {k}",
            [
                partial(won, replace(way, count=n, seeds=k, lead=math.log(1.4)), FEW, Methods.overstated)
                for way in ahead.values()
            ],
        )
        for n in (5, 14)
        for k in (3, 5, 10)
    )
    note = "The first of them takes 1.4 times less than all others; wrong is a factor larger than the true one."
    yield _table("A method is called farther behind than it is", note, "methods with seeds", ahead, rows)
    rows = (
        (
            f"{k}",
            [
                partial(won, replace(way, seeds=k, behind=math.log(1.2)), FEW, Methods.last_excluded)
                for name, way in unlike.items()
                if "noises" not in name
            ],
        )
        for k in (3, 5, 10)
    )
    note = "The last of 14 methods, with a noise of 5 %, takes 20 % longer than all others."
    shown = [name for name in unlike if "noises" not in name]
    yield _table("A slower method is excluded from those that may be the best", note, "seeds", shown, rows, false=False)
    rows = (
        (f"{seeds}", [partial(won, Methods(count, seeds, lead=math.log(1.2)), FEW) for count in (2, 4, 14)])
        for seeds in (1, 3, 5, 10)
    )
    note = "Noise of 5 %, seed by seed; the winner is 20 % faster than all others."
    heads = "2 methods", "4 methods", "14 methods"
    yield _table("A winner is found", note, "seeds", heads, rows, false=False)


def _claims() -> Iterator[Table]:
    ratio = Claims(1, ratio=True)
    ways = {
        "a score of 0.9 is at least 0.9": Claims(1, noise=0.01),
        "a ratio of times of 1 is at least 1": ratio,
        "the same, method by method, drift": replace(ratio, order="method by method", drift=math.log(1.1)),
        "the same, 4 rows": replace(ratio, rows=4),
    }
    rows = (
        (f"{seeds}", [partial(decided, replace(way, seeds=seeds), SOME) for way in ways.values()])
        for seeds in (1, 2, 3, 10)
    )
    note = 'The truth is on the bound: neither "holds" nor "fails" would be right without a doubt.'
    yield _table("A claim is decided wrongly", note, "seeds", ways, rows)
    sides: tuple[tuple[float, State], ...] = ((0.02, "holds"), (-0.02, "fails"))
    rows = (
        (f"{n}", [partial(decided, Claims(n, noise=0.01, beyond=far), SOME, (state,)) for far, state in sides])
        for n in (1, 3, 5, 10)
    )
    note = "Scores with a deviation of 1 point, 2 points above and below the bound."
    yield _table("A claim is decided rightly", note, "seeds", ("holds", "fails"), rows, false=False)


def _searches() -> Iterator[Table]:
    ways = {
        "one key, round, 1 study": Searches(2),
        "3 studies": Searches(2, studies=3),
        "one key, sharp, 1 study": Searches(2, round=False),
        "three keys, round, 1 study": Searches(2, keys=3),
        "its 3 studies": Searches(2, keys=3, studies=3),
    }
    rows = (
        (f"{n}", [partial(searched, replace(way, count=n), FEW, Searches.told_apart) for way in ways.values()])
        for n in (2, 5, 14)
    )
    note = (
        "Settings searched with 14 draws a study, a noise of 10 %, 5 seeds; no method is better than another at its "
        "best settings: what differs is which were drawn. Judged with what another search may change, as the report's "
        "sentence on it and `harness compare --method` do; its other verdicts are of the settings that were found."
    )
    yield _table("Equal methods are told apart after a search", note, "methods", ways, rows)
    rows = (
        (
            f"{t:g} times",
            [partial(searched, replace(way, count=5, lead=math.log(t)), FEW, Searches.ahead) for way in ways.values()],
        )
        for t in (1.3, 2.0, 4.0)
    )
    note = "The same searches of 5 methods; all but the first take so many times as long at their best settings."
    yield _table("A method is found to be ahead after a search", note, "takes", ways, rows, false=False)


def _targets() -> Iterator[Table]:
    ways = {
        "of the first's scores": Curves(2, 3),
        "runs come to 1 point more or less": Curves(2, 3, plateau=0.01),
        "of the best's scores": Curves(2, 3, plateau=0.005, of_best=True),
    }
    rows = (
        (f"{n} with {k}", [partial(derived, replace(way, count=n, seeds=k), FEW) for way in ways.values()])
        for n in (2, 5, 14)
        for k in (3, 10)
    )
    note = (
        "Methods that learn alike; the target is 1 point below the mean over seeds of a method's best scores, as where "
        "a suite names none. A run comes to 0.2 points more or less (a deviation; of the best's 0.5), and its epochs "
        "take 5 % more or less."
    )
    yield _table("Equal methods are distinguished at a derived target", note, "methods with seeds", ways, rows)


HEAD = f"""# Error rates

<!-- Made from the code by `python -m tools.error_rates`; do not edit. -->

How often `harness compare`, the report and `harness check-claims` say something that is not so, and how often they find
what is there. Runs are made up, so that the truth is known: run-to-run noise is a deviation of log(time), drift is a
step, a steady change or a random walk with a range of 10 %. "In turns" is A B A B; "with reference" means that the
reference workload ran before each trial and scatters by {100 * REFERENCE:g} %. Each rate is counted over
{FEW} to {MANY} draws, so that one of 5 % may show as {100 * (0.05 + 2 * math.sqrt(0.05 * 0.95 / FEW)):.0f} %.
The rules: [design/statistics.md](design/statistics.md#comparisons).

False statements are to be at most 5 %, all that is said of one comparison, ranking or claim together.
"""


def shown(rate: float) -> str:
    """Write a rate."""
    return f"{100 * rate:.1f} %"


def render(found: Iterable[Table]) -> str:
    """Return the page."""
    parts = [HEAD]
    for each in found:
        rows = [(name, *(shown(rate()) for rate in rates)) for name, rates in each.rows]
        parts.append(f"## {each.title}\n\n{each.note}\n\n{table(each.heads, rows)}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    Path(sys.argv[1] if len(sys.argv) > 1 else "docs/error-rates.md").write_text(render(tables()), encoding="utf-8")
